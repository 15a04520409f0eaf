"""Endpoints of masked language models: fill the hidden words of a text."""
