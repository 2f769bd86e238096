"""What the sites earn together, and each alone: ``python -m kitchens.compare``."""

from math import inf
from typing import Annotated, Any

import numpy as np
import typer
from flwr.app import Context

from flwr_fbo import FedUCB, InProcessGrid, Limits, linear_bandit_app
from flwr_fbo.bandits import ContinualSettings, LinearUCBSettings, neural_bandit_app
from kitchens.client_app import make_environment
from kitchens.server_app import strategy

# Hartmann-6 is from 0 to 3.33, and noise comes on top.
REWARDS = (-1.0, 5.0)


class Counting:
    """A site's environment that also adds up what the site earns."""

    def __init__(self, context: Context, earned: list[float]) -> None:
        self._environment, self._earned = make_environment(context), earned

    def contexts(self, t: int) -> np.ndarray:
        """Return the actions of trial t."""
        return self._environment.contexts(t)

    def reward(self, x: np.ndarray) -> float:
        """Return what an action gives."""
        value = self._environment.reward(x)
        self._earned.append(value)
        return value


class Linear(Counting):
    """The same bandit for a linear model: actions with a constant, at most 1 long."""

    def __init__(self, context: Context, earned: list[float]) -> None:
        super().__init__(context, earned)
        self._actions = self._environment.contexts(0)
        ones = np.ones((len(self._actions), 1))
        x = np.hstack([self._actions, ones])
        self._vectors = x / np.linalg.norm(x, axis=1).max()

    def contexts(self, t: int) -> np.ndarray:
        """Return the actions of trial t."""
        self._environment.contexts(t)
        vectors: np.ndarray = self._vectors
        return vectors

    def reward(self, x: np.ndarray) -> float:
        """Return what an action gives."""
        [place] = np.flatnonzero((self._vectors == x).all(axis=1))[:1]
        return super().reward(self._actions[place])


def played(sites: int, config: dict[str, Any]) -> float:
    """Return the mean reward of the sites in one study."""
    earned: list[float] = []
    app = neural_bandit_app(
        lambda context: Counting(context, earned),
        limits=Limits(max_epsilon_per_example=inf),
    )
    grid = InProcessGrid(app, sites, run_config=config)
    strategy(config, sites).start(grid)
    return float(np.mean(earned))


def played_alone(sites: int, config: dict[str, Any]) -> float:
    """Return their mean reward where each plays linear UCB on its own data."""
    earned: list[float] = []
    app = linear_bandit_app(
        make_environment=lambda context: Linear(context, earned),
        limits=Limits(max_epsilon_per_example=inf, allow_fixed_rows=True),
    )
    count = int(config["num-evaluations"])
    releases = ContinualSettings(
        1, dimension=7, epsilon=inf, delta=1e-3, reward_range=REWARDS
    )
    settings = LinearUCBSettings(releases, local_data="own", ridge=0.1)
    for site in range(sites):
        # The partition says which bandit a site plays; the id, which agent it is.
        node: dict[str, bool | float | int | str] = {
            "agent-id": 0,
            "partition-id": site,
        }
        grid = InProcessGrid(app, 1, run_config=config, node_configs=[node])
        FedUCB(settings, 1, schedule=(count,), num_trials=count).start(grid)
    return float(np.mean(earned))


def main(
    seeds: Annotated[int, typer.Option(min=2)] = 5,  # errors are over seeds
    sites: Annotated[int, typer.Option(min=1)] = 4,
    evaluations: Annotated[int, typer.Option(min=1)] = 20,
    epsilon: Annotated[float, typer.Option(min=0)] = 0.0,
) -> None:
    """Print mean rewards of the same evaluations, together and alone.

    A site alone plays linear UCB, without noise and without the others.
    """
    rows = []
    for seed in range(seeds):
        config = {
            "environment-seed": seed,
            "num-evaluations": evaluations,
            "width": 5,
            "epsilon": epsilon,
            "experiment": True,
        }
        together, alone = played(sites, config), played_alone(sites, config)
        rows.append([together, alone, together - alone])
    means, errors = np.mean(rows, axis=0), np.std(rows, axis=0, ddof=1) / seeds**0.5
    noise = f"epsilon {epsilon:g}" if epsilon else "not private"
    names = (f"together, {noise}", "alone", "together - alone")
    for name, mean, error in zip(names, means, errors, strict=True):
        print(f"{name:<22} {mean:.4f} ± {error:.4f}")


if __name__ == "__main__":
    typer.run(main)
