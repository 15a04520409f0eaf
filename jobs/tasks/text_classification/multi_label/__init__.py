"""Texts, or pairs of texts, with any number of labels."""
