"""The agent of Fed-GO-UCB: explore, fit together, then act on a linearised network.

*Communication-Efficient Federated Non-linear Bandit Optimization* (ICLR 2024). Rewards
are f(x; w) and noise, with one w for all agents.

Phase I. Agents try actions at random; then all fit w0 by gradient Langevin dynamics, to
which an agent gives the gradients of its own mean loss.

Phase II. With g = grad f(x; w0), over all evaluations of phase II that an agent knows:

    Sigma = lambda I + sum g g',
    b = lambda w0 + sum g (g'w0 + y - f(x; w0)),    w_hat = Sigma^-1 b.

In the paper it plays the action with the largest reward that any w may give with
||w - w_hat||_Sigma^2 <= beta (GO-UCB: Liu & Wang, ICML 2023). By default it draws w
from N(w_hat, beta Sigma^-1), and plays the best action for that. It asks for a
synchronisation once

    (evaluations since the last one) log(det Sigma / det(Sigma - dSigma)) > gamma,

where dSigma is what these evaluations have added. Where this module differs:

- All agents try as many actions in phase I, and these are among the T evaluations. In
  the paper there are T0 = sqrt(N T) of all agents together, and N T more in phase II;
  `flwr_fbo.lab.simulation.neural_bandits` has that, too.
- The regression starts at random parameters of the model, unless ``start="zero"``.
- In the paper agents take turns, so that each knows what the one before has learned. In
  Flower all choose at once. After a synchronisation all believe the same, and the most
  optimistic action is the same for all of them: so each draws its own w, by its seed,
  which is no secret, unless ``exploration="optimism"``.
- The largest reward is that of the network linearised at w0. The paper maximises the
  network itself over the ball (line 3 of algorithm 1): ``num_refinements``.
- The paper prints the increment of b without parentheses around g'w0 + y - f; without
  them w_hat does not estimate w.
- b is kept, and sent, around w0: c = b - Sigma w0 = sum g (y - f(x; w0)), which leaves
  out what every agent knows anyway. w_hat = w0 + Sigma^-1 c is the same.
- What an agent sends are the sums over all of its evaluations so far, in place of the
  increments since it last sent any: as many scalars, and the same totals. But a message
  that is lost, comes twice or comes late then spoils nothing.

**With privacy** (``settings.privacy``; not in the paper) what an agent sends has noise
of its own, and phase II differs:

- phase I is left out: gradients of hundreds of numbers drown in their noise, and
  networks fitted by them were worse than random ones. So w0 is where the regression
  would start, which all agents know, and f(x; w0) is left out of what is learned;
- an action has a few features (`reference_features`) in place of the network's
  gradient, which noise would cover, and its reward is clipped;
- agents send by a public schedule;
- an agent acts on released totals only, its own trials in between are not used. What it
  believes is a posterior that knows how large the noise is (`posterior_of_noisy_sum`);
- it always draws its estimate from that; before the first total from the prior. The
  most optimistic estimate would be the same for all trials between two totals, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flwr_fbo._common.arrays import FloatArray, first_best, one_blas_thread
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo._common.validation import require
from flwr_fbo.bandits.fed_go_ucb.settings import AgentReply, FedGOUCBSettings
from flwr_fbo.bandits.linear.settings import DeterminantTrigger
from flwr_fbo.journal.journal import Journal
from flwr_fbo.models.ellipsoid import Ellipsoid
from flwr_fbo.models.network import CONSTANT_SHARE, RewardModel, reference_features
from flwr_fbo.models.noisy_sums import posterior_of_noisy_sum
from flwr_fbo.privacy.continual import ContinualRelease
from flwr_fbo.privacy.noise import Entropy
from flwr_fbo.study.codec import is_sum

# How far w may be from w0, over 1 + ||w0||: a network's values are finite there.
_FARTHEST = 1e6
# With rewards in [-1, 1]: the prior variance of what the features without the constant
# add, and the variance of a reward around what the features say.
_PRIOR_VARIANCE = 0.25
_REWARD_VARIANCE = 0.05
# Draws of the posterior that a propensity is counted of.
NUM_DRAWS = 64


def posterior(total: FloatArray, noise_std: float) -> Ellipsoid:
    """Return what an agent believes by a total, with privacy.

    Parameters
    ----------
    total : ndarray of shape (k + 1, k + 1)
        Sum of all agents' releases.
    noise_std : float
        Standard deviation of the noise on its diagonal.

    Raises
    ------
    numpy.linalg.LinAlgError
        See `posterior_of_noisy_sum`.
    """
    priors = np.full(len(total) - 1, _PRIOR_VARIANCE)
    priors[0] = 1 / CONSTANT_SHARE  # any mean reward from -1 to 1
    return posterior_of_noisy_sum(total, noise_std, priors, _REWARD_VARIANCE)


class FedGOUCBAgent:
    """One agent: `choose` and `tell`, always; the rest by phase.

    Phase I: answer with `regression_message`, then `start` phase II with what came out.
    Phase II: if the agent `wants_synchronisation`, all send their `message` and
    `receive` the total.

    Parameters
    ----------
    settings : FedGOUCBSettings
        Settings of all agents of the study.
    model : RewardModel
        Reward model f(x; w), with the study's number of parameters.
    seed : int
        Seed of the study.
    slot : int
        Slot of the agent.
    num_agents : int
        N, whose releases are in a total; has an effect with privacy only.
    entropy : Entropy, optional
        With privacy, where the noise comes from; none is needed without noise.
    journal : Journal, optional
        With privacy, that of this agent: it holds the releases.

    Attributes
    ----------
    w0 : ndarray of shape (d_w,), or None
        None in phase I.

    Notes
    -----
    *Formal guarantees*: with ``settings.privacy`` those of `NeuralPrivacy`, for all
    that `message` returns. What `choose` returns is a function of released totals and
    of public randomness. Not covered: ``state_dict``, which holds raw trials, and stays
    with the agent. Without ``privacy`` there are none.
    """

    def __init__(
        self,
        settings: FedGOUCBSettings,
        model: RewardModel,
        seed: int,
        slot: int,
        *,
        num_agents: int = 1,
        entropy: Entropy | None = None,
        journal: Journal | None = None,
    ) -> None:
        self.settings = settings
        self.model = model
        self.w0: FloatArray | None = None
        self._seed, self._slot = seed, slot
        self._trigger = DeterminantTrigger(settings.threshold)
        self._privacy = settings.privacy
        self._entropy, self._journal = entropy, journal
        if self._privacy is not None:
            # Noise of the last total. Earlier ones, or with absent agents, have less.
            std = self._privacy.releases.largest_std(1)
            self._noise_std = math.sqrt(num_agents) * std
        # Phase I: points and rewards. Phase II, without privacy: gradients and
        # residuals of the evaluations that the total lacks.
        self._seen: list[tuple[FloatArray, float]] = []
        self._num_seen = 0  # evaluations of the phase
        self._own: FloatArray = np.zeros(settings.sums_shape(model.num_parameters))
        self._total = self._own
        self._num_included = 0
        self._cached: tuple[Ellipsoid, float] | None = None
        if settings.num_random_actions == 0:
            self.start(settings.regression.initial(model, seed))

    @property
    def num_evaluations(self) -> int:
        """Evaluations of the current phase."""
        return self._num_seen

    @one_blas_thread
    def choose(self, actions: ArrayLike, number: int | None = None) -> int:
        """Return the index of an action: in phase I a random one, else the best.

        Among equal actions it is the lowest index. An action at which the model is not
        finite is never chosen in phase II.

        Parameters
        ----------
        actions : array of shape (K, D)
            K >= 1.
        number : int, optional
            Number of the decision in this phase, which says what is drawn: another one
            for each. `num_evaluations` unless given, which is another one where each
            reward is told before the next decision.

        Raises
        ------
        ValueError
            If there are none, or they have other coordinates.
        FloatingPointError
            If the model is finite at none of them.
        """
        x = checked_actions(actions, self.model.dimension)
        if self.w0 is None:
            number = self.num_evaluations if number is None else number
            key = (self._slot, number, Purpose.INITIAL_POINTS)
            return int(generator(self._seed, *key).integers(len(x)))
        bounds = self._upper_bounds(x, number)
        if np.isnan(bounds).all():
            raise FloatingPointError("The model is not finite at any of the actions.")
        return int(first_best(bounds))

    @one_blas_thread
    def decide(self, actions: ArrayLike, number: int) -> tuple[int, FloatArray]:
        """Return what `choose` does, and the probability of each action, shape (K,).

        With ``exploration="sampling"`` parameters are drawn `NUM_DRAWS` times, those of
        the choice first. The probability is the share of draws that an action is best
        for, as any of them could have been the first: that of the choice is above 0.
        With ``"optimism"`` it is 1.

        Raises
        ------
        ValueError, FloatingPointError
            As in `choose`.
        """
        x = checked_actions(actions, self.model.dimension)
        index = self.choose(x, number)
        if self.w0 is None:
            return index, np.full(len(x), 1 / len(x))
        counts = np.zeros(len(x))
        counts[index] = 1
        if self._privacy is None and self.settings.exploration == "optimism":
            return index, counts
        values, directions = self._directions(x)
        draws = self._draws(number, directions.shape[1], NUM_DRAWS)[:, 1:]
        best = first_best((values[:, None] + directions @ draws).T)
        counts += np.bincount(best, minlength=len(x))
        return index, counts / NUM_DRAWS

    @one_blas_thread
    def expectations(self, actions: ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Return each action's expected reward, and half its interval, shape (K,).

        The interval is that of the confidence ball, of radius sqrt(beta). NaN in phase
        I, where nothing is believed yet, and where the model is not finite.
        """
        x = checked_actions(actions, self.model.dimension)
        if self.w0 is None:
            return np.full(len(x), np.nan), np.full(len(x), np.nan)
        values, directions = self._directions(x)
        ellipsoid, _ = self._ellipsoid()
        known = np.isfinite(values)
        mean, upper = np.full((2, len(x)), np.nan)
        radius = math.sqrt(self.settings.beta)
        mean[known] = values[known] + directions[known] @ ellipsoid.estimate
        bounds = ellipsoid.upper_bounds(directions[known], radius)
        upper[known] = values[known] + bounds
        width = upper - mean
        if self._privacy is not None:  # from [-1, 1] to the range of rewards
            low, high = self._privacy.reward_range
            half = (high - low) / 2
            mean, width = (low + high) / 2 + half * mean, half * width
        return mean, width

    def _directions(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return what rewards are made of: values, and directions, by action.

        Values are NaN where the model is not finite.
        """
        assert self.w0 is not None
        with np.errstate(over="ignore", invalid="ignore"):
            values, gradients = self.model.values_and_gradients(self.w0, x)
        finite = np.isfinite(values) & np.isfinite(gradients).all(axis=1)
        directions = np.where(finite[:, None], gradients, 0.0)
        if self._privacy is not None:
            values, directions = np.zeros(len(x)), self._features(directions)
        return np.where(finite, values, np.nan), directions

    @one_blas_thread
    def tell(self, action: ArrayLike, reward: float) -> None:
        """Record what an action, shape (D,), was rewarded with.

        Raises
        ------
        ValueError
            If either is not finite, or of another shape. Nothing is recorded then.
        FloatingPointError
            If the model is not finite there, in phase II: likewise.
        """
        x, y = checked_observation(action, reward, self.model.dimension)
        if self.w0 is None:
            self._seen.append((x, y))
        else:
            g, residual = self._evaluated(x, y)
            # A new array: the old one may be on its way to the server.
            self._own = self._own + self._product(g, residual)
            if self._privacy is None:  # else it acts on released sums only
                self._ellipsoid()[0].observe(g, residual)
                self._seen.append((g, residual))
        self._num_seen += 1

    @one_blas_thread
    def recall(self, actions: FloatArray, rewards: FloatArray) -> None:
        """Record evaluations that are not to be in the agent's own sums: see `resume`.

        One at which the model is not finite counts, and nothing is learned from it.

        Parameters
        ----------
        actions : ndarray of shape (n, D)
            Their actions, as `tell` takes them.
        rewards : ndarray of shape (n,)
            Their rewards.
        """
        self._num_seen += len(rewards)
        if self.w0 is None:
            self._seen += zip(actions, rewards.tolist(), strict=True)
        elif self._privacy is None:  # else it acts on released sums only
            # One by one: a batch rounds otherwise, and a decision would not repeat.
            for action, reward in zip(actions, rewards.tolist(), strict=True):
                try:
                    g, residual = self._evaluated(action, reward)
                except FloatingPointError:
                    g, residual = np.zeros(self.w0.shape), 0.0
                self._ellipsoid()[0].observe(g, residual)
                self._seen.append((g, residual))

    @one_blas_thread
    def added(self, action: ArrayLike, reward: float) -> FloatArray:
        """Return what an evaluation of phase II adds to the agent's sums.

        Raises
        ------
        ValueError, FloatingPointError
            As in `tell`.
        """
        x, y = checked_observation(action, reward, self.model.dimension)
        return self._product(*self._evaluated(x, y))

    def _product(self, g: FloatArray, residual: float) -> FloatArray:
        if self._privacy is None:
            return np.outer(np.append(g, residual), g)
        [product] = self._privacy.releases.outer_products([g], [residual])
        return np.asarray(product)

    def _evaluated(self, x: FloatArray, reward: float) -> tuple[FloatArray, float]:
        """Return gradient and residual, or features and clipped reward."""
        assert self.w0 is not None
        with np.errstate(over="ignore", invalid="ignore"):
            values, gradients = self.model.values_and_gradients(self.w0, x[None])
        if self._privacy is None:
            g, residual = gradients[0], float(reward - values[0])
        else:
            # The sensitivity needs that both are bounded, whatever model and trial.
            [g], residual = self._features(gradients), self._privacy.scaled(reward)
        if not (np.isfinite(g).all() and np.isfinite(residual)):
            raise FloatingPointError(f"The model is not finite at action={x}.")
        return g, residual

    @cached_property
    def _features(self) -> Callable[[FloatArray], FloatArray]:
        """Features in place of an action's gradient, with privacy; the same for all."""
        assert self.w0 is not None
        rng = generator(self._seed, Purpose.REFERENCE_POINTS)
        return reference_features(self.model, self.w0, len(self._own) - 1, rng)

    def _renew_features(self) -> None:
        """Make the features now: a model without any must not cost a release first."""
        vars(self).pop("_features", None)
        if self._privacy is not None and self.w0 is not None:
            _ = self._features

    # Phase I

    @one_blas_thread
    def regression_message(self, w: FloatArray) -> FloatArray:
        """Return the gradient by w of half the agent's mean squared error, at w.

        Parameters
        ----------
        w : ndarray of shape (d_w,)
            Parameters of the reward model.

        Returns
        -------
        ndarray of shape (d_w,), or (d_w + 1,)
            With the loss itself at its end, where the regression needs that.

        Raises
        ------
        RuntimeError
            If the agent is in phase II, or has seen nothing.
        ValueError
            If w is not so many numbers.
        """
        if self.w0 is not None or not self._seen:
            raise RuntimeError("There is a regression in phase I only, and with data.")
        # One for all trials: a model takes one for each, too, and by many of them a
        # server could have one trial counted as often.
        w, size = np.asarray(w, dtype=float), self.model.num_parameters
        require(w.shape == (size,), "w", w.shape, f"an array of shape ({size},)")
        x, y = (np.array(column) for column in zip(*self._seen, strict=True))
        with np.errstate(over="ignore", invalid="ignore"):  # the server refuses these
            values, gradients = self.model.values_and_gradients(w, x)
            error = values - y
            gradient = error @ gradients / len(error)
            loss = error @ error / (2 * len(error))
        needs_loss = self.settings.regression.needs_losses
        return np.append(gradient, loss) if needs_loss else gradient

    def start(self, w0: FloatArray) -> None:
        """Begin phase II.

        Parameters
        ----------
        w0 : ndarray of shape (d_w,)
            Parameters that phase I has found.

        Raises
        ------
        ValueError
            If it is not so many finite numbers.
        RuntimeError
            If phase II has begun already.
        FloatingPointError
            If the model's gradients tell no points apart, with privacy.
        """
        if self.w0 is not None:
            raise RuntimeError("Phase II has begun already.")
        w0, size = np.array(w0, dtype=float), self.model.num_parameters
        is_valid = w0.shape == (size,) and bool(np.isfinite(w0).all())
        require(is_valid, "w0", w0, f"{size} finite numbers")
        self.w0 = w0
        self._renew_features()
        self._seen, self._num_seen = [], 0

    def resume(self, total: FloatArray, num_included: int) -> None:
        """Go on in phase II from a total with so many own evaluations.

        Then `recall` the later ones. The agent's own sums are those of new ones only:
        whoever resumes it keeps the others.
        """
        self._total, self._num_included = np.array(total), num_included
        self._seen, self._num_seen, self._cached = [], num_included, None

    # Phase II

    def _ellipsoid(self) -> tuple[Ellipsoid, float]:
        """Return that of w - w0, and its log det V when it was synchronised last."""
        if self._cached is None:
            self._believe(self._ellipsoid_of(self._total))
        assert self._cached is not None
        return self._cached

    def _ellipsoid_of(self, total: FloatArray) -> Ellipsoid:
        """Return what a total alone says."""
        if self._privacy is not None:
            return posterior(total, self._noise_std)
        matrix = total[:-1] + self.settings.ridge * np.eye(len(self._own) - 1)
        return Ellipsoid(matrix, total[-1])

    def _believe(self, ellipsoid: Ellipsoid) -> None:
        """Go on from a total; without privacy also from own trials that it lacks."""
        self._cached = ellipsoid, float(ellipsoid.log_det)
        for g, residual in self._seen:
            ellipsoid.observe(g, residual)

    def _upper_bounds(self, x: FloatArray, number: int | None = None) -> FloatArray:
        """Return each action's largest reward within the ball; NaN if not finite."""
        assert self.w0 is not None
        number = self.num_evaluations if number is None else number
        values, gradients = self.model.values_and_gradients(self.w0, x)
        finite = np.isfinite(values) & np.isfinite(gradients).all(axis=1)
        bounds = np.full(len(x), np.nan)
        if not finite.any():
            return bounds
        x, values, gradients = x[finite], values[finite], gradients[finite]
        if self._privacy is not None:
            bounds[finite] = self._sampled(self._features(gradients), number)
        elif self.settings.exploration == "sampling":
            bounds[finite] = values + self._sampled(gradients, number)
        elif self.settings.num_refinements:
            bounds[finite] = self._refined(x, gradients)
        else:
            radius, (ellipsoid, _) = math.sqrt(self.settings.beta), self._ellipsoid()
            bounds[finite] = values + ellipsoid.upper_bounds(gradients, radius)
        return bounds

    def _sampled(self, features: FloatArray, number: int) -> FloatArray:
        """Return what a theta that is drawn from the posterior gives, shape (K,)."""
        return np.asarray(features @ self._draws(number, features.shape[1], 1)[:, 0])

    def _draws(self, number: int, size: int, num_draws: int) -> FloatArray:
        """Return parameters drawn from the posterior, shape (size, S)."""
        ellipsoid, _ = self._ellipsoid()
        key = (self._slot, number, Purpose.SURROGATE_SAMPLE)
        # By rows, so that the first one does not depend on their number.
        normal = generator(self._seed, *key).standard_normal((num_draws, size))
        spread = math.sqrt(self.settings.beta) * ellipsoid.unwhitened(normal.T)
        return np.asarray(ellipsoid.estimate[:, None] + spread)

    def _refined(self, x: FloatArray, gradients: FloatArray) -> FloatArray:
        """Return the largest f(x; w) on a projected gradient ascent, shape (K,).

        With w = w_hat + L'^-1 s, Sigma = L L', the ball is ||s|| <= sqrt(beta), and the
        gradient by s is L^-1 grad f. A step is as long as the ball's radius.
        """
        assert self.w0 is not None
        ellipsoid, _ = self._ellipsoid()
        centre, radius = self.w0 + ellipsoid.estimate, math.sqrt(self.settings.beta)
        s = np.zeros((len(centre), len(x)))
        best = np.full(len(x), np.nan)
        for _ in range(self.settings.num_refinements + 1):
            step = ellipsoid.whitened(gradients.T)
            norms = np.linalg.norm(step, axis=0)
            s = s + radius * step / np.fmax(norms, 1e-300)
            # Columns beyond the ball go to its nearest point.
            norms = np.linalg.norm(s, axis=0)
            s = s * np.fmin(1.0, radius / np.fmax(norms, 1e-300))
            w = centre + ellipsoid.unwhitened(s).T
            values, gradients = self.model.values_and_gradients(w, x)
            best = np.fmax(best, values)
        return best

    @property
    def num_in_sums(self) -> int:
        """Evaluations of phase II so far."""
        return 0 if self.w0 is None else self._num_seen

    @property
    def num_since(self) -> int:
        """Evaluations of phase II that are in no total which the agent has received."""
        return self.num_in_sums - self._num_included

    @one_blas_thread
    def wants_synchronisation(self) -> bool:
        """Return whether the agent has learned enough by itself; not in phase I.

        Nor with privacy: when to synchronise is not for raw data to say.
        """
        if self.num_since == 0 or self._privacy is not None:
            return False
        ellipsoid, before = self._ellipsoid()
        return self._trigger.fires(ellipsoid.log_det - before, self.num_since)

    @one_blas_thread
    def message(self, number: int | None = None) -> AgentReply:
        """Return the sums of the agent's own evaluations of phase II, to read only.

        Parameters
        ----------
        number : int, optional
            With privacy, which release it is, from 1; the next one unless given. One
            that was made already is returned.

        Raises
        ------
        ValueError, JournalError
            See `ContinualRelease.release`.
        """
        if self._privacy is None:
            return AgentReply(self.num_in_sums, self._own)
        k = self._released.num_released + 1 if number is None else number
        return AgentReply(self.num_in_sums, self._released.release(k, self._own))

    @cached_property
    def _released(self) -> ContinualRelease:
        assert self._privacy is not None
        return ContinualRelease(self._privacy.releases, self._entropy, self._journal)

    def receive(self, total: FloatArray, num_included: int = 0) -> None:
        """Take the sums over all agents.

        Parameters
        ----------
        total : ndarray
            Has the shape of `AgentReply.values`.
        num_included : int
            Number of the agent's own evaluations in it: of a message of its own. Plays
            no part with privacy, as the agent adds none of its own.

        Raises
        ------
        ValueError
            If ``total`` is malformed or ``num_included`` is out of range.
        numpy.linalg.LinAlgError
            If no w can be told from it: it is not positive definite, or w would be
            farther from w0 than any honest sum takes it. What was received before is
            kept.
        """
        total = np.asarray(total, dtype=float)
        shape = self._own.shape
        expected = f"sums of shape {shape}, finite and symmetric"
        require(is_sum(total, shape), "total", total.shape, expected)
        if self._privacy is not None:
            num_included = self._num_included
        known = self.num_in_sums
        is_valid = self._num_included <= num_included <= known
        expected = f"from {self._num_included} to {known}"
        require(is_valid, "num_included", num_included, expected)
        ellipsoid = self._ellipsoid_of(total)
        start = 0.0 if self.w0 is None else np.linalg.norm(self.w0)
        farthest = _FARTHEST * (1 + start)
        if not np.linalg.norm(ellipsoid.estimate) <= farthest:
            raise np.linalg.LinAlgError("The total's estimate is out of bounds.")
        newly, self._num_included = num_included - self._num_included, num_included
        self._total, self._cached = total, None
        if self.w0 is not None:  # else it has missed the end of phase I
            self._seen = self._seen[newly:]
            self._believe(ellipsoid)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the agent's memory, as arrays."""
        size = self.model.dimension if self.w0 is None else self._own.shape[0] - 1
        state = {
            "inputs": np.array([x for x, _ in self._seen]).reshape(-1, size),
            "outputs": np.array([y for _, y in self._seen]),
            "own": self._own,
            "total": self._total,
            "num_included": np.array(self._num_included),
            "num_seen": np.array(self._num_seen),
        }
        return state if self.w0 is None else {**state, "w0": self.w0}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from what ``state_dict`` returned."""
        w0 = state.get("w0")
        self.w0 = None if w0 is None else np.array(w0)
        pairs = zip(state["inputs"], state["outputs"].tolist(), strict=True)
        self._seen = [(np.array(x), y) for x, y in pairs]
        self._own, self._total = np.array(state["own"]), np.array(state["total"])
        self._num_included = int(state["num_included"])
        self._num_seen = int(state["num_seen"])
        self._cached = None
        self._renew_features()


def checked_actions(actions: ArrayLike, dimension: int) -> FloatArray:
    """Return actions as an array of shape (K, D).

    Raises
    ------
    ValueError
        If there are none, or they have other coordinates.
    """
    x = np.asarray(actions, dtype=float)
    is_valid = x.ndim == 2 and len(x) > 0 and x.shape[1] == dimension
    allowed = f"an array of shape (K, {dimension}) with K >= 1"
    require(is_valid, "actions", x.shape, allowed)
    return x


def checked_observation(
    action: ArrayLike, reward: float, dimension: int
) -> tuple[FloatArray, float]:
    """Return an action as an array of shape (D,), and its reward.

    Raises
    ------
    ValueError
        If either is not finite, or of another shape.
    """
    x = np.asarray(action, dtype=float)
    is_valid = x.shape == (dimension,) and bool(np.isfinite(x).all())
    require(is_valid, "action", action, f"{dimension} finite numbers")
    require(math.isfinite(reward), "reward", reward, "a finite number")
    return x, float(reward)
