"""SuperLink, SuperNodes and what they start, as real processes on loopback."""

import hashlib
import os
import re
import shutil
import signal
import sys
import time
import tomllib
from base64 import b64decode, b64encode
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict, UserConfig
from optuna.distributions import FloatDistribution

from flwr_fbo import FedWarmStart, InProcessGrid, Privacy, Seeds
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalHeldError
from flwr_fbo.journal.tables import LedgerRow, Trial
from flwr_fbo.lab.simulation.loop import run_loop
from flwr_fbo.privacy.spending_ledger import SpendingLedger
from flwr_fbo.strategies.study_record import read_ledger
from flwr_fbo.tuning import FedWarmStartSettings
from flwr_fbo.tuning.search.agent import Agent
from flwr_fbo.tuning.search.agent_journal import recorded_agent
from flwr_fbo.tuning.search.study import create_agent
from tests.support.deployed import (
    DEPLOYMENT,
    await_condition,
    begun,
    needs_nginx,
    process_named,
)
from tests.support.engine import FlwrRun

APP = DEPLOYMENT / "app"
NUM_SITES = 3

# The example's client, with faults that a node config asks for: each leaves a mark at
# the evaluation in which it happens.
FAULTY_CLIENT = """
import os
import time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from flwr_fbo import tuning_app
from hospitals.honest import make_objective


def make_faulty(context):
    fault, objective = context.node_config.get("fault"), make_objective(context)
    if fault == "raise":
        raise RuntimeError("no data today")
    folder = Path(context.node_config["fbo-folder"]).parent

    def faulty(params):
        if fault == "hang":
            time.sleep(3600)
        if (folder / "stop-here").exists():
            (folder / "stop-here").rename(folder / f"stopped-{os.getpid()}")
            time.sleep(3600)
        with (folder / "evaluated").open("a") as file:
            file.write(f"{sorted(params.items())}\\n")
        return objective(params)

    return faulty


honest = tuning_app(make_faulty)
app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    reply = honest(message, context)
    if context.node_config.get("fault") == "nan":
        for name in ("arrays", "fitres.parameters"):
            if name in reply.content:
                arrays = [np.full(512, np.nan)]
                reply.content[name] = ArrayRecord(arrays)
    return reply
"""


# An app of FedWarmStart: three pioneers, and one site that joins when it likes.
WARM_CLIENT = """
from flwr_fbo import tuning_app

app = tuning_app(lambda context: lambda trial: -((trial["x"] - 0.85) ** 2))
"""
WARM_SERVER = """
from flwr.serverapp import ServerApp
from optuna.distributions import FloatDistribution

from flwr_fbo import FedWarmStart, Host, Privacy, Seeds
from flwr_fbo.tuning import FedWarmStartSettings

app = ServerApp()


@app.main()
def main(grid, context):
    record = str(context.run_config["record"]) or None
    strategy = FedWarmStart(
        {"x": FloatDistribution(0, 1)},
        "maximize",
        4,
        agent=FedWarmStartSettings(share_after=3),
        cohorts=(3,),
        privacy=Privacy(noise_multiplier=0.001),
        delta=1e-3,
        seeds=Seeds(study=1, features=2, noise=3),
    )
    rounds, host = int(context.run_config["num-rounds"]), Host(min_agents=3)
    result = strategy.start(grid, num_rounds=rounds, folder=record, host=host)
    print(result.recommendation)
"""


def _start_sites(federation: Any, faults: dict[int, str], number: int) -> None:
    for site in range(number):
        federation.register(f"site-{site}")
        _start_site(federation, site, faults.get(site, ""))


def _start_site(federation: Any, site: int, fault: str = "") -> dict[str, str | int]:
    from loopback.__main__ import node_config

    folder = federation.folder / f"site-{site}"
    own: dict[str, str | int] = {"agent-id": site, "fault": fault}
    config = {**node_config(folder, site % NUM_SITES), **own}
    federation.start_supernode(f"site-{site}", config)
    return config


def _faulty_app(folder: Path) -> Path:
    app = folder / "app"
    shutil.copytree(APP, app, ignore=shutil.ignore_patterns("__pycache__"))
    (app / "hospitals" / "client_app.py").rename(app / "hospitals" / "honest.py")
    (app / "hospitals" / "client_app.py").write_text(FAULTY_CLIENT)
    return app


def _config(federation: Any, num_rounds: int, **more: object) -> str:
    values = {"record": f'"{federation.folder / "record"}"', "experiment": "true"}
    named = {name.replace("_", "-"): value for name, value in more.items()}
    every = {**values, "num-rounds": num_rounds, **named}
    return " ".join(f"{name}={value}" for name, value in every.items())


