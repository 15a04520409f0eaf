"""Job files: reading them safely and saying everything that is wrong with them."""

from jobs.loader.load import load, loads

__all__ = ["load", "loads"]
