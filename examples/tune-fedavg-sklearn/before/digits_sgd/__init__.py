"""Federated averaging of a linear classifier of digits."""
