"""Sends a run's parameters, metrics, trials and files to the trackers that its job names."""

from orchestrator.tracking.tracking import Tracking, tracked

__all__ = ["Tracking", "tracked"]
