"""A small study of linear bandits, and sites that play it at their own pace."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, UserConfig
from flwr.clientapp import ClientApp

from flwr_fbo import (
    FedUCB,
    InProcessGrid,
    Limits,
    LinearBanditPolicy,
    linear_bandit_app,
)
from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.bandits import (
    ContinualSettings,
    EllipsoidSampling,
    InverseGapWeighting,
    LinearUCBSettings,
)
from flwr_fbo.bandits.fed_ucb.server import FedUCBServer
from flwr_fbo.bandits.kind import LINEAR_SITE
from flwr_fbo.bandits.site.environment import BanditEnvironment
from flwr_fbo.journal.journal import Journal
from flwr_fbo.lab.tasks.linear_bandit import LinearBanditEnvironment, LinearBanditTask
from flwr_fbo.site.study_journals import last_journal
from flwr_fbo.study.server import Step
from tests.support.grouped import hosted

TASK = LinearBanditTask(dimension=3, num_actions=6)
M, T, SCHEDULE, SEED, NOISE_SEED = 4, 30, [5, 12, 22], 7, 8
RELEASES = ContinualSettings(num_releases=3, dimension=3, epsilon=30.0, delta=0.1)
SETTINGS = LinearUCBSettings(RELEASES, local_data="released")
PUBLISHED = replace(RELEASES, mechanism="tree", calibration="paper", epsilon=200.0)
UNKNOWN = replace(RELEASES, num_releases=None)
NOT_PRIVATE = replace(RELEASES, epsilon=np.inf)
CASES = {
    "released": SETTINGS,
    "raw": replace(SETTINGS, local_data="raw"),
    "paper": replace(SETTINGS, releases=PUBLISHED, width="paper", local_data="raw"),
    "non-private": replace(SETTINGS, releases=NOT_PRIVATE),
    "non-private, raw": replace(SETTINGS, releases=NOT_PRIVATE, local_data="raw"),
    "own": replace(SETTINGS, local_data="own"),
    "own, sliding window": replace(
        SETTINGS, releases=replace(UNKNOWN, sliding_window=2), local_data="own"
    ),
    "own, sampling": replace(
        SETTINGS, local_data="own", exploration=EllipsoidSampling(radius=1.0)
    ),
    "sampling": replace(SETTINGS, exploration=EllipsoidSampling()),
    "sampling, raw": replace(
        SETTINGS, exploration=EllipsoidSampling(radius=1.0), local_data="raw"
    ),
    "unknown horizon": replace(SETTINGS, releases=UNKNOWN),
    "sliding window": replace(SETTINGS, releases=replace(RELEASES, sliding_window=1)),
    "sliding window, raw": replace(
        SETTINGS, releases=replace(UNKNOWN, sliding_window=2), local_data="raw"
    ),
    "inverse gap": replace(SETTINGS, exploration=InverseGapWeighting()),
}


def make_environment(context: Context) -> BanditEnvironment:
    slot = int(context.node_config["partition-id"])
    return LinearBanditEnvironment(TASK, SEED, slot)


APP = linear_bandit_app(make_environment=make_environment)
# Sites whose studies need not be private.
OPEN = linear_bandit_app(limits=Limits(max_epsilon_per_example=math.inf))


# Delta is that of the paper's figures.
COMMON: dict[str, Any] = {"patience": 0.0, "allow_large_delta": True}


def fed_ucb(settings: LinearUCBSettings = SETTINGS, **options: Any) -> FedUCB:
    defaults = {"schedule": SCHEDULE, "num_trials": T, "noise_seed": NOISE_SEED}
    if "interval" in options:
        defaults = {}
    return hosted(FedUCB, settings, M, **{**COMMON, **defaults, **options})


# Sites that play at their own pace.


ACTIONS = np.eye(3)


class Sites(InProcessGrid):
    """Sites with a folder each; something is done before, or after, a round."""

    def __init__(
        self,
        tmp_path: Path,
        before: dict[int, Any] | None = None,
        app: ClientApp | None = None,
    ) -> None:
        self.folders = [tmp_path / f"site-{i}" for i in range(M)]
        configs: list[UserConfig] = [
            {"agent-id": i, "fbo-folder": str(folder)}
            for i, folder in enumerate(self.folders)
        ]
        super().__init__(app or OPEN, M, node_configs=configs)
        self.before = before or {}
        self.after: dict[int, Any] = {}
        self.silent: set[int] = set()
        self.lost: set[int] = set()
        self.replies: list[tuple[int, Message]] = []

    def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
        asked = list(messages)
        number = int(asked[0].metadata.group_id or 0) if asked else 0
        if number:
            self.before.get(number, lambda: None)()
        heard = [m for m in asked if self._slot(m) not in self.silent]
        replies = list(super().send_and_receive(heard, timeout=timeout))
        self.replies += [(number, reply) for reply in replies]
        lost = {m.metadata.message_id for m in heard if self._slot(m) in self.lost}
        self.after.get(number, lambda: None)()
        return [r for r in replies if r.metadata.reply_to_message_id not in lost]

    def _slot(self, message: Message) -> int:
        context = self.contexts[message.metadata.dst_node_id]
        return int(context.node_config["agent-id"])

    def policy(self, slot: int) -> LinearBanditPolicy:
        return LinearBanditPolicy.open(self.folders[slot])

    def errors(self, number: int) -> list[str]:
        return [
            reply.error.reason or ""
            for n, reply in self.replies
            if n == number and reply.has_error()
        ]


def site_strategy(tmp_path: Path, **options: Any) -> FedUCB:
    settings = replace(SETTINGS, releases=NOT_PRIVATE)
    folder = tmp_path / "server"
    return fed_ucb(settings, interval=0.0, folder=folder, **options)


def last_releases(monkeypatch: pytest.MonkeyPatch) -> list[FloatArray]:
    """Return a list that gets all agents' last releases at each synchronisation."""
    found: list[FloatArray] = []
    receive = FedUCBServer.receive

    def noted(server: FedUCBServer, step: Step, messages: Mapping[int, Any]) -> None:
        before = len(server.ledger)
        receive(server, step, messages)
        if len(server.ledger) > before:
            [triangles] = server.state_dict().values()
            size = server.study.settings.releases.dimension + 1
            rows, columns = np.triu_indices(size)
            whole = np.empty((len(triangles), size, size))
            whole[:, rows, columns] = whole[:, columns, rows] = triangles
            found.append(whole)

    monkeypatch.setattr(FedUCBServer, "receive", noted)
    return found


def lose_journal(sites: Sites) -> None:
    (last_journal(sites.folders[1], LINEAR_SITE.name)).unlink()


def begin_anew(sites: Sites) -> None:
    """Put an empty journal of the same study there."""
    path = last_journal(sites.folders[1], LINEAR_SITE.name)
    with Journal(None, path) as journal:
        identity = journal.identity
    path.unlink()
    Journal(identity, path).close()
