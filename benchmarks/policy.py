"""What a decision of FedUCB's policy costs at a site, by the releases on record."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import get_args

import numpy as np

from benchmarks.measure import Bar, Row, Section, alternate, compare
from flwr_fbo import LinearBanditPolicy
from flwr_fbo._common.arrays import FloatArray, one_blas_thread
from flwr_fbo.bandits import ContinualSettings, LinearUCBSettings
from flwr_fbo.bandits.kind import LINEAR_SITE
from flwr_fbo.bandits.linear.settings import LocalData
from flwr_fbo.bandits.linear.study import LinearBanditStudy
from flwr_fbo.bandits.site.recorded_bandit import RecordedBandit
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.site.study_journals import last_journal

D, K, CALLS = 10, 100, 10
FEW, MANY, MOST_RATIO = 16, 4096, 1.3
FEW_ACTIONS, DECISIONS, MOST_MS = 10, 10_000, 3.0


def study(num_releases: int, local_data: LocalData) -> LinearBanditStudy:
    """Return a study of so many releases."""
    releases = ContinualSettings(num_releases, D, epsilon=1.0, delta=1e-5)
    settings = LinearUCBSettings(releases, local_data=local_data)
    return LinearBanditStudy(settings, 100, study_id="policy")


STUDY = study(MANY, "released")
ACTIONS = np.random.default_rng(0).uniform(-1, 1, (K, D)) / np.sqrt(D)


def measure(quick: bool) -> list[Section]:
    """Return the section."""
    repeats = 3 if quick else 11
    with tempfile.TemporaryDirectory() as parent:
        folders = {n: Path(parent) / f"{n}" for n in (FEW, MANY)}
        works: dict[str, Callable[[], object]] = {}
        for n, folder in folders.items():
            fill(folder, n)
            policy = LinearBanditPolicy.open(folder)
            works[f"choose, {n}"] = partial(choose, policy)
            works[f"choose and reward, {n}"] = partial(play, policy)
            works[f"choose, received anew, {n}"] = partial(follow, policy, folder)
        works = {name: one_blas_thread(work) for name, work in works.items()}
        seconds = alternate(works, repeats, policy_time)
    each = {name: values / CALLS for name, values in seconds.items()}
    kinds = [name.rsplit(", ", 1)[0] for name in list(works)[: len(works) // 2]]
    rows = [
        compare("policy", each, f"{kind}, {MANY}", f"{kind}, {FEW}", bar=bar)
        for kind in kinds
    ]
    text = (
        f"CPU time of `LinearBanditPolicy` among {K} actions of d = {D}, with {FEW} or "
        f"{MANY:,} releases in its journal, and as many trials. *Received anew*: "
        "before each choice Flower's client, another holder, has recorded a new "
        "total. The bar is for the ratio: a policy reads only what has changed."
    )
    return [Section("A decision at a site", text, rows), shared(repeats)]


def shared(repeats: int) -> Section:
    """Return the section of two processes that take turns at one journal."""
    works: dict[str, Callable[[], object]] = {}
    actions = ACTIONS[:FEW_ACTIONS]
    megabytes = {}
    with tempfile.TemporaryDirectory() as parent:
        for local_data in get_args(LocalData):
            folder = Path(parent) / local_data
            fill(folder, 10, study(10, local_data))
            one, other = (LinearBanditPolicy.open(folder) for _ in range(2))
            for _ in range(0, DECISIONS, 1000):
                choices = one.choose_many([actions] * 1000)
                one.reward_many({choice.ticket: 0.5 for choice in choices})
            size = last_journal(folder, LINEAR_SITE.name).stat().st_size
            megabytes[local_data] = size / 1e6
            works[local_data] = partial(take_turns, one, other, actions)
        works = {name: one_blas_thread(work) for name, work in works.items()}
        seconds = alternate(works, repeats)
    each = {name: 1e3 * values / CALLS / 2 for name, values in seconds.items()}
    rows = [
        compare(
            f"local_data={name!r}",
            each,
            name,
            "released",
            quality=f"{megabytes[name]:.1f} MB",
            bar=lambda row: Bar.at_most(row.seconds[0], MOST_MS, " ms a call"),
            unit="ms",
        )
        for name in works
    ]
    text = (
        f"CPU time of a call: `choose` among {FEW_ACTIONS} actions of d = {D}, and "
        f"`reward` by another holder of the journal, in turns, with {DECISIONS:,} "
        "decisions on record; and the size of the journal then."
    )
    return Section("Two processes at a site", text, rows)


def take_turns(
    one: LinearBanditPolicy, other: LinearBanditPolicy, actions: FloatArray
) -> None:
    """Choose here and give the reward there, and the other way about."""
    for i in range(CALLS):
        here, there = (one, other) if i % 2 else (other, one)
        there.reward(here.choose(actions).ticket, 0.5)


def bar(row: Row) -> Bar:
    """Return what a row is held to."""
    return Bar.at_most(row.ratio, MOST_RATIO)


def fill(folder: Path, num_releases: int, of: LinearBanditStudy = STUDY) -> None:
    """Write a journal with trials and releases, as one that was played has them."""
    rng = np.random.default_rng(1)
    size = of.settings.releases.sum_shape
    with Journal(
        RecordedBandit.identity_of(of), last_journal(folder, LINEAR_SITE.name)
    ) as journal:
        bandit = RecordedBandit(journal, of)
        bandit.join(0, bandit.number)
        draws = {
            f"draw-{k}": rng.standard_normal((D + 1) * (D + 2) // 2)
            for k in range(1, num_releases + 1)
        }
        windows = {f"window-{k}": np.eye(D + 1) for k in range(num_releases)}
        rows = [LedgerRow(k, {}, np.zeros(size)) for k in range(1, num_releases + 1)]
        journal.change_state({**draws, **windows}, (), rows)
        for _ in range(num_releases):
            row = {"chosen": 0, "propensity": 1.0}, ACTIONS
            [number] = journal.add_trials(0, [row], {})
            journal.complete_trials(0, [(number, 0.5)], {})


def choose(policy: LinearBanditPolicy) -> None:
    """Choose only."""
    for _ in range(CALLS):
        policy.choose(ACTIONS)


def play(policy: LinearBanditPolicy) -> None:
    """Choose, and give the reward."""
    for _ in range(CALLS):
        ticket = policy.choose(ACTIONS).ticket
        policy.reward(ticket, 0.5)


class Client:
    """Flower's client: it records a new total, and counts its own time."""

    seconds = 0.0

    def __call__(self, folder: Path) -> None:
        """Receive a total."""
        began = time.process_time()
        with Journal(None, last_journal(folder, LINEAR_SITE.name)) as journal:
            agent = RecordedBandit(journal, STUDY)
            agent.receive(agent.num_trials * np.eye(D + 1), 0)
        self.seconds += time.process_time() - began


CLIENT = Client()


def policy_time() -> float:
    """Return the CPU time of this process but for the client's."""
    return time.process_time() - CLIENT.seconds


def follow(policy: LinearBanditPolicy, folder: Path) -> None:
    """Choose after another holder has changed the journal."""
    for _ in range(CALLS):
        CLIENT(folder)
        policy.choose(ACTIONS)
