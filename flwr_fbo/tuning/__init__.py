"""Tuning: each site tunes its own model."""
