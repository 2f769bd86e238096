"""Which trials of a rung survive: from the clients' ballots, by one private release."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.conversion import take_plain
from flwr_fbo._common.validation import require, require_bool, require_choice
from flwr_fbo._common.version import __version__
from flwr_fbo.privacy.accounting import (
    PrivacySpent,
    ReleaseAccountant,
    calibrate_noise_multiplier,
)
from flwr_fbo.privacy.budget import check_delta, check_epsilon
from flwr_fbo.privacy.noise import Entropy, NoisyMax, OsEntropy, SeededEntropy
from flwr_fbo.privacy.release import PlannedRelease, Release, ReleaseSettings
from flwr_fbo.privacy.secure_release import SecureRelease, SecureTotal
from flwr_fbo.privacy.spending import Charge, Promise
from flwr_fbo.privacy.weights import WeightSchedule
from flwr_fbo.study.secure_sums import SecureSums
from flwr_fbo.tuner.ballots import Ballot, MessageForm, capped, make_vote
from flwr_fbo.tuner.sum_plan import SumPlan

LastRung = Literal["release", "noisy-max"]


@dataclass(frozen=True)
class PrivateChoice:
    """How trials are chosen privately.

    Examples
    --------
    >>> from flwr_fbo import PrivateChoice
    >>> PrivateChoice(epsilon=2, delta=1e-3).ballot
    'ranks'

    Attributes
    ----------
    epsilon : float
        Privacy budget of all choices together, from 1e-3 to 1e3; the rungs share it.
    delta : float
        In (0, 1), at which epsilon holds.
    ballot : {"ranks", "votes"}
        Form of a client's message about the trials of a rung. ``"ranks"``: ranks of
        which the best stand out, capped. ``"votes"``: the best trial; a third of the
        clients, lying, can make such a choice worse than a random one.
    last_rung : {"release", "noisy-max"}
        How the last rung is decided. ``"release"``: by the noisy sum of the ballots, as
        the others are. ``"noisy-max"``: by the votes in the ballots, of which only the
        winner is released, under pure epsilon; better with ten honest clients, and as
        easy to lie to as ``"votes"``. Its share of epsilon is one in the number of
        rungs.
    noise_only : bool
        The control: every ballot is replaced by zero, so that the choice is random.

    Raises
    ------
    ValueError
        If an argument is not allowed; the message names it.

    Notes
    -----
    *Formal guarantees*. Adjacency: two studies are neighbours if they differ in that
    one client's ballots are all zeroed. Ballots are clipped to norm 1 for each rung,
    whatever the number of trials; the sum of a rung's is released once, with Gaussian
    noise, and which trials survive is a function of it. Covered is what the releases
    reveal of one client's *scores, given the models* that it scored. Not covered: the
    models themselves. They were trained on the clients' data, that of the client in
    question included, and the server sees them. The choice is private in the client's
    *training data* only where each training has client-level differential privacy of
    its own, and then at the composed epsilon of all trials, all rounds and this choice,
    with the rounds of trials that are trained again after a tuner was killed.
    A client's votes on models that it has trained alone, as in DP-Hype (PoPETs 2026),
    are covered with its data; but such models are no federated training.

    Failures at a client are part of its ballot: a score that is missing, NaN or
    infinite ranks below all finite ones. A client that was asked, and has no finite
    score at all, sends a constant ballot of norm 1, which ranks no trial. So the sum of
    the released scores estimates how many clients have none. This is post-processing of
    the same release, at no further epsilon, and as uncertain as epsilon demands: a
    federation in which one client has scores looks much like one in which no client
    has. The tuner ends with an error if, at level 0.01, more than half of the clients
    have no score, and the trials do not differ from noise. A noisy max reveals neither:
    if it decides the only rung, and no client has a score, the choice is random.

    Without ``aggregation`` the server reads each ballot and adds the noise: it is
    trusted. With `SecureAggregation` it learns the noisy sum of each rung's ballots,
    and who is in it; the guarantee then holds towards the server too, as
    `SecureRelease` and `IntegerNoise` state it. That adjacency and these limits stay:
    the server still trains the models, and sees them.
    """

    epsilon: float
    delta: float
    ballot: Ballot = "ranks"
    last_rung: LastRung = "release"
    noise_only: bool = False

    def __post_init__(self) -> None:
        take_plain(self)
        check_epsilon(self.epsilon)
        check_delta(self.delta)
        require_choice("ballot", self.ballot, Ballot)
        require_choice("last_rung", self.last_rung, LastRung)
        require_bool("noise_only", self.noise_only)


class Choice(NamedTuple):
    """What a rung gave.

    Attributes
    ----------
    scores : ndarray of shape (K,)
        One a trial, larger is better: all that was released.
    facts : dict
        JSON values for the ledger.
    """

    scores: FloatArray
    facts: dict[str, Any]


class Chooser(ABC):
    """Turns the messages of a rung into one score a trial.

    Attributes
    ----------
    private : bool
    trust : str
        What the server learns of a client's messages.
    sum_plan : SumPlan or None
        How clients sum their messages; None: the server reads each.
    """

    private: bool
    trust: str
    sum_plan: SumPlan | None = None

    @abstractmethod
    def form(self, rung: int) -> MessageForm:
        """Return what clients are asked for at the end of a rung, from 0."""

    def sums(self, num_trials: int) -> SecureSums | None:
        """Return how messages on K trials are summed; None: the server reads each."""
        return None

    @abstractmethod
    def choose(
        self, rung: int, messages: Mapping[int, Any] | SecureTotal, num_trials: int
    ) -> Choice:
        """Decide one rung.

        Parameters
        ----------
        rung : int
            From 0.
        messages : mapping of slot to ndarray, or SecureTotal
            What clients have sent, whatever it is; or the sum that they made of it.
        num_trials : int
            K >= 1, the candidates.
        """

    @abstractmethod
    def promise(self, first_rung: int) -> Promise:
        """Return what the rungs from one on, from 0, release of a client."""

    @abstractmethod
    def spent(self, num_rungs: int) -> PrivacySpent | None:
        """Return what the first rungs have spent; None where it was never private."""


class PrivateChooser(Chooser):
    """Chooses by private releases; see `PrivateChoice` for what is guaranteed.

    Parameters
    ----------
    settings : PrivateChoice
    num_clients : int
        N >= 1, the most clients that take part.
    num_rungs : int
        R >= 1, the releases that share epsilon.
    noise_seed : int, optional
        *Experiments only*: makes the noise repeat, which protects nobody.
    sum_plan : SumPlan, optional
        How the clients sum their ballots, and add the noise themselves. Then there is
        no noise seed, and no noisy max.

    Attributes
    ----------
    release : PlannedRelease or None
        What releases the sums of the ballots; None where there are none.

    Raises
    ------
    ImportError
        If real noise is wanted and OpenDP is missing; the message names the extra.
    """

    def __init__(
        self,
        settings: PrivateChoice,
        num_clients: int,
        num_rungs: int,
        noise_seed: int | None = None,
        sum_plan: SumPlan | None = None,
    ) -> None:
        self.settings = settings
        self.sum_plan = sum_plan
        self.trust = "the server is trusted: it reads each client's ballots"
        if sum_plan is not None:
            self.trust = sum_plan.trust
        self._num_clients = num_clients
        epsilon, num_sums = settings.epsilon, num_rungs
        self._noisy_max: NoisyMax | None = None
        if settings.last_rung == "noisy-max":
            share = epsilon / num_rungs
            self._noisy_max = NoisyMax(share, noise_seed)
            epsilon, num_sums = epsilon - share, num_rungs - 1
        self._num_sums = num_sums
        self.release: PlannedRelease | None = None
        if num_sums > 0:
            z = calibrate_noise_multiplier(epsilon, settings.delta, 1.0, num_sums)
            planned = ReleaseSettings(
                num_agents=num_clients,
                clip_norm=1.0,
                noise_multiplier=z,
                sampling_probability=1.0,
                noise_only=settings.noise_only,
                weights=WeightSchedule(peak=0.0),
            )
            entropy: Entropy = OsEntropy()
            if noise_seed is not None:
                entropy = SeededEntropy(noise_seed)
            self.release = (
                Release(planned, entropy)
                if sum_plan is None
                else SecureRelease(planned)
            )
        self.private = noise_seed is None

    def form(self, rung: int) -> MessageForm:
        """Return the form of the ballots; votes where votes are counted.

        The best trials of many have the same capped rank.
        """
        return self.settings.ballot if rung < self._num_sums else "votes"

    def sums(self, num_trials: int) -> SecureSums | None:
        """Return how ballots on K trials are summed; None: the server reads each."""
        if self.sum_plan is None:
            return None
        assert self.release is not None
        return self.sum_plan.sums(self.release.settings, num_trials)

    def choose(
        self, rung: int, messages: Mapping[int, Any] | SecureTotal, num_trials: int
    ) -> Choice:
        """Release the mean of the ballots with noise, or the winner of the last rung.

        The mean is over all N clients, whoever has answered. The winner's score is 1,
        and that of all others 0.

        Raises
        ------
        ValueError
            If more than N clients gave a ballot.
        """
        if isinstance(messages, SecureTotal):
            return self._of_sum(messages, num_trials)
        allowed = f"at least the {len(messages)} clients that gave a ballot"
        enough = len(messages) <= self._num_clients
        require(enough, "num_agents", self._num_clients, allowed)
        if rung >= self._num_sums:
            return self._winner(rung, messages, num_trials)
        release, form = self.release, self.settings.ballot
        assert isinstance(release, Release)
        ballots = {
            slot: capped(message, num_trials, form)
            for slot, message in messages.items()
        }
        scores = release.release(rung, ballots, num_trials)[0]
        facts = {**release.facts(rung), "num_ballots": len(messages)}
        return Choice(scores, {"mechanism": "gaussian", **facts})

    def _of_sum(self, summed: SecureTotal, num_trials: int) -> Choice:
        """Return the mean of the ballots with the clients' noise."""
        release, sums = self.release, self.sums(num_trials)
        assert isinstance(release, SecureRelease)
        assert sums is not None
        noise = sums.noise(0)
        scores = release.decoded(0, noise, summed)[0]
        facts = release.facts_of_sum(0, noise, summed.slots)
        facts["num_ballots"] = len(summed.slots)
        return Choice(scores, {"mechanism": "gaussian", **facts})

    def _winner(
        self, rung: int, messages: Mapping[int, Any], num_trials: int
    ) -> Choice:
        noisy_max = self._noisy_max
        assert noisy_max is not None
        counts = [0] * num_trials
        for slot in range(self._num_clients):
            vote = make_vote(messages.get(slot), num_trials)
            if vote is not None and not self.settings.noise_only:
                counts[vote] += 1
        scores = np.zeros(num_trials)
        scores[noisy_max.choose(rung, counts)] = 1.0
        facts = {
            "mechanism": "noisy-max",
            "epsilon": noisy_max.epsilon,
            "private": noisy_max.private,
            "noise_only": self.settings.noise_only,
            "flwr_fbo": __version__,
        }
        return Choice(scores, facts)

    def promise(self, first_rung: int) -> Promise:
        """Return what is left to release; no ledger adds up a noisy max."""
        num, charges = self._num_sums - first_rung, []
        if self.release is not None and num > 0:
            z = self.release.settings.noise_multiplier
            charges.append(Charge(z, num_releases=num))
        caveat = ""
        if self._noisy_max is not None:
            charges.append(Charge(0.0))
            caveat = "ends with a noisy max, which a site's ledger cannot add up"
        return Promise(tuple(charges), self.private, caveat, self.settings.delta)

    def spent(self, num_rungs: int) -> PrivacySpent:
        """Return epsilon at delta: of the sums exactly, and of the winner added to it.

        With a ``noise_seed`` it is what real noise would have spent.
        """
        accountant = ReleaseAccountant(1.0, self.settings.delta)
        if self.release is not None and num_rungs > 0:
            num_sums = min(num_rungs, self._num_sums)
            z = self.release.settings.noise_multiplier
            accountant.charge(z, num_sums)
        spent = accountant.spent()
        if self._noisy_max is None or num_rungs <= self._num_sums:
            return spent
        epsilon = spent.epsilon + self._noisy_max.epsilon
        return PrivacySpent(epsilon, spent.delta, num_rungs, spent.accounting_method)


