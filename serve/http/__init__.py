"""HTTP for the endpoints of all tasks: tokens, size and time limits, metrics, traces."""
