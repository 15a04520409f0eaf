"""The endpoint of a text classifier: texts in, labels out."""
