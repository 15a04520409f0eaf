"""One optimizer step over a batch, run eagerly or captured as a CUDA graph."""
