"""Rows as tokens: reading, encoding, caching, and the order in which steps see them."""
