"""Conditions of an epsilon, in the words that follow it wherever it is shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

# A tuner's ballots are covered, and what the app trains and sends is not.
WITHOUT_TRAINING = "without the training"
# A site that decides by its own exact data: see `Promise.fixed_rows`.
FINISHED_TABLE = "for a finished table"

# By kind of study, as ledgers name it.
_OF_KINDS = {"federation-tuner": WITHOUT_TRAINING}


def after_epsilon(*conditions: str) -> str:
    """Return conditions as they follow an epsilon: each once, after a comma.

    Examples
    --------
    >>> f"epsilon 2{after_epsilon(WITHOUT_TRAINING, '', WITHOUT_TRAINING)}"
    'epsilon 2, without the training'
    """
    return "".join(f", {text}" for text in dict.fromkeys(conditions) if text)


def condition_of(kind: str, *, fixed_rows: bool = False) -> str:
    """Return the condition of a study's epsilon; empty if there is none."""
    return FINISHED_TABLE if fixed_rows else _OF_KINDS.get(kind, "")


def conditions_of(charges: Iterable[Mapping[str, Any]]) -> str:
    """Return what follows the epsilon of a ledger's charges together.

    Parameters
    ----------
    charges : iterable of mapping
        Charges, as `charge_facts` returned them.
    """
    found = {
        condition_of(facts["study_kind"], fixed_rows=facts.get("fixed_rows", False))
        for facts in charges
    }
    return after_epsilon(*sorted(found))