def _fingerprint(federation: Any, site: int) -> str:
    """Return what ``ssh-keygen -lf`` prints of a site's key."""
    line = (federation.keys / f"site-{site}" / "node_key.pub").read_bytes()
    digest = hashlib.sha256(b64decode(line.split()[1])).digest()
    return f"SHA256:{b64encode(digest).decode().rstrip('=')}"


def _agent(folder: Path, site: int) -> Agent:
    (path,) = folder.glob(f"*-agent-{site}.sqlite")
    with Journal(None, path) as journal:
        return recorded_agent(journal)


def _trials(folder: Path, site: int) -> list[Trial]:
    (path,) = folder.glob(f"*-agent-{site}.sqlite")
    with Journal(None, path) as journal:
        return journal.trials()


def _record(federation: Any) -> tuple[dict[str, Any], list[LedgerRow]]:
    path = federation.folder / "record" / "server.sqlite"

    def read() -> tuple[dict[str, Any], list[LedgerRow]] | None:
        # A run that was stopped is listed as such before its process has ended.
        with suppress(JournalHeldError), Journal(None, path) as journal:
            return read_ledger(journal)
        return None

    found: tuple[dict[str, Any], list[LedgerRow]]
    found = await_condition(read, "the end of the process that holds the record", 60)
    return found


def _num_rounds(federation: Any) -> int:
    """Return how many rounds the runs so far have printed; a little behind."""
    return _printed(federation).count(" agents answered in ")


def _printed(federation: Any) -> str:
    """Return what the runs so far have printed."""
    return "".join(p.read_text() for p in federation.folder.glob("run-*.out"))


def _await_round(federation: Any, number: int) -> None:
    await_condition(lambda: _num_rounds(federation) >= number, f"round {number}", 300)


@pytest.mark.slow
def test_a_federation_with_tls_and_authentication(
    federation: Any, flwr_run: FlwrRun, tmp_path: Path
) -> None:
    """It completes, refuses a stranger, and gives the engine's curves."""
    from loopback.keys import make_key_pair

    num_rounds = 6
    federation.start_superlink()
    make_key_pair(federation.keys / "site-9")  # nobody has registered it
    _start_site(federation, 9)
    _start_sites(federation, {}, NUM_SITES)
    keys = '"' + " ".join(_fingerprint(federation, i) for i in range(NUM_SITES)) + '"'
    with begun(federation, APP, _config(federation, num_rounds, keys=keys)) as end:
        printed = end(300)
    assert "3 of 3 agents answered" in printed
    assert "(score " in printed, printed
    assert federation.processes["site-9"].poll() not in (None, 0)
    assert "No SuperNode found with the given public key" in federation.log("superlink")
    assert not list((federation.folder / "site-9").glob("journal/*"))
    for name in list(federation.processes):
        federation.stop(name)

    config: UserConfig = {
        "num-rounds": num_rounds,
        "experiment": True,
        "authenticated": False,
        "fbo-folder": str(tmp_path / "simulated"),
    }
    flwr_run(APP, NUM_SITES, config)
    for site in range(NUM_SITES):
        deployed = _agent(federation.folder / f"site-{site}" / "journal", site)
        simulated = _agent(tmp_path / "simulated", site)
        assert len(deployed.values) == num_rounds
        np.testing.assert_array_equal(deployed.best_so_far, simulated.best_so_far)


