"""Training with torch: data, model, steps, evaluation and checkpoints; imports no Ray."""
