"""Whole bandit studies, as an agent of `FedUCB` runs them, drawn for an audit.

One agent plays linear UCB (Dubey & Pentland, 2020) on a bandit whose arms always pay
the same, and hands out n private sums. One of its trials is replaced: the *change*. It
is present in one half of the runs and absent in the other, and all that follows from it
follows as it would: what the agent does next depends on what was released, and what it
then observes on what it does. Nothing is a fixed stream.

The adversary sees all releases and knows all but the noise and whether the change is
present. In either world the releases so far say what the agent did. So two *twins* that
receive the same releases, one with the change and one without, tell the running sums of
both worlds; where agents act on released sums only, the two differ by one trial. Where
they act on their own raw trials (``local_data="own"`` or ``"raw"``) the two come to
differ by more than that, and nothing is promised. There epsilon is for a finished
table, whose other rows stay as they are; that can be drawn too (``plays_on=False``).

With the sums S of the world that is played, B^-1 (release - S) / sigma are independent
unit normals, so the ratio of the two likelihoods is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from flwr_fbo._common.arrays import FloatArray, first_best, one_blas_thread
from flwr_fbo._common.fields import choice, flag, integer
from flwr_fbo._common.validation import require, require_int
from flwr_fbo.bandits.linear.confidence import Confidence
from flwr_fbo.bandits.linear.leaving_the_sums import Misfit
from flwr_fbo.bandits.linear.settings import LinearUCBSettings
from flwr_fbo.lab.audit.evidence import Evidence, joined
from flwr_fbo.lab.audit.planted_faults import CONTINUAL_FAULTS, BuildContinual
from flwr_fbo.lab.audit.study_audit import Progress, StudyPlan
from flwr_fbo.lab.simulation.linear_bandits import AgentGroup
from flwr_fbo.privacy.accounting import PrivacySpent
from flwr_fbo.privacy.conditions import FINISHED_TABLE
from flwr_fbo.privacy.continual import ContinualRelease
from flwr_fbo.privacy.continual_settings import ContinualSettings
from flwr_fbo.privacy.gaussian import gaussian_epsilon
from flwr_fbo.privacy.guarantee import EXAMPLE, Guarantee, Trust
from flwr_fbo.privacy.noise import Entropy

Change = Literal["reward", "trial"]

# Runs in lock step.
_CHUNK = 1000


class Mechanism(Protocol):
    """What the releases of one run are drawn with: a `ContinualRelease`, or others."""

    def release(self, k: int, total: FloatArray) -> FloatArray:
        """Return release k of a running sum; see `ContinualRelease.release`."""


class _Played(NamedTuple):
    """What R runs released, and what it was made of in both worlds.

    Attributes
    ----------
    released : ndarray of shape (R, n, d + 1, d + 1)
        Releases.
    sums : ndarray of shape (R, 2, n, d + 1, d + 1)
        Running sums in the two worlds, given these releases.
    misfits, clean_misfits : ndarray of shape (R, n) and (R, 2, n)
        The misfit of each block, with its noise, and in the two worlds; zero where
        there is none.
    """

    released: FloatArray
    sums: FloatArray
    misfits: FloatArray
    clean_misfits: FloatArray


@dataclass(frozen=True)
class BanditAuditPlan(StudyPlan):
    """Plan of an audit of bandit studies: their settings and their number.

    Attributes
    ----------
    settings : LinearUCBSettings
        Settings of an agent that plays alone, with noise, and a known number n of
        releases. All of them are made.
    actions : tuple of K tuples of d floats
        The arms, of norm at most L; the same in every trial.
    rewards : tuple of K floats
        Rewards of the actions, in the range of rewards.
    window : int
        Trials before each release, >= 1.
    change : {"reward", "trial"}
        ``"reward"``: the changed trial is of the arm that the agent chose, and pays B
        or, with the change, -B. At B = L and an arm of full length no replacement moves
        the sum further. ``"trial"``: its action and reward are those of the equality in
        `replace_one_sensitivity`, or what replaces them there, for B <= L and d >= 2.
    position : int
        The trial that is changed, from -``num_logged`` to n window - 1; a negative one
        is of the log. In a later window than the first there are releases before it,
        which tell of noise that is reused.
    num_logged : int
        Logged trials before trial 0, >= 0, which the first release includes. They are
        of the arms in turn.
    num_requests : int
        Number of requests for every release, as after lost replies, >= 1. The mean of
        the answers is what agent and adversary get.
    plays_on : bool
        Whether later trials follow from the change, as in a running clinic. Else all
        other rows are the same in both worlds, as in a finished table.
    """

    settings: LinearUCBSettings
    actions: tuple[tuple[float, ...], ...]
    rewards: tuple[float, ...]
    window: int = field(default=1, metadata=integer(1))
    change: Change = field(default="reward", metadata=choice(Change))
    position: int = 0
    num_logged: int = field(default=0, metadata=integer(0))
    num_requests: int = field(default=2, metadata=integer(1))
    plays_on: bool = field(default=True, metadata=flag())

    faults: ClassVar[Mapping[str, Callable[..., Any]]] = CONTINUAL_FAULTS
    trust: ClassVar[Trust] = "local"

    def __post_init__(self) -> None:
        super().__post_init__()
        releases = self.settings.releases
        noisy = releases.noise_std > 0
        require(noisy, "epsilon", releases.epsilon, "finite, where there is a promise")
        planned = releases.num_releases
        require(planned is not None, "num_releases", planned, "a number, for an audit")
        require(len(self.actions) > 0, "actions", self.actions, "one at least")
        releases.outer_products(self.actions, self.rewards)
        last = releases.max_releases * self.window - 1
        require_int("position", self.position, -self.num_logged, last)
        if self.change == "trial":
            d, reward = releases.dimension, releases.max_reward
            require(d >= 2, "dimension", d, ">= 2, where a whole trial is changed")
            longest = releases.max_action_norm
            expected = f"at most L = {longest}, where a whole trial is changed"
            require(reward <= longest, "reward_range", releases.reward_range, expected)

    def changed_trials(self, actions: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return actions and rewards of the changed trial, shapes (R, 2, d) and (R, 2).

        Of R runs, with the change absent and present. ``actions``, shape (R, 2, d), are
        what the agents have chosen.
        """
        releases = self.settings.releases
        rewards = np.array(releases.reward_range[::-1])
        if self.change == "trial":
            longest = releases.max_action_norm
            cosine = np.array([1.0, (releases.max_reward / longest) ** 2])
            pair = np.zeros((2, releases.dimension))
            pair[:, 0], pair[:, 1] = longest * cosine, longest * np.sqrt(1 - cosine**2)
            actions = np.broadcast_to(pair, actions.shape)
        return actions, np.broadcast_to(rewards, actions.shape[:-1])

    @property
    def released(self) -> ContinualSettings:
        """Settings of what is released."""
        return self.settings.releases

    @property
    def misfit(self) -> Misfit | None:
        """The measure by which sites of a study may leave; None where they do not."""
        return None

    @property
    def promised(self) -> PrivacySpent:
        """Epsilon of all releases together, at the settings' delta, by their ``mu``.

        With the exact calibration it is the settings' own, with the paper's a part of
        it. Infinite where an agent plays on that acts on its own raw trials.
        """
        releases, epsilon = self.settings.releases, math.inf
        conditions: tuple[str, ...] = ()
        if self._is_covered:
            epsilon = gaussian_epsilon(releases.delta, releases.mu)
            conditions = (FINISHED_TABLE,) * self.settings.fixed_rows
        about = epsilon, releases.delta, releases.max_releases, "mu-GDP"
        return PrivacySpent(
            *about, guarantee=Guarantee(EXAMPLE, self.trust, conditions)
        )

    @property
    def _is_covered(self) -> bool:
        """Whether epsilon is for what is drawn, and not for a finished table only."""
        return not (self.settings.fixed_rows and self.plays_on)

    def describe(self) -> dict[str, str]:
        """Return what is drawn, in words."""
        releases = self.settings.releases
        return {
            "Study": f"linear UCB on {self.settings.local_data} data, K = "
            f"{len(self.actions)}, d = {releases.dimension}; n = "
            f"{releases.num_releases} releases, one every {self.window} trials, "
            f"{self.num_logged} logged",
            "Privacy": f"{releases.mechanism}, {releases.calibration} calibration, mu "
            f"= {releases.mu:.4g}{'' if self._is_covered else f', {FINISHED_TABLE}'}",
            "Canary": f"trial {self.position}, its {self.change} replaced; "
            f"{'later trials follow' if self.plays_on else 'no other row changes'}; "
            f"releases asked for {self.num_requests} times",
        }

    @one_blas_thread
    def draw(
        self,
        entropy: Entropy,
        build: Callable[..., Any] | None,
        progress: Progress,
    ) -> tuple[Evidence, Evidence]:
        """Return studies with the change and without; see `StudyPlan`."""
        present, absent = [], []
        for start in range(0, self.num_draws, _CHUNK):
            size = min(_CHUNK, self.num_draws - start)
            mechanisms = [self._mechanism(entropy, build) for _ in range(2 * size)]
            # The change is absent in the first half of the runs.
            played = np.repeat([0, 1], size)
            evidence = _evidence(self, _play(self, mechanisms, played))
            absent.append(evidence[:size])
            present.append(evidence[size:])
            progress(2 * size)
        return joined(present), joined(absent)

    def _mechanism(
        self, entropy: Entropy, build: Callable[..., Any] | None
    ) -> Mechanism:
        """Return the mechanism of one run."""
        make: BuildContinual = build or ContinualRelease
        return make(self.settings.releases, entropy)


