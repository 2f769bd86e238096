"""Terms of the epsilon of studies, by what a ledger has of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flwr_fbo.privacy.conditions import (
    CHARGED_TRAINING,
    FINISHED_TABLE,
    WITHOUT_TRAINING,
)
from flwr_fbo.privacy.filters import Spent
from flwr_fbo.privacy.guarantee import (
    CLIENT,
    EXAMPLE,
    ONE_EXAMPLE_LESS,
    Guarantee,
    PrivacyUnit,
)
from flwr_fbo.privacy.spending_ledger import TRAINING, Promise, unit_of
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
    every = [*charges]
    found = {
        condition_of(one["study_kind"], fixed_rows=one.get("fixed_rows", False))
        for one in every
        if total.protects == "example" or not protects_example(one)
    }
    if total.protects == "example" and any(
        one["study_kind"] == TRAINING for one in every
    ):
        found = found - {WITHOUT_TRAINING} | {CHARGED_TRAINING}
    return Guarantee(total, conditions=tuple(sorted(found - {""})))


def totals_of(charges: Iterable[Mapping[str, Any]]) -> tuple[PrivacyUnit, ...]:
    """Return the units that a ledger's charges are added up for.

    Where all of them protect a client, the total of an example follows from that of a
    client, and is not told apart. Without a training both totals of an example are the
    same: then it is replaced by another, which says more.
    """
    found = {unit_of(one) for one in charges}
    of_examples = found & {EXAMPLE, ONE_EXAMPLE_LESS}
    totals = (CLIENT,) * (not found or found != of_examples)
    if ONE_EXAMPLE_LESS in found:
        return (*totals, ONE_EXAMPLE_LESS)
    return totals + (EXAMPLE,) * bool(of_examples)


def totals_text(charges: Sequence[Mapping[str, Any]], delta: float) -> str:
    """Return what a ledger's charges have spent, by unit, with all terms."""
    return " and ".join(
        Spent.of(unit, charges).text(
            delta,
            total_guarantee(charges, unit),
            Spent.of(EXAMPLE, charges) if unit == ONE_EXAMPLE_LESS else None,
        )
        for unit in totals_of(charges)
    )


def protects_example(charge: Mapping[str, Any]) -> bool:
    """Return whether a charge is of what protects an example, and no client."""
    unit = unit_of(charge)
    return unit is not None and unit.protects == "example"
