"""Which trials of a rung survive: from the clients' ballots, by one private release."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.fields import check_fields, flag, ruled
from flwr_fbo._common.validation import require, require_instance
from flwr_fbo._common.version import __version__
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy.accounting import calibrate_noise_multiplier
from flwr_fbo.privacy.gaussian import check_delta, check_epsilon
from flwr_fbo.privacy.noise import OsEntropy, SeededEntropy
from flwr_fbo.privacy.release import PlannedRelease, Release, ReleaseSettings
from flwr_fbo.privacy.secure_release import SecureRelease, SecureTotal
from flwr_fbo.privacy.spending import Charge, Promise
from flwr_fbo.privacy.weights import WeightSchedule
from flwr_fbo.secure_sum.roster import Roster, digest_of
from flwr_fbo.strategies.secure_aggregation import NO_ROSTER, SecureAggregation
from flwr_fbo.study.secure_sums import SecureSums, SumGroup
from flwr_fbo.tuner.ballots import capped
from flwr_fbo.tuner.trial_thread import ScoreSource

# Share of the scores of the rung before: see `decision_scores`.
_CARRIED = 0.5
# What is expected before any ballot, see `head_start`: how much of their votes clients
# have in common, and by how many standard deviations of the trials the app's defaults
# are better than a setting that was drawn.
_AGREEMENT, _TRUST = 0.75, 1.6

_SECURE = "secure aggregation: the server learns the noisy sums, and who answered"


@dataclass(frozen=True)
class PrivateChoice:
    """How trials are chosen privately.

    Examples
    --------
    >>> from flwr_fbo import PrivateChoice
    >>> PrivateChoice(epsilon=2, delta=1e-3)
    PrivateChoice(epsilon=2, delta=0.001, noise_only=False)

    Attributes
    ----------
    epsilon : float
        Privacy budget of all choices together, from 1e-3 to 1e3; the rungs share it.
    delta : float
        In (0, 1), at which epsilon holds.
    noise_only : bool
        The control: every ballot is replaced by zero, so that scores are noise alone.

    Raises
    ------
    ValueError
        If an argument is not allowed; the message names it.

    Notes
    -----
    *Formal guarantees*. Adjacency: two studies are neighbours if they differ in that
    one client's ballots are all zeroed. Ballots are clipped to norm 1 for each rung,
    whatever the number of trials; the sum of a rung's is released once, with Gaussian
    noise, and which trials survive is a function of the sums that were released so far.
    Covered is what the releases reveal of one client's *scores, given the models* that
    it scored. Not covered: the models themselves. They were trained on the clients'
    data, that of the client in question included, and the server sees them. With
    Flower's SecAgg or SecAgg+ in `main` it sees, under the assumptions of that
    protocol, one weighted mean of the clients' models for each round of each trial.
    These means are exact, and where two trials train alike, means over different
    clients can be subtracted. Masks do not make the choice private in the training
    data. The choice is private in the client's *training data* only where each training
    has client-level differential privacy of its own, and then at the composed epsilon
    of all trials, all rounds and this choice, with the rounds of trials that are
    trained again after a tuner was killed. A client's votes on models that it has
    trained alone, as in DP-Hype (PoPETs 2026), are covered with its data; but such
    models are no federated training.

    Failures at a client are part of its ballot: a score that is missing, NaN or
    infinite ranks below all finite ones. A client that was asked, and has no finite
    score at all, sends a constant ballot of norm 1, which ranks no trial. So the sum of
    the released scores estimates how many clients have none. This is post-processing of
    the same release, at no further epsilon, and as uncertain as epsilon demands: a
    federation in which one client has scores looks much like one in which no client
    has. The tuner ends with an error if, at level 0.01, more than half of the clients
    have no score, and the trials do not differ from noise.

    Without ``aggregation`` the server reads each ballot and adds the noise: it is
    trusted. With `SecureAggregation` it learns the noisy sum of each rung's ballots,
    and who is in it; the guarantee then holds towards the server too, as
    `SecureRelease` and `IntegerNoise` state it. That adjacency and these limits stay:
    the server still trains the models, and sees them.
    """

    epsilon: float = field(metadata=ruled(lambda _, epsilon: check_epsilon(epsilon)))
    delta: float = field(metadata=ruled(lambda _, delta: check_delta(delta)))
    noise_only: bool = field(default=False, metadata=flag())

    def __post_init__(self) -> None:
        check_fields(self)


class Chooser:
    """Turns the messages of a rung into one score a trial; charges what that costs.

    See `PrivateChoice` for what is guaranteed. Without it the scores are exact means:
    see `exact_scores`.

    Parameters
    ----------
    settings : PrivateChoice or None
    num_clients : int
        N >= 1, the most clients that take part.
    num_rungs : int
        R >= 1, the releases that share epsilon.
    noise_seed : int, optional
        *Experiments only*: makes the noise repeat, which protects nobody.
    aggregation : SecureAggregation, optional
        How the clients sum their ballots, and add the noise themselves.
    score_source : {"clients", "server"}
        Whose scores trials are compared by. The server's need no release.

    Attributes
    ----------
    private : bool
        Whether its choices are differentially private.
    trust : str
        What the server learns of a client's messages.
    release : PlannedRelease or None
        Releases the sums of the ballots; None where there are none.
    group : SumGroup or None
        The clients that sum their messages; None: the server reads each.
    roster : Roster or None
        The one that these clients pin.

    Raises
    ------
    ValueError
        If secure aggregation does not fit the other arguments; the message names the
        field.
    ImportError
        If real noise is wanted and OpenDP is missing; the message names the extra.
    """

    def __init__(
        self,
        settings: PrivateChoice | None,
        num_clients: int,
        num_rungs: int,
        noise_seed: int | None = None,
        aggregation: SecureAggregation | None = None,
        score_source: ScoreSource = "clients",
    ) -> None:
        self.settings = settings
        self.score_source = score_source
        self.private = settings is not None and noise_seed is None
        self.trust = "the server is trusted: it reads each client's ballots"
        self.release: PlannedRelease | None = None
        self.group: SumGroup | None = None
        self.roster: Roster | None = None
        self.num_clients = num_clients
        self._num_rungs = num_rungs
        if aggregation is not None:
            _check_secure(aggregation, settings, noise_seed)
            slots = range(num_clients)
            self.roster = aggregation.load_roster()
            pinned = None if self.roster is None else self.roster.slots
            allowed = f"one of the slots 0 to {num_clients - 1}: a key a client"
            require(pinned in (None, tuple(slots)), "roster", pinned, allowed)
            self.group = aggregation.group(slots)
            self.trust = f"{_SECURE}{'' if self.roster else f'; {NO_ROSTER}'}"
        if score_source == "server":
            none = settings is None
            allowed = "None with score='server': no client's scores are released"
            require(none, "privacy", settings, allowed)
            self.trust = "the server scores the models itself: clients send no scores"
            return
        if settings is None:
            self.trust = "the server reads each client's exact scores"
            return
        about = settings.epsilon, settings.delta, 1.0, num_rungs
        z = calibrate_noise_multiplier(*about)
        planned = ReleaseSettings(
            num_agents=num_clients,
            clip_norm=1.0,
            noise_multiplier=z,
            sampling_probability=1.0,
            noise_only=settings.noise_only,
            # Without a peak each client weighs 1 / N: the release is a mean.
            weights=WeightSchedule(peak=0.0),
        )
        if aggregation is not None:
            self.release = SecureRelease(planned)
            return
        entropy = OsEntropy() if noise_seed is None else SeededEntropy(noise_seed)
        self.release = Release(planned, entropy)

    @property
    def hides_metrics(self) -> bool:
        """Whether the clients' metrics stay at the clients."""
        return self.settings is not None or self.score_source == "server"

    def sums(self, num_trials: int) -> SecureSums | None:
        """Return how ballots on K trials are summed; None: the server reads each."""
        if self.group is None:
            return None
        assert self.release is not None
        about = self.release.settings, num_trials, (self.group,)
        return SecureSums(*about, digest_of(self.roster))

    def choose(
        self, rung: int, messages: Mapping[int, Any] | SecureTotal, num_trials: int
    ) -> LedgerRow:
        """Return the row of the ledger with one score a trial: all that is released.

        That is the mean of the ballots with noise, over all N clients, whoever has
        answered. Larger is better.

        Parameters
        ----------
        rung : int
            From 0.
        messages : mapping of slot to ndarray, or SecureTotal
            What clients have sent, whatever it is; or the sum that they made of it.
        num_trials : int
            K >= 1, the candidates.

        Raises
        ------
        ValueError
            If more than N clients gave a ballot.
        """
        if isinstance(messages, SecureTotal):
            return self._of_sum(rung, messages, num_trials)
        if self.settings is None:
            exact = {"mechanism": "exact", "private": False, "flwr_fbo": __version__}
            return LedgerRow(rung, exact, exact_scores(messages, num_trials))
        allowed = f"at least the {len(messages)} clients that gave a ballot"
        enough = len(messages) <= self.num_clients
        require(enough, "num_agents", self.num_clients, allowed)
        release = self.release
        assert isinstance(release, Release)
        # Whatever a client says of one trial, it says no more than an honest one may.
        ballots = {slot: capped(m, num_trials) for slot, m in messages.items()}
        scores = release.release(rung, ballots, num_trials)[0]
        facts = {**release.facts(rung), "num_ballots": len(messages)}
        return LedgerRow(rung, {"mechanism": "gaussian", **facts}, scores)

    def _of_sum(self, rung: int, summed: SecureTotal, num_trials: int) -> LedgerRow:
        """Return the mean of the ballots with the clients' noise."""
        release, sums = self.release, self.sums(num_trials)
        assert isinstance(release, SecureRelease)
        assert sums is not None
        noise = sums.noise(0)
        scores = release.decoded(0, noise, summed)[0]
        facts = release.facts_of_sum(0, noise, summed.slots)
        facts["num_ballots"] = len(summed.slots)
        return LedgerRow(rung, {"mechanism": "gaussian", **facts}, scores)

    def promise(self, first_rung: int) -> Promise:
        """Return what the rungs from one on, from 0, release of a client."""
        if self.settings is None:
            return Promise()
        assert self.release is not None
        z, num = self.release.settings.noise_multiplier, self._num_rungs - first_rung
        charges = (Charge(z, num_releases=num),) if num > 0 else ()
        return Promise(charges, self.private, delta=self.settings.delta)


