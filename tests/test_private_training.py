"""An app whose sites train by DP-SGD, and what it takes to tune it: no more epsilon."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from flwr.app import UserConfig
from flwr.common.config import parse_config_args
from flwr.serverapp.exception import AggregationError
from typer.testing import CliRunner

from benchmarks.tuned_examples import EXAMPLES, NAMES, accuracies, imported
from flwr_fbo import OneTraining, PrivateChoice, Seeds
from flwr_fbo.cli import app
from flwr_fbo.privacy import plan_training
from flwr_fbo.tuner.schedules.schedule import AppShape
from tests.support.before_and_after import assert_readme_shows, diff
from tests.support.engine import FlwrRun
from tests.support.opacus import needs_opacus

FOLDER, NUM_SITES = NAMES["private"]
EXAMPLE = EXAMPLES / FOLDER
README = (EXAMPLE / "README.md").read_text()
CODE = [f"digits_private/{n}.py" for n in ("client_app", "server_app")]
SAME = ["digits_private/__init__.py", "digits_private/task.py"]
TOTAL, DELTA = 8.0, 1e-5
CHOICE = PrivateChoice(epsilon=2, delta=DELTA, protects="example")
# A site with a limit takes part in nothing else.
REAL_NOISE = {"seeds": Seeds(study=0)}


def _config(version: str) -> dict[str, Any]:
    project = tomllib.loads((EXAMPLE / version / "pyproject.toml").read_text())
    config: dict[str, Any] = project["tool"]["flwr"]["app"]["config"]
    return config


def _planned_rounds(version: str) -> int:
    """What the noise is for."""
    if version == "before":
        return int(_config(version)["num-server-rounds"])
    client = (EXAMPLE / version / "digits_private/client_app.py").read_text()
    return int(re.findall(r"^NUM_ROUNDS = (\d+)$", client, re.MULTILINE)[0])


def _sites(folder: Path, max_epsilon: float) -> list[UserConfig]:
    """Return the node configs of the README, each site with its own numbers."""
    (shown,) = re.findall(r"`--node-config '(.*?)'`", README, re.DOTALL)
    first = parse_config_args([" ".join(shown.split())])
    assert first["partition-id"] == first["agent-id"] == 0
    assert first["num-partitions"] == NUM_SITES
    assert first["fbo-max-epsilon-per-example"] == TOTAL
    return [
        {
            **first,
            "agent-id": site,
            "partition-id": site,
            "fbo-folder": str(folder / f"site-{site}"),
            "fbo-max-epsilon-per-example": max_epsilon,
        }
        for site in range(NUM_SITES)
    ]


def _least_noise(num_rounds: int, choice: PrivateChoice | None) -> float:
    plan = plan_training(
        TOTAL,
        DELTA,
        sampling_probability=0.2,
        num_steps=5 * num_rounds,
        choice=choice,
    )
    return plan.training.noise_multiplier


@pytest.mark.parametrize("version", ["before", "after"])
def test_the_noise_is_what_the_total_takes(version: str) -> None:
    """Neither too little, nor more than the last digit rounds."""
    least = _least_noise(
        _planned_rounds(version), CHOICE if version == "after" else None
    )
    assert least <= _config(version)["noise-multiplier"] < least + 1.5e-3


def test_a_round_is_to_spare() -> None:
    config = _config("after")
    num_rounds = _planned_rounds("after")
    assert num_rounds == config["num-server-rounds"] + 1
    assert f"num_steps={5 * num_rounds}, choice=privacy" in README


def test_what_fewer_sites_train_is_said() -> None:
    """All of them train each trial, and then the chosen one."""
    num_rounds = _config("after")["num-server-rounds"]
    shape = AppShape(num_nodes=9, num_asked=9, num_rounds=num_rounds)
    plan = OneTraining().plan(16, shape)
    of_trials = plan.num_rung_rounds
    of_chosen = num_rounds - plan.rungs[-1].rounds
    shown = " ".join(README.split())
    assert f"{of_trials} rounds, and {of_chosen} of the chosen one" in shown
    assert f"Plan these {of_trials + of_chosen} rounds and one to spare" in shown
    ((spared, noise),) = re.findall(
        r"`NUM_ROUNDS = (\d+)` and `noise-multiplier = ([0-9.]+)`", shown
    )
    assert int(spared) == of_trials + of_chosen + 1
    least = _least_noise(int(spared), CHOICE)
    assert least <= float(noise) < least + 1.5e-3


@needs_opacus
@pytest.mark.gate
@pytest.mark.parametrize("version", ["before", "after"])
def test_a_site_whose_batches_are_too_few_is_refused(version: str) -> None:
    """Else it draws each example more often than it is charged for."""
    with imported(EXAMPLE / version) as example:
        task = example.client.task
        digits = task._split()[0]
        for num_train, num_batches in ((10, 5), (11, 4), (16, 4), (6, 3), (103, 5)):
            of_site = task.TensorDataset(*digits[: -(-3 * num_train // 2)])
            task._split = lambda of_site=of_site: (of_site, None)
            if num_batches == 5:
                assert len(task.load_data(0, 1)[0]) == 5
                continue
            with pytest.raises(ValueError, match=f"{num_train} .* {num_batches} "):
                task.load_data(0, 1)


@needs_opacus
@pytest.mark.gate
def test_it_is_better_tuned() -> None:
    before = accuracies(EXAMPLE / "before", 0, {}, NUM_SITES)
    after = accuracies(EXAMPLE / "after", 0, {}, NUM_SITES)
    assert before[-1] < 0.5 < 0.6 < after[-1]


@needs_opacus
@pytest.mark.gate
def test_training_and_choice_are_within_the_limit_of_a_site(tmp_path: Path) -> None:
    sites = _sites(tmp_path, TOTAL)
    accuracies(EXAMPLE / "after", 0, REAL_NOISE, NUM_SITES, sites)
    for site in range(NUM_SITES):
        shown = ["ledger", "show", str(tmp_path / f"site-{site}")]
        printed = CliRunner().invoke(app, shown, env={"COLUMNS": "200"}).stdout
        totals = re.findall(
            r"^(\d+) releases of (\S+) .*?epsilon ([0-9.]+) per example \(with or",
            printed.replace("training:", "training :"),
            re.MULTILINE,
        )
        found = {what: (int(num), float(epsilon)) for num, what, epsilon in totals}
        num_rounds, of_training = found["training"]
        num_releases, together = found["all"]
        assert num_rounds == 20
        assert num_releases > num_rounds
        assert of_training < together <= TOTAL
        assert together == pytest.approx(TOTAL, rel=1e-2)
    (shown,) = re.findall(r"```output\n(.*?)```", README, re.DOTALL)
    first = ["ledger", "show", str(tmp_path / "site-0")]
    printed = CliRunner().invoke(app, first, env={"COLUMNS": "80"}).stdout
    lines = [line.rstrip() for line in printed.splitlines()]
    assert "\n".join(lines[1:]).startswith(shown)


@needs_opacus
@pytest.mark.gate
def test_a_site_with_a_smaller_limit_trains_nothing(tmp_path: Path) -> None:
    """It refuses the first round, and nothing is charged."""
    sites = _sites(tmp_path, 0.9 * TOTAL)
    with pytest.raises(AggregationError, match="No client could train"):
        accuracies(EXAMPLE / "after", 0, REAL_NOISE, NUM_SITES, sites)
    shown = ["ledger", "show", str(tmp_path / "site-0")]
    assert "training" not in CliRunner().invoke(app, shown).stdout


def test_tuning_changes_few_lines() -> None:
    client, server = (diff(EXAMPLE, name)[2:] for name in CODE)
    for lines, most in ((client, 12), (server, 14)):
        changed = [line for line in lines if line.startswith(("+", "-"))]
        assert 0 < sum(line[1:].strip() != "" for line in changed) <= most
    assert all(diff(EXAMPLE, name) == [] for name in SAME)


def test_the_readme_shows_the_diff() -> None:
    assert_readme_shows(EXAMPLE, ["pyproject.toml", *CODE])


@needs_opacus
@pytest.mark.slow
def test_the_tuned_app_runs_on_the_engine(flwr_run: FlwrRun, tmp_path: Path) -> None:
    folder = tmp_path / "ledgers"
    printed = flwr_run(EXAMPLE / "after", NUM_SITES, {"fbo-folder": str(folder)})
    assert re.search(r"chosen: {'learning-rate': [^,]+, 'clip-norm': ", printed), (
        printed
    )
    assert "2.00 per example (replaced by another, delta 1e-05)" in printed, printed
    ledger = CliRunner().invoke(app, ["ledger", "show", str(folder)]).stdout
    assert ledger.count("20 releases of training of agent ") == NUM_SITES
