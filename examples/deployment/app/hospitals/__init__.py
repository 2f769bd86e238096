"""Tune an SVM at sites that hold their own data."""
