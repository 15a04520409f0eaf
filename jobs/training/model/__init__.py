"""The model: where it is, how big it is, how it is loaded, adapted and spread over workers."""
