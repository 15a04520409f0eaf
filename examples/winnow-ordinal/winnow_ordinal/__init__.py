"""Ordinal regression as a task for Winnow: texts with labels that have an order."""
