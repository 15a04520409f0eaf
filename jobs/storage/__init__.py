"""Where runs, checkpoints and model versions are kept: a folder, or a bucket. No torch, no Ray."""
