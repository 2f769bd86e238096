"""`flwr-fbo tune`: apps are tuned as they are, or it says in a line what to pass."""

import hashlib
import json
import math
import os
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.clientapp import ClientApp
from flwr.common.config import parse_config_args
from flwr.serverapp import ServerApp
from optuna.distributions import IntDistribution
from typer.testing import CliRunner

from flwr_fbo import InProcessGrid
from flwr_fbo.cli import app
from flwr_fbo.cli.run_config import short_values
from flwr_fbo.cli.tune_summary import Summary
from flwr_fbo.tuner.federation_result import Rung
from flwr_fbo.tuner.rungs.trial_run import TrialRun
from flwr_fbo.tuner.tune_settings import TuneSettings, server_context
from flwr_fbo.tuning import FederationResult, SearchSpace
from tests.support.tuned_apps import (
    MESSAGE_CLIENT,
    legacy_app,
    loop_app,
    message_app,
    own_server,
)

EXAMPLE = Path(__file__).parents[2] / "examples" / "tune-fedavg-sklearn" / "before"
SEARCH = ("--search", "learning-rate=1e-3..1:log")
METRIC = ("--metric", "eval_acc")


@pytest.fixture(autouse=True)
def _own_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave no folder of an app behind in ``sys.path``."""
    path = [*sys.path]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower-home"))
    yield
    sys.path[:] = path


def _tune(*arguments: object) -> Any:
    command = ["tune", *map(str, arguments)]
    return CliRunner().invoke(app, command, env={"COLUMNS": "200"})


def _tuned(*arguments: object) -> dict[str, Any]:
    """Return the result as JSON values."""
    done = _tune(*arguments, "--json")
    assert done.exit_code == 0, done.output
    values: dict[str, Any] = json.loads(done.stdout)
    return values


def _error(*arguments: object, code: int = 1) -> str:
    """Return the only line of an error."""
    done = _tune(*arguments)
    assert done.exit_code == code, done.output
    assert "Traceback" not in done.output
    lines: list[str] = [
        one for one in done.output.splitlines() if one.startswith("Error: ")
    ]
    assert len(lines) == 1, done.output
    return lines[0]


def _digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_an_example_is_tuned_with_no_line_changed(tmp_path: Path) -> None:
    before, folder = _digests(EXAMPLE), tmp_path / "record"
    done = _tune(
        *(EXAMPLE, "--metric", "accuracy", "--folder", folder),
        *("--search", "learning-rate=1e-4..1:log", "--search", "local-epochs=1..8"),
        *("--epsilon", 8, "--seed", 1),
    )
    assert done.exit_code == 0, done.output
    assert _digests(EXAMPLE) == before
    lines = done.stdout.splitlines()
    assert any(line.startswith("Chosen:  learning-rate=") for line in lines)
    assert any(line.startswith("How sure: ") for line in lines)
    assert "epsilon 8 per client (message or zeros, delta 0.001; " in done.stdout
    assert "Cost: 180 rounds of training at a client; the app alone has 180." in lines
    assert lines[-2] == "To train with these settings:"
    assert lines[-1].startswith(f"  flwr run {EXAMPLE}")
    rungs = [line for line in done.stderr.splitlines() if line.startswith("rung ")]
    assert len(rungs) == 3
    assert "[ROUND" not in done.output
    again = _tune(
        *(EXAMPLE, "--metric", "accuracy", "--folder", folder),
        *("--search", "learning-rate=1e-4..1:log", "--search", "local-epochs=1..8"),
        *("--epsilon", 8, "--seed", 1),
    )
    assert again.stdout == done.stdout


@pytest.mark.parametrize("epsilon", [(), ("--epsilon", 1000)])
@pytest.mark.parametrize("write", [message_app, legacy_app])
def test_apps_as_people_have_them(tmp_path: Path, write: Any, epsilon: Any) -> None:
    write(tmp_path / "app")
    (tmp_path / "app").chmod(0o775)  # as with a umask of 002
    found = _tuned("app", *METRIC, *SEARCH, *epsilon, "--seed", 1)
    assert found["chosen"]["learning-rate"] > 0.1
    assert found["defaults"] == {"learning-rate": 0.001}
    assert found["direction"] == "maximize"
    assert (found["epsilon"] is None) == (epsilon == ())
    rate = short_values(found["chosen"])["learning-rate"]
    command = f'flwr run app --run-config "learning-rate={rate}"'
    assert found["command"] == command
    if not epsilon:
        compared = found["compared"]
        assert compared["by"] == "mean of the clients"
        assert 0 < compared["before"] < compared["after"] < 1


def test_a_loop_that_nobody_evaluates_in_is_scored_by_its_training(
    tmp_path: Path,
) -> None:
    loop_app(tmp_path / "app")
    text = "only knows, from replies to train, ['AUC']. Pass --score server"
    assert text in _error("app", "--metric", "AUC", *SEARCH)
    found = _tuned("app", "--metric", "AUC", "--score", "server", *SEARCH)
    assert found["chosen"]["learning-rate"] > 0.1
    assert found["compared"]["by"] == "at the server"
    assert found["compared"]["before"] < found["compared"]["after"]


def test_an_app_that_does_not_train_is_told_so(tmp_path: Path) -> None:
    folder = loop_app(tmp_path / "app")
    for name in ("client", "server"):
        file = next(folder.glob(f"*/{name}_app.py"))
        text = file.read_text().replace("app.train", "app.query")
        file.write_text(text.replace("MessageType.TRAIN", "MessageType.QUERY"))
    text = "Nothing is trained: the server sends no message of type train"
    assert text in _error("app", "--metric", "AUC", *SEARCH)


def test_an_app_may_keep_in_a_module_what_one_run_uses(tmp_path: Path) -> None:
    """As two of Flower's baselines do: the path of a file of results."""
    folder = message_app(tmp_path / "app")
    server = next(folder.glob("*/server_app.py"))
    text = server.read_text()
    text = text.replace("app = ServerApp()", "app = ServerApp()\nRUNS = []")
    line = "    arrays = ArrayRecord("
    text = text.replace(
        line, f"    RUNS.append(grid)\n    assert len(RUNS) == 1\n{line}"
    )
    server.write_text(text)
    assert _tuned("app", *METRIC, *SEARCH)["chosen"]["learning-rate"] > 0.1


