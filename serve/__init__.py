"""Serves a published model version as an endpoint on Ray Serve."""
