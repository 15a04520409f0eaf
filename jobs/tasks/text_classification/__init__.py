"""Texts, or pairs of texts, with one label of several."""
