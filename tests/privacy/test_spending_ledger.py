"""What releases of several studies spend together."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flwr_fbo._common.fields import from_json, to_json
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.privacy.accounting import ReleaseAccountant
from flwr_fbo.privacy.gaussian import gaussian_epsilon
from flwr_fbo.privacy.guarantee import ONE_EXAMPLE_LESS
from flwr_fbo.privacy.spending_ledger import (
    FILE_NAME,
    Charge,
    Promise,
    SpendingLedger,
    composed_epsilon,
    least_epsilon,
)
from tests.support.ledgers import ledger_charges

A = ("tuning", "a")


def test_equal_charges_are_composed_as_an_accountant_does() -> None:
    accountant = ReleaseAccountant(0.35, 1e-3)
    accountant.charge(1.1, 4)
    together = composed_epsilon([Charge(1.1, 0.35)] * 3 + [Charge(1.1, 0.35)], 1e-3)
    assert together == pytest.approx(accountant.epsilon(), rel=1e-9)


@pytest.mark.parametrize("q", [1.0, 0.35, 1e-3])
@pytest.mark.parametrize("z", [0.0011, 0.3, 30.0])
def test_one_release_costs_what_is_the_least(z: float, q: float) -> None:
    one, delta = Charge(z, q), 1e-5
    least = least_epsilon([one], delta)
    assert least <= composed_epsilon([one], delta) * (1 + 1e-9)
    if z >= 0.3:
        assert least == pytest.approx(composed_epsilon([one], delta), rel=0.03, abs=0.1)
    assert least_epsilon([Charge(100.0), one, Charge(50.0)], delta) >= least
    assert least_epsilon([Charge(z, q, 7)], delta) == least


def test_what_is_the_least_of_nothing_and_without_noise() -> None:
    assert least_epsilon([], 1e-5) == 0
    assert least_epsilon([Charge(0.0)], 1e-5) == math.inf
    assert least_epsilon([Charge(1.0, 1e-6)], 1e-5) == 0


def test_a_promise_has_no_more_releases_than_can_be_added_up() -> None:
    charges = (Charge(1e5, 0.5, 5_000), Charge(1e6, 0.5, 5_001))
    with pytest.raises(ValueError, match="num_releases=10001 is not allowed"):
        Promise(charges, True)
    # Those of a training are steps.
    assert Promise(charges, True, unit=ONE_EXAMPLE_LESS).num_releases == 10_001
    more = (*charges, Charge(1.0, 0.5, 90_000))
    with pytest.raises(ValueError, match="num_releases=100001 is not allowed"):
        Promise(more, True, unit=ONE_EXAMPLE_LESS)


def test_where_all_take_part_the_composition_is_one_gaussian_mechanism() -> None:
    charges = [Charge(1.0, num_releases=2), Charge(2.0)]
    expected = gaussian_epsilon(1e-5, math.sqrt(2 + 1 / 4))
    assert composed_epsilon(charges, 1e-5) == pytest.approx(expected, rel=1e-12)


def test_different_sampling_probabilities_lie_between_the_extremes() -> None:
    mixed = composed_epsilon([Charge(1.0, 0.35, 4), Charge(1.0, 1.0, 2)], 1e-3)
    assert composed_epsilon([Charge(1.0, 0.35, 6)], 1e-3) < mixed
    assert mixed < composed_epsilon([Charge(1.0, 1.0, 6)], 1e-3)


def test_nothing_costs_nothing_and_no_noise_costs_everything() -> None:
    assert composed_epsilon([], 1e-3) == 0.0
    assert composed_epsilon([Charge(1.0), Charge(0.0)], 1e-3) == math.inf


@pytest.mark.parametrize(
    ("field", "charge"),
    [
        ("noise_multiplier", {"noise_multiplier": -1.0}),
        ("noise_multiplier", {"noise_multiplier": 1e308}),
        ("sampling_probability", {"noise_multiplier": 1.0, "sampling_probability": 0}),
        ("num_releases", {"noise_multiplier": 1.0, "num_releases": 0}),
        ("num_releases", {"noise_multiplier": 1.0, "num_releases": 10**7}),
    ],
)
def test_a_wrong_charge_is_named(field: str, charge: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=field):
        Charge(**charge)


def test_a_promise_travels_as_json() -> None:
    promise = Promise((Charge(1.5, 0.2), Charge(2.5)), True, 1e-3, True)
    assert from_json(Promise, json.loads(json.dumps(to_json(promise)))) == promise


def test_a_release_is_charged_once_and_survives_the_process(tmp_path: Path) -> None:
    for _ in range(2):
        with SpendingLedger.held(tmp_path) as ledger:
            ledger.record(A, 1, Charge(1.0))
            ledger.record(A, 2, Charge(1.0))
            ledger.record(("linear-bandit", "a"), 1, Charge(2.0, 0.5))
    with SpendingLedger.held(tmp_path) as ledger:
        assert ledger_charges(ledger) == [Charge(1.0), Charge(1.0), Charge(2.0, 0.5)]
        [other] = ledger.facts(without=A)
        assert other["charge"] == [2.0, 0.5, 1]
        assert ledger.has(A, 2)
        assert not ledger.has(A, 3)


def test_another_journal_is_no_spending_ledger(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"not a journal, but some text of that length")
    with pytest.raises(JournalError, match=FILE_NAME), SpendingLedger.held(tmp_path):
        pass


def test_agents_that_share_a_ledger_are_charged_each_for_its_own(
    tmp_path: Path,
) -> None:
    with SpendingLedger.held(tmp_path) as ledger:
        ledger.record(A, 1, Charge(1.0), owner=0)
        ledger.record(A, 1, Charge(2.0), owner=1)
        ledger.record(A, 2, Charge(3.0))  # of whoever has no slot of its own
        assert ledger_charges(ledger, owner=0) == [Charge(1.0), Charge(3.0)]
        assert ledger_charges(ledger, owner=1) == [Charge(2.0), Charge(3.0)]
        assert len(ledger_charges(ledger)) == 3


def test_a_promise_is_short_enough_to_be_composed() -> None:
    many = [Charge(1.0 + k / 1000) for k in range(101)]
    with pytest.raises(ValueError, match="at most 100 different"):
        Promise.of(many, private=True, delta=1e-3)
    longest = Promise.of([Charge(1.0)] * 9999, private=True, delta=1e-3)
    assert longest.num_releases == 9999


@pytest.mark.parametrize("mode", [0o666, 0o620, 0o602])
def test_a_ledger_that_others_may_write_is_not_used(tmp_path: Path, mode: int) -> None:
    with SpendingLedger.held(tmp_path) as ledger:
        ledger.record(A, 1, Charge(1.0))
    (tmp_path / FILE_NAME).chmod(mode)
    with (
        pytest.raises(JournalError, match="others may write it") as error,
        SpendingLedger.held(tmp_path),
    ):
        pass
    assert str(tmp_path) not in error.value.public
    (tmp_path / FILE_NAME).chmod(0o640)
    with SpendingLedger.held(tmp_path) as ledger:
        assert ledger_charges(ledger) == [Charge(1.0)]


def test_a_ledger_of_another_user_is_not_used(
    tmp_path: Path, belongs: Callable[[Path, int], None]
) -> None:
    with SpendingLedger.held(tmp_path):
        pass
    other = os.geteuid() + 1
    belongs(tmp_path / FILE_NAME, other)
    with (
        pytest.raises(JournalError, match=f"belongs to user {other}"),
        SpendingLedger.held(tmp_path),
    ):
        pass
