"""What `tests/site/test_lost_ledgers.py` and others share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flwr_fbo import Limits
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.privacy.spending_ledger import Charge
from tests.support.gate import NODE, Site, gate_app, private_bandit_study
from tests.support.site_budget import Node, asked_of, site_of, study_of

LIMITS = Limits(max_epsilon_per_client=9, max_epsilon_per_example=30, max_delta=1e-5)


def play_tuning(folder: Path, name: str = "one") -> None:
    node, study = Node(folder), study_of((Charge(9.0),) * 2, study_id=name)
    node.ask(site_of(), study.enrolment())
    for k in (0, 1):
        node.ask(site_of(), asked_of(study, k, k + 1))


def play_bandit(kind: str) -> Callable[..., None]:
    def play(folder: Path, name: str = "one") -> None:
        node = Node(folder)
        site, make = private_bandit_study(kind, LIMITS)
        study, asked = make(name)
        number = node.ask(site, study.enrolment()).metrics["journal"]
        node.ask(site, asked(number))

    return play


def play_tuner(folder: Path, name: str = "a") -> None:
    node = {**NODE, "fbo-max-releases": 9, "fbo-folder": str(folder)}
    site = Site(gate_app(), **node)
    site.run_trials()
    reply = site.ask_ballot(attempt=name)
    if reply.has_error():
        raise JournalError(str(reply.error.reason))


PLAYS = {
    "tuning": play_tuning,
    "linear": play_bandit("linear"),
    "neural": play_bandit("neural"),
    "tuner": play_tuner,
}


EACH = pytest.mark.parametrize("name", PLAYS)
