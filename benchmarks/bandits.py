"""What a trial of the two bandits costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from benchmarks.measure import Bar, Row, Section, alternate, compare
from flwr_fbo.agents.bandits.fed_go_ucb import NeuralUCBAgent
from flwr_fbo.models.network import Network
from flwr_fbo.models.threads import one_blas_thread
from flwr_fbo.privacy.continual_settings import ContinualSettings
from flwr_fbo.protocol.geometric_schedule import geometric_schedule
from flwr_fbo.protocol.linear_ucb_settings import LinearUCBSettings, LocalData
from flwr_fbo.protocol.neural_ucb_settings import NeuralUCBSettings
from flwr_fbo.simulation.linear_bandits import BanditSimulation, play_together
from flwr_fbo.tasks.linear_bandit import LinearBandits, LinearBanditTask

NUM_AGENTS, LEAST_TRIALS = 100, 600
TASK = LinearBanditTask(dimension=10, num_actions=100)
D, K, WIDTHS, STEPS = 6, 50, (25, 50, 100, 200), 20


def measure(quick: bool) -> list[Section]:
    """Return the sections."""
    return [linear(*((300, 1) if quick else (1000, 5))), neural(3 if quick else 9)]


def simulation(num_trials: int, local_data: LocalData) -> BanditSimulation:
    """Return private FedUCB at (1, 0.1)."""
    releases = ContinualSettings(16, TASK.dimension, epsilon=1.0, delta=0.1)
    settings = LinearUCBSettings(releases, local_data=local_data)
    schedule = geometric_schedule(num_trials, 16, num_trials // 20)
    return BanditSimulation(settings, NUM_AGENTS, TASK, num_trials, schedule)


def published(ours: BanditSimulation) -> BanditSimulation:
    """Return the same with the paper's noise, shifts and width."""
    releases = replace(ours.settings.releases, mechanism="tree", calibration="paper")
    settings = replace(ours.settings, releases=releases, width="paper")
    return replace(ours, settings=settings)


def linear(num_trials: int, repeats: int) -> Section:
    """Return FedUCB's methods, each beside drawing its actions."""
    released, raw = simulation(num_trials, "released"), simulation(num_trials, "raw")
    five: dict[str, BanditSimulation] = {
        "private, released": released,
        "private, raw": raw,
        "published, raw": published(raw),
        "non-private, released": released.baseline("non-private"),
        "independent": released.baseline("independent"),
    }
    works: dict[str, Callable[[], object]] = {
        name: partial(run.run, 0, 1) for name, run in five.items()
    }
    works["full communication"] = partial(released.baseline("full").run, 0, 1)
    together = "all five together"
    works[together] = partial(play_together, list(five.values()), 0, 1)
    drawing, numbers = "the actions alone", "their random numbers alone"

    @one_blas_thread
    def draw() -> None:
        bandits = LinearBandits(TASK, 0, range(NUM_AGENTS))
        for t in range(num_trials):
            bandits.peek(t)

    def draw_numbers() -> None:
        rng, k = np.random.default_rng(0), TASK.num_actions
        normals, others = np.empty((k, TASK.dimension - 1)), np.empty(k)
        for _ in range(num_trials * NUM_AGENTS):
            rng.standard_normal(out=normals)
            rng.standard_exponential(out=others)
            rng.random(out=others)

    times = alternate({**works, drawing: draw, numbers: draw_numbers}, repeats)
    seconds = {name: values / num_trials for name, values in times.items()}

    def bar(row: Row) -> Bar:
        num_methods = len(five) if row.slower == together else 1
        each = num_methods / row.seconds[0]
        return Bar.at_least(each, LEAST_TRIALS, " a second")

    text = (
        f"CPU time of a trial of {NUM_AGENTS} agents in lock step, each with "
        f"{TASK.num_actions} new actions of d = {TASK.dimension}; {num_trials} trials, "
        "16 synchronisations, or none, or one a trial: drawing actions, choosing, "
        "rewards, sums, synchronisations and the noise of releases. The bar is for A; "
        "of the five that an experiment plays together, for each of them. "
        "An action takes nine normal numbers, an exponential and a uniform one: B of "
        "the last row is to draw these and nothing else."
    )
    rows = [compare("FedUCB", seconds, name, drawing, bar=bar) for name in works]
    rows.append(compare("FedUCB", seconds, drawing, numbers))
    return Section("FedUCB, a trial", text, rows)


def neural(repeats: int) -> Section:
    """Return Fed-GO-UCB's steps and synchronisations by the size of the network."""
    steps: dict[str, Callable[[], object]] = {}
    synchronisations: dict[str, Callable[[], object]] = {}
    sizes = []
    for width in WIDTHS:
        settings = NeuralUCBSettings(num_exploration=0)
        agent = NeuralUCBAgent(settings, Network(D, width), seed=0, slot=0)
        actions = np.random.default_rng(0).uniform(size=(K, D))
        sizes.append(agent.model.num_parameters)
        name = f"d_w = {sizes[-1]}"
        steps[name] = one_blas_thread(partial(_steps, agent, actions))
        synchronisations[name] = one_blas_thread(partial(_synchronise, agent, actions))
    rows = []
    for what, works, most in (
        ("step", steps, 2.0),
        ("synchronisation", synchronisations, None),
    ):
        seconds = alternate(works, repeats)
        if what == "step":
            seconds = {name: values / STEPS for name, values in seconds.items()}
        rows += _growth(what, seconds, sizes, most)
    text = (
        f"CPU time of one choice among {K} actions of d = {D} and its reward, by the "
        "number of the network's parameters, with one BLAS thread. The bar: a step "
        "grows no faster than their square, as one triangular solve for all actions "
        "and one update of rank one do. A synchronisation factorises once."
    )
    return Section("Fed-GO-UCB, a trial", text, rows)


def _growth(
    what: str, seconds: dict[str, np.ndarray], sizes: Sequence[int], power: float | None
) -> list[Row]:
    names, rows = list(seconds), []
    for i in range(1, len(names)):
        most = None if power is None else (sizes[i] / sizes[i - 1]) ** power
        bar = None if most is None else partial(_at_most, most)
        rows.append(compare(what, seconds, names[i], names[i - 1], bar=bar))
    return rows


def _at_most(limit: float, row: Row) -> Bar:
    return Bar.at_most(row.ratio, round(limit, 2))


def _steps(agent: NeuralUCBAgent, actions: np.ndarray) -> None:
    for _ in range(STEPS):
        agent.tell(actions[agent.choose(actions)], 0.0)


def _synchronise(agent: NeuralUCBAgent, actions: np.ndarray) -> None:
    message = agent.message()
    agent.receive(message.values, message.num_evaluations)
    agent.choose(actions)
