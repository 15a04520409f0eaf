"""The endpoint of regressions: numbers for each text."""
