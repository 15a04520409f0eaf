"""Continued pre-training of encoders: predicting hidden tokens of plain documents."""
