"""Models with an encoder and a decoder, which learn to write a target for each source."""
