"""Trainings that a site's ledger counts, before they begin."""

from __future__ import annotations

import json
import logging
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict
from typer.testing import CliRunner

from flwr_fbo import Limits, PrivateChoice, charge_training
from flwr_fbo._common.errors import NodeConfigError, RefusedError
from flwr_fbo.cli import app as cli
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.privacy import DPSGD, plan_training
from flwr_fbo.privacy.filters import Spent
from flwr_fbo.privacy.gaussian import gaussian_mu
from flwr_fbo.privacy.guarantee import CLIENT, EXAMPLE, ONE_EXAMPLE_LESS
from flwr_fbo.privacy.spending_ledger import (
    FILE_NAME,
    Charge,
    Facts,
    Promise,
    SpendingLedger,
    composed_epsilon,
)
from flwr_fbo.site.gate import Gate
from flwr_fbo.site.proofs import recover
from tests.support.killing import NUM_KILLS, killed_in

DELTA = 1e-5
ROUND = DPSGD(1.1, 0.05, 20)
PLAN = DPSGD(1.1, 0.05, 60)


def site(folder: Path | None, run_id: int = 7, **limits: float) -> Context:
    config: dict[str, Any] = {
        f"fbo-{name.replace('_', '-')}": value for name, value in limits.items()
    }
    if limits and "max_delta" not in limits:
        config["fbo-max-delta"] = DELTA
    if folder is not None:
        config["fbo-folder"] = str(folder)
    return Context(run_id, 1, config, RecordDict(), {})


def facts_in(folder: Path) -> list[Facts]:
    with SpendingLedger.held(folder) as ledger:
        return ledger.facts()


def groups_in(folder: Path) -> tuple[tuple[Charge, ...], ...]:
    return Spent.of(ONE_EXAMPLE_LESS, facts_in(folder)).groups


def test_a_plan_counts_whole_at_first_and_later_rounds_are_within(
    tmp_path: Path,
) -> None:
    folder, context = tmp_path / "site", site(tmp_path / "site")
    for k in range(1, 4):
        charge_training(context, ROUND, plan=PLAN)
        assert groups_in(folder) == ((PLAN.charge,),)
        assert len(facts_in(folder)) == k
    # Trained once more: it counts besides, by itself.
    charge_training(context, ROUND, plan=PLAN)
    assert groups_in(folder) == ((PLAN.charge,), (ROUND.charge,))
    # Another run has a plan of its own.
    charge_training(site(folder, 8), ROUND, plan=PLAN)
    assert groups_in(folder)[2:] == ((PLAN.charge,),)
    # A run that is begun again goes on with what is left of that.
    charge_training(site(folder, 9), ROUND, plan=PLAN)
    assert len(groups_in(folder)) == 3
    numbers = [(f["study_id"], f["release"], f["plan"]) for f in facts_in(folder)]
    of_seven = [("run 7", k, 1) for k in (1, 2, 3)]
    assert numbers == [*of_seven, ("run 7", 4, 2), ("run 8", 1, 1), ("run 8", 2, 1)]
    assert Spent.of(CLIENT, facts_in(folder)).groups == ()


@pytest.mark.parametrize(
    "steps",
    [
        DPSGD(1.1, 0.05, 60),
        DPSGD(2.0, 0.01, 60),  # of a trial with smaller batches
        (DPSGD(1.1, 0.05, 40), DPSGD(1.2, 0.04, 20)),
    ],
)
def test_a_round_with_as_much_noise_is_within_the_plan(
    tmp_path: Path, steps: Any
) -> None:
    charge_training(site(tmp_path), steps, plan=PLAN)
    assert groups_in(tmp_path) == ((PLAN.charge,),)


@pytest.mark.parametrize(
    "steps",
    [
        DPSGD(1.0, 0.05, 1),
        DPSGD(1.1, 0.06, 1),
        DPSGD(1.1, 0.05, 61),
        DPSGD(9.0, 0.05, 1, poisson=False),
    ],
)
def test_a_plan_that_does_not_cover_its_round_is_refused(
    tmp_path: Path, steps: DPSGD
) -> None:
    """It would be no plan: each round would count by itself."""
    said = re.escape(f"one that covers the training: {steps!r}")
    with pytest.raises(ValueError, match=f"^plan=DPSGD.* is not allowed: {said}"):
        charge_training(site(tmp_path), steps, plan=PLAN)
    assert not (tmp_path / FILE_NAME).exists()


