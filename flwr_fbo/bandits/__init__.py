"""Bandits: each site decides for whoever comes next."""
