"""Flower clients around one agent: `NumPyClient` and Message API."""
