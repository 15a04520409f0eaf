"""Sentence embedding: texts that mean the same get vectors of the same direction."""