def test_a_module_that_can_be_loaded_once_is_shared(tmp_path: Path) -> None:
    folder = message_app(tmp_path / "app")
    server = next(folder.glob("*/server_app.py"))
    once = "import builtins\nassert not hasattr(builtins, __name__)\n"
    once += "setattr(builtins, __name__, True)\n"
    server.write_text(once + server.read_text())
    assert _tuned("app", *METRIC, *SEARCH)["chosen"]["learning-rate"] > 0.1


def test_a_loss_is_told_in_its_own_sign_and_the_model_is_kept(tmp_path: Path) -> None:
    message_app(tmp_path / "app", "fraction_evaluate=0.0", ", evaluate_fn=test")
    found = _tuned("app", "--metric", "loss", "--score", "server", *SEARCH)
    assert found["compared"]["by"] == "at the server"
    assert 0 < found["compared"]["after"] < found["compared"]["before"]
    w = np.load(found["model"])["w"]
    assert np.linalg.norm(w - 1.0) == pytest.approx(found["final"]["value"])


def test_an_evaluation_at_the_server_shows_what_privacy_hides(tmp_path: Path) -> None:
    message_app(tmp_path / "app", "", ", evaluate_fn=test")
    done = _tune("app", *METRIC, *SEARCH, "--epsilon", 1000)
    assert (
        "eval_acc: stays at the clients; they compared models by ranks." in done.stdout
    )


CATEGORIES = ("--search", "optimizer=slow,fast", "--search", "nesterov=true,false")


def test_texts_and_bools_are_tuned_and_written(tmp_path: Path) -> None:
    folder = message_app(tmp_path / "app")
    project = folder / "pyproject.toml"
    before = project.read_text()
    found = _tuned("app", *METRIC, *CATEGORIES, *SEARCH, "--write", "--seed", 3)
    chosen = found["chosen"]
    assert chosen["optimizer"] == "fast"
    _, _, _, _, config = shlex.split(found["command"])
    assert short_values(chosen) != chosen
    chosen = short_values(chosen)
    assert parse_config_args([config]) == chosen
    after = project.read_text()
    assert tomllib.loads(after)["tool"]["flwr"]["app"]["config"] == {
        "num-server-rounds": 6,
        **chosen,
    }
    changed = [
        (old, new)
        for old, new in zip(before.splitlines(), after.splitlines(), strict=True)
        if old != new
    ]
    assert len(changed) <= 3
    rate = next(new for old, new in changed if old.startswith("learning-rate"))
    assert rate.endswith("  # a first guess")


