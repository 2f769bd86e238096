"""Whole federations in one process: with Flower's records, or without Flower."""
