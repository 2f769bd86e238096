"""Ballots: one bounded vector of a client about the trials of a rung."""
