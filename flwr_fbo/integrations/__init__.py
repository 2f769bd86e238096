"""Optuna: a sampler around an agent, and an export of its trials."""
