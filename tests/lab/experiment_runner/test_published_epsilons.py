"""Epsilon of every private figure of DP-FTS-DE: the paper's number, and by PLD."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from flwr_fbo.lab.experiment_runner.config import load_experiment
from flwr_fbo.lab.experiment_runner.tuning_experiment import (
    TuningExperiment,
    last_iteration,
)
from flwr_fbo.lab.experiment_runner.tuning_table import Seeds
from flwr_fbo.privacy.accounting import Method, ReleaseAccountant
from flwr_fbo.privacy.sampling import Subsampling
from flwr_fbo.strategies.dp_fts_de import DPFTSDE
from tests.support.reference import reference

FOLDER = Path(__file__).parents[3] / "experiments" / "dp-fts-de"
# N, T, q, z: what the paper says in figs. 2c and 2d, and its notebook in fig. 3a.
PUBLISHED = {
    (200, 40, 0.15, 1.0): 5.93,
    (200, 40, 0.25, 1.0): 9.91,
    (200, 40, 0.5, 1.0): 20.12,
    (200, 40, 0.25, 1.2): 7.39,
    (200, 40, 0.25, 1.5): 5.22,
    (29, 60, 0.35, 1.0): 15.17,
    (29, 60, 0.35, 1.6): 7.12,
    (29, 60, 0.35, 2.0): 5.14,
    (29, 60, 0.35, 3.0): 3.05,
    (29, 60, 0.35, 4.0): 2.16,
    (29, 60, 0.1, 1.0): 3.75,
    (29, 60, 0.15, 1.0): 5.98,
    (29, 60, 0.2, 1.0): 7.69,
    (29, 60, 0.25, 1.0): 9.82,
}
Setting = tuple[int, int, float, float]
SLOW = pytest.mark.slow  # seconds each


@cache
def _epsilon(setting: Setting, method: Method) -> float:
    num_agents, num_releases, q, z = setting
    accountant = ReleaseAccountant(q, num_agents**-1.1, method)
    accountant.charge(z, num_releases)
    return accountant.epsilon()


def _settings(plan: TuningExperiment) -> dict[str, Setting]:
    """Return N, T, q and z of each private curve."""
    num_releases = plan.num_evaluations - plan.base.agent.num_initial
    found = {}
    for name, curve in plan.curves.items():
        if curve.method == "private":
            privacy = curve.privacy(plan.privacy)
            q, z = privacy.sampling_probability, privacy.noise_multiplier
            if q is None or z is None:
                continue  # a figure of ours may state its epsilon
            found[name] = plan.num_agents, num_releases, q, z
    return found


@cache
def _plans(sampling: str) -> dict[str, TuningExperiment]:
    plans = {}
    for path in sorted(FOLDER.glob("*.toml")):
        plan = load_experiment(path)
        assert isinstance(plan, TuningExperiment)
        if _settings(plan) and plan.privacy.sampling == sampling:
            plans[path.stem] = plan
    return plans


def test_every_private_figure_has_the_epsilon_that_is_known() -> None:
    """By the paper's accountant; by PLD it is less."""
    rows = reference("privacy_loss.json")["rows"]
    known = {(r["N"], r["T"], r["q"], float(r["z"])): r for r in rows}
    for figure, plan in _plans("poisson").items():
        for setting in _settings(plan).values():
            row = known[setting]
            expected = PUBLISHED.get(setting, row["moments_accountant"])
            moments, pld = _epsilon(setting, "moments"), _epsilon(setting, "pld")
            assert moments == pytest.approx(expected, abs=5e-3), figure
            assert pld == pytest.approx(row["pld"], abs=1e-2), figure


@pytest.mark.parametrize(
    "figure",
    [
        name if name in ("fig2c", "fig2d") else pytest.param(name, marks=SLOW)
        for name in sorted(_plans("poisson"))
    ],
)
def test_no_more_is_spent(figure: str) -> None:
    """The published noise is more than z asks for, while weights are concentrated."""
    plan = _plans("poisson")[figure]
    for name, setting in _settings(plan).items():
        strategy = plan.known_methods[name].build(plan, Seeds.of_run(0))
        strategy.plan(last_iteration(plan, strategy))
        assert strategy.releases is not None
        server = strategy.releases.server
        accountant = server.new_accountant()
        for iteration in server.iterations:
            accountant.charge(server.release.effective_noise_multiplier(iteration))
        assert 0 < accountant.epsilon() <= _epsilon(setting, "pld") + 1e-6


def test_all_published_numbers_have_a_figure() -> None:
    plans = _plans("poisson")
    shown = {setting for plan in plans.values() for setting in _settings(plan).values()}
    assert PUBLISHED.keys() <= shown
    figures = {"2b", "2c", "2d", "3a", "3b", "3c", "3d", "3e", "3f", "4", "6"}
    figures |= {"8a", "8b", "8c", "9a", "9b", "10a", "10b", "12a", "12b"}
    assert {f"fig{figure}" for figure in figures} <= plans.keys()


FIXED_SIZE = list(_settings(_plans("fixed-size")["fig11"]).values())


@pytest.mark.parametrize(
    ("num_agents", "num_releases", "q", "z"),
    [FIXED_SIZE[0], *(pytest.param(*one, marks=SLOW) for one in FIXED_SIZE[1:])],
)
def test_renyi_accounting_gives_less_with_poisson_sampling_only(
    num_agents: int, num_releases: int, q: float, z: float
) -> None:
    """B.2.4 claims slightly less for a fixed size; by the bound for it, it is more."""
    fixed = Subsampling.fixed_size(q, num_agents)
    accountant = ReleaseAccountant(fixed, num_agents**-1.1, "rdp")
    accountant.charge(z, num_releases)
    # int(N q) agents are drawn for the q of fig. 3a.
    of_3a = (0.1, 0.15, 0.2, 0.25, 0.35)
    (q_3a,) = (one for one in of_3a if int(29 * one) == fixed.sample_size)
    setting = num_agents, num_releases, q_3a, z
    assert _epsilon(setting, "rdp") < _epsilon(setting, "moments")
    assert accountant.epsilon() > _epsilon(setting, "rdp")


@pytest.mark.parametrize(("figure", "worth"), [("fig11", 0.5), ("fig11-doubled", 1.0)])
def test_the_noise_of_a_fixed_size_is_charged_at_its_worth(
    figure: str, worth: float
) -> None:
    """Once weights are equal: half of z as published, and z where it is doubled."""
    plan = _plans("fixed-size")[figure]
    for name, (_, _, _, z) in _settings(plan).items():
        strategy = plan.known_methods[name].build(plan, Seeds.of_run(0))
        assert isinstance(strategy, DPFTSDE)
        release = strategy.server.release
        assert release.effective_noise_multiplier(50) == pytest.approx(worth * z)
