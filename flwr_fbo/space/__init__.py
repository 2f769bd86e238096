"""The search space: Optuna distributions in, the unit cube out."""
