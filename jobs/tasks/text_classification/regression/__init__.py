"""Texts, or pairs of texts, with numbers."""