def _play(
    plan: BanditAuditPlan,
    mechanisms: Sequence[Any],
    played: NDArray[np.int64],
) -> _Played:
    """Play R runs in lock step, each in its world, and follow it in the other.

    ``played`` says which world that is: 0 with the change absent, 1 with it present.
    """
    twins, worlds = _Twins(plan, len(mechanisms)), np.arange(len(played))
    misfits, clean_misfits = [], []
    for t in range(-plan.num_logged, 0):
        twins.play(t)
    released, sums = [], []
    for k in range(1, plan.settings.releases.max_releases + 1):
        for t in range((k - 1) * plan.window, k * plan.window):
            twins.play(t)
        clean, num_trials = twins.windowed()
        sums.append(clean)
        of_played = sums[-1][worlds, played]
        answers = [
            [mechanism.release(k, total) for _ in range(plan.num_requests)]
            for mechanism, total in zip(mechanisms, of_played, strict=True)
        ]
        released.append(np.mean(answers, axis=1))
        # Before a total there is nothing that could fit badly.
        misfit, is_measured = twins.misfit(), plan.misfit is not None and k > 1
        clean_misfits.append(misfit if is_measured else np.zeros_like(misfit))
        misfits.append(clean_misfits[-1][worlds, played])
        if plan.misfit is not None and is_measured:
            std = plan.misfit.std
            noise = [mechanism.misfit_noise(k, std) for mechanism in mechanisms]
            misfits[-1] = misfits[-1] + noise
        twins.receive(released[-1], clean, num_trials)
    return _Played(
        np.stack(released, axis=1),
        np.stack(sums, axis=2),
        np.stack(misfits, axis=1),
        np.stack(clean_misfits, axis=2),
    )


