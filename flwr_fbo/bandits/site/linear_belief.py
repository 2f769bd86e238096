"""The belief of a linear bandit: its agents, as what it received and played makes them.

In the journal are

    total       the sum of all agents' releases that the server gave back last
    included, contributors  how many of our releases, and agents, are in the total
    synchronisations        how many have made it
    block-totals, block-sites  where sites act on blocks: each total of blocks, and
                               which agents are in it
    left        where the site has left: the last window whose trials it has shared, the
                release then, and why
    pool, alpha  among peers: whose sums it adds up, and its pool's share of alpha
    prior, prior-trials  what the site was told before: its sum, and trials in it
    total-k, heard-k  where sites act on their own trials: each total, by the number of
                synchronisations that made it; and decisions made before, own releases
                in it, and other agents: `realised_privacy` plays decisions again
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray, first_best
from flwr_fbo._common.validation import require
from flwr_fbo.bandits.linear.agent import LinearUCBAgent, OwnPart
from flwr_fbo.bandits.linear.confidence import Confidence
from flwr_fbo.bandits.linear.exploration import Optimism, drawn, exploration_rng
from flwr_fbo.bandits.linear.prior import Prior
from flwr_fbo.bandits.linear.study import LinearBanditStudy
from flwr_fbo.bandits.site.baseline import Baseline
from flwr_fbo.bandits.site.decision import Chosen, Offer, action_of
from flwr_fbo.bandits.site.realised_privacy import HeardTotal
from flwr_fbo.bandits.site.running_sums import RunningSums
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.npy import from_json_array, to_json_array
from flwr_fbo.journal.tables import Trial
from flwr_fbo.site.recorded_agent import NO_SLOT

# Actions whose probabilities are computed together: enough to be fast.
_ACTIONS_AT_ONCE = 1 << 14


@dataclass(frozen=True, eq=False)
class Received:
    """What agents are made of: equal if the same agents would be made.

    Attributes
    ----------
    slot : int
        Slot of the site's agent.
    total : ndarray or None
        Sum of all agents' releases; None before the first one.
    included : int
        Own releases in the sum.
    contributors : int
        Agents with a release in the sum.
    synchronisations : int
        Synchronisations that have made it.
    corrected : int
        Rewards that the site has corrected: agents may have been told the old ones.
    totals, summed : ndarray, optional
        Each total of blocks, shape (k, d + 1, d + 1), and which agents are in it, shape
        (k, M), where sites act on blocks; ``total`` is then their sum.
    last_shared : int, optional
        Last window between releases whose trials the site has shared, where it has
        left.
    """

    slot: int
    total: FloatArray | None
    included: int = 0
    contributors: int = 0
    synchronisations: int = 0
    corrected: int = 0
    totals: FloatArray | None = None
    summed: NDArray[np.uint8] | None = None
    last_shared: int | None = None

    @classmethod
    def of(cls, state: Mapping[str, NDArray[Any]]) -> Received:
        """Return what is in the arrays of a journal."""
        left = left_in(state)
        return cls(
            slot=int(state.get("slot", NO_SLOT)),
            total=state.get("total"),
            included=int(state.get("included", 0)),
            contributors=int(state.get("contributors", 0)),
            synchronisations=int(state.get("synchronisations", 0)),
            corrected=int(state.get("corrected", 0)),
            totals=state.get("block-totals"),
            summed=state.get("block-sites"),
            last_shared=None if left is None else left.window,
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Received) or self._numbers != other._numbers:
            return False
        if self.total is other.total or self.total is None or other.total is None:
            return self.total is other.total
        return np.array_equal(self.total, other.total)

    @property
    def _numbers(self) -> tuple[int, ...]:
        numbers = self.included, self.contributors, self.synchronisations
        left = -2 if self.last_shared is None else self.last_shared
        return (self.slot, self.corrected, left, *numbers)

    @property
    def num_others(self) -> int:
        """Other agents with a release in the sum."""
        return max(self.contributors - (self.included > 0), 0)


class Left(NamedTuple):
    """When and why a site has left: it shares no trials of later windows.

    Attributes
    ----------
    window : int
        Last window between releases whose trials it has shared.
    release : int
        Release after which it has left.
    reason : {"worth", "misfit"}
        Whether the totals know less than its own trials, by public numbers; or its
        rewards were below what they promised, by its own.
    """

    window: int
    release: int
    reason: str

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return what records it."""
        return {"left": to_json_array(list(self))}

    def __str__(self) -> str:
        """Return it in a sentence."""
        why = (
            "the totals tell too little beside its own trials"
            if self.reason == "worth"
            else "its rewards were below what the totals promise"
        )
        return (
            f"after release {self.release}, as {why}; it acts on its own trials, sends "
            "empty sums with its part of the noise, and nobody can tell"
        )


