"""The agent of FedUCB: linear UCB on sums that are shared, and private.

Dubey & Pentland, *Differentially-Private Federated Linear Bandits* (NeurIPS 2020),
algorithm 1. V = S + U + shift I and u likewise, where S is the sum over all agents that
was synchronised last and U what the agent has observed since (equation 2); it plays the
action with the largest upper confidence bound. Where this module differs:

- After a synchronisation U is zero, as in line 1 and equation 2. The listing sets it to
  rho_min I (line 24), which would add 1 / (2 M) to the regularisation.
- The width is that of the *proof* of Proposition 2: the statement has d log det V for
  log det V. With ``width="exact"`` it is that of the noise's sum, and with
  ``"observed"`` what noise and shift can do to theta is bounded by the V that was
  released, too; see `Confidence.width_at`.
- Where sites act on released sums only, U stays zero. Where they act on their own data,
  V is of all these without noise, and of what the others' part of S is worth to it:
  `flwr_fbo.bandits.linear.own_data`.
- Noise can leave S + shift I with eigenvalues below rho_min, if its bounds fail. The
  paper leaves open what happens then; here S is shifted further, up to rho_min. That is
  post-processing, and whatever is observed later is added to a positive definite V.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from flwr_fbo._common.arrays import FloatArray, one_blas_thread
from flwr_fbo._common.validation import require
from flwr_fbo.bandits.linear.blocks_belief import BlocksBelief
from flwr_fbo.bandits.linear.confidence import Belief, Confidence
from flwr_fbo.bandits.linear.own_data import OwnBelief
from flwr_fbo.bandits.linear.prior import Prior
from flwr_fbo.bandits.linear.settings import DeterminantTrigger


@dataclass(frozen=True, eq=False)
class OwnPart:
    """An agent's part of a total.

    Attributes
    ----------
    message : ndarray of shape (d + 1, d + 1)
        Its release.
    clean : ndarray of shape (d + 1, d + 1)
        Clean sum that the message was made of.
    num_trials : int
        Number of trials in the clean sum.
    """

    message: FloatArray
    clean: FloatArray
    num_trials: int


class LinearUCBAgent:
    """One agent: `choose`, `tell`; hand out `running_sum`, and `receive` the total.

    Parameters
    ----------
    confidence : Confidence
        Settings and confidence set of the study.
    total : ndarray of shape (d + 1, d + 1), optional
        Sum of all agents' last releases; zero unless given.
    own : OwnPart, optional
        The agent's part of the total, where sites act on their own data.
    num_others : int
        Number of other agents' releases in the total; see `receive`. Zero unless given.
    prior : Prior, optional
        What the site knew before; nothing unless given. It is added to what the agent
        believes, and is not in ``running_sum``.

    num_synchronisations : int, optional
        Number that have made the total; see `receive`. That of the confidence set
        unless given.

    Attributes
    ----------
    running_sum : ndarray of shape (d + 1, d + 1)
        Sum of [x; y][x; y]' over the agent's trials: what `ContinualRelease` takes.
    num_trials : int
        Number of its trials.
    blocks : BlocksBelief, optional
        Belief by released blocks, where it has received them.
    """

    def __init__(
        self,
        confidence: Confidence,
        total: FloatArray | None = None,
        own: OwnPart | None = None,
        num_others: int = 0,
        prior: Prior | None = None,
        *,
        num_synchronisations: int | None = None,
    ) -> None:
        self._prior = prior
        self._confidence, self.settings = confidence, confidence.settings
        size = self.settings.releases.dimension + 1
        self.running_sum, self.num_trials = np.zeros((size, size)), 0
        total = np.zeros((size, size)) if total is None else total
        number = num_synchronisations or confidence.num_synchronisations
        self.receive(total, number, own, num_others)

    @one_blas_thread
    def probabilities_many(
        self, actions: FloatArray, rngs: Sequence[np.random.Generator]
    ) -> FloatArray:
        """Return with which probability each action would be chosen, shape (A, K).

        Exact for what `choose_many` draws by generators of the same state.

        Parameters
        ----------
        actions : ndarray of shape (A, K, d)
            Actions of A decisions; see `choose`.
        rngs : sequence of A numpy.random.Generator
            Generators that the decisions draw from.
        """
        self._check(actions)
        return self._belief.probabilities(actions, rngs)

    @one_blas_thread
    def expectations(self, actions: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return each action's expected reward, and half its interval, shape (A, K).

        Of actions, shape (A, K, d), above the middle of the range of rewards.
        """
        self._check(actions)
        return self._belief.expectations(actions)

    def choose(
        self, actions: ArrayLike, rng: np.random.Generator | None = None
    ) -> tuple[int, float]:
        """Choose an action; return its index and with which probability it was chosen.

        Among equally good actions one is drawn.

        Parameters
        ----------
        actions : array of shape (K, d)
            K >= 1 actions, each of norm at most L.
        rng : numpy.random.Generator, optional
            Generator of chance, where the settings' exploration has any: from the
            operating system unless given.

        Raises
        ------
        ValueError
            If the list of actions is empty, or one is longer.
        """
        x = np.asarray(actions, dtype=float)[None]
        [chosen] = self.choose_many(x, lambda: [rng or np.random.default_rng()])
        return chosen

    @one_blas_thread
    def choose_many(
        self, actions: FloatArray, rngs: Callable[[], Sequence[np.random.Generator]]
    ) -> list[tuple[int, float]]:
        """Return what `choose` does, for A decisions at once.

        Parameters
        ----------
        actions : ndarray of shape (A, K, d)
            Actions of A decisions; see `choose`.
        rngs : callable
            Returns A generators; called only if there is chance.
        """
        self._check(actions)
        chosen, probabilities = self._belief.choose(actions, rngs)
        return list(zip(chosen.tolist(), probabilities.tolist(), strict=True))

    def _check(self, actions: FloatArray) -> None:
        d, shape = self.settings.releases.dimension, actions.shape[1:]
        is_set = len(shape) == 2 and shape[0] > 0 and shape[1] == d
        require(is_set, "actions", shape, f"an array of shape (K, {d}) with K >= 1")
        self.settings.releases.check_norms(actions.reshape(-1, d))

    @one_blas_thread
    def tell(self, action: ArrayLike, reward: float) -> None:
        """Record what an action, shape (d,), was rewarded with.

        Raises
        ------
        ValueError
            If the action is longer than L, or the reward not in its range. Nothing is
            recorded then; whoever would rather clip does so before.
        """
        x = np.asarray(action, dtype=float)
        releases = self.settings.releases
        [product] = releases.outer_products([x], [reward])
        self.running_sum += product
        self.num_trials += 1
        if self._own is not None:
            self._own.observe_sum(product, 1)
        elif self.settings.uses_raw_sums:
            self._ellipsoid.observe(x, releases.centred(np.asarray(reward)))

    @one_blas_thread
    def tell_sum(self, total: FloatArray, num_trials: int) -> None:
        """Record many trials by the sum of their [x; y][x; y]', as `tell` does one."""
        self.running_sum += total
        self.num_trials += num_trials
        if self._own is not None:
            self._own.observe_sum(total, num_trials)
        elif self.settings.uses_raw_sums:
            gram, target = total[:-1, :-1], total[:-1, -1]
            self._ellipsoid.observe_sum(gram, target, num_trials)

    def receive(
        self,
        total: FloatArray,
        num_synchronisations: int = 0,
        own: OwnPart | None = None,
        num_others: int = 0,
    ) -> None:
        """Take the sum of all agents' releases, and drop U.

        Parameters
        ----------
        total : ndarray of shape (d + 1, d + 1)
            Sum of the agents' last releases.
        num_synchronisations : int
            >= 0, that have made it; see `Confidence.after`.
        own : OwnPart, optional
            The agent's part of the sum; nothing unless given. It has an effect where
            sites act on their own data.
        num_others : int
            Number of other agents' releases in the sum; of effect there, too.

        Raises
        ------
        ValueError
            If it is not a symmetric matrix of finite numbers.
        """
        total = np.asarray(total, dtype=float)
        shape = self.running_sum.shape
        require(total.shape == shape, "total", total.shape, f"shape {shape}")
        is_good = bool(np.all(np.isfinite(total))) and np.array_equal(total, total.T)
        require(is_good, "total", total, "a symmetric matrix of finite numbers")
        own = OwnPart(np.zeros(shape), np.zeros(shape), 0) if own is None else own
        self._confidence = self._confidence.after(num_synchronisations)
        self._own: OwnBelief | None = None
        self.blocks: BlocksBelief | None = None
        if self.settings.uses_own_data:
            self._own = OwnBelief(
                self._confidence,
                total - own.message,
                num_others,
                own.clean,
                own.num_trials,
                num_synchronisations,
                prior=self._prior,
            )
            return
        known = total if self._prior is None else total + self._prior.total
        self._ellipsoid = self._confidence.ellipsoid(known)
        self._synchronised_log_det = self._ellipsoid.log_det

    def receive_blocks(
        self,
        totals: FloatArray,
        stds: FloatArray,
        num_sites: int,
        own: OwnPart | None = None,
    ) -> None:
        """Take all totals of blocks, and act by them; see `BlocksBelief`.

        Or by its own data, and what the totals are worth to it; see `OwnBelief`.

        Parameters
        ----------
        totals : ndarray of shape (k, d + 1, d + 1)
            The totals, in the order of their release.
        stds : ndarray of shape (k,)
            Deviation of each total's noise on the diagonal.
        num_sites : int
            Largest number of sites in a total.
        own : OwnPart, optional
            The agent's part of the totals, without noise, where it acts on its own
            data; it acts on the totals unless given.
        """
        size = self.settings.releases.dimension + 1
        self.receive(np.sum(totals, axis=0) + np.zeros((size, size)), len(totals))
        most = max(num_sites, 1)
        self.blocks = BlocksBelief(
            self._confidence, totals, stds, most, prior=self._prior
        )
        if own is not None:
            std = float(np.sqrt(np.square(stds).sum()))
            self._own = OwnBelief(
                self._confidence,
                np.sum(totals, axis=0) - own.message,
                num_sites - 1,
                own.clean,
                own.num_trials,
                len(totals),
                std=std,
                prior=self._prior,
            )

    @property
    def _belief(self) -> Belief:
        if self._own is not None:
            return self._own.belief
        if self.blocks is not None:
            return self.blocks.belief
        return self._confidence.choosing(self._ellipsoid)

    def wants_synchronisation(
        self, trigger: DeterminantTrigger, among_peers: bool = False
    ) -> bool:
        """Return whether the agent has seen enough since the last synchronisation.

        It never has unless it acts on its raw sums.
        """
        if self._own is not None:
            return False
        before = self._synchronised_log_det
        growth = self._confidence.growth(self._ellipsoid, before)
        num_since = self._ellipsoid.num_observed
        if among_peers:
            longest = self.settings.releases.max_action_norm
            return trigger.fires_among_peers(growth, num_since, longest)
        return trigger.fires(growth, num_since)

    @property
    def estimate(self) -> FloatArray:
        """Theta, or the site's own where it acts on its own data, shape (d,)."""
        return self._belief.ellipsoid.estimate

    @property
    def confidence_width(self) -> FloatArray:
        """Half the confidence interval of each coordinate of theta, shape (d,)."""
        if self._own is not None:
            return self._own.coordinate_widths
        widths = self._confidence.belief(self._ellipsoid).coordinate_widths
        # About the estimate of the blocks they are wider by how far that is away.
        return widths + np.abs(self.estimate - self._ellipsoid.estimate)

    @one_blas_thread
    def least(self, directions: FloatArray) -> FloatArray:
        """Return the least z'theta in the confidence set, for z of shape (K, d).

        The set is that of the own clean data, which holds whatever the other sites and
        the prior are; so only where sites act on these.
        """
        assert self._own is not None
        return -self._own.alone.upper_bounds(-directions)

    @property
    def worth_of_others(self) -> float | None:
        """Number of own trials that the others are worth, on own data."""
        return None if self._own is None else float(self._own.worth)
