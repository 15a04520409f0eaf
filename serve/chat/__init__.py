"""A language model behind an endpoint: conversations in, answers out as they are written."""
