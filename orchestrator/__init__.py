"""Decides and drives: from a job to a plan, a sweep, a winner, a model and an endpoint."""

from raywinnow import paths

paths.load()  # a notebook's folder may hold a `serve.py`