def test_several_noise_multipliers_are_one_plan(tmp_path: Path) -> None:
    plan = (DPSGD(1.0, 0.1, 10), DPSGD(2.0, 0.1, 20))
    # Noisy steps may take the place of steps with less noise, and not the reverse.
    for steps in (DPSGD(2.0, 0.1, 15), DPSGD(2.5, 0.1, 5), DPSGD(1.0, 0.1, 10)):
        charge_training(site(tmp_path), steps, plan=plan)
    whole = tuple(each.charge for each in plan)
    assert groups_in(tmp_path)[0] == whole


def test_a_limit_refuses_before_it_is_passed_and_tells_the_site_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cost = composed_epsilon([PLAN.charge], DELTA)
    context = site(tmp_path, max_epsilon_per_example=1.02 * cost)
    for _ in range(3):
        charge_training(context, ROUND, plan=PLAN)
    before = facts_in(tmp_path)
    public = "This site takes no part: its limits."
    with (
        caplog.at_level(logging.WARNING, "flwr.fbo"),
        pytest.raises(RefusedError, match=f"^{public}$") as error,
    ):
        charge_training(context, ROUND, plan=PLAN)
    assert error.value.public == public
    assert "per example (with or without it, delta 1e-05; " in caplog.text
    assert "max_epsilon_per_example=" in caplog.text
    assert facts_in(tmp_path) == before
    # A plan is refused as a whole, before its first round.
    small = site(tmp_path / "small", max_epsilon_per_example=0.98 * cost)
    with pytest.raises(RefusedError):
        charge_training(small, ROUND, plan=PLAN)
    assert not facts_in(tmp_path / "small")


def test_limits_of_the_app_and_on_releases_hold_too(tmp_path: Path) -> None:
    few = Limits(max_releases=2)
    for _ in range(2):  # a round is one release, whatever its steps
        charge_training(site(tmp_path), ROUND, plan=PLAN, limits=few)
    with pytest.raises(RefusedError):
        charge_training(site(tmp_path), ROUND, plan=PLAN, limits=few)
    assert len(facts_in(tmp_path)) == 2
    with pytest.raises(RefusedError, match="max_epsilon_per_example"):
        charge_training(site(tmp_path, max_epsilon_per_client=9.0), ROUND)


def test_a_round_of_several_parts_is_one_release(tmp_path: Path) -> None:
    parts = (DPSGD(5.0, 0.05, 1), DPSGD(6.0, 0.05, 1), DPSGD(5.0, 0.05, 2))
    few = Limits(max_releases=2)
    for _ in range(2):
        charge_training(site(tmp_path), parts, limits=few)
    with pytest.raises(RefusedError):
        charge_training(site(tmp_path), parts, limits=few)
    # Equal ones are one charge.
    assert [f["charge"] for f in facts_in(tmp_path)[:2]] == [[5, 0.05, 3], [6, 0.05, 1]]
    assert Spent.of(CLIENT, facts_in(tmp_path)).num_releases == 2


def test_without_a_folder_limits_hold_as_long_as_the_context() -> None:
    cost = composed_epsilon([ROUND.charge], DELTA)
    context = site(None, max_epsilon_per_example=1.1 * cost)
    charge_training(context, ROUND)
    with pytest.raises(RefusedError):
        charge_training(context, ROUND)
    charge_training(site(None, max_epsilon_per_example=1.1 * cost), ROUND)
    unlimited = site(None)
    charge_training(unlimited, ROUND)
    assert not unlimited.state


@pytest.mark.parametrize("epsilon", [0.5, 3.5, 5.0])
def test_a_training_fits_beside_the_choice_that_it_was_planned_with(
    tmp_path: Path, epsilon: float
) -> None:
    """The site is asked about the choice first, and charged for it last."""
    choice = PrivateChoice(epsilon, DELTA, protects="example")
    plan = plan_training(
        8.0, DELTA, sampling_probability=0.05, num_steps=60, choice=choice
    ).training
    context = site(tmp_path, max_epsilon_per_example=8.0)
    noise = 1 / gaussian_mu(epsilon, DELTA)
    promise = Promise((Charge(noise),), True, DELTA, unit=EXAMPLE)
    key = ("federation-tuner", "a")
    Gate(context, tmp_path).admit(key, promise, "FederationTuner")
    one_round = replace(plan, num_steps=20)
    for _ in range(3):
        charge_training(context, one_round, plan=plan)
    gate = Gate(context, tmp_path)
    gate.admit(key, promise, "FederationTuner")
    gate.charge(key, promise, 1)
    spent = Spent.of(ONE_EXAMPLE_LESS, facts_in(tmp_path)).epsilon(DELTA)
    assert 7.9 < spent <= 8.0 * (1 + 1e-6)


