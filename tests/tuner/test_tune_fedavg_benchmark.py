"""`benchmarks.trained_trials` and `benchmarks.tune_fedavg`, on little."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from joblib import Parallel

from benchmarks import trained_trials, tune_fedavg
from benchmarks.choice_methods import METHODS, Design
from flwr_fbo.tuner.schedule import candidate_settings

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
    ours = _loss(file, "ranks (the default)")
    assert _loss(file, "no noise") <= ours < 0.5 * _loss(file, "random choice")


def test_noise_only_is_as_good_as_a_random_choice(file: Path) -> None:
    blind = _loss(file, "ranks (the default)", noise_only=True)
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
