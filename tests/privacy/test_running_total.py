"""What a ledger keeps beside its rows is what the rows add up to."""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy import spending_ledger
from flwr_fbo.privacy.filters import Spent
from flwr_fbo.privacy.guarantee import CLIENT, EXAMPLE
from flwr_fbo.privacy.spending_ledger import (
    MARK,
    Charge,
    Charged,
    Facts,
    Promise,
    SpendingLedger,
    charge_facts,
    study_of,
)
from tests.support.site_budget import Node, asked_of, site_of
from tests.support.site_budget import study_of as made_study

CHARGES = Charge(4.0), Charge(9.0), Charge(6.0, 0.35), Charge(6.0, 0.35, 3)
STUDIES = [(kind, f"study-{number}") for kind in ("a", "b") for number in range(4)]


def _facts(rng: random.Random, number: int, *, is_marked: bool) -> Facts:
    charge, study = rng.choice(CHARGES), rng.choice(STUDIES)
    promised = rng.choice([(), (Charge(6.0, 0.35, 40),), (Charge(4.0),)])
    facts = charge_facts(study, number + 1, charge, rng.choice([-1, 0, 1]))
    unit = rng.choice([None, CLIENT, EXAMPLE])
    about = study, number + 1, charge, facts["owner"]
    facts = charge_facts(*about, promised=promised, unit=unit)
    return {**facts, MARK: [number + 1, number + 7]} if is_marked else facts


def _same(ledger: SpendingLedger) -> None:
    rows = [row.facts for row in ledger.rows]
    assert len(ledger) == len(rows)
    last: Any = rows[-1].get(MARK, (0, 0)) if rows else (0, 0)
    assert ledger.head == last[1]
    for owner in (-1, 0, 1):
        every = ledger.facts(owner)
        charged = ledger.charged(owner)
        for unit in (CLIENT, EXAMPLE):
            assert charged.groups(unit) == Charged(every).groups(unit)
            spent = Spent(charged.groups(unit), charged.num_releases, unit)
            assert spent == Spent.of(unit, every)
        for study in STUDIES:
            own = [facts for facts in every if study_of(facts) == study]
            assert ledger.counted_of(study, owner) == own
            assert ledger.all_of(study) == [f for f in rows if study_of(f) == study]
            for charge in (Charge(4.0, 1.0, 9), Charge(6.0, 0.35, 40)):
                for unit, other in product((CLIENT, EXAMPLE), repeat=2):
                    promise = Promise((charge,), True, unit=other)
                    found = Spent.with_study(unit, charged, own, promise)
                    assert found == Spent.of(unit, every, study, promise)


@pytest.mark.parametrize("is_marked", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_it_adds_up_to_the_rows(tmp_path: Path, seed: int, is_marked: bool) -> None:
    """Also where a version that did not know of it has added rows."""
    rng = random.Random(seed)
    for number in range(30):
        with SpendingLedger.held(tmp_path) as ledger:
            facts = _facts(rng, number, is_marked=is_marked)
            if number % 7 == 3:
                ledger.journal.add_release(LedgerRow(number, facts, np.zeros(0)), {})
                continue
            ledger.add(facts)
            assert ledger.has_charge(facts)
            _same(ledger)
        with SpendingLedger.held(tmp_path) as ledger:
            _same(ledger)


def test_studies_that_share_a_number_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spending_ledger, "_NUM_PLACES", 2)
    for number, study in enumerate(STUDIES):
        with SpendingLedger.held(tmp_path) as ledger:
            ledger.record(study, number + 1, Charge(4.0), 0)
    with SpendingLedger.held(tmp_path) as ledger:
        _same(ledger)


def test_a_message_does_not_read_what_other_studies_were_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, site = Node(tmp_path), site_of()
    node.ask(site, made_study(study_id="one").enrolment())
    node.ask(site, asked_of(made_study(study_id="one"), 0, 1))
    second = made_study(study_id="two")
    node.ask(site, second.enrolment())

    def reads(journal: Journal, iteration: int | None = None) -> list[LedgerRow]:
        raise AssertionError("the whole ledger is read")

    monkeypatch.setattr(Journal, "ledger", reads)
    for release in (1, 2):
        assert node.ask(site, asked_of(second, release - 1, release)).arrays