def left_in(state: Mapping[str, NDArray[Any]]) -> Left | None:
    """Return when and why the site of a journal's arrays has left, if it has."""
    known = state.get("left")
    return None if known is None else Left(*from_json_array(known))


class LinearBelief:
    """The agent of a site, or several in turn: estimators are played in turn.

    Agents are made of `Received` when that has changed, and told the site's own trials
    that they lack when they are used: no call has to say that something has changed.

    Parameters
    ----------
    study : LinearBanditStudy
        Study of the journal.
    journal : Journal
        Journal of the site's bandit.
    state : dict of str to ndarray
        Arrays of `Journal.load_unnumbered`, as they are now.
    sums : RunningSums
        Sums of the site's own trials.
    """

    def __init__(
        self,
        study: LinearBanditStudy,
        journal: Journal,
        state: Mapping[str, NDArray[Any]],
        sums: RunningSums,
    ) -> None:
        self._study, self._journal, self._state = study, journal, state
        self._sums = sums
        self._made: tuple[Received, list[LinearUCBAgent]] | None = None
        # Own trials in the totals, of a site that has left.
        self._in_totals: tuple[Received, FloatArray, int] | None = None

    def take_agents(self, other: LinearBelief) -> None:
        """Take the agents of a belief in the same journal, which may be an older one.

        They are used if the same ones would be made.
        """
        if self.prior == other.prior:
            self._made, self._in_totals = other._made, other._in_totals

    @property
    def received(self) -> Received:
        """What the server gave back last."""
        return Received.of(self._state)

    @property
    def prior(self) -> Prior:
        """What the site was told before its own trials; it is in none of its sums."""
        if "prior" not in self._state:
            return Prior.none(self._study.settings.releases.dimension)
        return Prior(self._state["prior"], int(self._state["prior-trials"]))

    def set_prior(self, prior: Prior) -> dict[str, NDArray[Any]]:
        """Make agents with another prior from now on; return the arrays to record.

        Raises
        ------
        ValueError
            If it is of another dimension.
        """
        size = self._study.settings.releases.dimension + 1
        shape = prior.total.shape
        require(shape == (size, size), "prior.total", shape, f"shape ({size}, {size})")
        self._made = None
        return {"prior": prior.total, "prior-trials": np.array(prior.num_trials)}

    @property
    def confidence(self) -> Confidence:
        """The confidence of the study, or of the agent's pool among peers."""
        settings = self._study.released_by
        if "pool" not in self._state:  # it has no peers, or no slot yet
            return Confidence.of(settings, self._study.num_agents)
        pool, alpha = self._state["pool"], float(self._state["alpha"])
        return Confidence(settings, len(pool), alpha)

    # Choosing

    def probabilities(
        self, offers: Sequence[Offer], first: int
    ) -> list[dict[str, float]]:
        """Return with which probability each action would be chosen, by name.

        The offers are those of the decisions with number ``first`` and the following.
        """
        found: dict[int, dict[str, float]] = {}
        rule = Baseline.of(self._state)
        for agent, places, features in self._batches(offers, first):
            some, rngs = [offers[i] for i in places], self._rngs(first, places)
            rows = _probabilities(agent, some, features, rngs)
            for i, row in zip(places, rows, strict=True):
                guarded = self._guarded(rule, agent, offers[i], row).tolist()
                found[i] = dict(zip(offers[i].arms, guarded, strict=True))
                found[i] |= dict.fromkeys(offers[i].forbidden, 0.0)
        return [found[i] for i in range(len(offers))]

    def choose(self, offers: Sequence[Offer], first: int) -> list[Chosen]:
        """Choose once an offer, and say why.

        The offers are those of the decisions with number ``first`` and the following.
        """
        rule, found = Baseline.of(self._state), dict[int, Chosen]()
        if rule is not None:
            return self._chosen_by(rule, offers, first)
        for agent, places, features in self._batches(offers, first):
            some = [offers[i] for i in places]
            rngs = partial(self._rngs, first, places)
            if some[0].is_plain:
                chosen = agent.choose_many(features, rngs)
            else:
                generators = rngs()
                rows = _probabilities(agent, some, features, generators)
                chosen = list(map(drawn, rows, generators))
            reasons = self._reasons(agent, some, features, chosen)
            found.update(zip(places, reasons, strict=True))
        return [found[i] for i in range(len(offers))]

    def _chosen_by(
        self, rule: Baseline, offers: Sequence[Offer], first: int
    ) -> list[Chosen]:
        """Choose one by one, as each choice counts for the next by the rule."""
        chosen, [agent] = [], self.agents
        for number, offer in enumerate(offers, first):
            features, rngs = offer.features[None], self._rngs(number, [0])
            [free] = _probabilities(agent, [offer], features, rngs)
            row = self._guarded(rule, agent, offer, free)
            pair = index, _ = drawn(row, rngs[0])
            [one] = self._reasons(agent, [offer], features, [pair])
            if row[index] > free[index] and len(offer.arms) > 1:
                one = replace(one, why="baseline")
            chosen.append(one)
            rule = rule.after(offer, index)
        return chosen

    def _guarded(
        self,
        rule: Baseline | None,
        agent: LinearUCBAgent,
        offer: Offer,
        row: FloatArray,
    ) -> FloatArray:
        """Return the probabilities of an offer's actions by the rule, shape (K,)."""
        if rule is None or rule.arm not in offer.arms:
            return row
        totals, middle = rule.totals(offer), self._study.settings.releases.reward_middle
        above = rule.at_most_worse * middle * totals[:, -1]
        return rule.guarded(offer, row, agent.least(totals[:, :-1]) + above)

    def set_baseline(
        self, arm: str | None, at_most_worse: float
    ) -> dict[str, NDArray[Any]]:
        """Guard decisions by a rule from now on; return the arrays to record.

        Raises
        ------
        ValueError
            If the study's confidence sets do not hold, or its rewards may be below 0.
        """
        settings, known = self._study.settings, Baseline.of(self._state)
        if arm is None:
            return {} if known is None else {"baseline": to_json_array(None)}
        local, allowed = settings.local_data, "'own', with a baseline"
        require(settings.uses_own_data, "local_data", local, allowed)
        streams = settings.releases.num_streams
        require(streams == 1, "num_streams", streams, "1, with a baseline")
        low, high = settings.releases.reward_range
        allowed = "not below 0, with a baseline: a share of its rewards is promised"
        require(low >= 0, "reward_range", (low, high), allowed)
        if known is not None and (known.arm, known.at_most_worse) == (
            arm,
            at_most_worse,
        ):
            return {}
        zero = np.zeros(settings.releases.dimension + 1)
        return Baseline(arm, at_most_worse, self._journal.num_trials, zero).arrays

    def _reasons(
        self,
        agent: LinearUCBAgent,
        offers: Sequence[Offer],
        features: FloatArray,
        chosen: Sequence[tuple[int, float]],
    ) -> Iterator[Chosen]:
        """Yield choices with what was expected of them, and why they were made."""
        settings = self._study.settings
        is_optimistic = isinstance(settings.exploration, Optimism)
        means, widths = agent.expectations(features)
        rows = zip(offers, chosen, means, widths, strict=True)
        for offer, (index, propensity), mean, width in rows:
            yield Chosen.explained(
                offer,
                index,
                propensity,
                mean,
                width,
                is_optimistic=is_optimistic,
                middle=settings.releases.reward_middle,
            )

    def _batches(
        self, offers: Sequence[Offer], first: int
    ) -> Iterator[tuple[LinearUCBAgent, list[int], FloatArray]]:
        """Yield agents with offers that are alike: places and features.

        These have as many actions, and the same rule decides.
        """
        alike: dict[tuple[int, bool, bool, tuple[int, ...]], list[int]] = {}
        agents = self.agents
        for i, offer in enumerate(offers):
            turn = (first + i) % len(agents)
            key = turn, offer.is_plain, offer.explore, offer.features.shape
            alike.setdefault(key, []).append(i)
        for (turn, _, _, (num_actions, *_)), places in alike.items():
            at_once = max(1, _ACTIONS_AT_ONCE // max(1, num_actions))
            for start in range(0, len(places), at_once):
                some = places[start : start + at_once]
                yield agents[turn], some, np.stack([offers[i].features for i in some])

    def _rngs(self, first: int, places: Sequence[int]) -> list[np.random.Generator]:
        """Return what the decisions at these places after ``first`` draw from."""
        seed = self._study.noise_seed
        if seed is None:
            return [np.random.default_rng()] * len(places)
        slot = self.received.slot
        return [exploration_rng(seed, slot, first + i) for i in places]

    # Learning

    def promised(self, actions: FloatArray) -> FloatArray | None:
        """Return what totals of blocks promise; None if there are none, or it has left.

        Of actions of shape (T, d).
        """
        has_totals = self._study.secure is not None and "block-totals" in self._state
        if not has_totals or "left" in self._state:
            return None
        [agent] = self.agents
        assert agent.blocks is not None
        return agent.blocks.expected(actions)

    @property
    def agents(self) -> list[LinearUCBAgent]:
        """The agents, with what they have learned so far."""
        received = self.received
        if self._made is None or self._made[0] != received:
            self._made = received, self._agents_of(received)
        agents = self._made[1]
        if not self._uses_own:
            return agents
        counts = self._own_counts(received)
        if any(a.num_trials > n for a, n in zip(agents, counts, strict=True)):
            # The file was exchanged for an older one.
            agents = self._agents_of(received)
            self._made = received, agents
        if [agent.num_trials for agent in agents] != counts:
            # By their sums: to read the trials would take longer the more there are.
            # With "raw" one that was told them one by one has an older bound on the
            # eigenvalues, and so wider intervals; both hold.
            total = self._own_total(received)
            totals = total.reshape(-1, *total.shape[-2:])
            for agent, own, count in zip(agents, totals, counts, strict=True):
                if count > agent.num_trials:
                    agent.tell_sum(own - agent.running_sum, count - agent.num_trials)
        return agents

    def tell(self, rewarded: Sequence[tuple[Trial, float]]) -> None:
        """Tell rewards that have just been recorded, one by one.

        Agents that lack others, too, find all of them in the sums.
        """
        received = self.received
        if not self._uses_own or self._made is None or self._made[0] != received:
            return
        agents, counts = self._made[1], self._own_counts(received)
        missing = sum(counts) - sum(agent.num_trials for agent in agents)
        if missing == len(rewarded):
            for trial, value in rewarded:
                agents[trial.number % len(agents)].tell(action_of(trial), value)

    def receive(self, total: FloatArray, numbers: Sequence[int]) -> dict[str, Any]:
        """Make the agents of a total; return the arrays that record it.

        Parameters
        ----------
        total : ndarray of shape ``sum_shape``
            Sum of all agents' releases.
        numbers : sequence of int
            Own releases in the sum, agents in it, and synchronisations that made it.

        Raises
        ------
        numpy.linalg.LinAlgError
            If nothing can be learned from it. The agents are the ones before then.
        """
        included, contributors, synchronisations = numbers
        arrays = {
            "total": np.asarray(total),
            "included": np.array(included),
            "contributors": np.array(contributors),
            "synchronisations": np.array(synchronisations),
        }
        received = Received.of({**self._state, **arrays})
        self._made = received, self._agents_of(received)
        name = f"heard-{synchronisations}"
        acts_on_rows = self._study.settings.fixed_rows and self._study.graph is None
        if acts_on_rows and self._journal.load_array(name) is None:
            heard = self._journal.num_trials, included, received.num_others
            arrays[f"total-{synchronisations}"] = arrays["total"]
            arrays[name] = np.array(heard)
        return arrays

    def heard(self) -> Iterator[HeardTotal]:
        """Yield all totals that the site has received, in order."""
        last = self.received.synchronisations
        names = [f"{kind}-{k}" for k in range(last + 1) for kind in ("total", "heard")]
        found = self._journal.load_arrays(names)
        zero = np.zeros(self._study.settings.releases.sum_shape)
        releases = self._journal.ledger()
        for k in range(last + 1):
            if f"heard-{k}" in found:
                after, included, others = found[f"heard-{k}"].tolist()
                message = releases[included - 1].vectors if included else zero
                total = found[f"total-{k}"]
                yield HeardTotal(after, total, message, included, others, k)

    def receive_blocks(
        self, totals: FloatArray, summed: NDArray[np.uint8]
    ) -> dict[str, Any]:
        """Make the agent of all totals of blocks; return the arrays that record them.

        Parameters
        ----------
        totals : ndarray of shape (k, d + 1, d + 1)
            The totals.
        summed : ndarray of shape (k, M)
            Which agents are in each.

        Raises
        ------
        numpy.linalg.LinAlgError
            If nothing can be learned from them. The agent is the one before then.
        """
        slot = int(self._state.get("slot", NO_SLOT))
        arrays = {
            "total": totals.sum(axis=0),
            "included": np.array(int(summed[:, slot].sum())),
            "contributors": np.array(int(summed.any(axis=0).sum())),
            "synchronisations": np.array(len(totals)),
            "block-totals": totals,
            "block-sites": summed,
        }
        received = Received.of({**self._state, **arrays})
        [agent] = self._agents_of(received)
        self._made = received, [agent]
        assert agent.blocks is not None
        is_over = not agent.blocks.pays and received.last_shared is None
        if is_over and self._study.secure is not None:
            # By released numbers alone: so do all sites.
            made = self._journal.num_releases
            arrays |= Left(made - 1, len(totals), "worth").arrays()
        return arrays

    @property
    def _uses_own(self) -> bool:
        """Whether agents act on the site's own trials that are not released."""
        return self._study.settings.fixed_rows or "left" in self._state

    def _shared(self, received: Received) -> tuple[FloatArray, int]:
        """Return the sum of own trials in the totals, and their number."""
        if self._in_totals is not None and self._in_totals[0] == received:
            return self._in_totals[1:]
        total, count = np.zeros(self._study.settings.releases.sum_shape), 0
        last, summed = received.last_shared, received.summed
        if summed is not None and last is not None:
            releases = {int(r) for r in 1 + np.flatnonzero(summed[:, received.slot])}
            for row in self._journal.ledger():
                window = int(row.facts["window"])
                if window <= last and row.iteration in releases:
                    total += self._sums.total(window, window + 1)
                    count += sum(self._sums.counts(window, window + 1))
        self._in_totals = received, total, count
        return total, count

    def _own_window(self, received: Received) -> tuple[int, int]:
        """Return the releases between which are the own trials outside of the total."""
        made = self._journal.num_releases
        return min(received.included, made), made + 1

    def _own_counts(self, received: Received) -> list[int]:
        if received.last_shared is not None:
            made = self._journal.num_releases
            [count] = self._sums.counts(0, made + 1)
            return [count - self._shared(received)[1]]
        return self._sums.counts(*self._own_window(received))

    def _own_total(self, received: Received) -> FloatArray:
        if received.last_shared is not None:
            made = self._journal.num_releases
            return self._sums.total(0, made + 1) - self._shared(received)[0]
        return self._sums.total(*self._own_window(received))

    def _agents_of(self, received: Received) -> list[LinearUCBAgent]:
        settings, total = self._study.settings, received.total
        confidence = self.confidence.after(received.synchronisations)
        shape = settings.releases.sum_shape
        if settings.uses_blocks:
            agent = LinearUCBAgent(confidence, prior=self.prior)
            blocks, summed = np.zeros((0, *shape)), np.zeros((0, 1), np.uint8)
            if received.totals is not None and received.summed is not None:
                blocks, summed = received.totals, received.summed
            part = None
            if received.last_shared is not None:
                clean, count = self._shared(received)
                part = OwnPart(clean, clean, count)
            most = int(summed.sum(axis=1).max(initial=0))
            agent.receive_blocks(blocks, self._study.block_stds(summed), most, part)
            return [agent]
        total = np.zeros(shape) if total is None else total
        require(np.shape(total) == shape, "total", np.shape(total), f"shape {shape}")
        totals = total.reshape(-1, *shape[-2:])
        own: list[OwnPart | None] = [None] * len(totals)
        if settings.uses_own_data:
            own = [*self._own_parts(received.included)]
        prior = self.prior
        return [
            LinearUCBAgent(
                confidence,
                each,
                part,
                received.num_others,
                prior,
                num_synchronisations=received.synchronisations,
            )
            for each, part in zip(totals, own, strict=True)
        ]

    def _own_parts(self, included: int) -> list[OwnPart]:
        """Return the agent's part of a total, by stream.

        It is never taken from a release that was not made, whatever the server says.
        """
        k = min(included, self._journal.num_releases)
        window = self._sums.window_of(k)
        clean, counts = self._sums.total(*window), self._sums.counts(*window)
        message = self._journal.ledger(k)[0].vectors if k else clean
        size = clean.shape[-1]
        parts = message.reshape(-1, size, size), clean.reshape(-1, size, size), counts
        return [OwnPart(*each) for each in zip(*parts, strict=True)]

    def wants_synchronisation(self) -> bool:
        """Return whether an estimator has seen enough since the last one."""
        trigger, among_peers = self._study.trigger, self._study.graph is not None
        return trigger is not None and any(
            agent.wants_synchronisation(trigger, among_peers) for agent in self.agents
        )


def _probabilities(
    agent: LinearUCBAgent,
    offers: Sequence[Offer],
    features: FloatArray,
    rngs: Sequence[np.random.Generator],
) -> FloatArray:
    """Return the probabilities of each offer's actions, shape (A, K)."""
    if offers[0].explore:
        rows = agent.probabilities_many(features, rngs)
    else:
        means, _ = agent.expectations(features)
        rows = np.zeros(means.shape)
        np.put_along_axis(rows, first_best(means)[:, None], 1.0, axis=1)
    return np.array([o.raised(row) for o, row in zip(offers, rows, strict=True)])
