"""The agent of Fed-GO-UCB with privacy: what it sends has noise of its own.

Not in the paper. It differs from `flwr_fbo.agents.bandits.fed_go_ucb` in that

- the gradients of phase I and the sums of phase II go through a mechanism each, and
  what comes of a trial is clipped;
- agents send by a public schedule;
- in phase II an action has a few features (`models.reference_features`) in place of the
  network's gradient, which noise would cover;
- an agent acts on released totals only, its own trials in between are not used. Its
  ellipsoid is that of `Confidence`: noise can leave the total with eigenvalues
  below 0, so the total is shifted by twice what bounds its noise;
- it draws its estimate from that ellipsoid, N(theta_hat, beta V^-1), and plays the best
  action for it. The most optimistic estimate would be the same for all agents and all
  trials between two totals, and so teach nothing. The draws' seed is known to all, and
  no secret.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._arrays import FloatArray
from flwr_fbo._random import Purpose, generator
from flwr_fbo._validation import require
from flwr_fbo.agents.bandits.fed_go_ucb import NeuralUCBAgent
from flwr_fbo.journal.journal import Journal
from flwr_fbo.models.ellipsoid import Ellipsoid
from flwr_fbo.models.network import RewardModel
from flwr_fbo.models.reference_features import ReferenceFeatures
from flwr_fbo.models.threads import one_blas_thread
from flwr_fbo.privacy.continual import ContinualRelease
from flwr_fbo.privacy.gradients import GradientRelease, clipped
from flwr_fbo.privacy.neural_privacy import NeuralPrivacy
from flwr_fbo.privacy.noise import Entropy, SeededEntropy
from flwr_fbo.protocol.confidence import Confidence
from flwr_fbo.protocol.linear_ucb_settings import LinearUCBSettings
from flwr_fbo.protocol.neural_ucb_settings import NeuralUCBSettings, Sums


class PrivateNeuralUCBAgent(NeuralUCBAgent):
    """As `NeuralUCBAgent`, with messages that are released.

    Formal guarantees
    -----------------
    Those of `NeuralPrivacy`, for all that `regression_message` and `message` return.
    What `choose` returns is a function of these and of public randomness. Not covered:
    ``state_dict``, which holds raw trials, and stays with the agent.

    Parameters
    ----------
    settings : NeuralUCBSettings
        With ``privacy``.
    model, seed, slot
        See `NeuralUCBAgent`.
    num_agents : int
        N, whose releases are in a total.
    entropy : tuple of Entropy, optional
        Where the noise of each phase comes from; none is needed without noise.
    journal : Journal, optional
        Of this agent: holds its releases.
    """

    def __init__(
        self,
        settings: NeuralUCBSettings,
        model: RewardModel,
        seed: int,
        slot: int,
        num_agents: int,
        entropy: tuple[Entropy, Entropy] | None = None,
        journal: Journal | None = None,
    ) -> None:
        privacy, size = settings.privacy, model.num_parameters
        ok = isinstance(privacy, NeuralPrivacy)
        require(ok, "settings.privacy", privacy, "NeuralPrivacy")
        assert privacy is not None
        steps = settings.regression.num_iterations
        first, second = (None, None) if entropy is None else entropy
        self._gradients = GradientRelease(
            privacy.gradients(steps, size), first, journal
        )
        self._sums = ContinualRelease(privacy.releases, second, journal, after=steps)
        linear = LinearUCBSettings(privacy.releases, ridge=settings.ridge)
        self._belief = Confidence.of(linear, num_agents)
        super().__init__(settings, model, seed, slot)

    @property
    def num_released(self) -> tuple[int, int]:
        """How many gradients, and sums, it has released."""
        return self._gradients.num_released, self._sums.num_released

    @one_blas_thread
    def regression_message(self, w: FloatArray, step: int | None = None) -> FloatArray:
        """Return the release of the clipped gradient at w, over the number of trials.

        Parameters
        ----------
        w : ndarray of shape (d_w,)
        step : int, optional
            From 1; the next one unless given. For one that was released already that
            is returned, wherever w is now.

        Raises
        ------
        RuntimeError
            If the agent is in phase II, or has seen nothing.
        ValueError
            If there is no such step, or w is not so many numbers.
        """
        error, gradients = self._errors(w)
        with np.errstate(over="ignore", invalid="ignore"):  # counts as zero
            own = self._gradients.settings.clipped_sum(error[:, None] * gradients)
        k = self._gradients.num_released + 1 if step is None else step
        return self._gradients.release(k, own) / len(error)

    @one_blas_thread
    def message(self, number: int | None = None) -> Sums:
        """Return a release of the agent's sums.

        Parameters
        ----------
        number : int, optional
            From 1; the next one unless given. One that was made already is returned.

        Raises
        ------
        ValueError, JournalError
            See `ContinualRelease.release`.
        """
        k = self._sums.num_released + 1 if number is None else number
        return Sums(self.num_in_sums, self._sums.release(k, self._own))

    def wants_synchronisation(self) -> bool:
        """Return False: when to synchronise is not for raw data to say."""
        return False

    def start(self, w0: FloatArray) -> None:
        """Begin phase II; see `NeuralUCBAgent.start`."""
        super().start(w0)
        self._set_features()

    def _set_features(self) -> None:
        assert self.w0 is not None
        rng = generator(self._seed, Purpose.REFERENCE_POINTS)
        size = self._bounds.num_features
        self._features = ReferenceFeatures(self.model, self.w0, size, rng)

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from what ``state_dict`` returned."""
        super().load_state_dict(state)
        if self.w0 is not None:
            self._set_features()

    def receive(self, total: FloatArray, num_included: int = 0) -> None:
        """Take the sum of all agents' releases, shape (k + 1, k + 1).

        Which of its own trials are in it plays no part, as it adds none.
        """
        super().receive(total, self._num_included)

    def _observe(self, x: FloatArray, reward: float) -> None:
        assert self.w0 is not None
        with np.errstate(over="ignore", invalid="ignore"):
            values, gradients = self.model.values_and_gradients(self.w0, x[None])
        [phi] = clipped(self._features(gradients), self._bounds.feature_clip)
        [[residual]] = clipped([[reward - values[0]]], self._bounds.residual_clip)
        # A new array, as the old one may be in use.
        self._own = self._own + self._sums.settings.outer_products([phi], [residual])[0]
        self._seen.append((phi, float(residual)))

    @property
    def _bounds(self) -> NeuralPrivacy:
        assert self.settings.privacy is not None
        return self.settings.privacy

    def _ellipsoid_of(self, total: FloatArray) -> Ellipsoid:
        return self._belief.ellipsoid(total)

    def _believe(self, ellipsoid: Ellipsoid) -> None:
        """Go on from what a total says alone: own raw trials are not acted on."""
        self._cached = ellipsoid, float(ellipsoid.log_det)

    def _finite_bounds(
        self, x: FloatArray, values: FloatArray, gradients: FloatArray
    ) -> FloatArray:
        """Return each action's reward for a w that is drawn from the ellipsoid."""
        features = clipped(self._features(gradients), self._bounds.feature_clip)
        ellipsoid, _ = self._ellipsoid()
        key = (self._slot, self.num_in_sums, Purpose.SURROGATE_SAMPLE)
        draw = generator(self._seed, *key).standard_normal((features.shape[1], 1))
        spread = math.sqrt(self.settings.beta) * ellipsoid.unwhitened(draw)[:, 0]
        return np.asarray(values + features @ (ellipsoid.estimate + spread))


def seeded_entropy(noise_seed: int, slot: int) -> tuple[SeededEntropy, SeededEntropy]:
    """Return entropy of an agent's two phases that repeats: *experiments only*."""
    return SeededEntropy(noise_seed, slot, 1), SeededEntropy(noise_seed, slot, 2)
