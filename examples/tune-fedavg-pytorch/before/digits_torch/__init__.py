"""Federated averaging of a small CNN of digits."""
