"""Terms of the epsilon of studies, by what a ledger has of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flwr_fbo.privacy.conditions import FINISHED_TABLE
from flwr_fbo.privacy.guarantee import CLIENT, EXAMPLE, Guarantee, PrivacyUnit
from flwr_fbo.privacy.spending_ledger import Promise, unit_of
from flwr_fbo.study.kinds import kind_named


def condition_of(kind: str, *, fixed_rows: bool = False) -> str:
    """Return the condition of a study's epsilon; empty if there is none."""
    known = kind_named(kind)
    own = "" if known is None else known.condition
    return FINISHED_TABLE if fixed_rows else own


def promised_guarantee(kind: str, promise: Promise) -> Guarantee:
    """Return the terms of the epsilon that a study of a kind promises."""
    condition = condition_of(kind, fixed_rows=promise.fixed_rows)
    return Guarantee(promise.unit, conditions=(condition,) if condition else ())


def total_guarantee(
    charges: Iterable[Mapping[str, Any]], total: PrivacyUnit
) -> Guarantee:
    """Return the terms of the epsilon of a ledger's charges together.

    Parameters
    ----------
    charges : iterable of mapping
        What `charge_facts` returned.
    total : PrivacyUnit
        Unit that they are added up for.
    """
    found = {
        condition_of(one["study_kind"], fixed_rows=one.get("fixed_rows", False))
        for one in charges
        if total == EXAMPLE or not protects_example(one)
    }
    return Guarantee(total, conditions=tuple(sorted(found - {""})))


def totals_of(charges: Iterable[Mapping[str, Any]]) -> tuple[PrivacyUnit, ...]:
    """Return the units that a ledger's charges are added up for.

    Where all of them protect a client, the total of an example follows from that of a
    client, and is not told apart.
    """
    found = {protects_example(one) for one in charges}
    return (CLIENT,) * (found != {True}) + (EXAMPLE,) * (True in found)


def protects_example(charge: Mapping[str, Any]) -> bool:
    """Return whether a charge is of what protects an example, and no client."""
    unit = unit_of(charge)
    return unit is not None and unit.protects == "example"