def _check_secure(
    aggregation: SecureAggregation, settings: PrivateChoice | None, seed: int | None
) -> None:
    """Raise ValueError if clients cannot sum what would be released."""
    require_instance("aggregation", aggregation, SecureAggregation)
    with_secure = "with secure aggregation"
    require(settings is not None, "privacy", settings, f"given, {with_secure}")
    assert settings is not None
    # The control's noise alone is none of the clients'.
    is_control, allowed = settings.noise_only, f"False, {with_secure}"
    require(not is_control, "privacy.noise_only", is_control, allowed)
    require(seed is None, "seeds.noise", seed, "None, where the clients draw the noise")


def exact_scores(messages: Mapping[int, Any], num_trials: int) -> FloatArray:
    """Return the weighted means of exact scores: *not private*.

    A message is of shape (2, K): a client's scores, larger is better, and their
    weights, 0 where it was not asked. A weight that is negative, NaN or infinite counts
    as 0, and a message that is no such array as none.

    A score that is not finite is a failure. It counts as the worst finite score that
    any client gave to any trial of the rung, with the mean weight of the client's
    finite scores. So it is not better than any score of this client, as in a ballot,
    and failures of one client tie. With the client's own worst score instead, a
    failure would be neutral between two finalists. A client without a finite score
    says nothing. A trial to which no client gave a finite score has -inf.
    """
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
    return np.where(has_score, means, -np.inf)