_MORE = "batch-size = 32\nseed = 7\ndropout = 0.1\nfraction-sample = 1.0\n"


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
@pytest.mark.parametrize("last", [0.4, 0.6, math.nan])
@pytest.mark.parametrize("is_plain", [True, False])
def test_a_trained_model_that_is_worse_is_told(
    direction: Any, last: float, is_plain: bool
) -> None:
    """Than the app's own settings in the rungs, or in a training of their own."""
    own = {1: {"m": 0.5}}
    result = FederationResult(
        settings=({"a": 1}, {"a": 2}),
        rungs=(Rung(1, (0, 1), (0.5, 0.5), (1,)),),
        privacy_spent=None,
        measured={0: {} if is_plain else own, 1: {1: {"m": 0.5}, 6: {"m": last}}},
        plain=own if is_plain else {},
    )
    space = SearchSpace({"a": IntDistribution(1, 2)}).to_json()
    settings = TuneSettings(space, "m", direction, 10)
    found = Summary(Path("app"), Path("x"), settings, {"a": 1}, result, None)
    is_worse = math.isnan(last) or (last < 0.5) == (direction == "maximize")
    assert found.is_worse == is_worse
    assert any("WORSE" in line for line in found.lines()) == is_worse


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_a_trained_model_that_was_better_before_its_end_is_told(
    direction: Any,
) -> None:
    sign = 1 if direction == "maximize" else -1
    values = {0: 9.0, 1: 0.5, 3: 0.9, 4: 0.9, 5: math.nan, 6: 0.7}
    measured = {number: {"m": sign * value} for number, value in values.items()}

    def lines(rounds: dict[int, dict[str, float]]) -> list[str]:
        result = FederationResult(
            settings=({"a": 1}, {"a": 2}),
            rungs=(Rung(1, (0, 1), (0.5, 0.5), (1,)),),
            privacy_spent=None,
            measured={1: rounds},
        )
        space = SearchSpace({"a": IntDistribution(1, 2)}).to_json()
        settings = TuneSettings(space, "m", direction, 10)
        return Summary(Path("app"), Path("x"), settings, {"a": 1}, result, None).lines()

    found = [line for line in lines(measured) if "It was best" in line]
    told = f"It was best after 3 rounds of its own: {sign * 0.9}. The model is that of"
    assert found == [f"{told} the last round."]
    del measured[6], measured[5], measured[4]
    assert not [line for line in lines(measured) if "It was best" in line]


def test_without_a_search_it_proposes_one_and_runs_nothing(tmp_path: Path) -> None:
    message_app(tmp_path / "app", toml=_MORE)
    done = _tune("app", *METRIC)
    assert done.exit_code == 2
    line = done.stdout.splitlines()[-1].strip()
    assert line.startswith("flwr-fbo tune app --metric eval_acc --search ")
    assert "learning-rate=1e-05..0.1:log" in line
    assert "batch-size=8..128:log" in line
    assert "dropout=0.0..0.99" in line
    assert "fraction-sample=0.1..1.0" in line
    assert "seed" not in line
    assert "rounds" not in line
    assert "Each range is around the app's own value." in done.stdout
    assert "  --search optimizer=slow,OTHER\n" in done.stdout
    assert "  --search nesterov=true,false\n" in done.stdout
    asked = _tune("app", *METRIC, "--epsilon", 2, "--num-supernodes", 12)
    line_of_asked = asked.stdout.splitlines()[-1]
    assert "--epsilon 2.0" in line_of_asked
    assert "--num-supernodes 12" in line_of_asked
    dry = _tune(*shlex.split(line)[2:], "--dry-run")
    assert dry.exit_code == 0, dry.output
    folder = message_app(tmp_path / "texts")
    project = folder / "pyproject.toml"
    project.write_text(project.read_text().replace("learning-rate = 0.001", ""))
    assert "KEY=a,b for texts and bools" in _error("texts", *METRIC)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--metric", "eval_acc", "--epsilon", 0), "--epsilon=0.0 is not allowed"),
        (("--metric", "eval_acc", "--trials", 1), "--trials=1 is not allowed"),
        (("--metric", "eval_acc", "--delta", 0.1), "--delta=0.1 is not allowed"),
        (("--metric", "eval_acc", "--search", "learn-rate=1..2"), "did you mean"),
        (
            ("--metric", "eval_acc", "--epsilon", 2, "--delta", 0.1),
            "--delta=0.1 is not allowed: at most 0.005 for 20 sites",
        ),
        (
            ("--metric", "eval_acc", "--search", "LR=1..2"),
            "'LR' is no key of the app's run config, one of",
        ),
        (
            ("--metric", "eval_acc", "--search", "LR=1..2"),
            "(did you mean 'learning-rate'?)",
        ),
        (
            ("--metric", "eval_acc", "--search", "learning-rate=1..2,optimizer=a,b"),
            "--search must be given once for each key",
        ),
        (
            ("--metric", "eval_acc", "--search", "learning-rate=0.1"),
            "one value is no search",
        ),
        (
            ("--metric", "eval_acc", "--search", "num-server-rounds=1..2"),
            "not searched. Candidates share the app's own rounds; for more or fewer of "
            "them pass --run-config num-server-rounds=6",
        ),
        (("--metric", "eval_acc", "--search", "optimizer=1..2"), "is not a number"),
        (("--metric", "eval_acc", "--search", "nesterov=1,2"), "true or false"),
        (("--metric", "eval_acc", "--search", "learning-rate=2..1"), "LOW below HIGH"),
        (
            ("--metric", "eval_acc", "--search", "learning-rate=0..1:log"),
            "LOW above 0",
        ),
        (("--metric", "eval_acc", "--federation", "x"), "how many sites there are"),
        (("--metric", "eval_acc", "--num-supernodes", 0), "--num-supernodes=0 is not"),
        (
            ("--metric", "loss", "--score", "server", "--epsilon", 2),
            "--epsilon=2.0 is not allowed: left out with --score server",
        ),
        (("--metric", "eval_acc", "--run-config", "x=1"), "--run-config='x'"),
    ],
)
def test_a_wrong_option_is_an_error_before_any_work(
    tmp_path: Path, arguments: Any, words: str
) -> None:
    message_app(tmp_path / "app", client="raise RuntimeError('was loaded')")
    searched = () if "--search" in arguments else SEARCH
    assert words in _error("app", *arguments, *searched)
    assert not (tmp_path / ".flwr-fbo").exists()


