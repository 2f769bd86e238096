"""Federated epsilon-greedy: sites share how often each arm was played, and its sum."""
