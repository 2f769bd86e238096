"""Decisions: which trials go on, and how sure that is."""
