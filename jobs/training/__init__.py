"""The torch side of a job: data, model, steps, evaluation and checkpoints, with no Ray in it."""
