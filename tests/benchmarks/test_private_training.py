"""`python -m benchmarks.private_training`, on little: DP-SGD, and what it plays."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.clientapp import ClientApp

from benchmarks import private_training as benchmark
from benchmarks.private_training import App, dp_sgd
from benchmarks.rows import read_rows
from benchmarks.trained_trials import initial_model
from flwr_fbo import tuner_mod

RATE, CLIP_NORM = 0.5, 3.0
SETTINGS = {"learning-rate": RATE, "clip-norm": CLIP_NORM, "noise-multiplier": 0.0}


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Forty examples, all of which are in the one batch of a round."""
    monkeypatch.setattr(benchmark, "SAMPLING", 1.0)
    monkeypatch.setattr(benchmark, "STEPS", 1)
    rng = np.random.default_rng(0)
    return rng.normal(0, 1, (40, 6)).astype(np.float32), rng.integers(0, 3, 40)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A task of 600 rows, one total, and trainings of nine rounds."""
    rng = np.random.default_rng(1)
    y = rng.integers(0, 2, 700)
    table = rng.normal(y[:, None], 1, (700, 4)), y.astype(np.float64)
    monkeypatch.setattr(benchmark, "TABLES", {"small": lambda: table})
    monkeypatch.setattr(benchmark, "_NUM_ROWS", 600)
    monkeypatch.setattr(benchmark, "EPSILONS", (8.0,))
    monkeypatch.setattr(benchmark, "NUM_ROUNDS", 9)
    for cached in (benchmark.planned, benchmark.load_sites):
        cached.cache_clear()
    yield
    for cached in (benchmark.planned, benchmark.load_sites):
        cached.cache_clear()


def _step(examples: Any, **changed: float) -> Any:
    """Return how a step moves the model, as one vector."""
    model = initial_model(6, 3, seed=0)
    rng = np.random.default_rng(5)
    moved = dp_sgd(model, examples, SETTINGS | changed, rng)
    return np.concatenate(
        [(new - old).ravel() for old, new in zip(model, moved, strict=True)]
    )


def test_a_step_is_the_mean_of_clipped_gradients(examples: Any) -> None:
    """Each of them from a step of its own, without clipping."""
    X, y = examples
    total: Any = 0.0
    norms = []
    for i in range(len(y)):
        alone = (X[i : i + 1], np.array([*y[i : i + 1]]))
        # An example's class may be the largest that is there.
        gradient = _step(alone, **{"clip-norm": 1e6}) / RATE
        norms.append(np.linalg.norm(gradient))
        total = total + gradient * min(1, CLIP_NORM / norms[-1])
    assert min(norms) < CLIP_NORM < max(norms)
    np.testing.assert_allclose(_step(examples), RATE * total / len(y), atol=1e-6)


def test_one_example_moves_a_step_by_the_clip_norm_at_most(examples: Any) -> None:
    X, y = examples
    base = _step(examples)
    found = []
    for i in range(len(y)):
        other = X.copy(), y.copy()
        other[0][i] *= 1e3  # whatever it is
        other[1][i] = (y[i] + 1) % 3
        found.append(np.linalg.norm(_step(other) - base) * len(y) / RATE)
    assert 1.2 * CLIP_NORM < max(found) <= 2 * CLIP_NORM * 1.001


def test_the_noise_is_as_large_as_it_is_charged(examples: Any) -> None:
    z = 2.0
    noise = _step(examples, **{"noise-multiplier": z}) - _step(examples)
    std = RATE * z * CLIP_NORM / len(examples[1])
    assert noise.std() == pytest.approx(std, rel=0.15)
    assert abs(noise.mean()) < 5 * std / len(noise) ** 0.5


def test_batches_are_drawn_by_poisson_sampling(
    examples: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step with a part of the examples is not one with all, and it may have none."""
    whole = _step(examples)
    monkeypatch.setattr(benchmark, "SAMPLING", 0.5)
    assert not np.allclose(_step(examples), whole)
    monkeypatch.setattr(benchmark, "SAMPLING", 1e-9)
    assert np.all(_step(examples) == 0)


def test_sites_have_three_parts_and_no_row_in_common(small: None) -> None:
    sites = benchmark.load_sites("small")
    parts = [X for X, _ in (*sites.train, *sites.validation, sites.test)]
    rows = np.concatenate(parts)
    assert len(rows) == len(np.unique(rows, axis=0)) == 600
    sizes = [sum(map(len, parts[i : i + 20])) for i in (0, 20)]
    assert 0.5 < sizes[0] / 600 < 0.65
    assert 0.15 < sizes[1] / 600 < 0.25


@pytest.mark.gate
def test_rows_are_added_once_and_shown(
    small: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(benchmark, "NUM_SEEDS", 2)
    monkeypatch.setattr(benchmark, "NUM_FIRST", 1)
    few = benchmark.settings_of(0)[:3]
    monkeypatch.setattr(benchmark, "settings_of", lambda seed: few)
    path = tmp_path / "rows.jsonl"
    benchmark.run(path)
    whole = path.read_text()
    rows = read_rows(path)
    assert len(rows) == 2 * len(benchmark.ARMS)
    # A site trains as often with a tuner as without.
    assert {row["rounds"] for row in rows} == {9}
    for row in rows:
        assert 7.99 < row["together"] <= 8 < row["if_replaced"]
    noise = {row["arm"]: row["noise_multiplier"] for row in rows}
    assert noise["tuned"] > noise["defaults"] == noise["best of 16"]
    path.write_text(whole[:-10])
    benchmark.run(path)
    assert [row["test"] for row in read_rows(path)] == [row["test"] for row in rows]
    benchmark.show(path)
    printed = capsys.readouterr().out
    assert "| tuned less defaults | " in printed
    assert "- small, epsilon 8: " in printed
    assert "nan" not in printed


def test_the_best_of_16_has_the_settings_of_the_tuner(small: None) -> None:
    app = App(benchmark.load_sites("small"), seed=3)
    trained = []
    train = app._train

    def noting(message: Any, context: Any) -> Any:
        trained.append({key: context.run_config[key] for key in benchmark.SPACE})
        return train(message, context)

    app.client_app = ClientApp(mods=[tuner_mod])
    app.client_app.train()(noting)
    app.client_app.evaluate()(app._evaluate)
    benchmark.play_tuned(app, 8.0, seed=3)
    known = benchmark.settings_of(3)
    assert known[0] == benchmark.DEFAULTS
    assert all(settings in known for settings in trained)
    assert len({tuple(settings.values()) for settings in trained}) > 4
