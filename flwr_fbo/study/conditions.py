"""Conditions of the epsilon of studies, by what a ledger has of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flwr_fbo.privacy.conditions import FINISHED_TABLE, after_epsilon
from flwr_fbo.study.kinds import kind_named


def condition_of(kind: str, *, fixed_rows: bool = False) -> str:
    """Return the condition of a study's epsilon; empty if there is none."""
    known = kind_named(kind)
    own = "" if known is None else known.condition
    return FINISHED_TABLE if fixed_rows else own


def conditions_of(charges: Iterable[Mapping[str, Any]]) -> str:
    """Return what follows the epsilon of a ledger's charges together.

    Parameters
    ----------
    charges : iterable of mapping
        What `charge_facts` returned.
    """
    found = {
        condition_of(one["study_kind"], fixed_rows=one.get("fixed_rows", False))
        for one in charges
    }
    return after_epsilon(*sorted(found))
