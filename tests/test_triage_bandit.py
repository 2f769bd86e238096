"""The triage example: sites that decide for themselves, and rewards that come late."""

import importlib
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from flwr_fbo import Decision, InProcessGrid, LinearBanditPolicy

EXAMPLE = Path(__file__).parents[1] / "examples" / "triage-bandit"
MODULES = ("client_app", "rehearse", "report", "server_app", "site", "study")
NUM_SITES, PER_WEEK = 2, 1


@pytest.fixture
def triage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The modules of the example, by name."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield SimpleNamespace(
        **{name: importlib.import_module(f"triage.{name}") for name in MODULES}
    )
    for name in [n for n in sys.modules if n.split(".")[0] == "triage"]:
        del sys.modules[name]


def folders_in(root: Path) -> list[str]:
    return [str(root / f"site-{i}") for i in range(NUM_SITES)]


def rehearsed(
    triage: Any, root: Path, epsilon: float, noise_only: bool = False
) -> list[list[Decision]]:
    """Return the decisions of a short rehearsal, by site."""
    folders = folders_in(root)
    triage.rehearse.rehearse(folders, 1, epsilon, noise_only, PER_WEEK)
    return [LinearBanditPolicy.open(folder).decisions() for folder in folders]


def of(decision: Decision) -> tuple[Any, ...]:
    assert decision.context is not None
    context = tuple(decision.context.items())
    return context, decision.chosen, decision.propensity, decision.reward


def test_a_rehearsal_repeats_and_learns_from_rewards_that_come_late(
    triage: Any, tmp_path: Path
) -> None:
    logs = rehearsed(triage, tmp_path / "first", 1e3)
    again = rehearsed(triage, tmp_path / "again", 1e3)
    assert [list(map(of, log)) for log in logs] == [list(map(of, log)) for log in again]
    for folder, log in zip(folders_in(tmp_path / "first"), logs, strict=True):
        assert len(log) == 110 * PER_WEEK
        of_arms, own = triage.report.outcomes(log)
        # Silence was taken for what it is.
        np.testing.assert_array_equal([one.reward for one in log], own)
        summary = LinearBanditPolicy.open(folder).summary()
        follow_up = triage.study.ARMS.index(triage.study.FOLLOW_UP)
        chosen = np.array([one.chosen for one in log])
        healthy = (chosen == follow_up) & (of_arms[:, follow_up] == 1)
        assert summary.num_timed_out == healthy.sum() > 0
        assert summary.num_included == summary.num_releases == 10
        late = own[55:].mean()
        assert late > of_arms.mean() + 0.1
        assert late > own[:10].mean()


def test_without_rewards_nothing_is_learned(triage: Any, tmp_path: Path) -> None:
    for log in rehearsed(triage, tmp_path, 1e3, noise_only=True):
        assert all(math.isnan(decision.reward) for decision in log)
        of_arms, own = triage.report.outcomes(log)
        assert abs(own.mean() - of_arms.mean()) < 0.1


def test_a_report_has_curve_other_policy_and_epsilon(
    triage: Any, tmp_path: Path
) -> None:
    [log, _] = rehearsed(triage, tmp_path, 8.0)
    text = triage.report.report(folders_in(tmp_path)[0])
    [header, row] = text.split("\n\n")[0].splitlines()
    assert header.split()[:3] == ["decisions", "reward", "uniform"]
    own = triage.report.outcomes(log)[1]
    assert row.split()[:2] == ["100", f"{own[:100].mean():.2f}"]
    assert "doubly robust" in text
    assert "110 with a reward, 0 left out" in text
    assert "epsilon 8 at delta 1e-05 for one decision; 10 releases" in text


def test_a_site_decides_beside_the_app(triage: Any, tmp_path: Path) -> None:
    config = {
        "num-agents": NUM_SITES,
        "epsilon": 4.0,
        "num-releases": 2,
        "interval-weeks": 0.0,
        "sites": str(tmp_path),
        "server-folder": "",
    }
    grid = InProcessGrid(triage.client_app.app, NUM_SITES, run_config=config)
    context = Context(
        run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config
    )
    triage.server_app.app(grid, context)
    for i, folder in enumerate(folders_in(tmp_path)):
        patients = triage.site.load_patients(i, NUM_SITES)
        clinic = triage.site.Clinic(folder, patients, np.random.default_rng(0))
        clinic.decide()
        summary = clinic.policy.summary()
        assert (summary.num_trials, summary.num_releases) == (1, 2)
        assert summary.epsilon_spent == pytest.approx(4.0)


def test_sites_share_the_patients(triage: Any) -> None:
    load_patients = triage.site.load_patients
    shards = [load_patients(i, 4) for i in range(4)]
    assert sum(map(len, shards)) == len(load_patients()) == 569
    contexts = {tuple(c.values()) for shard in shards for c, _ in shard}
    assert len(contexts) == 569  # so that a context tells whose it is