@pytest.mark.parametrize(
    ("options", "more", "arguments", "words"),
    [
        (
            "",
            "",
            (),
            "--metric must be given: what clients report, one of ['eval_acc']",
        ),
        ("", "", ("--metric", "accuracy"), "one of ['eval_acc']"),
        (
            *("fraction_evaluate=0.0", ", evaluate_fn=test", ("--metric", "loss")),
            "Pass --score server --metric loss",
        ),
        (
            *("fraction_evaluate=0.0", "", METRIC),
            "only knows, from replies to train, ['train_loss']",
        ),
        (
            *("", ", evaluate_fn=test", ("--metric", "acc", "--score", "server")),
            "what the server knows, one of ['eval_acc', 'loss', 'train_loss']",
        ),
        ("min_available_nodes=99", "", METRIC, "waits for more than 20 nodes"),
    ],
)
def test_an_app_that_reports_something_else_is_told_what_to_pass(
    tmp_path: Path, options: str, more: str, arguments: Any, words: str
) -> None:
    message_app(tmp_path / "app", options, more)
    began = time.monotonic()
    assert words in _error("app", *arguments, *SEARCH)
    assert time.monotonic() - began < 60


def test_a_direction_is_asked_for_once_the_metric_is_known(tmp_path: Path) -> None:
    """A misspelt name has no direction, either."""
    client = MESSAGE_CLIENT.replace("eval_acc", "distance")
    message_app(tmp_path / "app", client=client)
    words = "what clients report, one of ['distance'] (did you mean 'distance'?)"
    assert words in _error("app", "--metric", "distence", *SEARCH)
    asked = "--direction must be given: minimize or maximize"
    metric = ("--metric", "distance")
    assert asked in _error("app", *metric, *SEARCH)
    assert asked in _error("app", *metric, *SEARCH, "--bundle-only")
    assert not (tmp_path / ".flwr-fbo").exists()
    _tuned("app", *metric, *SEARCH, "--direction", "maximize")
    assert asked in _error("app", *metric, *SEARCH)


def test_own_values_outside_of_the_search_are_told_before_any_work(
    tmp_path: Path,
) -> None:
    """Once, though the tuner says so, too."""
    message_app(tmp_path / "app")
    search = ("--search", "learning-rate=0.01..1:log", "--search", "optimizer=fast,a")
    told = "searched: the app's own learning-rate=0.001, optimizer='slow'. It is trial"
    dry = _tune("app", *METRIC, *search, "--dry-run")
    assert dry.output.count(told) == 1
    assert told in _tune("app", *METRIC, *search, "--bundle-only").output
    broken = MESSAGE_CLIENT.replace(
        "w = w - factor", "raise OSError\n    w = w - factor"
    )
    message_app(tmp_path / "broken", client=broken)
    assert told in _tune("broken", *METRIC, *search).output
    real = _tune("app", *METRIC, "--search", "learning-rate=0.01..1", "--trials", 4)
    assert real.exit_code == 0, real.output
    assert real.stderr.count("Outside of the space") == 1


