"""Engines compute the logits of tokenised rows with a model on one device."""
