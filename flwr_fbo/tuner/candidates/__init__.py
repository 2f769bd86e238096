"""Candidates: the settings that are tried."""
