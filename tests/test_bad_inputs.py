"""What a person may get wrong: told in one line, before anything waits or is done.

A line names the field, the value and what is allowed.
"""

# What is wrong on purpose is of another type, too.
# mypy: disable-error-code="arg-type"

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict
from optuna.distributions import FloatDistribution
from typer.testing import CliRunner

from flwr_fbo import (
    DPFTSDE,
    FedGOUCB,
    FedUCB,
    FedVote,
    FedWarmStart,
    Host,
    InProcessGrid,
    Limits,
    Privacy,
    Seeds,
    best_params,
    tuning_app,
)
from flwr_fbo.bandits import (
    ContinualSettings,
    FedGOUCBSettings,
    LinearUCBSettings,
    NeuralPrivacy,
)
from flwr_fbo.cli import app
from flwr_fbo.integrations import Callback
from flwr_fbo.privacy import WeightSchedule
from flwr_fbo.tuning import DPFTSDESettings, FedVoteSettings, FTSSettings
from tests.support.apps import tuner as _tuner
from tests.support.federation import SPACE, make_objective, numpy_app

LINEAR = LinearUCBSettings(ContinualSettings(3, 2, 1.0, 1e-3), local_data="released")
UNEVEN = Privacy(weights=WeightSchedule())
X = {"x": FloatDistribution(0.0, 1.0)}


def _context() -> Context:
    return Context(1, 1, {}, RecordDict(), {})


def _vote(**options: Any) -> FedVote:
    return FedVote(
        **{"space": SPACE, "direction": "maximize", "num_agents": 4} | options
    )


def _privacy(**options: Any) -> Privacy:
    return Privacy(**options)


def _host(**options: Any) -> Host:
    return Host(**options)


def _start(**options: Any) -> Any:
    grid = InProcessGrid(numpy_app(), 4)
    return _vote().start(grid, **{"num_rounds": 3} | options)


PYTHON: list[tuple[Callable[[], Any], str, str]] = [
    (lambda: _vote(space={}), "space={}", "a non-empty dict"),
    (
        lambda: _vote(space={"x": (0, 1)}),
        "space['x']=(0, 1)",
        "CategoricalDistribution",
    ),
    (lambda: _vote(direction="max"), "direction='max'", "maximize"),
    (lambda: _vote(num_agents="4"), "num_agents='4'", "integer"),
    (lambda: _vote(epsilon=-1, delta=0.01), "epsilon=-1", "number"),
    (lambda: _vote(delta=2.0), "delta=2.0", "below"),
    (lambda: _vote(agent=DPFTSDESettings()), "agent=", "FedVoteSettings"),
    (lambda: _start(folder="here"), "folder='here'", "absolute path"),
    (lambda: _vote(seeds=3), "seeds=3", "Seeds"),
    (lambda: _privacy(weights=3), "weights=3", "WeightSchedule"),
    (lambda: _vote(privacy=UNEVEN), "weights=Weight", "all votes weigh the same"),
    (
        lambda: FedWarmStart(SPACE, "maximize", 4, privacy=UNEVEN),
        "weights=Weight",
        "None, with FedWarmStart",
    ),
    (lambda: _host(callbacks=[Callback]), "callbacks=[<class", "Callback objects"),
    (
        lambda: _tuner(callbacks=Callback()).start(print, None, _context()),
        "callbacks=<",
        "a list or tuple",
    ),
    (lambda: _host(client_api="grpc"), "client_api='grpc'", "message"),
    (lambda: Host(metrics=["loss"]), "metrics=['loss']", "best-value"),
    (lambda: _start(num_rounds=1), "num_rounds=1", ">= 2"),
    (lambda: _start(timeout=-1), "timeout=-1", "> 0"),
    (lambda: _start(host=5), "host=5", "Host"),
    (lambda: _start(host=Host(min_agents=5)), "min_agents=5", "num_agents=4"),
    (
        lambda: FedUCB(LINEAR, 4, interval=1.0).start(
            InProcessGrid(numpy_app(), 4), host=Host(metrics=["best-value"])
        ),
        "metrics=['best-value']",
        "empty, with FedUCB",
    ),
    (
        lambda: DPFTSDE(SPACE, "maximize", 4, preset="papr"),
        "preset='papr'",
        "did you mean 'paper'",
    ),
    (lambda: Host(patience=-1), "patience=-1", "number"),
    (lambda: Seeds(study=-1), "study=-1", ">= 0"),
    (lambda: Limits(max_epsilon_per_client=3.0), "max_delta=None", "together"),
    (lambda: FedVoteSettings(num_initial=0), "num_initial=0", ">= 1"),
    (lambda: FTSSettings(follow="often"), "follow='often'", "inverse"),
    (lambda: ContinualSettings(0, 2, 1.0, 1e-3), "num_releases=0", ">= 1"),
    (lambda: FedUCB(LINEAR, 4, interval=-1.0), "interval=-1.0", "number"),
    (lambda: FedGOUCB(FedGOUCBSettings(), None, 4), "model=None", "Network"),
    (lambda: NeuralPrivacy(1.0, 1e-3, num_features=1), "num_features=1", ">= 2"),
    (lambda: InProcessGrid(numpy_app(), 0), "num_nodes=0", ">= 1"),
    (lambda: tuning_app(None), "make_objective=None", "function"),
    (lambda: tuning_app(make_objective, enqueue={"C": 1}), "enqueue={'C': 1}", "list"),
    (
        lambda: tuning_app(make_objective, enqueue=[{"x": 7.0}], space=X),
        "params['x']=7.0",
        "from 0.0 to 1.0",
    ),
    (lambda: best_params(_context(), default=None), "default=None", "a dict"),
]


@pytest.mark.parametrize(("make", "named", "allowed"), PYTHON)
def test_python(
    make: Callable[[], Any],
    named: str,
    allowed: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def waited(seconds: float) -> None:
        raise AssertionError(f"waited for {seconds} s")

    monkeypatch.setattr("time.sleep", waited)
    with pytest.raises(ValueError, match=r"\S") as caught:
        make()
    text = str(caught.value)
    assert "\n" not in text
    assert named in text
    assert allowed in text


COMMANDS = [
    ("run nosuch", "experiment='nosuch'", "flwr-fbo list"),
    ("run digits-votes --epsilon -1", "--epsilon=-1.0", "1e-3"),
    ("claims digits", "experiment='digits'", "flwr-fbo claims"),
    ("show empty", "results='empty/results.jsonl'", "this one is empty"),
    ("show binary", "results='binary/results.jsonl'", "flwr-fbo run wrote"),
    ("privacy --strategy FedVote --agents 0 --releases 1", "--agents=0", ">= 1"),
    ("privacy --agents 9 --releases 1 --strategy X", "--strategy='X'", "FedVote"),
    ("audit --plant nothing", "--plant='nothing'", "one of"),
    ("report damaged.sqlite", "damaged.sqlite", "not a database"),
    ("ledger show damaged.sqlite", "damaged.sqlite", "a database"),
]


@pytest.mark.parametrize(("line", "named", "allowed"), COMMANDS)
def test_the_command_line(
    line: str,
    named: str,
    allowed: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in (("empty", b""), ("binary", b"\x00\xff\n" * 99)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.jsonl").write_bytes(content)
    (tmp_path / "damaged.sqlite").write_bytes(b"rubbish" * 999)
    result = CliRunner().invoke(app, line.split(), env={"COLUMNS": "200"})
    assert result.exit_code in (1, 2), result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    [error] = [one for one in result.output.splitlines() if one.startswith("Error: ")]
    assert named in error
    assert allowed in error
