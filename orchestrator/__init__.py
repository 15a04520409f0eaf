"""Decides and drives: from a job to a plan, a sweep, a winner, a model and an endpoint."""
