"""Optuna (a sampler, an export of trials), and trackers: MLflow and TensorBoard."""
