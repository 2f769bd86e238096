"""A SuperLink that lies, at small size: `tests.adversaries.lying_superlink`."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from flwr.supercore.constant import TaskType
from flwr.supernode.runtime import run_clientapp

from flwr_fbo import _compat
from flwr_fbo._common.errors import RefusedError
from flwr_fbo.site.reviewed_apps import unpack
from tests.adversaries.lying_superlink import FAULTS, Lie, Site, honest, lies, site


@pytest.fixture(scope="module")
def at() -> Iterator[Site]:
    with site() as one:
        yield one


@pytest.fixture(scope="module")
def named(at: Site) -> dict[str, Lie]:
    return {lie.name: lie for lie in lies(at)}


def load(at: Site, lie: Lie, folder: Path, patch: pytest.MonkeyPatch) -> str:
    """Load the app of a lie, as ``flwr-clientapp`` does; return why none was."""

    def flwr_clientapp(*_: object) -> None:
        names = vars(run_clientapp)
        names["install_from_fab"](lie.content, skip_prompt=True)
        names["get_project_dir"](lie.fab_id, lie.version, lie.digest)
        loader = names["get_load_client_app_fn"](
            default_app_ref="", app_path=None, multi_app=True
        )
        loader(lie.fab_id, lie.version, lie.digest)

    for name in ("install_from_fab", "get_project_dir", "get_load_client_app_fn"):
        patch.setattr(run_clientapp, name, vars(run_clientapp)[name])  # undone later
    patch.setattr(sys, "path", [*sys.path])
    patch.setattr(_compat, "_run_script", flwr_clientapp)
    try:
        _compat.run_client_app(lambda content: unpack(content, at.trusted, folder))
    except (RefusedError, ModuleNotFoundError) as error:
        return str(error)
    finally:
        for module in [name for name in sys.modules if name.split(".")[0] == "words"]:
            del sys.modules[module]
    return ""


def test_no_lie_has_other_code_loaded(
    at: Site, named: dict[str, Lie], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(named) >= 50
    truth = honest(at)
    for number, lie in enumerate((truth, *named.values())):
        at.plant_for(lie)
        with monkeypatch.context() as patch:
            refused = load(at, lie, tmp_path / str(number), patch)
        assert at.ran() == (set() if refused else {"reviewed"}), lie.name
        told = lie.fab_id, lie.version, lie.digest, lie.content
        is_true = told == (truth.fab_id, truth.version, truth.digest, truth.content)
        assert is_true == (not refused), lie.name


@pytest.mark.parametrize(
    "name", ["version: up to the root", "bundle: planted, its SHA-256"]
)
def test_a_lie_is_refused_as_in_a_deployment(
    name: str, at: Site, named: dict[str, Lie]
) -> None:
    outcome = at.answer(named[name])
    assert not outcome.ran
    assert "Nothing of it was run." in outcome.end


def test_the_reviewed_app_runs(at: Site) -> None:
    outcome = at.answer(honest(at))
    assert outcome.ran == {"reviewed"}
    assert outcome.end == "completed"
    assert not outcome.is_violation


# By fault, a lie that then runs planted code.
FOUND = {
    "as before": "version: up to the root",
    "without the list": "bundle: planted, its SHA-256",
    "without -P": "a reviewed entry point that is not there",
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, at: Site, named: dict[str, Lie]) -> None:
    assert at.answer(named[FOUND[fault]], fault).is_violation


@contextmanager
def superexec(at: Site, log: Path) -> Iterator[None]:
    command = [str(Path(sys.executable).with_name("flwr-fbo")), "superexec"]
    arguments = "--insecure", "--runtime-api-address", at.runtime.address
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, str(at.trusted), "--", *arguments],
            cwd=at.folder / "cwd",
            env={
                **at.environment(),
                "PATH": os.defpath,
                "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
            },
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait(30)


@pytest.mark.slow
def test_superexec_hands_on_what_it_is_told(
    at: Site, named: dict[str, Lie], tmp_path: Path
) -> None:
    """Task by task: what the SuperNode makes of a server's run, and its token."""
    log = tmp_path / "log"
    truth = honest(at)
    agent = replace(truth, name="agent", task_type=TaskType.AGENT_APP)
    at.ran()
    with superexec(at, log):
        for lie in (truth, named["version: up to the root"]):
            at.runtime.ended.clear()
            at.runtime.waiting.append(lie)
            assert at.runtime.ended.wait(120), log.read_text()
            assert at.ran() == ({"reviewed"} if lie is truth else set())
        at.runtime.waiting.append(agent)
        deadline = time.monotonic() + 60
        while "This site runs no flwr-agentapp" not in log.read_text():
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        assert not at.ran()
