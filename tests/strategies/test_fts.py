"""FTS as a strategy: however it is run, what travels, and what it says of privacy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from flwr_fbo import DPFTSDE, FTS, InProcessGrid, tuning_app
from flwr_fbo.cli import app
from flwr_fbo.lab.simulation.loop import run_loop
from flwr_fbo.tuning import DPFTSDESettings, FTSSettings
from flwr_fbo.tuning.search.agent import Agent
from flwr_fbo.tuning.search.study import create_agent
from tests.support.federation import (
    NUM_AGENTS,
    NUM_ITERATIONS,
    SPACE,
    CountingGrid,
    assert_same,
    make_objective,
    numpy_app,
    objective_of,
)
from tests.support.grouped import grouped, hosted

SETTINGS = FTSSettings(
    num_initial=4, num_features=30, num_candidates=100, follow="inverse-sqrt"
)
ONCE = replace(SETTINGS, share_after=2)


def _strategy(agent: FTSSettings = SETTINGS, **options: Any) -> FTS:
    seeds = {"study_seed": 11, "feature_seed": 12, "patience": 0.0}
    options = grouped({**seeds, **options})
    return hosted(FTS, SPACE, "maximize", NUM_AGENTS, agent=agent, **options)


def _run(client_app: Any, agent: FTSSettings) -> tuple[FTS, list[Agent], list[Any]]:
    strategy = _strategy(agent)
    grid = CountingGrid(client_app, NUM_AGENTS)
    strategy.start(grid, num_rounds=NUM_ITERATIONS + 1)
    return strategy, grid.agents(strategy.study), grid.sizes


@pytest.mark.parametrize(
    "agent",
    [ONCE, replace(SETTINGS, weighting="similarity"), replace(SETTINGS, share_every=3)],
)
def test_however_it_is_run(agent: FTSSettings) -> None:
    strategy, agents, _ = _run(numpy_app(), agent)
    _, others, _ = _run(tuning_app(make_objective), agent)
    assert_same(agents, others)
    without = _strategy(agent)
    others = [create_agent(without.study, n, 11) for n in range(NUM_AGENTS)]
    objectives = [objective_of(n) for n in range(NUM_AGENTS)]
    run_loop(without.server, others, objectives, NUM_ITERATIONS)
    assert_same(agents, others)
    np.testing.assert_array_equal(strategy.server.vectors, without.server.vectors)


def test_a_message_is_m_numbers() -> None:
    """After every round, every few (section 3.1 of the paper), or once an agent."""
    enrolment: list[Any] = [[]] * NUM_AGENTS
    rounds = NUM_ITERATIONS + 1
    _, _, sizes = _run(numpy_app(), SETTINGS)
    assert [s for s in sizes if s] == [[30]] * NUM_AGENTS * rounds
    strategy, _, sizes = _run(numpy_app(), replace(SETTINGS, share_every=3))
    sharing = len(range(0, rounds, 3))
    assert 1 < sharing < rounds
    assert [s for s in sizes if s] == [[30]] * NUM_AGENTS * sharing
    assert len(strategy.server.ledger) == sharing
    assert "after every 3 rounds" in strategy.server.summary()[0]
    _, _, sizes = _run(numpy_app(), ONCE)
    assert [s for s in sizes if s] == [[30]] * NUM_AGENTS
    assert len(sizes) == len(enrolment) + NUM_AGENTS * rounds


def test_the_two_strategies_take_their_own_agents() -> None:
    with pytest.raises(ValueError, match="an FTSSettings"):
        FTS(SPACE, "maximize", 4, agent=DPFTSDESettings())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"agent=FTSSettings.* is not allowed"):
        DPFTSDE(SPACE, "maximize", 4, agent=SETTINGS)


def test_it_says_that_it_is_not_private(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    strategy = _strategy(folder=tmp_path)
    strategy.summary()
    assert "NOT PRIVATE: every agent's message reaches the server and" in caplog.text
    strategy.start(InProcessGrid(numpy_app(), NUM_AGENTS), num_rounds=3)
    shown = CliRunner().invoke(app, ["ledger", "show", str(tmp_path)])
    assert shown.exit_code == 0
    assert "NOT PRIVATE: every message reached all agents as it was." in shown.output
    assert "messages" in shown.output
    again = _strategy(folder=tmp_path)
    again.start(InProcessGrid(numpy_app(), NUM_AGENTS), num_rounds=3)  # all done
    np.testing.assert_array_equal(again.server.vectors, strategy.server.vectors)
    other = _strategy(replace(SETTINGS, num_initial=5), folder=tmp_path)
    with pytest.raises(RuntimeError, match="num_initial"):
        other.start(InProcessGrid(numpy_app(), NUM_AGENTS), num_rounds=3)
