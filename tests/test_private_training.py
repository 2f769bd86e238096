"""An app whose sites train by DP-SGD, and what it takes to tune it: no more epsilon."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from flwr.app import UserConfig
from flwr.serverapp.exception import AggregationError
from typer.testing import CliRunner

from benchmarks.tuned_examples import EXAMPLES, NAMES, accuracies
from flwr_fbo import PrivateChoice, Seeds
from flwr_fbo.cli import app
from flwr_fbo.privacy import plan_training
from tests.support.before_and_after import assert_readme_shows, diff
from tests.support.engine import FlwrRun
from tests.support.opacus import needs_opacus

FOLDER, NUM_SITES = NAMES["private"]
EXAMPLE = EXAMPLES / FOLDER
CODE = [f"digits_private/{n}.py" for n in ("client_app", "server_app")]
SAME = ["digits_private/__init__.py", "digits_private/task.py"]
TOTAL, DELTA = 8.0, 1e-5
# A site with a limit takes part in nothing else.
REAL_NOISE = {"seeds": Seeds(study=0)}


def _config(version: str) -> dict[str, Any]:
    project = tomllib.loads((EXAMPLE / version / "pyproject.toml").read_text())
    config: dict[str, Any] = project["tool"]["flwr"]["app"]["config"]
    return config


def _sites(folder: Path, max_epsilon: float) -> list[UserConfig]:
    return [
        {
            "partition-id": site,
            "num-partitions": NUM_SITES,
            "fbo-folder": str(folder / f"site-{site}"),
            "fbo-max-epsilon-per-example": max_epsilon,
            "fbo-max-delta": DELTA,
        }
        for site in range(NUM_SITES)
    ]


@pytest.mark.parametrize("version", ["before", "after"])
def test_the_noise_is_what_the_total_takes(version: str) -> None:
    """Neither too little, nor more than the last digit rounds."""
    config = _config(version)
    choice = PrivateChoice(epsilon=2, delta=DELTA, protects="example")
    plan = plan_training(
        TOTAL,
        DELTA,
        sampling_probability=0.2,
        num_steps=5 * config["num-server-rounds"],
        choice=choice if version == "after" else None,
    )
    least = plan.training.noise_multiplier
    assert least <= config["noise-multiplier"] < least + 1.5e-3


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
def test_the_tuned_app_runs_on_the_engine(flwr_run: FlwrRun) -> None:
    printed = flwr_run(EXAMPLE / "after", NUM_SITES, {})
    assert re.search(r"chosen: {'learning-rate': [^,]+, 'clip-norm': ", printed), (
        printed
    )
    assert "2.00 per example (replaced by another, delta 1e-05)" in printed, printed
