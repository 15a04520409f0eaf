"""The endpoint of an encoder-decoder model: writes a text for each text."""
