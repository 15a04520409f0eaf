"""The stages of a run: they turn decisions into Ray calls, and results into values."""
