"""What works with a served model but is no part of an endpoint: load, timings, exports."""
