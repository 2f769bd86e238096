"""What a target's queries cost as more agents send messages: FTS, RGPE, TAF."""

from __future__ import annotations

from functools import partial

import numpy as np
from optuna.distributions import FloatDistribution

from benchmarks.measure import Bar, Row, Section, alternate, compare
from flwr_fbo._arrays import FloatArray
from flwr_fbo.agents.tuning.base import play_round
from flwr_fbo.agents.tuning.registry import create_agent
from flwr_fbo.models.threads import one_blas_thread
from flwr_fbo.protocol.transfer_settings import RGPESettings, TAFSettings
from flwr_fbo.protocol.tuning_settings import FTSSettings
from flwr_fbo.protocol.tuning_study import AgentSettings, TuningStudy
from flwr_fbo.space.search_space import SearchSpace

AGENTS, QUERIES = (5, 10, 20, 28), 50
# Of FTS, which takes a tenth of the time, more of them.
REPEATS = {"FTS": 25, "RGPE": 3, "TAF": 3}
MOST_GROWTH = 1.1
METHODS: dict[str, AgentSettings] = {
    "FTS": FTSSettings(share_after=0, follow="inverse-sqrt"),
    "RGPE": RGPESettings(),
    "TAF": TAFSettings(),
}
SPACE = SearchSpace({name: FloatDistribution(0.0, 1.0) for name in ("a", "b")})


def objective(params: dict[str, float]) -> float:
    """Return a smooth function of two variables."""
    return float(np.sin(5 * params["a"]) * np.cos(4 * params["b"]))


def messages(study: TuningStudy, num_agents: int) -> FloatArray:
    """Return what agents with 50 uniform observations send; the target's is missing."""
    vectors = []
    for slot in range(num_agents + 1):
        agent = create_agent(study, slot, 1)
        for x in np.random.default_rng(slot).random((50, 2)):
            agent.tell(0, x, objective(SPACE.from_unit(x)))
        vectors.append(agent.message(0))
    vectors[0] = np.full_like(vectors[0], np.nan)
    return np.array(vectors)


@one_blas_thread
def play(study: TuningStudy, vectors: FloatArray, seed: int) -> None:
    """Make all queries of a target."""
    target = create_agent(study, 0, seed)
    play_round(target, objective, 0, None, send_message=False)
    for iteration in range(1, QUERIES + 1):
        received = vectors if iteration == 1 else None
        play_round(target, objective, iteration, received, send_message=False)


def measure(quick: bool) -> list[Section]:
    """Return the section."""
    rows = []
    for name, settings in METHODS.items():
        study = TuningStudy(SPACE, "maximize", settings, study_seed=1, feature_seed=2)
        inputs = {f"{n} agents": messages(study, n) for n in AGENTS}
        works = {
            label: partial(play, study, vectors, 1) for label, vectors in inputs.items()
        }
        first, *more = works
        times = alternate(works, 1 if quick else REPEATS[name])
        sent = inputs[first].shape[1]
        quality = f"{sent:,} numbers a message"
        bar = _hardly_more if name == "FTS" else None
        rows += [
            compare(name, times, label, first, quality=quality, bar=bar)
            for label in more
        ]
    text = (
        f"CPU time of one target's {QUERIES} queries in two dimensions, from 3 initial "
        "points, with the messages (M = 100) of agents that have 50 observations each."
    )
    return [Section("FTS, RGPE and TAF, by the number of agents", text, rows)]


def _hardly_more(row: Row) -> Bar:
    return Bar.at_most(row.ratio, MOST_GROWTH)
