"""An agent's belief about theta, and its width: how far off the belief may be."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.fields import check_fields, fraction, integer
from flwr_fbo._common.validation import require_int
from flwr_fbo.bandits.linear.exploration import (
    Exploration,
    Optimism,
    drawn,
    shared_by_best,
)
from flwr_fbo.bandits.linear.settings import DeterminantTrigger, LinearUCBSettings
from flwr_fbo.privacy.noise_bounds import (
    SpectralBounds,
    agent_bounds,
    paper_bounds,
    sum_bounds,
)

if TYPE_CHECKING:
    from flwr_fbo.models.ellipsoid import Ellipsoid

# What the authors' code multiplies the width with (``beta_mult`` in its agents.py).
_AUTHORS_FACTOR = 0.01
# Of the largest eigenvalue of a total, the smallest that a total of use may have.
_LEAST_SHARE = 2.0**-40


@dataclass(frozen=True, eq=False)
class Belief:
    """The parameters t with ||t - estimate||_V <= w, of one model or of a batch.

    Attributes
    ----------
    ellipsoid : Ellipsoid
        V and the estimate.
    width : ndarray of shape (...)
        w >= 0, of each model.
    exploration : Exploration
        Choice of an agent within the ellipsoid.
    """

    ellipsoid: Ellipsoid
    width: FloatArray
    exploration: Exploration

    @property
    def coordinate_widths(self) -> FloatArray:
        """Half the confidence interval of each coordinate, shape (..., d).

        w sqrt((V^-1)_ii): coordinate i of t is at most that far from theta's, for every
        t with ||t - theta||_V <= w (Cauchy-Schwarz).
        """
        factor = self.ellipsoid.factor
        axes = np.broadcast_to(np.eye(factor.shape[-1]), factor.shape)
        lengths = np.linalg.norm(self.ellipsoid.whitened(axes), axis=-2)
        return np.asarray(self.width[..., None] * lengths)

    def upper_bounds(self, actions: FloatArray) -> FloatArray:
        """Return the upper confidence bound of each action's mean reward."""
        return self.ellipsoid.upper_bounds(actions, self.width)

    def expectations(self, actions: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return each action's estimated reward, and half its interval.

        Both of shape (A, K), for actions of shape (A, K, d).
        """
        mean, directions = self.ellipsoid.rewards(actions)
        widths = np.broadcast_to(self.width, len(actions))
        return mean, widths[:, None] * np.linalg.norm(directions, axis=-1)

    def probabilities(
        self, actions: FloatArray, rngs: Sequence[np.random.Generator]
    ) -> FloatArray:
        """Return with which probability each action is played: see `Exploration`.

        Parameters
        ----------
        actions : ndarray of shape (A, K, d)
            Actions of A decisions.
        rngs : sequence of A numpy.random.Generator
            Generators that the decisions draw from.

        Returns
        -------
        ndarray of shape (A, K)
            Probabilities of each decision's actions; each row sums to 1.
        """
        mean, directions = self.ellipsoid.rewards(actions)
        widths = np.broadcast_to(self.width, len(actions))
        return self.exploration.probabilities(mean, directions, widths, rngs)

    def choose(
        self,
        actions: FloatArray,
        rngs: Callable[[], Sequence[np.random.Generator]],
    ) -> tuple[NDArray[np.intp], FloatArray]:
        """Choose for A decisions; return indices and their probabilities, shape (A,).

        Parameters
        ----------
        actions : ndarray of shape (A, K, d)
            Actions of A decisions.
        rngs : callable
            Returns what `probabilities` takes; called only if there is chance.
        """
        if isinstance(self.exploration, Optimism):  # all of them at once
            probabilities = shared_by_best(self.upper_bounds(actions))
            propensities = probabilities.max(axis=1)
            if np.all(propensities == 1):
                return probabilities.argmax(axis=1), propensities
            generators = rngs()
        else:
            generators = rngs()
            probabilities = self.probabilities(actions, generators)
        draws = [drawn(*pair) for pair in zip(probabilities, generators, strict=True)]
        indices, of_drawn = zip(*draws, strict=True)
        return np.array(indices), np.array(of_drawn)


@dataclass(frozen=True)
class Confidence:
    """The confidence set for theta that a sum of agents' releases gives.

    Attributes
    ----------
    settings : LinearUCBSettings
        Settings of the study.
    num_agents : int
        M >= 1, whose sums are added. 1 for an agent that plays alone.
    alpha : float
        In (0, 1): how likely any of their ellipsoids may ever miss theta. That of the
        settings, or a share of it: see `PeerGraph.confidence_of`.
    num_synchronisations : int
        >= 1; of effect where the number of releases is unknown. See `after`.
    """

    settings: LinearUCBSettings
    num_agents: int = field(metadata=integer(1))
    alpha: float = field(metadata=fraction())
    num_synchronisations: int = 1

    def __post_init__(self) -> None:
        check_fields(self)
        most = self.settings.releases.max_releases
        require_int("num_synchronisations", self.num_synchronisations, 1, most)

    @classmethod
    def of(cls, settings: LinearUCBSettings, num_agents: int) -> Confidence:
        """Return that of a sum of so many agents' releases, at the settings' alpha."""
        return cls(settings, num_agents, settings.alpha)

    def after(self, num_synchronisations: int) -> Confidence:
        """Return the confidence set after ``num_synchronisations``.

        The same as before where their number is known: then bounds are for all of them.
        """
        if self.settings.releases.num_releases is not None:
            return self
        return replace(self, num_synchronisations=max(num_synchronisations, 1))

    @cached_property
    def bounds(self) -> SpectralBounds:
        """rho_min, rho_max, kappa and the shift: of the agents' summed noise.

        With ``width="paper"`` or ``"authors"`` of each agent's. Without noise the ridge
        takes the place of all, and kappa is 0. But for these two widths half of alpha
        is spent here.
        """
        releases, ridge = self.settings.releases, self.settings.ridge
        if releases.noise_std == 0:
            return SpectralBounds(ridge, ridge, ridge, 0.0, 0.0)
        if not self._as_published:
            k = self.num_synchronisations
            return sum_bounds(releases, self.alpha / 2, self.num_agents, k)
        of_agent = paper_bounds if releases.calibration == "paper" else agent_bounds
        return of_agent(releases, self.alpha, self.num_agents)

    @property
    def _as_published(self) -> bool:
        return self.settings.formula in ("paper", "authors")

    @cached_property
    def _copies(self) -> int:
        """Multiplicity of the bounds: the paper adds up what it shifts and bounds."""
        return self.num_agents if self._as_published else 1

    @property
    def shift(self) -> float:
        """Shift of the diagonal of a sum that has any trials."""
        return self._copies * self.bounds.shift

    def width_at(self, log_det: FloatArray, least_eigenvalue: FloatArray) -> FloatArray:
        """Return the ellipsoid's width, shape (...).

        ``"exact"``, with the bounds of the summed noise, and a union over M agents:

            sigma sqrt(2 log(2 M / alpha) + log det V - d log rho_min)
            + S sqrt(rho_max) + kappa

        *Proof.* With R = N + shift I, the regularisation that noise and shift make,
        u - V theta = sum x eta + h - R theta. In the norm of V^-1 the last is at most
        ||R^(1/2) theta|| <= sqrt(rho_max) S, as V >= R; h at most kappa, likewise; and
        the first at most sigma sqrt(2 log(1/p) + log det V - log det rho_min I), for
        all trials at once with probability 1 - p, as V >= G + rho_min I
        (Abbasi-Yadkori et al., 2011, theorem 1), with p = alpha / (2 M) an agent. It
        holds for trials from any one on; with a sliding window they begin at another
        one after each synchronisation, so that p is shared by all of these, as it is
        where rho_min differs from one to the next: the union is then over M n, or M
        (pi k)^2 / 6. Rewards that change *within* a window are not covered.

        ``"observed"``: the same, where the last two terms may also be, if that is less,

            (S rho_max + H) / sqrt(lambda),

        with lambda a lower bound on the eigenvalues of V, and H the bound on ||h||.
        *Proof.* ||h - R theta||_{V^-1} <= ||h - R theta|| / sqrt(lambda), and the norm
        of R theta is at most rho_max S, on the same event: no more of alpha. lambda
        may be what the data show, as the event is about the noise of all releases, and
        has V in it nowhere. To look at V costs no privacy: it is made of what was
        released and, where the agent acts on raw sums, of what it acts on anyway. So
        noise and shift cost the less, the more there are data in every direction, where
        the exact width pays for them for ever.

        ``"paper"``, with the bounds of an agent's noise (proof of Proposition 2):

            sigma sqrt(2 log(2 / alpha) + log det V - d log(M rho_min))
            + M S sqrt(rho_max) + M kappa

        ``"authors"``: a hundredth of that, as in the authors' code.

        Parameters
        ----------
        log_det : ndarray of shape (...)
            log det V.
        least_eigenvalue : ndarray of shape (...)
            A lower bound on the eigenvalues of V; of effect with ``"observed"`` only.
        """
        settings, copies, bounds = self.settings, self._copies, self.bounds
        d = settings.releases.dimension
        volume = log_det - d * math.log(copies * bounds.rho_min)
        # One event per agent about its rewards' noise, for all trials; with a sliding
        # window, or another rho_min at each synchronisation, one for each of these too.
        releases = settings.releases
        union: float = 1 if self._as_published else self.num_agents
        is_open = releases.num_releases is None or releases.sliding_window is not None
        if is_open and not self._as_published:
            union *= releases.union(self.num_synchronisations)
        chance = 2 * math.log(2 * union / self.alpha)
        radius = np.sqrt(chance + np.maximum(volume, 0))
        norm = settings.norm_bound
        prior: FloatArray | float = norm * math.sqrt(bounds.rho_max) + bounds.kappa
        if settings.formula == "observed":
            longest = norm * bounds.rho_max + bounds.cross_norm
            prior = np.minimum(prior, longest / np.sqrt(least_eigenvalue))
        factor = _AUTHORS_FACTOR if settings.formula == "authors" else 1.0
        return np.asarray(factor * (settings.noise_scale * radius + copies * prior))

    def growth(
        self, ellipsoid: Ellipsoid, synchronised_log_det: FloatArray
    ) -> FloatArray:
        """Return what a trigger looks at, shape (...): Algorithm 1, line 12.

            log det(V + M (rho_max - rho_min) I) - log det S

        where S is V as it was synchronised last; without the paper's widths M is 1, as
        the bounds are those of the sum.
        """
        slack = self._copies * (self.bounds.rho_max - self.bounds.rho_min)
        return ellipsoid.shifted_log_det(slack) - synchronised_log_det

    def published_trigger(self, num_trials: int) -> DeterminantTrigger:
        """Return the trigger with the D of Theorem 1, for T trials an agent.

        D = 2 T d / (log(rho_max / rho_min + T L^2 / (d rho_min)) + 1)
        """
        d = self.settings.releases.dimension
        growth = self._published_growth(num_trials)
        return DeterminantTrigger(2 * num_trials * d / (growth + 1))

    def most_synchronisations(
        self, trigger: DeterminantTrigger, num_trials: int
    ) -> float:
        """Return the bound of Proposition 1 on how often a trigger fires in T trials.

        2 sqrt((d T / D) log(rho_max / rho_min + T L^2 / (d rho_min))) + 4
        """
        d, growth = self.settings.releases.dimension, self._published_growth(num_trials)
        return 2 * math.sqrt(d * num_trials / trigger.threshold * growth) + 4

    def least_synchronisations(self, num_trials: int) -> float:
        """Return the n of Theorem 1, which it needs up to a constant factor.

        n = d log(rho_max / rho_min + T L^2 / (d rho_min))
        """
        return self.settings.releases.dimension * self._published_growth(num_trials)

    def _published_growth(self, num_trials: int) -> float:
        releases, bounds = self.settings.releases, self.bounds
        seen = num_trials * releases.max_action_norm**2 / releases.dimension
        return math.log((bounds.rho_max + seen) / bounds.rho_min)

    def ellipsoid(self, total: FloatArray) -> Ellipsoid:
        """Return what a sum of releases, shape (..., d + 1, d + 1), lets one believe.

        S + shift I, and more where an eigenvalue is still below rho_min: only if the
        bounds fail, or without noise by rounding. As published it begins, before any
        release, with M rho_min I (Algorithm 1, line 1).

        Raises
        ------
        numpy.linalg.LinAlgError
            If its numbers are so large that rounding hides what a trial adds.
        """
        from flwr_fbo.models.ellipsoid import Ellipsoid

        d, copies, bounds = self.settings.releases.dimension, self._copies, self.bounds
        begins = self._as_published and not np.any(total)
        shift = copies * bounds.rho_min if begins else self.shift
        matrix = total[..., :d, :d] + shift * np.eye(d)
        values = np.linalg.eigvalsh(matrix)
        missing = np.maximum(copies * bounds.rho_min - values[..., 0], 0.0)
        # By the total alone: what is told later cannot make it fail (`observe_sum`).
        if not np.all(values[..., 0] + missing >= _LEAST_SHARE * values[..., -1]):
            raise np.linalg.LinAlgError("the total is too large")
        matrix = matrix + missing[..., None, None] * np.eye(d)
        return Ellipsoid(matrix, total[..., :d, d], watched=True)

    def belief(self, ellipsoid: Ellipsoid) -> Belief:
        """Return an ellipsoid of a sum, and of trials since, with its width."""
        width = self.width_at(ellipsoid.log_det, ellipsoid.least_eigenvalue)
        return Belief(ellipsoid, width, self.settings.exploration)

    def choosing(self, ellipsoid: Ellipsoid) -> Belief:
        """Return the same for choices, which may have a fixed width."""
        width = self.choosing_width(ellipsoid.log_det, ellipsoid.least_eigenvalue)
        return Belief(ellipsoid, width, self.settings.exploration)

    def choosing_width(
        self, log_det: FloatArray, least_eigenvalue: FloatArray
    ) -> FloatArray:
        """Return the width of choices, shape (...): `width_at`, unless it is fixed."""
        fixed = self.settings.fixed_width
        if fixed is None:
            return self.width_at(log_det, least_eigenvalue)
        return np.full(np.shape(least_eigenvalue), fixed)
