"""The endpoint of sentence embeddings: texts in, vectors or similarities out."""
