"""Requests over HTTP for any task: who may ask, how much and how long, and what is counted."""
