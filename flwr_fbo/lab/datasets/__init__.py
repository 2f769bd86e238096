"""Loaders: a partition in, arrays out."""