def test_a_training_that_was_refused_does_not_block_another(tmp_path: Path) -> None:
    context = site(tmp_path, max_epsilon_per_example=8.0)
    for total in (8.1, 7.9):
        plan = plan_training(total, DELTA, sampling_probability=0.05, num_steps=60)
        if total > 8.0:
            with pytest.raises(RefusedError):
                charge_training(context, plan.training)
        else:
            charge_training(context, plan.training)
    assert len(facts_in(tmp_path)) == 1


def test_limits_that_a_new_folder_evades_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The run config's folder is the server's choice."""
    said = "This site's limits cover only this run, or its folder."
    own = site(tmp_path / "own", max_epsilon_per_example=8.0)
    of_run = site(None, max_epsilon_per_example=8.0)
    of_run.run_config["fbo-folder"] = str(tmp_path / "run")
    with caplog.at_level(logging.WARNING, "flwr.fbo"):
        charge_training(own, ROUND)
        charge_training(site(tmp_path / "free"), ROUND)
        assert said not in caplog.text
        for context in (of_run, site(None, max_epsilon_per_example=8.0)):
            caplog.clear()
            charge_training(context, ROUND)
            assert said in caplog.text


def test_it_says_what_is_not_allowed(tmp_path: Path) -> None:
    charge: Any = charge_training
    context = site(tmp_path)
    for wrong in (None, 1.1, [], [ROUND, 1]):
        with pytest.raises(ValueError, match=r"^training=.*a DPSGD, or several"):
            charge(context, wrong)
    with pytest.raises(ValueError, match=r"^num_steps of training=120000 "):
        charge(context, [DPSGD(1.1, 0.05, 60_000)] * 2)
    with pytest.raises(ValueError, match=r"^plan=1\.1"):
        charge(context, ROUND, plan=1.1)
    with pytest.raises(ValueError, match=r"^limits="):
        charge(context, ROUND, limits=8.0)
    with pytest.raises(NodeConfigError, match="fbo-max-epsilon-per-example"):
        charge_training(site(tmp_path, max_epsilon_per_example=-1.0), ROUND)
    assert not (tmp_path / FILE_NAME).exists()


def test_journals_prove_a_training_of_which_the_ledger_is_gone(tmp_path: Path) -> None:
    for _ in range(2):
        charge_training(site(tmp_path), ROUND, plan=PLAN)
    whole = facts_in(tmp_path)
    (tmp_path / FILE_NAME).unlink()
    with pytest.raises(JournalError, match="ledger"):
        charge_training(site(tmp_path), ROUND, plan=PLAN)
    recover(tmp_path)
    assert facts_in(tmp_path) == whole
    charge_training(site(tmp_path), ROUND, plan=PLAN)
    assert groups_in(tmp_path) == ((PLAN.charge,),)


@pytest.mark.parametrize("is_own", [True, False])
def test_a_note_of_another_charge_stands_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_own: bool
) -> None:
    """A process ended between note and ledger, and another training follows."""
    context = site(tmp_path if is_own else None, max_epsilon_per_example=8.0)
    if not is_own:
        context.run_config["fbo-folder"] = str(tmp_path)
    cheap, dear = DPSGD(50.0, 0.01, 1), DPSGD(1.1, 0.05, 200)
    with monkeypatch.context() as ended:
        ended.setattr(SpendingLedger, "add", _raise_an_interrupt)
        with pytest.raises(KeyboardInterrupt):
            charge_training(context, cheap)
    if is_own:  # it looks for such a note itself
        charge_training(context, dear)
    else:
        with pytest.raises(JournalError, match="`flwr-fbo ledger recover` counts it"):
            charge_training(context, dear)
        assert not facts_in(tmp_path)
        assert recover(tmp_path).of_journals == 1
        charge_training(context, dear)
    assert groups_in(tmp_path) == ((cheap.charge,), (dear.charge,))


def _raise_an_interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_the_same_charge_goes_on_after_its_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = site(None, max_epsilon_per_example=8.0)
    context.run_config["fbo-folder"] = str(tmp_path)
    with monkeypatch.context() as ended:
        ended.setattr(SpendingLedger, "add", _raise_an_interrupt)
        with pytest.raises(KeyboardInterrupt):
            charge_training(context, ROUND, plan=PLAN)
    charge_training(context, ROUND, plan=PLAN)
    assert groups_in(tmp_path) == ((PLAN.charge,),)


def test_recovery_counts_what_is_noted_while_it_waits_for_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process charges, and ends between note and ledger."""
    charge_training(site(tmp_path), ROUND)
    held = SpendingLedger.held

    @contextmanager
    def held_after_another(folder: Path) -> Iterator[SpendingLedger]:
        with monkeypatch.context() as other:
            other.setattr(SpendingLedger, "held", held)
            other.setattr(SpendingLedger, "add", _raise_an_interrupt)
            with pytest.raises(KeyboardInterrupt):
                charge_training(site(tmp_path, 8), ROUND)
        with held(folder) as ledger:
            yield ledger

    with monkeypatch.context() as waiting:
        waiting.setattr(SpendingLedger, "held", held_after_another)
        recover(tmp_path)
    assert len(facts_in(tmp_path)) == 2


