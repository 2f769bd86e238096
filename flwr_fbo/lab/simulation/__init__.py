"""Whole federations in one process, without Flower."""
