"""Locates, measures, loads, adapts and distributes the model."""
