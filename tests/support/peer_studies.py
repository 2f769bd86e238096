"""Small studies of linear bandits without a centre."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import Context

from flwr_fbo import DecentralizedFedUCB, InProcessGrid, Limits, linear_bandit_app
from flwr_fbo.bandits import ContinualSettings, LinearUCBSettings, PeerGraph
from flwr_fbo.bandits.site.environment import BanditEnvironment
from flwr_fbo.lab.tasks.linear_bandit import LinearBanditEnvironment, LinearBanditTask
from tests.support.grouped import hosted

TASK = LinearBanditTask(dimension=3, num_actions=6)
M, T, SCHEDULE, SEED, NOISE_SEED = 6, 19, [4, 9, 14], 7, 8
RELEASES = ContinualSettings(num_releases=3, dimension=3, epsilon=30.0, delta=0.1)
SETTINGS = LinearUCBSettings(RELEASES, local_data="released")
RAW = replace(SETTINGS, local_data="raw")
OPEN = replace(SETTINGS, releases=replace(RELEASES, epsilon=math.inf))
COMPLETE = PeerGraph.named("complete", M)
RING = PeerGraph.named("ring", M, hops=2)
LINE = PeerGraph.named("line", M, hops=3)


def make_environment(context: Context) -> BanditEnvironment:
    slot = int(context.node_config["partition-id"])
    return LinearBanditEnvironment(TASK, SEED, slot)


APP = linear_bandit_app(make_environment=make_environment)


def strategy_of(
    graph: PeerGraph, settings: LinearUCBSettings = SETTINGS, **options: Any
) -> DecentralizedFedUCB:
    defaults = {"schedule": SCHEDULE, "num_trials": T, "noise_seed": NOISE_SEED}
    if "interval" in options:
        defaults = {}
    common = {"patience": 0.0, "allow_large_delta": True}
    options = {**common, **defaults, **options}
    return hosted(DecentralizedFedUCB, settings, graph, **options)


def folders_of(tmp_path: Path) -> list[Path]:
    return [tmp_path / f"site-{i}" for i in range(M)]


def sites(tmp_path: Path) -> InProcessGrid:
    app = linear_bandit_app(limits=Limits(max_epsilon_per_example=math.inf))
    configs: list[Any] = [
        {"agent-id": i, "fbo-folder": str(folder)}
        for i, folder in enumerate(folders_of(tmp_path))
    ]
    return InProcessGrid(app, M, node_configs=configs)
