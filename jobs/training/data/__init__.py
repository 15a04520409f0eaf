"""Reads, tokenises and caches rows, and decides the order in which steps use them."""
