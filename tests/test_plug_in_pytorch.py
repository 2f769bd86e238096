"""A FedAvg app of a small CNN: tuned first, trained after."""

import importlib
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict, UserConfig

from flwr_fbo import InProcessGrid, best_params
from tests.support.emnist import needs_torch
from tests.support.engine import FlwrRun

EXAMPLE = Path(__file__).parents[1] / "examples" / "plug-in-pytorch"
README = (EXAMPLE / "README.md").read_text()
SETTINGS = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())
CONFIG: UserConfig = SETTINGS["tool"]["flwr"]["app"]["config"]
DEFAULT = {"learning_rate": 0.01, "weight_decay": 0.0}
# As little as shows everything.
SHORT: UserConfig = {"num-server-rounds": 4, "local-epochs": 1, "tuning-rounds": 6}

pytestmark = needs_torch


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`compare.py`, imported as it is run: in its own folder."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    return importlib.import_module("compare")


def _play(
    compare: Any, monkeypatch: pytest.MonkeyPatch, changed: UserConfig
) -> tuple[InProcessGrid, list[dict[str, float]], tuple[float, float]]:
    """Return the grid, what the sites trained with in each round, the accuracies."""
    task, used = compare.client_app.task, []

    def noting(model: Any, data: Any, epochs: int, size: int, params: Any) -> None:
        if epochs == SHORT["local-epochs"]:  # a round: trials train for all rounds
            used.append(dict(params))
        train(model, data, epochs, size, params)

    train = task.train
    config = {**CONFIG, **SHORT, "experiment": True, **changed}
    with monkeypatch.context() as patch:
        patch.setattr(task, "train", noting)
        grid = InProcessGrid(compare.client_app.app, 5, run_config=config)
        context = Context(1, 1, {}, RecordDict(), config)
        accuracies = compare.server_app.tune_and_train(grid, context)
    return grid, used[-20:], accuracies


@pytest.mark.gate
def test_after_tuning_each_site_trains_with_the_better_setting(
    compare: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "flwr.fbo"):
        grid, used, accuracies = _play(compare, monkeypatch, {})
    assert sum("held-out" in r.getMessage() for r in caplog.records) == 5
    assert "chosen: {'fbo-tuned': True}" in caplog.text
    for context in grid.contexts.values():
        context.run_config = {**context.run_config, "fbo-tuned": True}
    best = [best_params(c, default=DEFAULT) for c in grid.contexts.values()]
    assert len({params["learning_rate"] for params in best}) > 1

    def ordered(all_params: Any) -> list[list[float]]:
        return sorted(list(params.values()) for params in all_params)

    # FedAvg asks the sites in any order, four times.
    assert ordered(used) == ordered(best * 4)
    assert min(accuracies) > 0.3  # of ten classes


def test_a_site_compares_on_digits_that_its_tuning_has_not_seen(compare: Any) -> None:
    grid = InProcessGrid(compare.client_app.app, 5, run_config=CONFIG)
    task = compare.client_app.task
    for context in grid.contexts.values():
        data, validation = task.load_site(context)
        to_train, held_out = task.hold_out(data)
        seen = [*to_train.X, *validation.X, *task.load_test(0).X]
        images = {image.numpy().tobytes() for image in held_out.X}
        assert len(images) >= 40
        assert not images & {image.numpy().tobytes() for image in seen}
        assert len(to_train.y) + len(held_out.y) == len(data.y)


def test_untuned_it_is_plain_federated_averaging(
    compare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _play(compare, monkeypatch, {"tuning-rounds": 0})
    assert run[1] == [DEFAULT] * 20
    # The same seed, the same accuracy, but for the order in which FedAvg adds up.
    again = _play(compare, monkeypatch, {"tuning-rounds": 0})
    assert again[2] == pytest.approx(run[2], abs=0.005)


def test_no_site_has_a_digit_of_another_or_of_the_test(compare: Any) -> None:
    grid = InProcessGrid(compare.client_app.app, 5, run_config=CONFIG)
    task = compare.client_app.task
    parts = [part for c in grid.contexts.values() for part in task.load_site(c)]
    parts.append(task.load_test(0))
    images = np.concatenate([part.X.numpy() for part in parts])
    assert len(images) == 1797 == sum(len(part.y) for part in parts)
    assert len({image.tobytes() for image in images}) == 1797
    other = task.load_test(1).X.numpy()
    assert not np.array_equal(other, task.load_test(0).X.numpy())


def test_the_comparison_is_paired(
    compare: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What differs between seeds, for all rows alike, is in no difference."""

    def accuracies(changed: UserConfig, seed: int) -> tuple[float, float]:
        better = 0.01 * (seed + 1) if not changed else 0.0
        return 0.5 + 0.1 * seed + better, 0.5

    monkeypatch.setattr(compare, "accuracies", accuracies)
    monkeypatch.setattr(compare.logging, "disable", lambda level: None)
    compare.main(3)
    printed = capsys.readouterr().out
    assert (
        "| tuned minus learning rate 0.1 | 0.020 ± 0.006 | 0.000 ± 0.000 |" in printed
    )
    names = re.findall(r"^\| ([a-z][\w. ]+) \|", printed, re.MULTILINE)
    assert names == re.findall(r"^\| ([a-z][\w. ]+) \|", README, re.MULTILINE)
    assert names == [*compare.ROWS, *(f"tuned minus {n}" for n in compare.CONTROLS)]


def test_the_comparison_runs_the_app(
    compare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows with the app's own settings but for what each of them names."""
    configs: list[UserConfig] = []

    def note(grid: InProcessGrid, context: Context) -> tuple[float, float]:
        assert {c.run_config["seed"] for c in grid.contexts.values()} == {7}
        configs.append(context.run_config)
        return 0.0, 0.0

    monkeypatch.setattr(compare.server_app, "tune_and_train", note)
    for changed in compare.ROWS.values():
        compare.accuracies(changed, 7)
    assert configs == [
        {**CONFIG, "experiment": True, "seed": 7, **changed}
        for changed in compare.ROWS.values()
    ]


@pytest.mark.slow
def test_the_app_runs_on_the_engine(flwr_run: FlwrRun) -> None:
    printed = flwr_run(EXAMPLE, 5, SHORT)
    assert "Privacy spent in" in printed, printed
    (accuracy,) = re.findall(r"Accuracy: ([\d.]+) validation", printed)
    assert float(accuracy) > 0.2
