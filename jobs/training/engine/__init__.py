"""One optimizer step over a batch, eager or captured as a CUDA graph."""
