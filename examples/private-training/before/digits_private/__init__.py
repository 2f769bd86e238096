"""Federated averaging of a small CNN of digits, each site training by DP-SGD."""
