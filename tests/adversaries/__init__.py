"""Servers that write anything, generated."""
