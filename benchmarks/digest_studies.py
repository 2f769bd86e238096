"""The studies that `benchmarks.digests` plays: short, seeded, with explicit settings.

Each is a function without arguments that yields pairs of a step's name and a value.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import numpy as np
from flwr.app import Context
from flwr.clientapp import ClientApp
from optuna.distributions import (
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from flwr_fbo import (
    DPFTSDE,
    FTS,
    DecentralizedFedUCB,
    FedGOUCB,
    FedUCB,
    FedVote,
    InProcessGrid,
    Limits,
    Privacy,
    Seeds,
    linear_bandit_app,
    tuning_app,
)
from flwr_fbo.bandits import (
    ContinualSettings,
    EllipsoidSampling,
    FedGOUCBSettings,
    LinearUCBSettings,
    Network,
    NeuralPrivacy,
    Optimism,
    PeerGraph,
    neural_bandit_app,
)
from flwr_fbo.bandits.fed_go_ucb.settings import NeuralExploration
from flwr_fbo.bandits.linear.settings import DeterminantTrigger
from flwr_fbo.lab.baselines.random_search import LocalServer, RandomSearchSettings
from flwr_fbo.lab.experiment_runner.config import experiment_of
from flwr_fbo.lab.simulation.loop import run_loop
from flwr_fbo.lab.tasks.linear_bandit import LinearBanditEnvironment, LinearBanditTask
from flwr_fbo.lab.tasks.nonlinear_bandit import (
    FunctionBanditTask,
    NonlinearBanditEnvironment,
)
from flwr_fbo.models.langevin_regression import LangevinSettings
from flwr_fbo.privacy import WeightSchedule
from flwr_fbo.space.search_space import SearchSpace
from flwr_fbo.strategies.tuning_strategy import TuningStrategy
from flwr_fbo.tuning import DPFTSDESettings, FedVoteSettings, FTSSettings
from flwr_fbo.tuning.search.study import TuningStudy, create_agent

Steps = Iterator[tuple[str, Any]]
T = TypeVar("T")

SPACE = {
    "x": FloatDistribution(-1.0, 1.0),
    "C": FloatDistribution(1e-3, 1e3, log=True),
    "depth": IntDistribution(1, 9),
    "kind": CategoricalDistribution(["a", "b", "c"]),
}
NUM_AGENTS, NUM_ITERATIONS = 4, 4
STUDY_SEED, FEATURE_SEED, NOISE_SEED = 11, 12, 13
# What decides no number, and what only real noise has.
_OF_RUNS = {
    "allow_large_delta",
    "budget",
    "max_epsilon",
    "min_answers",
    "noise_multiplier",
    "when_exhausted",
}


def explicit(kind: Callable[..., T], **values: Any) -> T:
    """Return ``kind(**values)``, if that leaves no default in use.

    Raises
    ------
    TypeError
        If a parameter is not given.
    """
    missing = set(_defaults(kind)) - set(values) - _OF_RUNS
    if missing:
        raise TypeError(f"{kind.__name__} is played with defaults: {sorted(missing)}")
    return kind(**values)


def _defaults(kind: Callable[..., Any]) -> Iterator[str]:
    """Yield what has a default, in a class and in its bases where it takes options."""
    for base in inspect.getmro(kind) if inspect.isclass(kind) else (kind,):
        parameters = inspect.signature(base).parameters.values()
        yield from (p.name for p in parameters if p.default is not p.empty)
        if all(p.kind != p.VAR_KEYWORD for p in parameters):
            return


class RecordingGrid(InProcessGrid):
    """Keeps every array that crosses it."""

    def __init__(self, app: ClientApp, num_nodes: int) -> None:
        super().__init__(app, num_nodes)
        self.steps: list[tuple[str, Any]] = []

    def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
        """Deliver all messages and replies."""
        asked = sorted(messages, key=lambda m: m.metadata.dst_node_id)
        replies = list(super().send_and_receive(asked, timeout=timeout))
        replies.sort(key=lambda m: m.metadata.src_node_id)
        self._keep("instruction to", asked, "dst_node_id")
        self._keep("reply of", replies, "src_node_id")
        return replies

    def _keep(self, what: str, messages: list[Any], node: str) -> None:
        for message in messages:
            metadata = message.metadata
            step = f"round {metadata.group_id}, {what} node {getattr(metadata, node)}"
            if not message.has_content():
                self.steps.append((step, "error"))
                continue
            arrays = {
                id(array): array
                for record in message.content.array_records.values()
                for array in record.values()
            }
            self.steps += [
                (f"{step}, array {i}", array.numpy())
                for i, array in enumerate(arrays.values())
            ]


# Tuning, over Flower


def _objective(client: int, params: Mapping[str, Any]) -> float:
    shift = {"a": 0.0, "b": 0.2, "c": 0.1}[params["kind"]]
    away = params["x"] - 0.1 * client, 0.3 * np.log10(params["C"])
    return float(shift - away[0] ** 2 - away[1] ** 2 - 0.01 * params["depth"])


def _make_objective(context: Context) -> Callable[[Mapping[str, Any]], float]:
    return partial(_objective, int(context.node_config["partition-id"]))


def _search() -> dict[str, Any]:
    """Return what all agents have that search on their own."""
    return {
        "num_features": 30,
        "num_initial": 4,
        "num_surrogate_features": 40,
        "refit_every": 2,
        "noise_floor": 1e-5,
        "num_candidates": 200,
        "num_starts": 6,
    }


def _voting() -> FedVoteSettings:
    return explicit(
        FedVoteSettings,
        **_search(),
        num_sub_regions=1,
        num_cells=16,
        max_similarity=0.7,
        max_tries=3,
    )


_WHERE: dict[str, Any] = {
    "sub_region_axes": (),
    "initial_region": "sub-region",
    "random_starts": False,
}


def _thompson(num_sub_regions: int, follow: str) -> DPFTSDESettings:
    return explicit(
        DPFTSDESettings,
        **_search(),
        **_WHERE,
        num_sub_regions=num_sub_regions,
        lengthscale=0.2,
        regularization=1e-3,
        follow=follow,
    )


def _dp_fts_de(agent: FedVoteSettings | DPFTSDESettings, **options: Any) -> Steps:
    votes = isinstance(agent, FedVoteSettings)
    usual: dict[str, Any] = {
        "clip_norm": 1.0 if votes else 5.0,
        "sampling_probability": 1.0 if votes else 0.7,
        "sampling": "poisson",
        "accountant": "pld",
        "calibration": "joint",
        "release_after": (2, 4) if votes else None,
        "min_follow_probability": None if votes else 0.0,
        "noise_only": False,
        "weights": None,
    }
    epsilon = options.pop("epsilon", 20.0)
    if not votes:
        usual["weights"] = explicit(
            WeightSchedule,
            peak=15.0,
            num_constant_rounds=10,
            num_decay_rounds=30,
            form="softmax",
            adaptive=True,
        )
    published = {} if votes else {"preset": "paper"}
    strategy = explicit(
        FedVote if votes else DPFTSDE,
        space=SPACE,
        direction="maximize",
        num_agents=NUM_AGENTS,
        agent=agent,
        seeds=Seeds(STUDY_SEED, FEATURE_SEED, NOISE_SEED),
        epsilon=epsilon,
        delta=1e-3,
        portfolio=(),
        aggregation=None,
        privacy=explicit(Privacy, **{**usual, **options}),
        **published,
    )
    yield from _tuned(strategy)
    spent = strategy.privacy_spent
    yield "epsilon", spent.epsilon


def _fts(**agent: Any) -> Steps:
    usual = {"follow": "inverse-sqrt", "share_after": None, "weighting": "uniform"}
    settings = explicit(
        FTSSettings,
        **_search(),
        **_WHERE,
        num_sub_regions=1,
        lengthscale=0.2,
        regularization=1e-3,
        **{**usual, **agent},
    )
    strategy = explicit(
        FTS,
        space=SPACE,
        direction="maximize",
        portfolio=(),
        num_agents=NUM_AGENTS,
        agent=settings,
        seeds=Seeds(STUDY_SEED, FEATURE_SEED),
    )
    yield from _tuned(strategy)


def _tuned(strategy: TuningStrategy) -> Steps:
    grid = RecordingGrid(tuning_app(_make_objective), NUM_AGENTS)
    result = strategy.start(grid, num_rounds=NUM_ITERATIONS + 1)
    yield from grid.steps
    for agent in grid.agents(strategy.study):
        yield from _history(agent)
    if not isinstance(strategy, FTS):
        yield "recommended", result.recommended


def _history(agent: Any) -> Steps:
    for name, array in sorted(agent.state_dict().items()):
        yield f"agent {agent.slot}, {name}", array


# Tuning, each agent alone


def _alone(settings: Any) -> Steps:
    study = TuningStudy(
        SearchSpace(SPACE),
        "maximize",
        settings,
        study_seed=STUDY_SEED,
        feature_seed=FEATURE_SEED,
    )
    agents = [create_agent(study, slot, STUDY_SEED) for slot in range(NUM_AGENTS)]
    objectives = [partial(_objective, slot) for slot in range(NUM_AGENTS)]
    run_loop(LocalServer(NUM_AGENTS), agents, objectives, NUM_ITERATIONS)
    for agent in agents:
        yield from _history(agent)


# Linear bandits, over Flower

_LINEAR_TASK = LinearBanditTask(
    dimension=3,
    num_actions=6,
    concentration=2.0,
    gap=0.2,
    name="linear-bandit",
)
_TRIALS, _TIMES = 40, [10, 20, 32]


def _linear_environment(context: Context) -> LinearBanditEnvironment:
    slot = int(context.node_config["partition-id"])
    return LinearBanditEnvironment(_LINEAR_TASK, STUDY_SEED, slot)


_LINEAR_APP = linear_bandit_app(
    make_environment=_linear_environment,
    limits=Limits(max_epsilon_per_example=math.inf),
)


def _linear_settings(**changes: Any) -> LinearUCBSettings:
    usual: dict[str, Any] = {
        "epsilon": 30.0,
        "mechanism": "toeplitz",
        "calibration": "exact",
        "width": "observed",
        "local_data": "released",
        "exploration": Optimism(),
    }
    chosen = {**usual, **changes}
    releases = explicit(
        ContinualSettings,
        num_releases=3,
        dimension=3,
        epsilon=chosen["epsilon"],
        delta=0.1,
        max_action_norm=1.0,
        reward_range=(-1.0, 1.0),
        mechanism=chosen["mechanism"],
        calibration=chosen["calibration"],
        num_streams=1,
        sliding_window=None,
    )
    return explicit(
        LinearUCBSettings,
        releases=releases,
        noise_scale=0.5,
        parameter_norm=1.0,
        alpha=0.01,
        ridge=1.0,
        width=chosen["width"],
        local_data=chosen["local_data"],
        exploration=chosen["exploration"],
        encoder=None,
        reward_timeout=None,
    )


def _fed_ucb(trigger: DeterminantTrigger | None = None, **changes: Any) -> Steps:
    settings = _linear_settings(**changes)
    strategy = explicit(
        FedUCB,
        settings=settings,
        num_agents=NUM_AGENTS,
        interval=None,
        schedule=_TIMES if trigger is None else trigger,
        num_trials=_TRIALS if trigger is None else None,
        noise_seed=NOISE_SEED,
        aggregation=None,
    )
    rounds = None if trigger is None else _TRIALS
    yield from _played(strategy, _LINEAR_APP, rounds)


def _decentralized(pooling: str, **changes: Any) -> Steps:
    graph = explicit(
        PeerGraph,
        num_agents=NUM_AGENTS,
        edges=((0, 1), (1, 2), (2, 3), (0, 3)),
        hops=2,
        pooling=pooling,
        num_estimators=1,
    )
    strategy = explicit(
        DecentralizedFedUCB,
        settings=_linear_settings(**changes),
        graph=graph,
        interval=None,
        schedule=_TIMES,
        num_trials=_TRIALS,
        noise_seed=NOISE_SEED,
    )
    yield from _played(strategy, _LINEAR_APP, None)


def _played(strategy: Any, app: ClientApp, num_rounds: int | None) -> Steps:
    grid = RecordingGrid(app, NUM_AGENTS)
    strategy.start(grid, num_rounds=num_rounds)
    yield from grid.steps


# Non-linear bandits, over Flower


def _neural_environment(context: Context) -> NonlinearBanditEnvironment:
    slot = int(context.node_config["partition-id"])
    task = FunctionBanditTask(
        noise_std=0.01, function="hartmann", num_actions=12, name="function-bandit"
    )
    return NonlinearBanditEnvironment(task, STUDY_SEED, slot)


def _fed_go_ucb(
    privacy: NeuralPrivacy | None = None, exploration: NeuralExploration = "sampling"
) -> Steps:
    regression = explicit(
        LangevinSettings,
        num_iterations=4,
        step=0.1,
        inverse_temperature=1e6,
        keep="last",
        patience=0,
        start="model",
    )
    settings = explicit(
        FedGOUCBSettings,
        num_exploration=0 if privacy else 2,
        regression=regression,
        ridge=1e-2,
        beta=0.1,
        threshold=3.0,
        exploration=exploration,
        num_refinements=1 if exploration == "optimism" else 0,
        privacy=privacy,
        reward_timeout=None,
    )
    strategy = explicit(
        FedGOUCB,
        settings=settings,
        model=Network(6, width=3),
        num_agents=NUM_AGENTS,
        num_evaluations=9,
        interval=None,
        seed=STUDY_SEED,
        noise_seed=NOISE_SEED if privacy else None,
    )
    yield from _played(strategy, neural_bandit_app(_neural_environment), None)


_NEURAL_PRIVACY = explicit(
    NeuralPrivacy,
    epsilon=50.0,
    delta=1e-3,
    num_synchronisations=2,
    num_features=4,
    reward_range=(-1.0, 1.0),
    mechanism="toeplitz",
)


# Experiments: all methods, on one seed


def _experiment(**values: Any) -> Steps:
    """Play all methods, if the file would leave out nothing that decides a run."""
    experiment = experiment_of(values)
    missing = _paths(experiment.to_dict()) - _paths(values) - {("curves",), ("sweep",)}
    if missing:
        raise TypeError(f"the experiment is played with defaults: {sorted(missing)}")
    for run in experiment.play(experiment.methods, seed=3):
        fields = json.loads(run.to_json())
        del fields["seconds"]
        for name, value in fields.items():
            yield f"{run.method}, {name}", value


def _paths(values: Mapping[str, Any]) -> set[tuple[str, ...]]:
    """Return the path of every key, without those whose value is None."""
    found = set()
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= {(key, *path) for path in _paths(value)}
        elif value is not None:
            found.add((key,))
    return found


_TUNING = {
    "name": "digest",
    "num_agents": 6,
    "task": {
        "name": "synthetic",
        "alpha": 0.1,
        "deviation": 0.02,
        "signs": False,
        "num_exact": 1,
        "runs_per_function": 1,
        "first_function": 0,
    },
}
_LEAN = {
    **_TUNING,
    "list_first": False,
    "num_references": 0,
    "num_evaluations": 12,
    "methods": [
        "alone",
        "random",
        "random-start",
        "portfolio",
        "open",
        "private",
        "noise-only",
        "blind",
        "liars",
    ],
}
_VOTES = {
    **_LEAN,
    "strategy": "FedVote",
    "privacy": {
        "delta": 1e-3,
        "epsilon": 8.0,
        "sampling_probability": 1.0,
        "sampling": "poisson",
        "calibration": "joint",
    },
}
_WARM_STARTS = {
    **_LEAN,
    "strategy": "FedWarmStart",
    "privacy": {
        "delta": 1e-3,
        "epsilon": 40.0,
        "sampling": "poisson",
        "calibration": "joint",
    },
}
_PUBLISHED = {
    **_TUNING,
    "list_first": False,
    "num_references": 0,
    "num_evaluations": 13,
    "strategy": "DPFTSDE",
    "preset": "paper-synthetic",
    "methods": ["alone", "random", "open", "private", "noise-only"],
    "privacy": {
        "delta": 1e-3,
        "noise_multiplier": 1.0,
        "sampling_probability": 0.5,
        "sampling": "fixed-size",
        "calibration": "published",
    },
}
_TRANSFER = {
    **_TUNING,
    "num_evaluations": 6,
    "num_targets": 1,
    "num_initial": 3,
    "num_observations": 6,
    "follow": "inverse-sqrt",
    "refit_every": 5,
    "messages": {"num_features": 20, "lengthscale": 0.03, "regularization": 0.01},
    "methods": [
        "alone",
        "random",
        "fts",
        "rgpe",
        "taf",
        "noise-only",
    ],
}
_LINEAR = {
    "name": "digest",
    "num_agents": 6,
    "num_iterations": 120,
    "task": {
        "name": "linear-bandit",
        "dimension": 3,
        "num_actions": 8,
        "concentration": 2.0,
        "gap": 0.2,
    },
    "privacy": {"epsilon": 5.0, "delta": 0.1},
    "simulator": "exact",
    "num_synchronisations": 5,
    "first_synchronisation": 20,
}
_NONLINEAR = {
    "name": "digest",
    "num_agents": 3,
    "num_iterations": 12,
    "task": {
        "name": "function-bandit",
        "function": "cosine",
        "num_actions": 10,
        "noise_std": 0.01,
    },
    "width": 4,
    "settings": {
        "num_exploration": 2,
        "regression": {
            "num_iterations": 5,
            "step": 0.1,
            "inverse_temperature": 1e6,
            "keep": "last",
            "patience": 0,
            "start": "model",
        },
        "ridge": 1e-2,
        "beta": 0.1,
        "threshold": 2.0,
        "exploration": "optimism",
        "num_refinements": 0,
    },
    "linear": {"ridge": 0.1, "beta": 0.01, "threshold": 1.0},
    "glm": {
        "reward_range": [-2.0, 2.0],
        "ridge": 0.1,
        "beta": 0.01,
        "threshold": 1.0,
        "curvature": 1.0,
        "parameter_norm": 100.0,
        "accuracy": 1.0,
        "max_iterations": 100,
    },
    "kernel": {
        "lengthscale": 1.0,
        "ridge": 0.1,
        "beta": 0.01,
        "threshold": 1.0,
        "oversampling": 1.0,
    },
    "methods": [
        "fed-go-ucb",
        "one-go-ucb",
        "n-go-ucb",
        "dislinucb",
        "fed-glb-ucb",
        "approx-dis-kernel-ucb",
        "no-phase-one",
        "each-once",
        "random",
    ],
}
_ON_A_CENTRE = [
    "fed-ucb",
    "fed-ucb-raw",
    "paper",
    "paper-noise-only",
    "non-private",
    "full",
    "independent",
    "noise-only",
    "random",
]
_ON_A_GRAPH = ["fed-ucb", "cliques", "non-private", "cliques-non-private"]
_ON_A_GRAPH += ["independent", "noise-only", "random"]

STUDIES: dict[str, Callable[[], Steps]] = {
    "votes": partial(_dp_fts_de, _voting()),
    "votes, noise-only": partial(_dp_fts_de, _voting(), noise_only=True),
    "DP-FTS-DE": partial(_dp_fts_de, _thompson(4, "inverse")),
    "DP-FTS": partial(_dp_fts_de, _thompson(1, "inverse-sqrt"), accountant="moments"),
    "DP-FTS-DE, fixed size": partial(
        _dp_fts_de,
        _thompson(2, "inverse-sqrt"),
        sampling="fixed-size",
        sampling_probability=0.5,
        accountant="rdp",
        calibration="published",
    ),
    "DP-FTS-DE, noise-only": partial(
        _dp_fts_de, _thompson(2, "inverse-sqrt"), noise_only=True
    ),
    "FTS": _fts,
    "FTS, similarity": partial(_fts, weighting="similarity", share_after=2),
    "alone, Thompson sampling": partial(_alone, _thompson(1, "never")),
    "alone, expected improvement": partial(_alone, _voting()),
    "alone, random": partial(
        _alone,
        explicit(
            RandomSearchSettings, **_search(), num_sub_regions=1, sub_region_axes=()
        ),
    ),
    "FedUCB": _fed_ucb,
    "FedUCB, raw": partial(_fed_ucb, local_data="raw"),
    "FedUCB, own": partial(_fed_ucb, local_data="own", width=0.3),
    "FedUCB, published": partial(
        _fed_ucb,
        epsilon=200.0,
        mechanism="tree",
        calibration="paper",
        width="paper",
        local_data="raw",
    ),
    "FedUCB, Honaker": partial(_fed_ucb, mechanism="tree-honaker", width="exact"),
    "FedUCB, sampling": partial(
        _fed_ucb,
        exploration=explicit(
            EllipsoidSampling, num_draws=64, uniform_share=0.01, radius=0.1
        ),
    ),
    "FedUCB, non-private": partial(_fed_ucb, epsilon=math.inf),
    "FedUCB, trigger": partial(
        _fed_ucb, DeterminantTrigger(1.0), epsilon=math.inf, local_data="raw"
    ),
    "DecentralizedFedUCB": partial(_decentralized, "neighbourhood"),
    "DecentralizedFedUCB, cliques": partial(_decentralized, "clique"),
    "DecentralizedFedUCB, non-private": partial(
        _decentralized, "neighbourhood", epsilon=math.inf
    ),
    "FedGOUCB": _fed_go_ucb,
    "FedGOUCB, optimism": partial(_fed_go_ucb, exploration="optimism"),
    "FedGOUCB, private": partial(_fed_go_ucb, privacy=_NEURAL_PRIVACY),
    "experiment, votes": partial(_experiment, **_VOTES),
    "experiment, warm starts": partial(_experiment, **_WARM_STARTS),
    "experiment, published": partial(_experiment, **_PUBLISHED),
    "experiment, transfer": partial(_experiment, **_TRANSFER),
    "experiment, linear bandit": partial(_experiment, **_LINEAR, methods=_ON_A_CENTRE),
    "experiment, linear bandit on a graph": partial(
        _experiment, **_LINEAR, graph="ring", methods=_ON_A_GRAPH
    ),
    "experiment, non-linear bandit": partial(_experiment, **_NONLINEAR),
}