def server_choice(rung: int, scores: Sequence[float]) -> LedgerRow:
    """Return the row with the server's own scores: nothing of a client's is in it.

    One that is not finite is -inf.
    """
    values = np.asarray(scores, dtype=np.float64)
    facts = {"mechanism": "server", "flwr_fbo": __version__}
    return LedgerRow(rung, facts, np.where(np.isfinite(values), values, -np.inf))


def _is_table(message: Any, shape: tuple[int, int]) -> bool:
    return (
        isinstance(message, np.ndarray)
        and message.shape == shape
        and message.dtype.kind in "fiu"
    )


def decision_scores(rows: Sequence[LedgerRow]) -> FloatArray:
    """Return the scores by which the trials of the last of some rungs are compared.

    Where sums of ballots are released with noise, they are what the rung released, plus
    half of the scores by which the rung before compared the same trials. Each release
    has noise of its own, so several say more than one, at no epsilon. A half, as trials
    that are ahead after few rounds of training need not stay so. Measured by
    `python -m benchmarks.halving_variants`.

    Exact means are compared as they are: there is no noise to average, and the later
    mean is the truer one.

    Parameters
    ----------
    rows : sequence of LedgerRow
        What each of these rungs released, and of which trials.
    """
    scores: FloatArray = rows[-1].vectors
    if rows[-1].facts.get("mechanism") != "gaussian":
        return scores
    before: dict[int, float] = {}
    for row in rows:
        trials = row.facts["trials"]
        carried = np.array([before.get(trial, 0.0) for trial in trials])
        scores = carry(row.vectors, carried)
        before = dict(zip(trials, scores.tolist(), strict=True))
    return scores