@pytest.mark.parametrize("columns", [80, 100])
def test_what_is_told_is_as_wide_as_the_terminal(tmp_path: Path, columns: int) -> None:
    """But for paths, and for lines that are copied."""
    message_app(tmp_path / "app")
    search = ("--search", "learning-rate=0.01..1:log", "--epsilon", "2")
    for more in ((), ("--dry-run",), ("--num-supernodes", "5", "--dry-run")):
        command = ["tune", "app", *METRIC, *search, *more]
        done = CliRunner().invoke(app, command, env={"COLUMNS": f"{columns}"})
        assert done.exit_code == 0, done.output
        long = [line for line in done.output.splitlines() if len(line) > columns]
        assert [
            one for one in long if not one.startswith("  ") and "/" not in one
        ] == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("fraction_evaluate=0.0", b"Nothing scores the models: no client is asked"),
        ("min_available_clients=99", b"server waits for 99 clients, and 20 are all"),
    ],
)
def test_the_process_ends_though_a_server_left_threads(
    tmp_path: Path, options: str, words: bytes
) -> None:
    legacy_app(tmp_path / "app", options)
    code = "from flwr_fbo.cli import app; app()"
    done = subprocess.run(
        [sys.executable, "-c", code, "tune", "app", *METRIC, *SEARCH],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert words in done.stderr, done.stderr


def test_an_app_that_fails_is_told_in_a_line(tmp_path: Path) -> None:
    broken = MESSAGE_CLIENT.replace(
        "w = w - factor", "raise OSError('no data')\n    w = w - factor"
    )
    message_app(tmp_path / "train", client=broken)
    assert "OSError: no data" in _error("train", *METRIC, *SEARCH)
    message_app(tmp_path / "import", client="import no_such_module")
    assert "No module named 'no_such_module'" in _error("import", *METRIC, *SEARCH)
    own_server(tmp_path / "no", "app = 3")
    assert "is a int, no ServerApp" in _error("no", *METRIC, *SEARCH)
    assert "a folder with a pyproject.toml" in _error("gone", *METRIC, *SEARCH)


def test_files_of_main_are_written_where_it_works_once(tmp_path: Path) -> None:
    """By the trial that is handed over; a look at the app leaves none behind."""
    folder = message_app(tmp_path / "app", "", ", evaluate_fn=test")
    server = next(folder.glob("*/server_app.py"))
    line = "    arrays = ArrayRecord("
    writes = f"    open('log', 'a').write('once')\n{line}"
    server.write_text(server.read_text().replace(line, writes))
    assert _tune("app", *METRIC, *SEARCH, "--dry-run").exit_code == 0
    assert not (tmp_path / "log").exists()
    _tuned("app", *METRIC, *SEARCH)
    assert (tmp_path / "log").read_text() == "once"


def test_an_app_that_tunes_itself_is_told_so(tmp_path: Path) -> None:
    own_server(
        tmp_path / "app",
        "from optuna.distributions import FloatDistribution\n"
        "from flwr.serverapp import ServerApp\n"
        "from flwr_fbo import FederationTuner\n"
        "app = ServerApp()\n"
        "@app.main()\n"
        "def main(grid, context):\n"
        "    space = {'learning-rate': FloatDistribution(0.1, 1)}\n"
        "    tuner = FederationTuner(space, 'loss', 'minimize', 20, privacy=None)\n"
        "    tuner.start(print, grid, context)\n",
    )
    assert "the app without a tuner" in _error("app", *METRIC, *SEARCH)


def test_what_an_app_prints_is_not_the_result(tmp_path: Path) -> None:
    printing = "print('of the app')\n" + MESSAGE_CLIENT
    message_app(tmp_path / "app", client=printing)
    done = _tune("app", *METRIC, *SEARCH, "--json", "--num-supernodes", 4)
    assert json.loads(done.stdout)["metric"] == "eval_acc"
    assert "of the app" in done.stderr


def test_the_search_may_stand_in_the_app(tmp_path: Path) -> None:
    folder = message_app(
        tmp_path / "app",
        toml="\n[tool.flwr-fbo.tune]\n"
        'metric = "eval_acc"\nnum-supernodes = 10\ntrials = 4\n'
        'search = {learning-rate = "1e-3..1:log", optimizer = ["slow", "fast"]}\n',
    )
    assert set(_tuned("app")["chosen"]) == {"learning-rate", "optimizer"}
    dry = _tune("app", "--trials", 5, "--dry-run").stdout
    assert "At 10 sites" in dry
    assert "  4 settings to round " in dry
    project = folder / "pyproject.toml"
    project.write_text(project.read_text().replace("trials = 4", "trails = 4"))
    assert "did you mean 'trials'?" in _error("app")


def test_a_dry_run_says_what_is_enough(tmp_path: Path) -> None:
    message_app(tmp_path / "app")
    few = ("--epsilon", 1, "--num-supernodes", 5, "--dry-run", "--federation", "x")
    text = _tune("app", *METRIC, *SEARCH, *few).stdout
    assert "Nothing was trained" in text
    assert "these are replaced in " in text
    assert "With epsilon " in text
    assert "the metric was not checked" in text
    assert "unless the server itself measures" in text
    assert "a guess" not in text
    assert "a guess" in _tune("app", *METRIC, *SEARCH, "--dry-run").stdout
    more = _tune("app", *METRIC, *SEARCH, "--dry-run", "--compare").stdout
    assert "120 more to compare" in more
    plan = _tuned("app", *METRIC, *SEARCH, *few)
    assert plan["sites"] == 5
    assert plan["plain_trainings"] == 30
    assert plan["gain_lost"] > 0.1
    assert not (tmp_path / ".flwr-fbo").exists()


KILLED = """
import sys
from tests.support.killing import dying_after
with dying_after(int(sys.argv.pop(1))):
    from flwr_fbo.cli import app
    app()
"""


@pytest.mark.parametrize("epsilon", [(), ("--epsilon", "1000")])
def test_killed_three_times_it_chooses_the_same(tmp_path: Path, epsilon: Any) -> None:
    """Before different statements, however fast the machine is.

    Alone it makes 116 or more, and 87 where all that it does is read the result.
    """
    message_app(tmp_path / "app")
    arguments = ("tune", "app", *METRIC, *SEARCH, *epsilon, "--seed", "5", "--json")
    for most in (60, 70, 80):
        done = subprocess.run(
            [sys.executable, "-c", KILLED, str(most), *arguments],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            capture_output=True,
        )
        assert done.returncode == -signal.SIGKILL
    found = _tuned(*arguments[1:-1])
    alone = _tuned(*arguments[1:-1], "--folder", tmp_path / "alone")
    assert found["chosen"] == alone["chosen"]
    assert found["epsilon"] == alone["epsilon"]


def test_a_result_of_an_app_that_has_changed_is_told_so(tmp_path: Path) -> None:
    folder = message_app(tmp_path / "app", "", ", evaluate_fn=test")
    about = ("app", "--metric", "loss", "--score", "server", *SEARCH, "--seed", 1)
    first = _tune(*about)
    assert "OUTDATED" not in first.output
    (folder / "README.md").write_text("No part of it.\n")
    assert _tune(*about).stdout == first.stdout
    package = next(folder.glob("*/server_app.py")).parent
    server = package / "server_app.py"
    server.write_text(f"{server.read_text()}\n# changed\n")
    (package / "more.py").write_text("")
    told = _tune(*about)
    assert told.exit_code == 0, told.output
    names = f"{package.name}/more.py (new), {package.name}/server_app.py (changed)"
    text = " ".join(told.stdout.split())
    [record] = (tmp_path / ".flwr-fbo" / "tune").iterdir()
    assert f"OUTDATED: the app has changed since this tuning began: {names}." in text
    assert f"remove {record}, or pass another --folder." in text
    assert len(_tuned(*about)["app_changed"]) == 2
    assert "the app's files have changed" in _error(*about, "--compare")
    options = ("--folder", tmp_path / "anew")
    assert "OUTDATED" not in _tune(*about, *options).output


def test_an_app_that_changes_before_a_tuning_goes_on_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = message_app(tmp_path / "app")
    about = ("app", *METRIC, *SEARCH, "--seed", 1)
    finish = TrialRun._finish

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(TrialRun, "_finish", stop)
    stopped = _tune(*about)
    assert "Stopped. The same command goes on" in stopped.output
    monkeypatch.setattr(TrialRun, "_finish", finish)
    client = next(folder.glob("*/client_app.py"))
    client.write_text(f"{client.read_text()}# changed\n")
    done = _tune(*about)
    assert done.exit_code == 0, done.output
    told = f"the app has changed since this tuning began: {client.parent.name}/client"
    assert f"Warning: {told}" in done.stderr
    assert f"OUTDATED: {told}" in done.stdout


@pytest.mark.parametrize("options", ["", "fraction_train=0.3"])
def test_sites_without_data_end_the_command_before_any_trial(
    tmp_path: Path, options: str
) -> None:
    """The app has data for 12 clients, and 20 are simulated unless it is said."""
    client = MESSAGE_CLIENT.replace(
        "    w = w - factor",
        "    list(range(12))[context.node_config['partition-id']]\n    w = w - factor",
    )
    message_app(tmp_path / "app", options, client=client)
    text = _error("app", *METRIC, *SEARCH)
    assert "8 of 20 sites fail in the first round, those from partition-id 12" in text
    assert "IndexError" in text
    assert text.endswith("pass --num-supernodes 12")
    assert not (tmp_path / ".flwr-fbo").exists()
    _tuned("app", *METRIC, *SEARCH, "--num-supernodes", 12)


def test_a_comparison_that_privacy_prevents_is_refused_before_any_trial(
    tmp_path: Path,
) -> None:
    message_app(tmp_path / "app", "", ", evaluate_fn=test")
    private = ("--epsilon", 1000, "--compare", "--trials", 3)
    text = _error("app", *METRIC, *SEARCH, *private)
    assert "--compare must be left out with --epsilon: eval_acc stays at the" in text
    assert not (tmp_path / ".flwr-fbo").exists()
    server = next((tmp_path / "app").glob("*/server_app.py"))
    server.write_text(server.read_text().replace('{"loss"', '{"eval_acc"'))
    done = _tune("app", *METRIC, *SEARCH, *private)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("eval_acc: ")


def test_a_choice_is_as_sure_as_it_is_in_plain_words(tmp_path: Path) -> None:
    message_app(tmp_path / "app")
    open_ = _tuned("app", *METRIC, *SEARCH)
    compared = open_["compared"]
    gap = f"by {compared['after'] - compared['before']:.4g} when the race"
    assert gap in open_["verdict"]
    assert "another --seed may differ" in open_["verdict"]
    assert open_["p_model"] is None
    hidden = _tuned("app", *METRIC, *SEARCH, "--epsilon", 1000)
    assert hidden["verdict"].startswith("use it. The chosen model is better than")
    assert hidden["p_model"] < 0.02
    assert hidden["worse_than_defaults"] is None
    lines = _tune("app", *METRIC, *SEARCH, "--epsilon", 1000).stdout
    assert "To see it, train with the line below" in " ".join(lines.split())


def test_values_that_were_written_give_the_result_again(tmp_path: Path) -> None:
    folder = message_app(tmp_path / "app")
    about = ("app", *METRIC, *SEARCH, "--seed", 1)
    first = _tuned(*about, "--write")
    again = _tune(*about, "--json")
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout) == first
    assert "they were written" in again.stderr
    project = folder / "pyproject.toml"
    rate = f"learning-rate = {short_values(first['chosen'])['learning-rate']}"
    assert rate in project.read_text()
    project.write_text(project.read_text().replace(rate, "learning-rate = 0.5"))
    text = _error(*about)
    assert "values have changed since this tuning began: they were learning-" in text
    assert "learning-rate=0.001" in text


