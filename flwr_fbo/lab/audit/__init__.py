"""Empirical lower bounds on what is released, and faults that they must find."""
