"""The job specification: what a user may write, one noun a module."""

from jobs.spec.job import JobSpec

__all__ = ["JobSpec"]
