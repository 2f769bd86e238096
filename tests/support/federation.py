"""A small federation for tests: quadratic objectives, all seeds fixed."""

import math
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message, UserConfig
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution

from flwr_fbo import DPFTSDE, FedVote, InProcessGrid, tuning_app
from flwr_fbo._compat import reply_arrays
from flwr_fbo.privacy.spending_ledger import FILE_NAME, Charge, SpendingLedger
from flwr_fbo.tuning import DPFTSDESettings, FedVoteSettings, TuningClient
from flwr_fbo.tuning.search.agent import Agent
from tests.support.grouped import grouped, hosted
from tests.support.ledgers import ledger_charges

NUM_AGENTS, NUM_ITERATIONS = 4, 5
# With these a study's releases are exact, and something is recommended.
WITHOUT_NOISE: dict[str, Any] = {
    "noise_multiplier": 0.0,
    "sampling_probability": 1.0,
    "clip_norm": math.inf,
}
SPACE: dict[str, BaseDistribution] = {
    "x": FloatDistribution(-1.0, 1.0),
    "C": FloatDistribution(1e-3, 1e3, log=True),
    "depth": IntDistribution(1, 9),
}
AGENT = DPFTSDESettings(num_initial=4, num_features=30, num_candidates=100)
Objective = Callable[[dict[str, Any]], float]


def objective_of(client: int) -> Objective:
    """Return a quadratic whose optimum depends on the client."""

    def objective(params: dict[str, Any]) -> float:
        log_c, depth = np.log10(params["C"]), params["depth"]
        return float(
            -((params["x"] - 0.1 * client) ** 2) - 0.1 * log_c**2 - 0.01 * depth
        )

    return objective


def make_objective(context: Context) -> Objective:
    """Return the objective of the client with this partition."""
    return objective_of(int(context.node_config["partition-id"]))


def numpy_app(
    make: Callable[[Context], Objective] = make_objective,
    mods: list[Mod] | None = None,
) -> ClientApp:
    """Return a ClientApp of the older API."""

    def client_fn(context: Context) -> Any:
        return TuningClient(make, context).to_client()

    return ClientApp(client_fn=client_fn, mods=mods)


def counting() -> tuple[ClientApp, list[int]]:
    """Return an app, and a list that grows with every message it gets."""
    asked: list[int] = []
    inner, app = tuning_app(make_objective), ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        asked.append(1)
        return inner(message, context)

    return app, asked


class SilentGrid(InProcessGrid):
    """Of whose nodes no reply arrives in some rounds."""

    def __init__(
        self, rounds: Collection[int], run_config: UserConfig | None = None
    ) -> None:
        super().__init__(numpy_app(), NUM_AGENTS, run_config=run_config)
        self._rounds = {str(number) for number in rounds}

    def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
        """Deliver all messages, and the replies of other rounds."""
        asked = list(messages)
        replies = super().send_and_receive(asked, timeout=timeout)
        silent = self._rounds & {message.metadata.group_id for message in asked}
        return [] if silent else replies


class CountingGrid(InProcessGrid):
    """Which remembers how many numbers each array of each reply had."""

    def __init__(self, app: ClientApp, num_nodes: int) -> None:
        super().__init__(app, num_nodes)
        self.sizes: list[list[int]] = []

    def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
        """Deliver all messages and replies."""
        replies = list(super().send_and_receive(messages, timeout=timeout))
        self.sizes += [[a.size for a in reply_arrays(r.content)] for r in replies]
        return replies


def strategy(**options: Any) -> DPFTSDE | FedVote:
    """Return a seeded strategy; ``options`` replace its defaults."""
    defaults: dict[str, Any] = {
        "space": SPACE,
        "direction": "maximize",
        "num_agents": NUM_AGENTS,
        "agent": AGENT,
        "delta": 1e-3,
        "study_seed": 11,
        "feature_seed": 12,
        "noise_seed": 13,
        "patience": 0.0,
        "min_follow_probability": 0.0,
    }
    votes = isinstance(options.get("agent"), FedVoteSettings)
    kind: Any = FedVote if votes else DPFTSDE
    study: DPFTSDE | FedVote = hosted(kind, **grouped({**defaults, **options}))
    return study


def run(
    app: ClientApp, num_rounds: int = NUM_ITERATIONS + 1, **options: Any
) -> tuple[DPFTSDE | FedVote, list[Agent]]:
    """Run a study in an in-process grid; return strategy and agents."""
    shuffle_seed = options.pop("shuffle_seed", None)
    study, grid = strategy(**options), InProcessGrid(app, NUM_AGENTS)
    if shuffle_seed is not None:
        shuffled(grid, shuffle_seed)
    study.start(grid, num_rounds=num_rounds)
    return study, grid.agents(study.study)


def shuffled(grid: InProcessGrid, seed: int) -> InProcessGrid:
    """Have the replies of a grid come in any order; no result depends on it."""
    rng, pull = np.random.default_rng(seed), grid.pull_messages

    def pull_shuffled(message_ids: Iterable[str]) -> list[Message]:
        replies = list(pull(message_ids))
        return [replies[i] for i in rng.permutation(len(replies))]

    grid.pull_messages = pull_shuffled  # type: ignore[method-assign]
    return grid


def assert_same(agents: list[Agent], others: list[Agent]) -> None:
    """Assert that histories and states are array-equal."""
    assert len(agents) == len(others) > 0
    for one, other in zip(agents, others, strict=True):
        states = one.state_dict(), other.state_dict()
        assert states[0].keys() == states[1].keys()
        for name in states[0]:
            np.testing.assert_array_equal(states[0][name], states[1][name])


class Unheard(InProcessGrid):
    """What is released leaves the agent, and arrives too late."""

    num_left = 0

    def pull_messages(self, message_ids: Any) -> Any:
        replies = list(super().pull_messages(message_ids))
        left = [any(map(len, r.content.array_records.values())) for r in replies]
        self.num_left += sum(left)
        return [r for r, has in zip(replies, left, strict=True) if not has]


def charges_in(folder: Path) -> list[Charge]:
    """Return what was charged in a site's folder; nothing where it has no ledger."""
    if not (folder / FILE_NAME).is_file():
        return []
    with SpendingLedger.held(folder) as ledger:
        return ledger_charges(ledger)
