"""Trials that are trained and replayed by modules of `benchmarks`, on little."""

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from joblib import Parallel

from benchmarks import halving_variants, trained_trials, tune_fedavg
from benchmarks.choice_methods import METHODS, Design
from flwr_fbo.tuner.ballots.rank_ballots import capped
from flwr_fbo.tuner.candidates.candidates import candidate_settings

BY_PARTIAL = halving_variants.by_partial_ballots
NUM_TRIALS, NUM_CLIENTS, NUM_DRAWS = 24, 30, 40


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a file of trials, of which those near the middle of the space are good."""
    rng = np.random.default_rng(0)
    space = trained_trials.SPACE
    defaults = trained_trials.DEFAULTS
    settings = candidate_settings(space, NUM_TRIALS, defaults, [], seed=0)
    num_examples = [40] * NUM_CLIENTS
    lines = []
    for number, params in enumerate(settings):
        away = np.abs(space.to_unit(params) - 0.5).mean()
        rungs = [
            {
                "rounds": rounds,
                "correct": rng.binomial(40, 1 - 2 * away, NUM_CLIENTS).tolist(),
                "test": 1 - 2 * away,
            }
            for rounds in trained_trials.RUNGS
        ]
        line = {"task": "made-up", "trial": number, "settings": params}
        lines.append({**line, "num_examples": num_examples, "rungs": rungs})
    path = tmp_path / "made-up.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines[::-1]))
    return path


def _loss(
    path: Path,
    name: str,
    num_draws: int = NUM_DRAWS,
    **options: object,
) -> float:
    design = replace(Design(NUM_CLIENTS, 16, 2.0), **options)  # type: ignore[arg-type]
    schedule = tune_fedavg.SCHEDULE
    trials = tune_fedavg.read_trials(path)
    found = tune_fedavg.losses(trials, schedule, design, METHODS[name], num_draws)
    return float(found.mean())


def test_halving_by_ranks_is_between_no_noise_and_a_random_choice(file: Path) -> None:
    ours = _loss(file, "ranks (ours)")
    assert _loss(file, "no noise") <= ours < 0.5 * _loss(file, "random choice")


def test_noise_only_is_as_good_as_a_random_choice(file: Path) -> None:
    blind = _loss(file, "ranks (ours)", noise_only=True)
    assert blind == pytest.approx(_loss(file, "random choice"), rel=0.3)


def test_the_command_prints_tables(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["", str(file), "--draws", "2"])
    monkeypatch.setattr(tune_fedavg, "COLUMNS", ((2.0, 1 / 3, False),))
    # Without processes of its own.
    monkeypatch.setattr(tune_fedavg, "Parallel", lambda n_jobs: Parallel(n_jobs=1))
    tune_fedavg.main()
    printed = capsys.readouterr().out
    assert "| epsilon 2, a third lies | made-up | mean |" in printed
    assert "nan" not in printed


def test_variants_are_replayed_and_printed(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["", str(file), "--draws", "2"])
    halving_variants.main()
    printed = capsys.readouterr().out
    assert "| partial ballots, for the worst | made-up | old | new |" in printed
    assert "nan" not in printed


def test_the_tuner_is_what_variants_are_compared_with(file: Path) -> None:
    """Ballots on a part that is all give what the tuner's do; lies harm."""
    trials = tune_fedavg.read_trials(file)
    honest = partial(BY_PARTIAL, "filled", 1.0, "honest")
    reverse = partial(BY_PARTIAL, "filled", 1.0, "reversed")
    variants = (
        halving_variants.Variant(),
        halving_variants.Variant(honest),
        halving_variants.Variant(reverse, has_liars=True),
    )
    losses = [
        np.array([one.loss(trials, seed) for seed in range(NUM_DRAWS)])
        for one in variants
    ]
    assert losses[0].tolist() == losses[1].tolist()
    assert losses[2].mean() > losses[0].mean()


def test_forms_of_partial_ballots_differ_in_their_bounds() -> None:
    rng = np.random.default_rng(0)
    scores, is_scored = rng.random(16), np.arange(16) < 4
    filled, scaled, unscaled = (
        halving_variants.partial_ballot(scores, is_scored, form)
        for form in get_args(halving_variants.Form)
    )
    assert np.linalg.norm(scaled) < np.linalg.norm(filled) < 1
    assert np.linalg.norm(unscaled) == pytest.approx(1)
    for ballot in (filled, scaled):
        assert capped(ballot, 16).tolist() == ballot.tolist()
        assert ballot.sum() == pytest.approx(0.0, abs=1e-12)


def test_rows_are_split_into_unequal_parts() -> None:
    """Each row is with one client; sizes differ, and so do shares of the classes."""
    X = np.arange(2000.0)[:, None]
    y = (X[:, 0] % 3 == 0).astype(np.float64)
    parts = [trained_trials.skewed((X, y), 1500, 20, client) for client in range(20)]
    rows = np.concatenate([part.X_train[:, 0] for part in parts])
    assert len(set(rows.tolist())) == len(rows) == 1500
    for part in parts:
        assert part.y_train.tolist() == y[part.X_train[:, 0].astype(int)].tolist()
    sizes = [len(part.y_train) for part in parts]
    shares = [part.y_train.mean() for part in parts]
    assert min(sizes) >= 15
    assert max(sizes) > 3 * min(sizes)
    assert max(shares) > 2 * min(shares)


def test_a_training_is_kept_and_not_trained_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trained_trials, "RUNGS", (1, 2))
    path = tmp_path / "digits-20.jsonl"
    argv = ["", "digits-20", str(path), "--trials", "2", "--jobs", "1"]
    monkeypatch.setattr(sys, "argv", argv)
    trained_trials.main()
    whole = path.read_text()
    lines = trained_trials.read_lines(path)
    assert [line["trial"] for line in lines] == [0, 1]
    assert lines[0]["settings"] == trained_trials.DEFAULTS
    first, last = lines[0]["rungs"]
    assert len(first["correct"]) == 20
    assert 0.05 < first["test"] <= last["test"] < 1
    # The last line was cut short: its trial is trained again, to the same numbers.
    path.write_text(whole[:-10])
    trained_trials.main()
    assert trained_trials.read_lines(path) == lines
