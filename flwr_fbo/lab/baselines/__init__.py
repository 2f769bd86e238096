"""Baselines that the published methods are compared with."""
