"""Storage of runs, checkpoints and model versions: a folder or an S3 bucket. No torch, no Ray."""