def test_other_values_of_the_run_config_have_a_record_of_their_own(
    tmp_path: Path,
) -> None:
    message_app(tmp_path / "app")
    about = ("app", *METRIC, *SEARCH, "--trials", 3)
    records = {
        _tuned(*about, *more)["record"] for more in ((), ("-c", "optimizer='fast'"))
    }
    assert len(records) == 2


def test_earlier_private_tunings_of_an_app_are_counted(tmp_path: Path) -> None:
    message_app(tmp_path / "app")
    message_app(tmp_path / "other" / "app")
    private = ("--epsilon", 500, "--trials", 3)
    assert _tuned("app", *METRIC, *SEARCH, *private)["earlier"] == []
    _tuned("other/app", *METRIC, *SEARCH, *private)
    _tuned("app", *METRIC, *SEARCH)
    done = _tune("app", *METRIC, *SEARCH, *private, "--seed", 1)
    told = "has 1 other private tuning on record here (epsilon 499.6 per client ("
    told += "message or zeros, delta 0.001; "
    for shown in (done.stderr, done.stdout):
        flowing = " ".join(shown.split())
        assert flowing.count(told) == 1
        assert "if replaced by another), without the training): on the" in flowing
    again = _tune("app", *METRIC, *SEARCH, *private, "--seed", 1)
    assert "that is another release" in again.stderr
    of_example = ("--epsilon", 400, "--protects", "example", "--trials", 3)
    mixed = _tune("app", *METRIC, *SEARCH, *of_example)
    told = "has 2 other private tunings on record here (epsilon 499.6 per client ("
    assert told in " ".join(mixed.stdout.split()), mixed.stdout
    spent = "Privacy: epsilon 400 per example (replaced by another, delta 1e-05)"
    assert spent in mixed.stdout
    last = _tuned("app", *METRIC, *SEARCH, *private, "--seed", 2)["earlier"]
    assert [one["unit"] for one in last].count("example") == 1


