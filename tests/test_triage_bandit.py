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
from flwr.app import Context, RecordDict, UserConfig

from flwr_fbo import InProcessGrid, LinearBanditPolicy
from flwr_fbo.bandits import Decision

EXAMPLE = Path(__file__).parents[1] / "examples" / "triage-bandit"
MODULES = ("client_app", "rehearse", "report", "server_app", "site", "study")
NUM_SITES, PER_WEEK = 2, 1


@pytest.fixture(scope="module")
def triage() -> Iterator[Any]:
    """The modules of the example, by name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLE))
        yield SimpleNamespace(
            **{name: importlib.import_module(f"triage.{name}") for name in MODULES}
        )
    for name in [n for n in sys.modules if n.split(".")[0] == "triage"]:
        del sys.modules[name]


def folders_in(root: Path) -> list[str]:
    return [*numbered(root).values()]


def numbered(root: Path) -> dict[int, str]:
    return {i: str(root / f"site-{i}") for i in range(NUM_SITES)}


def rehearsed(triage: Any, root: Path, noise_only: bool = False) -> Any:
    """Return the decisions of a short rehearsal with hardly any noise, by site."""
    settings = triage.study.settings(1e3, num_releases=10)
    folders = numbered(root)
    return triage.rehearse.rehearse(folders, 1, settings, noise_only, PER_WEEK)


@pytest.fixture(scope="module")
def root(triage: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the sites of a rehearsal."""
    root = tmp_path_factory.mktemp("rehearsal")
    rehearsed(triage, root)
    return root


def log_of(root: Path, site: int) -> list[Decision]:
    return [*LinearBanditPolicy.open(folders_in(root)[site]).decisions()]


def test_all_rewards_come_or_time_out_as_what_silence_means(
    triage: Any, root: Path
) -> None:
    follow_up = triage.study.ARMS.index(triage.study.FOLLOW_UP)
    for site, folder in enumerate(folders_in(root)):
        log = log_of(root, site)
        assert len(log) == 110 * PER_WEEK
        of_arms, own = triage.report.outcomes(log)
        np.testing.assert_array_equal([one.reward for one in log], own)
        chosen = np.array([one.chosen for one in log])
        silent = (chosen == follow_up) & (of_arms[:, follow_up] == 1)
        summary = LinearBanditPolicy.open(folder).summary()
        assert summary.num_timed_out == silent.sum() > 0
        assert summary.num_included == summary.num_releases == 10


def test_sites_learn_from_rewards(triage: Any, root: Path, tmp_path: Path) -> None:
    def last_half(logs: list[list[Decision]]) -> float:
        pairs = [triage.report.outcomes(log[len(log) // 2 :]) for log in logs]
        gains = [own.mean() - of_arms.mean() for of_arms, own in pairs]
        return float(np.mean(gains))

    # Three standard errors of the mean of 110 rewards.
    assert last_half([log_of(root, site) for site in range(NUM_SITES)]) > 0.1
    without = rehearsed(triage, tmp_path, noise_only=True)
    assert all(math.isnan(decision.reward) for log in without for decision in log)
    assert abs(last_half(without)) < 0.1


def test_sites_alone_play_the_same_patients_and_share_nothing(
    triage: Any, root: Path, tmp_path: Path
) -> None:
    logs = triage.rehearse.rehearse_alone(numbered(tmp_path), 1, PER_WEEK)
    for site, log in enumerate(logs):
        together = log_of(root, site)
        assert [one.context for one in log] == [one.context for one in together]
        summary = LinearBanditPolicy.open(folders_in(tmp_path)[site]).summary()
        assert summary.max_others == summary.num_others == 0
    # Three standard errors above chance.
    of_arms = np.mean([triage.report.outcomes(log)[0] for log in logs])
    assert triage.rehearse.earned(logs)[1] > of_arms + 0.1


def test_a_report_has_curve_other_policy_and_epsilon(triage: Any, root: Path) -> None:
    text = triage.report.report(folders_in(root)[0])
    [header, row] = text.split("\n\n")[0].splitlines()
    assert header.split()[:3] == ["decisions", "reward", "uniform"]
    own = triage.report.outcomes(log_of(root, 0))[1]
    assert row.split()[:2] == ["100", f"{own[:100].mean():.2f}"]
    assert "doubly robust" in text
    assert "110 with a reward, 0 left out" in text
    assert "Privacy: epsilon 1000 per example (replaced by another, " in text
    assert text.endswith("; 10 releases")


def test_a_site_decides_beside_the_app(triage: Any, tmp_path: Path) -> None:
    config: UserConfig = {
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
