"""Decisions on what to try and what to choose: pure functions without Ray, torch or clock."""
