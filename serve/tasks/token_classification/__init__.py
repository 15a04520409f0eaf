"""The endpoint of a classifier of tokens: texts in, entities out."""
