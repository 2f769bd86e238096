"""Servers that lie to a site, to have more of it than it was charged for."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flwr_fbo._common.errors import RefusedError
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.privacy.spending_ledger import Charge, SpendingLedger
from tests.support.ledgers import ledger_charges
from tests.support.site_budget import (
    FOLDERS,
    Node,
    asked_of,
    node_of,
    site_of,
    study_of,
)


@FOLDERS
def test_an_iteration_that_goes_back_is_refused(
    tmp_path: Path, in_folder: bool
) -> None:
    """Its trial would change a message that has left, and was charged once."""
    node, study = node_of(tmp_path, in_folder), study_of()
    sent = node.ask(site_of(), asked_of(study, 1000, 1)).arrays[0]
    for iteration in (1, 999):
        with pytest.raises(JournalError, match=f"Round {iteration + 1} comes too late"):
            node.ask(site_of(), asked_of(study, iteration, 0))
    node.ask(site_of(), asked_of(study, 1001, 0))
    again = node.ask(site_of(), asked_of(study, 1000, 1)).arrays[0]
    np.testing.assert_array_equal(sent, again)


@pytest.mark.parametrize("iteration", [-3, 1.5, True, 2**70])
def test_what_is_no_iteration_leaves_the_journal_as_it_was(
    iteration: object, tmp_path: Path
) -> None:
    node, study = Node(tmp_path), study_of()
    wrong = {**asked_of(study, 0, 1), "fbo-iteration": iteration}
    with pytest.raises(ValueError, match=r"iteration=.* is not allowed"):
        node.ask(site_of(), wrong)
    assert node.ask(site_of(), asked_of(study, 0, 1)).arrays


def test_a_client_without_an_agent_id_has_one_slot_a_study(tmp_path: Path) -> None:
    """Whatever other studies are called, and however many there are in between."""
    for folder in (tmp_path, None):
        node, study = Node(folder), study_of(study_id="A")
        del node._config["agent-id"]
        node.ask(site_of(), asked_of(study, 0, 1, slot=0))
        node.ask(site_of(), asked_of(study_of(study_id="A-agent-x"), 0, 0))
        for slot in range(1, 4):
            with pytest.raises(JournalError):
                node.ask(site_of(), asked_of(study, 0, 1, slot))


def test_a_journal_that_lacks_a_release_is_refused_whatever_was_charged_since() -> None:
    node = Node(None)
    study = study_of((Charge(4.0), *(Charge(3.0),) * 2))
    node.ask(site_of(), asked_of(study, 0, 1))
    node.ask(
        site_of(), asked_of(study_of(study_id="hop"), 0, 0)
    )  # the journal is forgotten
    node.ask(site_of(), asked_of(study, 0, 2))
    with pytest.raises(JournalError, match="lacks release 1"):
        node.ask(site_of(), asked_of(study, 1, 1))


def test_agents_with_one_folder_are_charged_for_one_site(tmp_path: Path) -> None:
    first, second = Node(tmp_path), Node(tmp_path, **{"agent-id": 1})
    first.ask(site_of(), asked_of(study_of((Charge(1.2),)), 0, 1))
    with pytest.raises(RefusedError, match="max_epsilon_per_client=3"):
        second.ask(site_of(), asked_of(study_of((Charge(1.2),)), 0, 1, slot=1))
    second.ask(
        site_of(), asked_of(study_of((Charge(9.0),), study_id="b"), 0, 1, slot=1)
    )
    with SpendingLedger.held(tmp_path) as ledger:
        for owner in (0, 1, -1):
            assert ledger_charges(ledger, owner) == [Charge(1.2), Charge(9.0)]


def test_a_cheap_study_of_another_kind_pays_for_nothing(tmp_path: Path) -> None:
    """A kind is part of what is charged: both studies may bear one name."""
    node = Node(tmp_path)
    with SpendingLedger.held(tmp_path) as ledger:
        ledger.record(("linear-bandit", "x"), 1, Charge(1e4), owner=0)
    with pytest.raises(RefusedError, match="max_epsilon_per_client=3"):
        node.ask(site_of(), asked_of(study_of((Charge(0.01),), study_id="x"), 0, 1))


def test_a_promise_that_is_changed_is_another_study(tmp_path: Path) -> None:
    node, study = Node(tmp_path), study_of((Charge(9.0),) * 2)
    node.ask(site_of(), asked_of(study, 0, 1))
    louder = replace(study, promise=replace(study.promise, private=False))
    with pytest.raises((RefusedError, JournalError)):
        node.ask(site_of(), asked_of(louder, 1, 2))


def test_limits_that_do_not_outlive_a_run_say_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Node(tmp_path).ask(site_of(), study_of().enrolment())
    assert "fbo-folder" not in caplog.text
    Node(None).ask(site_of(), study_of().enrolment())
    assert "Set fbo-folder in the node config" in caplog.text
