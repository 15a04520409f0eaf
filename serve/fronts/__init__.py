"""Processes in front of an engine in another one: a GPU is faster than any event loop."""
