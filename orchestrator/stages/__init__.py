"""The thin shell that turns decisions into Ray calls and results back into values."""
