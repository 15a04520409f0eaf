"""Requests that share a batch: a queue in tokens, which rows run together, how long to wait."""
