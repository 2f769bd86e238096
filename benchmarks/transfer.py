"""What a target's queries cost as more agents send messages: FTS, RGPE, TAF.

    python benchmarks/transfer.py --figure transfer.png

CPU time of one target's 50 queries in two dimensions, from 3 initial points, with the
messages (M = 100) of N agents that have 50 observations each; the objective costs
nothing. The numbers of agents take turns, and each is shown as the ratio of its median
to that of the fewest.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import FloatDistribution
from rich.console import Console
from rich.table import Table

from flwr_fbo.agents.base import play_round
from flwr_fbo.agents.fts import FTSSettings
from flwr_fbo.agents.study import AgentSettings, Study
from flwr_fbo.agents.transfer import RGPESettings, TAFSettings
from flwr_fbo.models.threads import one_blas_thread
from flwr_fbo.space import SearchSpace

AGENTS, QUERIES = (5, 10, 20, 28), 50
METHODS: dict[str, AgentSettings] = {
    "FTS": FTSSettings(share_after=0, follow="inverse-sqrt"),
    "RGPE": RGPESettings(),
    "TAF": TAFSettings(),
}
SPACE = SearchSpace({name: FloatDistribution(0.0, 1.0) for name in ("a", "b")})

FloatArray = NDArray[np.float64]


def objective(params: dict[str, float]) -> float:
    """Return a smooth function of two variables."""
    return float(np.sin(5 * params["a"]) * np.cos(4 * params["b"]))


def messages(study: Study, num_agents: int) -> FloatArray:
    """Return what agents with 50 uniform observations send; the target's is missing."""
    vectors = []
    for slot in range(num_agents + 1):
        agent = study.create_agent(slot, 1)
        for x in np.random.default_rng(slot).random((50, 2)):
            agent.tell(0, x, objective(SPACE.from_unit(x)))
        vectors.append(agent.message(0))
    vectors[0] = np.full_like(vectors[0], np.nan)
    return np.array(vectors)


@one_blas_thread
def seconds(study: Study, vectors: FloatArray, seed: int) -> float:
    """Return the CPU time of all queries of a target."""
    target = study.create_agent(0, seed)
    play_round(target, objective, 0, None, send_message=False)
    began = time.process_time()
    for iteration in range(1, QUERIES + 1):
        received = vectors if iteration == 1 else None
        play_round(target, objective, iteration, received, send_message=False)
    return time.process_time() - began


def draw(medians: dict[str, Sequence[float]], path: Path) -> None:
    """Draw how the medians grow."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for (name, values), style in zip(medians.items(), ("o-", "s--", "^:"), strict=True):
        axes.plot(AGENTS, np.array(values) / values[0], style, label=name)
    axes.set(
        xlabel="agents that send messages",
        ylabel=f"CPU time of a target, that of {AGENTS[0]} agents is 1",
        ylim=(0, None),
        xticks=AGENTS,
    )
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Print the table, and draw the figure if it is wanted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    table = Table("method", "numbers sent", f"s, {AGENTS[0]} agents")
    for number in AGENTS[1:]:
        table.add_column(f"{number} agents", justify="right", no_wrap=True)
    medians: dict[str, Sequence[float]] = {}
    for name, settings in METHODS.items():
        study = Study(SPACE, "maximize", settings, study_seed=1, feature_seed=2)
        inputs = [messages(study, number) for number in AGENTS]
        times = np.array(
            [
                [seconds(study, vectors, seed) for vectors in inputs]
                for seed in range(options.repeats)
            ]
        )
        medians[name] = np.median(times, axis=0).tolist()
        middle = np.percentile(times[:, 1:] / times[:, :1], (25, 75), axis=0)
        growth = np.array(medians[name][1:]) / medians[name][0]
        table.add_row(
            name,
            str(inputs[0].shape[1]),
            f"{medians[name][0]:.2f}",
            *(
                f"{ratio:.2f} ({low:.2f}-{high:.2f})"
                for ratio, low, high in zip(growth, *middle, strict=True)
            ),
        )
    Console(width=100).print(table)
    print("ratios of medians; in brackets the middle half of the paired ratios")
    if options.figure is not None:
        draw(medians, options.figure)


if __name__ == "__main__":
    main()
