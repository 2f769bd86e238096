"""Tuning agents: their own search, and what each algorithm adds to it."""
