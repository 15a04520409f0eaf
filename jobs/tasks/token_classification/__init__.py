"""Texts with a label for each word: entities such as persons and places."""
