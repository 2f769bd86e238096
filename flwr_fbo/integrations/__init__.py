"""Optuna (a sampler, an export of trials), and trackers: MLflow and TensorBoard."""

from flwr_fbo._common.public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