class _Twins:
    """The agents of R runs in lock step, each with and without the change.

    Two agents a run, each with a pool of its own.

    Attributes
    ----------
    running_sums : ndarray of shape (R, 2, d + 1, d + 1)
        Running sums of the agents without the change and with it, in this order.
    """

    def __init__(self, plan: BanditAuditPlan, num_runs: int) -> None:
        self._plan = plan
        everybody = np.arange(2 * num_runs)
        alone = Confidence.of(plan.settings, 1)
        self._agents = AgentGroup(alone, (everybody, everybody[:, None]))
        size = plan.settings.releases.dimension + 1
        self.running_sums = np.zeros((num_runs, 2, size, size))
        # As they were at each release, and of how many trials.
        self._earlier: list[tuple[FloatArray, int]] = []
        self._num_trials = 0
        self._misfits = np.zeros((num_runs, 2))
        self.receive(np.zeros((num_runs, size, size)), self.running_sums, 0)

    def play(self, t: int) -> None:
        """Choose, and record what is observed in trial t; a negative one is logged."""
        plan, settings = self._plan, self._plan.settings
        shape = self.running_sums.shape[:2]
        arms = np.array(plan.actions)
        if t < 0:
            chosen = np.full(shape, t % len(arms))
        else:
            offered = np.broadcast_to(arms, (math.prod(shape), *arms.shape))
            # Of equally good arms the first: chance would be the same in both worlds.
            bounds = self._agents.belief.upper_bounds(offered)
            chosen = first_best(bounds).reshape(shape)
            if not plan.plays_on:  # rows as they are without the change
                chosen = np.broadcast_to(chosen[:, :1], shape)
        actions, rewards = arms[chosen], np.array(plan.rewards)[chosen]
        if t == plan.position:
            actions, rewards = plan.changed_trials(actions)
        flat = actions.reshape(-1, settings.releases.dimension), rewards.ravel()
        products = settings.releases.outer_products(*flat)
        self.running_sums += products.reshape(self.running_sums.shape)
        self._num_trials += 1
        # By what was released before: any such estimate keeps the promise.
        estimates = self._agents.belief.ellipsoid.estimate
        releases = settings.releases
        expected = np.einsum("id,id->i", flat[0], estimates)
        most = releases.max_reward
        missing = expected.clip(-most, most) - releases.centred(flat[1])
        self._misfits += missing.reshape(shape)
        if settings.local_data != "released":
            self._agents.observe(flat[0], settings.releases.centred(flat[1]), products)

    def misfit(self) -> FloatArray:
        """Return the misfits of the trials since the last call, shape (R, 2)."""
        found, self._misfits = self._misfits, np.zeros_like(self._misfits)
        return found

    def windowed(self) -> tuple[FloatArray, int]:
        """Return the sums that are released next, and of how many trials they are."""
        now, trials = self.running_sums.copy(), self._num_trials
        forget = self._plan.settings.releases.sliding_window
        self._earlier.append((now, trials))
        if forget and len(self._earlier) > forget:
            before, fewer = self._earlier[-forget - 1]
            return now - before, trials - fewer
        return now, trials

    def receive(self, released: FloatArray, clean: FloatArray, num_trials: int) -> None:
        """Take what was released, shape (R, d + 1, d + 1): both twins the same.

        ``clean``, shape (R, 2, d + 1, d + 1), is what they know that it was made of.
        """
        sums = np.repeat(released, 2, axis=0)
        counts = np.full(len(sums), num_trials)
        self._agents.believe(sums, clean=clean.reshape(sums.shape), counts=counts)


