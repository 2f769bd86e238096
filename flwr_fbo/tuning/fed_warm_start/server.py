"""The server of FedWarmStart: one release a cohort, and one message a site in its life.

The first cohort plays at once. Each other one plays from the iteration after the
release before it, and the sites after the last cohort from the iteration after the last
release. A cohort's slots are spent when its release is made: what comes later is not
asked for, and would not be taken.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.validation import require
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.study.server import Step
from flwr_fbo.tuning.dp_fts_de.server import DPFTSDEServer
from flwr_fbo.tuning.fed_warm_start.knowledge import Knowledge, KnownRelease
from flwr_fbo.tuning.fed_warm_start.settings import (
    Cohorts,
    FedWarmStartSettings,
    WarmStartFacts,
)
from flwr_fbo.tuning.search.settings import Facts
from flwr_fbo.tuning.search.study import TuningStudy

_log = logging.getLogger("flwr.fbo")

# What an honest message's norm may be off by; it is 1, or 0.
_ROUNDING = 1e-9
# Where the journal keeps what sites have reported.
REPORTED = "reported"


class FedWarmStartServer(DPFTSDEServer):
    """Releases the sum of each cohort's messages, once.

    See `DPFTSDEServer` for the other parameters. Everything is one release of all N
    slots, in which only a cohort's slots have a message.

    Parameters
    ----------
    cohort_sizes : sequence of int
        Sites of each cohort that sends, in the order of slots.
    num_kept : int
        Reported best values of a slot that are kept.

    Formal guarantees
    -----------------
    Adjacency: two studies are neighbours if they differ in that one site's message is
    zeroed, and with it all data that it was computed from. A slot belongs to one cohort
    at most, and only the release of that cohort depends on its message, except through
    what has been released before. So all releases of a study together are one Gaussian
    mechanism with noise multiplier z: adaptive parallel composition over disjoint
    cohorts under equal noise. ``privacy_spent`` counts one release, however many
    cohorts there are.

    Not protected: who belongs to which cohort, who answers and when. A site that joins
    again under another slot sends again, and what it spends adds up. A site's ledger
    (`Limits`) counts what one ``agent-id`` spends.

    Attributes
    ----------
    cohorts : Cohorts
        Senders of each planned release; nobody until `plan_facts`.
    reported : dict of int to list of float
        Best values that a slot reports, a round each; in a study whose sites report
        them.
    """

    is_parallel = True
    readable = "how it ranks the pool's points, and so where its best setting lies"

    def __init__(
        self,
        *args: Any,
        cohort_sizes: Sequence[int] = (),
        num_kept: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._num_kept = num_kept
        self._wanted = Cohorts(self.num_agents, tuple(cohort_sizes))
        self.cohorts = Cohorts(self.num_agents)
        self.reported: dict[int, list[float]] = {}

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return what was reported."""
        if not self.reported:
            return {}
        return {REPORTED: np.array(json.dumps(self.reported))}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from what ``state_dict`` returned."""
        self.reported = reported_in(state)

    def note_best(self, values: Mapping[int, float]) -> None:
        """Keep what each slot reports first."""
        for slot, value in values.items():
            kept = self.reported.setdefault(slot, [])
            if len(kept) < self._num_kept:
                kept.append(value)

    def plan_facts(self, before: Facts | None) -> WarmStartFacts:
        """Fix the cohorts: those whose releases fit into the rounds and the budget."""
        assert isinstance(before, WarmStartFacts)
        sizes = self._wanted.cohort_sizes[: self.num_allowed]
        noise = self.num_agents * float(self.release.noise_std(0)[0])
        self.cohorts = Cohorts(self.num_agents, sizes, noise)
        return replace(before, cohorts=self.cohorts)

    def groups(self) -> list[range]:
        """Return the slots of each cohort."""
        return [self._wanted.slots(k) for k in range(len(self._wanted.cohort_sizes))]

    def group_of(self, release: int) -> int:
        """Return the cohort whose messages are in a release, from 1."""
        return release - 1

    def fewest_answers(self, release: int, num_enrolled: int) -> int:
        """Return half of the open cohort's agents, enrolled or not."""
        return super().fewest_answers(release, len(self.cohorts.slots(release - 1)))

    def plays(self, slot: int) -> bool:
        """Return whether a slot's cohort has begun."""
        return self.cohorts.cohort_of(slot) <= len(self.ledger)

    def sends(self, slot: int, step: Step) -> bool:
        """Return whether a step's release is that of a slot's cohort."""
        return step.release == self.cohorts.cohort_of(slot) + 1

    def release_number(self, slot: int, step: Step) -> int:
        """Return 1 for the release of a slot's cohort, its only one; else 0."""
        return int(self.sends(slot, step))

    @property
    def vectors(self) -> FloatArray | None:
        """Releases so far, shape (K, M), one row per cohort; None without one."""
        if not self.ledger:
            return None
        return np.vstack([row.vectors for row in self.ledger])

    def step(self, iteration: int) -> Step:
        """Decide: the next cohort's release, if that has played long enough."""
        made = len(self.ledger)
        if made:  # a release that was postponed postpones those after it
            last = self.ledger[-1]
            iteration_planned = iteration - (last.made_after - last.iteration)
        else:
            iteration_planned = iteration
        step = super().step(iteration_planned)
        return Step(iteration, step.release, step.is_exhausted)

    def receive(self, step: Step, messages: Mapping[int, Any]) -> None:
        """Release the messages of the cohort whose turn it is.

        A message of another cohort, or with a norm above 1, counts as zero.

        Raises
        ------
        ValueError
            If that release has been made.
        """
        taken = {
            slot: message
            for slot, message in messages.items()
            if self.sends(slot, step) and _is_short(slot, message)
        }
        super().receive(step, taken)


