"""Releases, their noise and their accounting."""
