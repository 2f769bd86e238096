"""What the sites earn together, and each alone: ``python -m bandits.compare``."""

from math import inf
from typing import Annotated, Any

import numpy as np
import typer
from flwr.app import Context

from bandits.client_app import make_environment
from bandits.server_app import RELEASES, SETTINGS, options
from flwr_fbo import FedUCB, InProcessGrid, Limits, linear_bandit_app
from flwr_fbo.bandits import ContinualSettings, LinearUCBSettings

# A site by itself: linear UCB on its own data, which never leave it.
ALONE = LinearUCBSettings(
    ContinualSettings(
        RELEASES.num_releases, RELEASES.dimension, epsilon=inf, delta=1e-3
    ),
    local_data="own",
)


class Counting:
    """A site's environment that also adds up what the site earns."""

    def __init__(self, context: Context, earned: list[float]) -> None:
        self._environment, self._earned = make_environment(context), earned
        self.contexts = self._environment.contexts

    def reward(self, x: np.ndarray) -> float:
        """Return what an action gives."""
        value = self._environment.reward(x)
        self._earned.append(value)
        return value


def played(
    settings: LinearUCBSettings, sites: list[int], config: dict[str, Any]
) -> float:
    """Return the mean reward of these sites in one study; nothing is private."""
    earned: list[float] = []
    app = linear_bandit_app(
        make_environment=lambda context: Counting(context, earned),
        limits=Limits(max_epsilon_per_example=inf, allow_fixed_rows=True),
    )
    # The partition says which bandit a site plays; the id, which agent it is.
    nodes: list[dict[str, bool | float | int | str]]
    nodes = [{"agent-id": k, "partition-id": i} for k, i in enumerate(sites)]
    grid = InProcessGrid(app, len(sites), run_config=config, node_configs=nodes)
    FedUCB(settings, len(sites), **options(config)).start(grid)
    return float(np.mean(earned))


def main(
    seeds: Annotated[int, typer.Option(min=2)] = 5,  # errors are over seeds
    sites: Annotated[int, typer.Option(min=1)] = 4,
    trials: Annotated[int, typer.Option(min=100)] = 2000,
) -> None:
    """Print mean rewards of the same trials, together and alone."""
    rows: list[list[float]] = []
    for seed in range(seeds):
        config = {"environment-seed": seed, "num-trials": trials, "experiment": True}
        together = played(SETTINGS, [*range(sites)], config)
        alone = [played(ALONE, [i], config) for i in range(sites)]
        rows.append([together, float(np.mean(alone)), together - float(np.mean(alone))])
    means, errors = np.mean(rows, axis=0), np.std(rows, axis=0, ddof=1) / seeds**0.5
    names = (f"together, epsilon {RELEASES.epsilon:g}", "alone", "together - alone")
    for name, mean, error in zip(names, means, errors, strict=True):
        print(f"{name:<21} {mean:.4f} ± {error:.4f}")


if __name__ == "__main__":
    typer.run(main)
