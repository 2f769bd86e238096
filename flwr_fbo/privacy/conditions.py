"""Conditions of an epsilon, in the words that follow it wherever it is shown."""

from __future__ import annotations

# A tuner's ballots are covered, and what the app trains and sends is not.
WITHOUT_TRAINING = "without the training"
# Of a total with trainings: nobody can tell whether an app has charged all of them.
CHARGED_TRAINING = "with the training as far as it was charged"
# A site that decides by its own exact data: see `Promise.fixed_rows`.
FINISHED_TABLE = "for a finished table"


def after_epsilon(*conditions: str) -> str:
    """Return conditions as they follow an epsilon: each once, after a comma.

    Examples
    --------
    >>> f"epsilon 2{after_epsilon(WITHOUT_TRAINING, '', WITHOUT_TRAINING)}"
    'epsilon 2, without the training'
    """
    return "".join(f", {text}" for text in dict.fromkeys(conditions) if text)