class ExactChooser(Chooser):
    """Chooses by weighted means of exact scores: *not private*.

    A message is of shape (2, K): a client's scores, larger is better, and their
    weights, 0 where it was not asked. A weight that is negative, NaN or infinite counts
    as 0, and a message that is no such array as none.

    A score that is not finite is a failure. It counts as the worst finite score that
    any client gave to any trial of the rung, with the mean weight of the client's
    finite scores. So it is not better than any score of this client, as in a ballot,
    and failures of one client tie. With the client's own worst score instead, a
    failure would be neutral between two finalists. A client without a finite score
    says nothing.
    """

    private = False
    trust = "the server reads each client's exact scores"

    def form(self, rung: int) -> MessageForm:
        """Return that it is exact scores."""
        return "exact"

    def choose(
        self, rung: int, messages: Mapping[int, Any] | SecureTotal, num_trials: int
    ) -> Choice:
        """Return the means; -inf for a trial to which no client gave a finite score."""
        assert not isinstance(messages, SecureTotal)
        shape = 2, num_trials
        rows = [messages[slot] for slot in sorted(messages)]
        rows = [row for row in rows if _is_table(row, shape)]
        table = np.asarray(rows, dtype=np.float64).reshape(-1, *shape)
        values, weights = table.swapaxes(0, 1)
        is_asked = (weights > 0) & np.isfinite(weights)
        is_scored = is_asked & np.isfinite(values)
        values, weights = np.where(is_scored[:, None], table, 0.0).swapaxes(0, 1)
        num_scores = is_scored.sum(axis=1, keepdims=True)
        is_failed = is_asked & ~is_scored & (num_scores > 0)
        if is_failed.any():
            own_weights = weights.sum(axis=1, keepdims=True) / np.maximum(num_scores, 1)
            weights = np.where(is_failed, own_weights, weights)
            values = np.where(is_failed, values[is_scored].min(), values)
        with np.errstate(invalid="ignore", over="ignore"):
            means = (weights * values).sum(axis=0) / weights.sum(axis=0)
        has_score = is_scored.any(axis=0) & np.isfinite(means)
        scores = np.where(has_score, means, -np.inf)
        facts = {"mechanism": "exact", "private": False, "flwr_fbo": __version__}
        return Choice(scores, facts)

    def promise(self, first_rung: int) -> Promise:
        """Return that nothing is promised."""
        return Promise()

    def spent(self, num_rungs: int) -> None:
        """Return None."""


def _is_table(message: Any, shape: tuple[int, int]) -> bool:
    return (
        isinstance(message, np.ndarray)
        and message.shape == shape
        and message.dtype.kind in "fiu"
    )


def survivors(scores: FloatArray, num_survivors: int) -> list[int]:
    """Return which trials have the highest scores, the best first; ties to the first.

    Parameters
    ----------
    scores : ndarray of shape (K,)
    num_survivors : int
        From 1 to K.
    """
    order: list[int] = np.argsort(-scores, kind="stable").tolist()
    return order[:num_survivors]