@pytest.mark.slow
def test_whatever_is_killed_the_study_goes_on(
    federation: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client, a SuperNode, the ServerApp and the SuperLink, in turn: SIGKILL."""
    num_rounds = 12
    app = _faulty_app(tmp_path)
    config = _config(federation, num_rounds, deadline=75)
    federation.start_superlink()
    _start_sites(federation, {}, NUM_SITES)
    with begun(federation, app, config) as end:
        _await_round(federation, 2)
        os.kill(_evaluating(federation, 0), signal.SIGKILL)
        _await_round(federation, 6)
        client = _evaluating(federation, 1)
        federation.processes["site-1"].kill()
        federation.processes.pop("site-1").wait()
        os.kill(client, signal.SIGKILL)  # it would end by itself, an hour later
        federation.await_supernode("site-1", _start_site(federation, 1))
        _await_round(federation, _num_rounds(federation) + 1)
        os.kill(process_named(federation, "flwr-serverapp"), signal.SIGKILL)
        end(200)
    assert len(_record(federation)[0]["rounds"]) < num_rounds
    with begun(federation, app, config) as end:
        _await_round(federation, _num_rounds(federation) + 1)
        federation.processes["superlink"].kill()
        federation.processes.pop("superlink").wait()
        end(200)
    federation.start_superlink()
    with begun(federation, app, config) as end:
        printed = end(400)
    assert "Resuming the study" in printed
    assert "(score " in printed, printed

    fields, ledger = _record(federation)
    whole = _uninterrupted(tmp_path / "whole", num_rounds, monkeypatch)
    assert [round_["server_round"] for round_ in fields["rounds"]] == list(
        range(1, num_rounds + 1)
    )
    assert [row.iteration for row in ledger] == [row.iteration for row in whole]
    assert [row.facts for row in ledger] == [row.facts for row in whole]
    # On a busy machine Flower's SuperNode may still answer the run that has ended, and
    # be one reply behind from then on: a release without that site's is another one.
    partial = [
        row.iteration
        for row in ledger
        if fields["rounds"][row.iteration]["answered"] < NUM_SITES
    ]
    same_until = min(partial, default=num_rounds)
    assert same_until > ledger[0].iteration
    for row, expected in zip(ledger, whole, strict=True):
        if row.iteration < same_until:
            np.testing.assert_array_equal(row.vectors, expected.vectors)
    cut_off = [0, 0, 0]
    for site in range(NUM_SITES):
        folder = federation.folder / f"site-{site}"
        trials = _trials(folder / "journal", site)
        assert {t.state for t in trials} == {"complete"}
        # A SuperNode may be back too late to be asked in one round, after the votes.
        missed = set(range(num_rounds)) - {t.iteration for t in trials}
        assert len(missed) <= (site == 1)
        assert len(trials) == num_rounds - len(missed)
        asked = min(*missed, same_until + 1, num_rounds)
        agent = _agent(tmp_path / "whole" / "clients", site)
        assert [(t.iteration, t.value) for t in trials[:asked]] == list(
            zip(agent.iterations[:asked], agent.values[:asked], strict=True)
        )
        evaluated = (folder / "evaluated").read_text().splitlines()
        cut_off[site] = sum(t.interruptions for t in trials)
        assert len(trials) <= len(evaluated) <= len(trials) + cut_off[site]
    assert cut_off[0] > 0
    assert cut_off[1] > 0
    _assert_charged_once(federation, ledger)


def _assert_charged_once(federation: Any, ledger: list[LedgerRow]) -> None:
    """Assert that no site's ledger has a release twice, or one that was not made."""
    assert len({row.iteration for row in ledger}) == len(ledger)
    for site in range(NUM_SITES):
        with SpendingLedger.held(federation.folder / f"site-{site}/journal") as own:
            charged = [row.facts["release"] for row in own.rows]
        assert sorted(set(charged)) == sorted(charged)
        assert 0 < len(charged) <= len(ledger)


@pytest.mark.slow
def test_a_run_that_is_stopped_and_a_database_that_is_lost(federation: Any) -> None:
    """`flwr stop`, then a SuperLink that dies with its database: it goes on."""
    num_rounds = 5
    keys = [f"site-{site}" for site in range(NUM_SITES)]
    federation.start_superlink()
    _start_sites(federation, {}, NUM_SITES)
    fingerprints = " ".join(_fingerprint(federation, i) for i in range(NUM_SITES))
    config = _config(federation, num_rounds, keys=f'"{fingerprints}"')
    with begun(federation, APP, config) as end:
        _await_round(federation, 1)
        run = re.search(r"started run (\d+)", _printed(federation))
        assert run is not None
        federation.flwr("stop", run[1], "loopback")
        end(120)
    assert "finished:stopped" in federation.flwr("list", "loopback", "--format", "json")
    done = len(_record(federation)[0]["rounds"])
    assert 0 < done < num_rounds

    with begun(federation, APP, config) as end:
        _await_round(federation, _num_rounds(federation) + 1)
        federation.processes["superlink"].kill()
        federation.processes.pop("superlink").wait()
        end(200)
    for path in federation.folder.glob("superlink.db*"):
        path.unlink()
    federation.start_superlink()
    for site in keys:
        (federation.keys / site / "registered").unlink()
        federation.register(site)
        federation.stop(site)
        _start_site(federation, int(site[-1]))
    with begun(federation, APP, config) as end:
        printed = end(400)
    assert "Resuming the study" in printed
    assert "(score " in printed, printed
    fields, ledger = _record(federation)
    numbers = [round_["server_round"] for round_ in fields["rounds"]]
    assert numbers == list(range(1, num_rounds + 1))
    _assert_charged_once(federation, ledger)


@pytest.mark.slow
@needs_nginx
def test_the_proxy_is_killed_and_the_run_goes_on(federation: Any) -> None:
    num_rounds = 6
    federation.start_superlink()
    federation.start_proxy()
    _start_sites(federation, {}, NUM_SITES)
    with begun(federation, APP, _config(federation, num_rounds, deadline=75)) as end:
        _await_round(federation, 2)
        federation.stop("proxy")
        time.sleep(10)
        assert _num_rounds(federation) < num_rounds - 1
        federation.start_proxy()
        printed = end(400)
    assert "(score " in printed, printed
    fields, ledger = _record(federation)
    assert len(fields["rounds"]) == num_rounds
    answered = [round_["answered"] for round_ in fields["rounds"]]
    assert answered[-1] == NUM_SITES, answered
    _assert_charged_once(federation, ledger)


def _evaluating(federation: Any, site: int) -> int:
    """Have a site's next evaluation wait for its end; return the client's process."""
    folder = federation.folder / f"site-{site}"
    (folder / "stop-here").touch()
    (mark,) = await_condition(
        lambda: list(folder.glob("stopped-*")), "an evaluation", 120.0
    )
    mark.unlink()
    return int(mark.name.removeprefix("stopped-"))


def _uninterrupted(
    folder: Path, num_rounds: int, monkeypatch: pytest.MonkeyPatch
) -> list[LedgerRow]:
    """Run the same study in one piece, in process; return its ledger."""
    flower_app = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]
    config: UserConfig = {
        **flower_app["app"]["config"],
        "num-agents": NUM_SITES,
        "num-rounds": num_rounds,
        "record": str(folder / "record"),
        "fbo-folder": str(folder / "clients"),
        "authenticated": False,
        "patience": 0,
        "deadline": 60,
        "experiment": True,
    }
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(APP))
    from hospitals import client_app, server_app

    grid = InProcessGrid(client_app.app, NUM_SITES, run_config=config)
    server_app.app(grid, Context(1, 1, {}, RecordDict(), config))
    with Journal(None, folder / "record" / "server.sqlite") as journal:
        return read_ledger(journal)[1]