def knowledge_of(
    study: TuningStudy, ledger: Sequence[LedgerRow], delta: float
) -> Knowledge:
    """Return what a study has released, and what was known, for other studies.

    Parameters
    ----------
    study : TuningStudy
        Study with `FedWarmStartSettings`.
    ledger : sequence of LedgerRow
        Its releases.
    delta : float
        In (0, 1): where their epsilons are reported.

    Raises
    ------
    ValueError
        If nothing is known, or the study is a control without contributions.
    """
    facts, agent = study.facts, study.agent
    assert isinstance(facts, WarmStartFacts)
    assert isinstance(agent, FedWarmStartSettings)
    cohorts, known = facts.cohorts or Cohorts(1), facts.known
    used = not any(row.facts["noise_only"] for row in ledger)
    require(used, "noise_only", True, "False, where releases are to be used again")
    releases = [
        KnownRelease(
            release_id=f"{study.study_id}/{k}",
            num_sites=size,
            noise_multiplier=row.facts["noise_multiplier"],
            noise_std=row.facts["noise_std"][0] * cohorts.num_agents,
            delta=delta,
            private=row.facts["private"],
            num_points=agent.num_features,
            # Of N agents only a cohort has sent.
            vector=tuple(row.vectors[0] * (cohorts.num_agents / size)),
        )
        for k, (row, size) in enumerate(
            zip(ledger, cohorts.cohort_sizes, strict=False), 1
        )
    ]
    if known is not None:
        return replace(known, releases=(*known.releases, *releases))
    require(
        len(releases) > 0,
        "releases",
        releases,
        "one at least: nothing has been released",
    )
    pool = agent.pool(study.space, study.feature_seed)
    points = tuple(map(tuple, pool.tolist()))
    return Knowledge(study.space, study.direction, points, tuple(releases))


def reported_in(state: Mapping[str, NDArray[Any]]) -> dict[int, list[float]]:
    """Return what a server's state has of `FedWarmStartServer.reported`."""
    found = json.loads(str(state[REPORTED])) if REPORTED in state else {}
    return {int(slot): values for slot, values in found.items()}


def verdict(study: TuningStudy, reported: Mapping[int, Sequence[float]]) -> str:
    """Say whether sites that started from releases did better than the pioneers.

    These searched alone. A site counts by the mean of the best values that it reported
    in its first ``share_after`` rounds; the interval is Welch's. Empty where fewer than
    two sites of a kind have reported so many, and where pioneers start warm, too.
    """
    facts, agent = study.facts, study.agent
    assert isinstance(facts, WarmStartFacts)
    assert isinstance(agent, FedWarmStartSettings)
    cohorts, num = facts.cohorts or Cohorts(1), agent.share_after
    means: tuple[list[float], list[float]] = [], []
    for slot, values in reported.items():
        if len(values) >= num:
            means[cohorts.cohort_of(slot) > 0].append(float(np.mean(values[:num])))
    if facts.known is not None or min(map(len, means)) < 2:
        return ""
    from scipy.special import stdtrit

    pioneers, followers = map(np.array, means)
    sign = 1.0 if study.direction == "maximize" else -1.0
    gain = sign * float(followers.mean() - pioneers.mean())
    variances = [group.var(ddof=1) / len(group) for group in (pioneers, followers)]
    free = [v * v / (len(group) - 1) for v, group in zip(variances, means, strict=True)]
    total = float(np.sum(variances))
    half = stdtrit(total**2 / np.sum(free), 0.975) * np.sqrt(total) if total else 0.0
    low, high = gain - half, gain + half
    did = "cannot be told from"
    if low > 0 or high < 0:
        did = "did better than" if low > 0 else "did worse than"
    return (
        f"Sites that started from releases {did} the pioneers, who searched alone: "
        f"{gain:+.3g} (95 % interval {low:+.3g} to {high:+.3g}; positive is better), "
        f"the mean best value of their first {num} rounds, as reported"
    )


def _is_short(slot: int, message: Any) -> bool:
    """Return whether a message has a norm that an honest one can have."""
    try:
        with np.errstate(over="ignore"):  # inf is too long as well
            norm = float(np.linalg.norm(message))
    except (TypeError, ValueError):
        return True  # no vector of numbers: `Release` says what it counts as
    if norm > 1.0 + _ROUNDING:
        text = "\t> agent %d: its message counts as zero: norm %.6g is above 1"
        _log.warning(text, slot, norm)
        return False
    return True