# Killed at any instant.

NUM_ROUNDS = 4


def _train(folder: Path) -> None:
    """Train rounds, each charged first; what was trained is written down."""
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    for _ in range(NUM_ROUNDS):
        charge_training(site(folder / "site"), ROUND, plan=PLAN)
        with (folder / "trained").open("a") as file:
            file.write("a round\n")


@pytest.mark.parametrize(
    "num_kills",
    [
        6,
        pytest.param(NUM_KILLS, marks=[pytest.mark.slow, pytest.mark.no_cover]),
    ],
    ids=["few", "many"],
)
def test_a_ledger_is_never_below_what_was_trained(
    tmp_path: Path, num_kills: int
) -> None:
    rng, kills, tries = random.Random(1), 0, 0
    (tmp_path / "whole").mkdir()
    statements = killed_in(None, _train, tmp_path / "whole")
    assert statements is not None
    while kills < num_kills:
        folder = tmp_path / f"run-{tries}"
        folder.mkdir()
        tries += 1
        spent = 0.0
        for most in (*(rng.randrange(statements) for _ in range(3)), None):
            was_killed = killed_in(most, _train, folder) is None
            kills += was_killed
            trained = folder / "trained"
            count = len(trained.read_text().split("\n")) - 1 if trained.exists() else 0
            there = (folder / "site").is_dir()
            known = facts_in(folder / "site") if there else []
            charged = sum(facts["charge"][2] for facts in known)
            assert charged >= count * ROUND.num_steps
            # It never falls, and holds what was trained.
            now = Spent.of(ONE_EXAMPLE_LESS, known).epsilon(DELTA)
            steps = count * ROUND.num_steps
            fixed = [DPSGD(1.1, 0.05, steps).charge] if count else []
            assert now >= max(spent, composed_epsilon(fixed, DELTA) * (1 - 1e-3))
            spent = now
            if not was_killed:
                break
        assert kills >= tries or kills >= num_kills
    print(f"{kills} kills in {tries} runs")


# What is told.


def test_a_ledger_shows_training_choice_and_both(tmp_path: Path) -> None:
    charge_training(site(tmp_path), ROUND, plan=DPSGD(1.0, 0.05, 540))
    with SpendingLedger.held(tmp_path) as ledger:
        ledger.record(("federation-tuner", "a"), 1, Charge(8.46), unit=EXAMPLE)
    shown = CliRunner().invoke(cli, ["ledger", "show", str(tmp_path)])
    assert shown.exit_code == 0
    text = " ".join(shown.output.split())
    terms = "per example (with or without it, delta 1e-05; "
    for sort, epsilon in (("of training", "7.8361"), ("of all studies together", "")):
        assert f"{sort}: epsilon {epsilon}" in text
        assert terms in text.partition(sort)[2]
    assert "of studies that protect one example: epsilon 0.4" in text
    together = text.partition("of all studies together")[2]
    assert ", with the training as far as it was charged" in together
    assert ", without the training" not in together
    shown = CliRunner().invoke(cli, ["ledger", "show", str(tmp_path), "--json"])
    [ledger_values] = json.loads(shown.output)
    values = {one["of"]: one for one in ledger_values["spent"]}
    both = values["of all studies together"]
    assert both["unit"] == "example"
    assert both["adjacency"] == "zeroed"
    assert both["delta"] == DELTA
    assert 7.84 < both["epsilon"] < 8.0 < both["epsilon_if_replaced"] < 13.0
    assert values["of training"]["epsilon"] == pytest.approx(7.836, rel=1e-3)
    only_choice = values["of studies that protect one example"]
    assert only_choice["adjacency"] == "replaced"
