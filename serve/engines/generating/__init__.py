"""Engines that write tokens: batches of rows whose next tokens a model computes together."""
