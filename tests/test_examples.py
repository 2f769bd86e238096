"""An app of NumPyClients, and what it takes to give it a tuning stage."""

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from flwr_fbo import InProcessGrid, best_params
from tests.support.before_and_after import assert_readme_shows, diff
from tests.support.engine import FlwrRun

EXAMPLE = Path(__file__).parents[1] / "examples" / "plug-in-numpyclient"
NUM_SITES = 5
CODE = [f"digits_fedavg/{n}.py" for n in ("client_app", "server_app", "task")]
DEFAULT = {"learning_rate": 0.1, "l2": 1e-3}

Import = Callable[[str], tuple[Any, Any]]


@pytest.fixture
def import_app(monkeypatch: pytest.MonkeyPatch) -> Iterator[Import]:
    """A function that imports one of the two apps, which have the same names."""

    def forget() -> None:
        for name in [n for n in sys.modules if n.split(".")[0] == "digits_fedavg"]:
            del sys.modules[name]

    def load(version: str) -> tuple[Any, Any]:
        forget()
        with monkeypatch.context() as patch:
            patch.syspath_prepend(str(EXAMPLE / version))
            client_app = importlib.import_module("digits_fedavg.client_app")
            return client_app, importlib.import_module("digits_fedavg.server_app")

    yield load
    forget()


class Played:
    """One run of an app in the in-process grid: what it tested and trained with."""

    def __init__(self, client_app: Any, server_app: Any) -> None:
        accuracies: list[float] = []
        used: dict[int, dict[str, Any]] = {}
        evaluate, client = server_app.evaluate, client_app.DigitsClient

        def noting_evaluate(server_round: int, arrays: Any) -> Any:
            metrics = evaluate(server_round, arrays)
            accuracies.append(metrics["accuracy"])
            return metrics

        def noting_client(site: Any, params: dict[str, Any]) -> Any:
            used[hash(site.X_train.tobytes())] = params
            return client(site, params)

        server_app.evaluate = noting_evaluate
        client_app.DigitsClient = noting_client
        self.grid = InProcessGrid(client_app.app, NUM_SITES)
        server_app.app(self.grid, Context(1, 1, {}, RecordDict(), {}))
        self.accuracies = accuracies
        self.used = [
            used[hash(client_app.task.load_site(context).X_train.tobytes())]
            for context in self.grid.contexts.values()
        ]


@pytest.mark.parametrize("version", ["before", "after"])
def test_both_apps_train(import_app: Import, version: str) -> None:
    accuracies = Played(*import_app(version)).accuracies
    assert len(accuracies) == 6
    assert accuracies[0] < 0.2
    assert accuracies[-1] > 0.8


def test_the_plain_app_trains_with_its_defaults(import_app: Import) -> None:
    assert Played(*import_app("before")).used == [DEFAULT] * NUM_SITES


def test_after_tuning_each_site_trains_with_the_better_setting(
    import_app: Import, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "flwr.fbo"):
        client_app, server_app = import_app("after")
        played = Played(client_app, server_app)
    best = [best_params(c, default=DEFAULT) for c in played.grid.contexts.values()]
    assert played.used == best
    # Noise is drawn anew in each run: all sites may come to one setting.
    assert any(params != DEFAULT for params in best)
    lines = [r.getMessage() for r in caplog.records if "held-out" in r.getMessage()]
    assert len(lines) == NUM_SITES  # once a site, not once a round
    for context, params in zip(played.grid.contexts.values(), best, strict=True):
        default, score = client_app.compare(context)
        assert default == DEFAULT
        assert params == default or score(params) > score(default)


def test_a_site_compares_on_digits_that_its_tuning_has_not_seen(
    import_app: Import,
) -> None:
    client_app, server_app = import_app("after")
    for context in InProcessGrid(client_app.app, NUM_SITES).contexts.values():
        site = client_app.task.load_site(context)
        to_tune, to_compare = client_app.split(site)
        held_out = {image.tobytes() for image in to_compare.X_validation}
        test, _ = server_app.task.load_test()
        seen = [*to_tune.X_train, *to_tune.X_validation, *test]
        assert len(held_out) >= 40
        assert not held_out & {image.tobytes() for image in seen}
        assert held_out < {image.tobytes() for image in site.X_train}


def test_the_tuning_stage_takes_few_lines() -> None:
    init = "digits_fedavg/__init__.py"
    for version in ("before", "after"):
        found = (EXAMPLE / version).rglob("*")
        names = [str(p.relative_to(EXAMPLE / version)) for p in found if p.is_file()]
        names = [name for name in names if name.endswith((".py", ".toml"))]
        assert sorted(names) == sorted([*CODE, init, "pyproject.toml"])
    assert 0 < sum(_num_changed(name) for name in CODE) <= 32
    assert _num_changed("pyproject.toml") == 1
    assert _num_changed(init) == 0


def test_the_readme_shows_the_diff() -> None:
    assert_readme_shows(EXAMPLE, ["pyproject.toml", *CODE])


def _num_changed(name: str) -> int:
    """Return how many lines of one file are added or removed."""
    return sum(line.startswith(("+", "-")) for line in diff(EXAMPLE, name)[2:])


@pytest.mark.slow
def test_the_tuned_app_runs_on_the_engine(flwr_run: FlwrRun) -> None:
    printed = flwr_run(EXAMPLE / "after", NUM_SITES, {})
    assert "Privacy spent in" in printed, printed
    accuracies = re.findall(r"MetricRecord: {'accuracy': ([0-9.]+)}", printed)
    assert len(accuracies) == 5, printed
    assert float(accuracies[-1]) > 0.8
