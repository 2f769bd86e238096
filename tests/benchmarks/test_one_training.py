"""`python -m benchmarks.one_training`, on little: it plays what it names."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvgM
from optuna.pruners import NopPruner, SuccessiveHalvingPruner
from optuna.samplers import RandomSampler

from benchmarks import one_training as benchmark
from benchmarks import rivals, trained_trials, tuner_costs
from benchmarks.choice_methods import Design, Question, by_ballots
from benchmarks.federations import FEDERATIONS, Federation, Training
from benchmarks.one_training import Case, Choice, before, race
from flwr_fbo import InProcessGrid

ROUNDS = 9
GOOD = {**trained_trials.DEFAULTS, "learning-rate": 0.3, "local-epochs": 4}


@pytest.fixture
def case() -> Case:
    """Sixteen trials at five clients; only the last one learns much."""
    federation = Federation("digits-5")
    settings = [
        {**trained_trials.DEFAULTS, "learning-rate": 0.001 * (1 + number / 10)}
        for number in range(15)
    ]
    settings.append(GOOD)
    scores, tests = list[Any](), list[float]()
    for one in settings:
        training, rng = Training(federation, one), np.random.default_rng(0)
        for number in range(ROUNDS):
            training.run(number + 1, rng)
            scores.append(federation.scores(training.model))
        tests.append(federation.test(training.model))
    shaped = np.reshape(scores, (16, ROUNDS, federation.num_clients))
    return Case(federation, settings, ROUNDS, shaped, np.array(tests), seed=0)


def test_federations_train_as_flowers_strategy_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With whole batches nothing is drawn: the models are the same."""
    name, settings = "digits-20", {**GOOD, "batch-size": 1000, "local-epochs": 2}
    settings |= {"server-learning-rate": 0.7, "server-momentum": 0.5}
    clients = [
        replace(one, train=(np.clip(one.train[0], -6, 6), one.train[1]))
        for one in trained_trials.load_clients(name)
    ]
    assert max(len(one.train[1]) for one in clients) <= 100
    monkeypatch.setattr(trained_trials, "load_clients", lambda _: clients)
    grid = InProcessGrid(trained_trials.client_app(name), 20, run_config=settings)
    training = Training(Federation(name), settings)
    first = ArrayRecord(training.model)
    strategy = FedAvgM(
        server_learning_rate=0.7, server_momentum=0.5, fraction_evaluate=0.0
    )
    flowers = strategy.start(grid, first, num_rounds=3).arrays
    training.run(3, np.random.default_rng(0))
    for ours, theirs in zip(training.model, flowers.to_numpy_ndarrays(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)


def test_noise_and_scores_of_a_rung_are_the_tuners() -> None:
    scores = np.random.default_rng(0).random((30, 8))
    accuracies = scores.mean(axis=0)
    tuners = by_ballots(Design(30, 8, 2.0), Question(scores, accuracies, 0, 1, 3))
    found = [
        Choice(2.0).row(
            scores, np.ones(30), (1, 3), range(8), np.random.default_rng(seed)
        )
        for seed in range(300)
    ]
    std = tuners.facts["noise_std"][0]
    assert found[0].facts["noise_std"] == [pytest.approx(std, rel=1e-6)]
    # Both are the same ballots and noise of that size, of 300 draws and of one.
    mean = np.mean([row.vectors for row in found], axis=0)
    assert np.abs(mean - tuners.vectors).max() < 5 * std
    control = Choice(2.0, noise_only=True).row(
        scores, np.ones(30), (1, 3), range(8), np.random.default_rng(0)
    )
    lost = found[0].vectors - control.vectors
    assert lost == pytest.approx(mean, abs=5 * std / 300**0.5)
    assert np.ptp(lost) > 0.1


@pytest.mark.parametrize("name", ["cancer-10", "mixture-50", "cameras-100"])
@pytest.mark.parametrize("num_rounds", [9, 27])
def test_a_race_takes_the_work_of_one_training(name: str, num_rounds: int) -> None:
    federation = Federation(name)
    settings = benchmark.all_settings()[:16]
    unused: Any = np.zeros(0)
    case = Case(federation, settings, num_rounds, unused, unused, seed=1)
    assert 0.9 < race(case, Choice(None)).work <= 1.05


def test_a_race_finds_the_only_good_trial_and_noise_does_not(case: Case) -> None:
    case.settings[1], case.settings[15] = case.settings[15], case.settings[1]
    assert race(case, Choice(None)).trial == 1
    assert race(case, Choice(50.0)).trial == 1
    chosen = {
        race(replace(case, seed=seed), Choice(2.0, noise_only=True)).trial
        for seed in range(5)
    }
    assert chosen != {1}
    case.settings[1], case.settings[15] = case.settings[15], case.settings[1]
    handed = before(case, Choice(None))
    assert handed.trial == 15
    assert handed.work == pytest.approx(1 + 38 / ROUNDS)


def test_rivals_work_as_much_as_they_are_said_to(case: Case) -> None:
    federation, settings = case.federation, case.settings
    asked = federation.num_asked

    def worked() -> Iterator[int]:
        while True:
            began = federation.num_trained
            yield 0
            yield (federation.num_trained - began) // asked

    rng = np.random.default_rng(0)
    for play in (rivals.fed_ex, rivals.fed_pop):
        count = worked()
        next(count)
        training = play(federation, settings, 27, rng)
        assert next(count) == 27
        plain = Training(federation, settings[0]).run(27, rng)
        assert federation.test(training.model) > federation.test(plain.model)
    count = worked()
    next(count)
    training = rivals.dp_hype(federation, settings[8:], 19, 0.0, rng)
    assert next(count) == 8 + 19
    assert training.settings["learning-rate"] == GOOD["learning-rate"]
    assert rivals.random_search(federation, settings[14:], 3, rng).settings == GOOD


@pytest.mark.parametrize("is_pruned", [False, True])
def test_a_loop_uses_its_rounds(case: Case, is_pruned: bool) -> None:
    federation = case.federation
    pruner = SuccessiveHalvingPruner(1, 3) if is_pruned else NopPruner()
    about = trained_trials.SPACE.distributions, trained_trials.DEFAULTS
    began = federation.num_trained
    best = rivals.optuna_loop(
        federation, *about, RandomSampler(seed=1), pruner, (20, 5), case.rng(0)
    )
    assert federation.num_trained - began == 20 * federation.num_asked
    assert best != trained_trials.DEFAULTS


def test_lines_are_added_once_and_shown(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    few = ("digits-5", "cancer-5", "digits-10", "cancer-10")
    monkeypatch.setattr(benchmark, "MANY", ("digits-5", "cancer-10"))
    monkeypatch.setattr(benchmark, "FEW", few)
    monkeypatch.setattr(benchmark, "ROUNDS", (9, 27))
    methods: tuple[str, ...] = (
        "race, epsilon 1",
        "race, epsilon 2",
        "race, epsilon 8",
        "FedEx",
    )
    methods += ("before, epsilon 1", "before, epsilon 2", "before, epsilon 8")
    kept = {name: benchmark.METHODS[name] for name in (*methods, "defaults")}
    kept["TPE, pruned, 65 rounds"] = kept["defaults"]
    monkeypatch.setattr(benchmark, "METHODS", kept)
    monkeypatch.setattr(benchmark, "_NUM_SETTINGS", 18)
    benchmark.trained.cache_clear()
    benchmark.all_settings.cache_clear()
    path = tmp_path / "rows.jsonl"
    monkeypatch.setattr(sys, "argv", ["", "play", str(path), "--seeds", "2"])
    benchmark.main()
    whole = path.read_text()
    path.write_text(whole[:-10])
    benchmark.main()
    assert path.read_text() == whole
    monkeypatch.setattr(sys, "argv", ["", "show", str(path)])
    benchmark.main()
    printed = capsys.readouterr().out
    assert "| FedEx | no | 1.00 |" in printed
    assert "| 9 rounds, epsilon 2 |" in printed
    assert "nan" not in printed
    benchmark.trained.cache_clear()
    benchmark.all_settings.cache_clear()


def test_what_was_chosen_on_is_told_from_what_is_new() -> None:
    new = {name.partition("-")[0] for name in FEDERATIONS if benchmark.is_new(name)}
    assert new == {"cancer", "landmine", "mixture", "cameras"}
    sizes = {Federation(name).num_clients for name in ("cancer-10", "mixture-50")}
    assert sizes == {10, 50}


def test_clients_train_once_for_tuning_and_training() -> None:
    plain = tuner_costs.cost_of(tuner_costs.plain_training)
    assert plain.trainings == plain.evaluations == 20 * tuner_costs.NUM_ROUNDS
    assert plain.messages == plain.trainings + plain.evaluations
    found = tuner_costs.cost_of(tuner_costs.race)
    assert found.trainings <= 1.05 * plain.trainings
    assert found.evaluations <= 1.5 * plain.evaluations
    assert found.num_bytes <= 1.25 * plain.num_bytes
