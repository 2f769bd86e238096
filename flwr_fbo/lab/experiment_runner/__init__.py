"""Experiments: which methods on which task, run, summed up and drawn."""