def _evidence(plan: BanditAuditPlan, played: _Played) -> Evidence:
    """Return what an adversary keeps."""
    settings, (released, sums, misfits, clean_misfits) = plan.released, played
    noise = (released[:, None] - sums) / settings.noise_std
    n = settings.max_releases
    decoder = np.zeros((n, n))
    for k in range(n):
        decoder[k, : k + 1] = settings.factorisation.row(k + 1)
    by_release = np.moveaxis(noise, 2, 0)
    draws = solve_triangular(decoder, by_release.reshape(n, -1), lower=True)
    squares = np.square(draws.reshape(by_release.shape)).sum(axis=(0, -2, -1))
    log_ratio = (squares[:, 0] - squares[:, 1]) / 2
    std = settings.release_std()[:, None, None]
    flat = (*released.shape[:2], -1)
    values = released.reshape(flat)
    unexplained = ((released - sums[:, 0]) / std).reshape(flat)
    shifts = ((sums[:, 1] - sums[:, 0]) / std).reshape(flat)
    if plan.misfit is not None:
        by_misfit = (misfits[:, None] - clean_misfits) / plan.misfit.std
        squares = np.square(by_misfit).sum(axis=-1)
        log_ratio = log_ratio + (squares[:, 0] - squares[:, 1]) / 2
        # One more number of each release.
        values = np.dstack([values, misfits])
        unexplained = np.dstack([unexplained, by_misfit[:, 0]])
        shifts = np.dstack([shifts, by_misfit[:, 0] - by_misfit[:, 1]])
    return Evidence.of(values, unexplained, shifts, log_ratio)