def carry(scores: FloatArray, before: FloatArray) -> FloatArray:
    """Return what a rung released, plus half of what decided the rung before."""
    return scores + _CARRIED * before


def head_start(num_trials: int, noise_std: float) -> float:
    """Return by how much the best score must be ahead of that of the app's defaults.

    Chosen is the trial whose expected score is largest, given what was released; so the
    expected loss is smallest. Without noise the scores of K trials would have a
    variance of ``tau**2``, about 0.75 / K, as clients have much in common. The defaults
    are expected to be 1.6 tau better than settings that were drawn at random: somebody
    chose them. After a score with the variance ``v`` of the noise, the expected value
    is a mean of score and expectation with the weights ``tau**2`` and ``v``. So the
    defaults are chosen unless another score is ahead of theirs by more than
    ``1.6 v / tau``: next to nothing with many clients, and much with few.

    The two numbers were chosen by replaying real trials, and by no client's data here:
    where the defaults are bad, and where they are the best of all, little is to be lost
    (`python -m benchmarks.one_training`).

    Parameters
    ----------
    num_trials : int
        K >= 1, of the rung.
    noise_std : float
        Of the score by which it is decided.
    """
    return _TRUST * noise_std**2 / math.sqrt(_AGREEMENT / num_trials)


def carried_variance(noise_std: float, before: float) -> float:
    """Return the variance of the noise in what `carry` returns."""
    return noise_std**2 + _CARRIED**2 * before


def survivors_of(rows: Sequence[LedgerRow], num_survivors: int) -> list[int]:
    """Return the places of the trials that go on after the last of some rungs.

    Parameters
    ----------
    rows : sequence of LedgerRow
        What each of these rungs released, and of which trials.
    num_survivors : int
        From 1 to K.
    """
    scores, last = decision_scores(rows), rows[-1].facts
    if last.get("mechanism") != "gaussian" or 0 not in last["trials"]:
        return survivors(scores, num_survivors)
    place = last["trials"].index(0)
    if 0 not in last.get("failed", ()):  # with which main fails, they are no choice
        variance = 0.0
        for row in rows:
            variance = carried_variance(row.facts["noise_std"][0], variance)
        scores = scores.copy()
        scores[place] += head_start(len(scores), variance**0.5)
    return survivors(scores, num_survivors)


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