@pytest.mark.slow
def test_bad_clients_do_not_stop_the_others(federation: Any, tmp_path: Path) -> None:
    num_rounds, faults = 3, {2: "hang", 3: "raise", 4: "nan"}
    federation.start_superlink()
    _start_sites(federation, faults, 5)
    config = _config(federation, num_rounds, num_agents=5, deadline=75)
    with begun(federation, _faulty_app(tmp_path), config) as end:
        printed = end(400)
    assert "(score " in printed, printed
    assert printed.count("(1 failed, 1 late, 0 absent)") == 3
    assert "agent 2: no reply in time" in printed
    assert re.search("agent 3: .*make_objective failed: RuntimeError", printed)
    assert "agent 4: its message counts as zero: NaN or infinite" in printed
    for site in (0, 1, 4):
        folder = federation.folder / f"site-{site}" / "journal"
        assert [t.state for t in _trials(folder, site)] == ["complete"] * num_rounds


@pytest.mark.slow
def test_a_site_that_joins_late_starts_from_what_the_others_know(
    federation: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its SuperNode comes up after the pioneers' release; it equals the loop's."""
    num_rounds, app = 6, tmp_path / "app"
    shutil.copytree(APP, app, ignore=shutil.ignore_patterns("__pycache__"))
    (app / "hospitals" / "client_app.py").write_text(WARM_CLIENT)
    (app / "hospitals" / "server_app.py").write_text(WARM_SERVER)
    federation.start_superlink()
    _start_sites(federation, {}, 3)
    federation.register("site-3")
    with begun(federation, app, _config(federation, num_rounds)) as end:
        _await_round(federation, 3)
        _start_site(federation, 3)
        printed = end(300)
    assert "(score " in printed, printed
    _, (release,) = _record(federation)
    late = _agent(federation.folder / "site-3" / "journal", 3)
    assert min(late.iterations) >= 3

    study = FedWarmStart(
        {"x": FloatDistribution(0, 1)},
        "maximize",
        4,
        agent=FedWarmStartSettings(share_after=3),
        cohorts=(3,),
        privacy=Privacy(noise_multiplier=0.001),
        delta=1e-3,
        seeds=Seeds(study=1, features=2, noise=3),
    )
    study.plan(num_rounds - 1)
    agents = [create_agent(study.study, slot, 1) for slot in range(4)]
    objective = [lambda trial: -((trial["x"] - 0.85) ** 2)] * 4
    run_loop(study.server, agents, objective, num_rounds - 1)
    (expected,) = study.server.ledger
    np.testing.assert_array_equal(release.vectors, expected.vectors)
    for site, agent in enumerate(agents):
        deployed = _agent(federation.folder / f"site-{site}" / "journal", site)
        # By its own evaluations, whenever it joined.
        num = len(deployed.values)
        np.testing.assert_array_equal(deployed.points, agent.points[:num])
    # The head start, and not the centre.
    assert abs(late.points[0, 0] - 0.85) < 0.1
    assert len(late.values) >= 2