def test_a_plan_that_protects_one_example_says_how_many_are_needed(
    tmp_path: Path,
) -> None:
    message_app(tmp_path / "app")
    about = ("--epsilon", 0.5, "--protects", "example", "--metric-range", "0..1")
    text = _tune("app", *METRIC, *SEARCH, *about, "--dry-run").stdout
    text = " ".join(text.split())
    assert "With epsilon 0.5 per example (replaced by another, delta 1e-05)" in text
    assert "validation examples in all are enough" in text
    bundle = _tune("app", *METRIC, *SEARCH, *about, "--bundle-only")
    (module,) = Path(tmp_path).rglob("bundle/flwr_fbo_tune.py")
    assert bundle.exit_code == 0
    assert "epsilon 0.5 per example (replaced by another" in module.read_text()


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (("--protects", "example"), "protects"),
        (("--metric-range", "0..1"), "metric-range"),
        (("--epsilon", 1, "--max-examples", 9), "max-examples"),
        (
            ("--epsilon", 1, "--protects", "example", "--metric-range", "x"),
            "metric-range",
        ),
        (("--epsilon", 1, "--protects", "example", "--delta", 1e-3), "delta"),
    ],
)
def test_what_only_one_example_needs_is_refused_without_it(
    options: tuple[Any, ...], field: str, tmp_path: Path
) -> None:
    message_app(tmp_path / "app")
    told = _error("app", *METRIC, *SEARCH, *options)
    assert told.startswith(f"Error: --{field}=")


def test_values_have_four_digits_but_for_what_is_missing_to_one() -> None:
    values = {"a": 0.0123456, "b": 0.99954321, "c": 12345, "d": "x", "e": 1e-5 / 3}
    short = {"a": 0.01235, "b": 0.99954321, "c": 12345, "d": "x", "e": 3.333e-06}
    assert short_values(values) == short


