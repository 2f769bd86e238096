"""Federated averaging of a small CNN."""
