"""Federated averaging of a small network, each site training by DP-SGD."""