def test_where_a_model_is_that_the_app_saves(tmp_path: Path) -> None:
    folder = message_app(tmp_path / "app")
    server = next(folder.glob("*/server_app.py"))
    text = server.read_text().replace("return strategy", "strategy")
    server.write_text(text)
    lost = _tuned("app", *METRIC, *SEARCH)
    assert lost["model"] is None
    assert "If the app saves none, train again" in lost["model_in_words"]
    server.write_text(f"{text}    open('final.pt', 'w').close()\n")
    kept = _tuned("app", *METRIC, *SEARCH, "--seed", 2, "--compare")
    assert f"written in {tmp_path} meanwhile: final.pt" in kept["model_in_words"]


def test_what_is_hardly_ever_meant_is_warned_of(tmp_path: Path) -> None:
    message_app(tmp_path / "app", toml="seed = 7\n")
    odd = ("--direction", "minimize", "--search", "seed=1..9", "--dry-run")
    done = _tune("app", *METRIC, *odd)
    assert "Warning: --direction minimize" in done.stderr
    assert "Warning: seed is searched" in done.stderr
    usual = _tune("app", *METRIC, *SEARCH, "--direction", "maximize", "--dry-run")
    assert "Warning: --direction" not in usual.stderr
    assert usual.stderr.startswith("reading the app ...")


def test_an_app_in_place_of_its_record_is_told_where_that_is(tmp_path: Path) -> None:
    message_app(tmp_path / "app")
    kept = tmp_path / ".flwr-fbo" / "tune"
    commands = [["show"], ["report"], ["export", "sqlite:///x.db"], ["ledger", "show"]]

    def errors() -> Iterator[str]:
        for command in commands:
            words = [*command[:1], "app", *command[1:]]
            if command[0] == "ledger":
                words = [*command, "app"]
            done = CliRunner().invoke(app, words)
            assert done.exit_code == 1, done.output
            yield done.stderr

    none = f"`flwr-fbo tune` keeps those in {kept}, or in --folder: none is of this app"
    assert all(none in error for error in errors())
    _tuned("app", *METRIC, *SEARCH, "--trials", 3)
    [record] = kept.iterdir()
    assert all(f"the latest first, in {record}." in error for error in errors())
    assert CliRunner().invoke(app, ["show", str(record)]).exit_code == 0


def test_a_bundle_is_the_app_and_one_module(tmp_path: Path) -> None:
    folder = message_app(tmp_path / "app", "", ", evaluate_fn=test")
    record = tmp_path / "record"
    options = ("--folder", record, "--num-supernodes", 20, "--epsilon", 1000)
    done = _tune("app", *METRIC, *SEARCH, *options, "--bundle-only")
    assert done.exit_code == 0, done.output
    bundle = record / "bundle"
    assert f"flwr build --app {bundle}" in done.stdout
    assert "flwr-fbo trust" in done.stdout
    own, written = _digests(folder), _digests(bundle)
    assert written.keys() - own.keys() == {"flwr_fbo_tune.py"}
    assert {n for n in own if written[n] != own[n]} == {"pyproject.toml"}
    components = tomllib.loads((bundle / "pyproject.toml").read_text())["tool"]["flwr"]
    assert components["app"]["components"] == {
        "serverapp": "flwr_fbo_tune:server",
        "clientapp": "flwr_fbo_tune:client",
    }
    sys.path.insert(0, str(bundle))
    sys.modules.pop("flwr_fbo_tune", None)
    module = import_module("flwr_fbo_tune")
    sys.modules.pop("flwr_fbo_tune")
    assert isinstance(module.server, ServerApp)
    assert isinstance(module.client, ClientApp)
    config: dict[str, Any] = {
        "num-server-rounds": 6,
        "learning-rate": 0.001,
        "optimizer": "slow",
        "nesterov": False,
    }
    grid = InProcessGrid(module.client, 20, run_config=config)
    module.server(grid, server_context(config))
    with np.load(record / "model.npz") as model:
        assert np.linalg.norm(model["w"] - 1.0) < 1.7
    # What the command prints once the run is over, from the record alone.
    found = _tuned("app", *METRIC, *SEARCH, *options)
    assert found["chosen"]["learning-rate"] > 0.1


def test_a_federation_gets_the_command_of_flower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message_app(tmp_path / "app")
    ran: list[list[str]] = []

    def run(command: list[str], **_: Any) -> Any:
        ran.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr("flwr_fbo.cli.tune_command.subprocess.run", run)
    about = ("app", *METRIC, *SEARCH, "--num-supernodes", 7, "--folder", "record")
    for name in ("local", "hospitals"):
        done = _tune(*about, "--federation", name)
        assert done.exit_code == 0, done.output
        assert "The record is at the SuperLink" in done.stdout
    bundle = str(tmp_path / "record" / "bundle")
    simulated = ["--federation-config", "num-supernodes=7"]
    assert ran == [
        ["flwr", "run", bundle, "local", *simulated, "--stream"],
        ["flwr", "run", bundle, "hospitals", "--stream"],
    ]
