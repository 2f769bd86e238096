"""The agent of Fed-GO-UCB with privacy: what it sends has noise of its own.

Not in the paper. It differs from `flwr_fbo.algorithms.fed_go_ucb.agent` in that

- phase I is left out: gradients of hundreds of numbers drown in their noise, and
  networks fitted by them were worse than random ones. So w0 is where the regression
  would start, which all agents know, and f(x; w0) is left out of what is learned;
- an action has a few features (`models.reference_features`) in place of the network's
  gradient, which noise would cover, and its reward is clipped;
- agents send by a public schedule;
- an agent acts on released totals only, its own trials in between are not used. What it
  believes is a posterior that knows how large the noise is (`models.noisy_sums`);
- it draws its estimate from that, N(theta_hat, beta V^-1), and plays the best action
  for it; before the first total from the prior. The most optimistic estimate would be
  the same for all agents and all trials between two totals, and so teach nothing. The
  draws' seed is known to all, and no secret.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo._common.validation import require
from flwr_fbo.algorithms.fed_go_ucb.agent import FedGOUCBAgent
from flwr_fbo.algorithms.fed_go_ucb.settings import AgentReply, FedGOUCBSettings
from flwr_fbo.journal.journal import Journal
from flwr_fbo.models.ellipsoid import Ellipsoid
from flwr_fbo.models.network import RewardModel
from flwr_fbo.models.noisy_sums import posterior
from flwr_fbo.models.reference_features import CONSTANT_SHARE, ReferenceFeatures
from flwr_fbo.models.threads import one_blas_thread
from flwr_fbo.privacy.continual import ContinualRelease
from flwr_fbo.privacy.neural_privacy import NeuralPrivacy
from flwr_fbo.privacy.noise import Entropy

# Of rewards in [-1, 1]: the prior variance of what the features without the constant
# add, and that of a reward about what the features say.
_PRIOR_VARIANCE = 0.25
_REWARD_VARIANCE = 0.05


class PrivateFedGOUCBAgent(FedGOUCBAgent):
    """As `FedGOUCBAgent` in phase II, with sums that are released.

    Formal guarantees
    -----------------
    Those of `NeuralPrivacy`, for all that `message` returns. What `choose` returns is a
    function of released totals and of public randomness. Not covered: ``state_dict``,
    which holds raw trials, and stays with the agent.

    Parameters
    ----------
    settings : FedGOUCBSettings
        With ``privacy``, and its ``num_features``.
    model, seed, slot
        See `FedGOUCBAgent`.
    num_agents : int
        N, whose releases are in a total.
    entropy : Entropy, optional
        Where the noise comes from; none is needed without noise.
    journal : Journal, optional
        Of this agent: holds its releases.
    """

    def __init__(
        self,
        settings: FedGOUCBSettings,
        model: RewardModel,
        seed: int,
        slot: int,
        num_agents: int,
        entropy: Entropy | None = None,
        journal: Journal | None = None,
    ) -> None:
        privacy = settings.privacy
        ok = isinstance(privacy, NeuralPrivacy)
        require(ok, "settings.privacy", privacy, "NeuralPrivacy")
        assert privacy is not None
        releases = privacy.releases
        self._scaled = privacy.scaled
        self._sums = ContinualRelease(releases, entropy, journal)
        # Of the last total: less for those before it, and if agents are away.
        self._noise_std = math.sqrt(num_agents) * releases.largest_std(1)
        variances = np.full(releases.dimension, _PRIOR_VARIANCE)
        variances[0] = 1 / CONSTANT_SHARE  # any mean reward from -1 to 1
        self._prior_variances = variances
        super().__init__(settings, model, seed, slot)

    @property
    def num_released(self) -> int:
        """How many sums it has released."""
        return self._sums.num_released

    @one_blas_thread
    def message(self, number: int | None = None) -> AgentReply:
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
        return AgentReply(self.num_in_sums, self._sums.release(k, self._own))

    def wants_synchronisation(self) -> bool:
        """Return False: when to synchronise is not for raw data to say."""
        return False

    def start(self, w0: FloatArray) -> None:
        """Begin phase II; see `FedGOUCBAgent.start`."""
        super().start(w0)
        self._set_features()

    def _set_features(self) -> None:
        assert self.w0 is not None
        rng = generator(self._seed, Purpose.REFERENCE_POINTS)
        size = self._sums.settings.dimension
        self._features = ReferenceFeatures(self.model, self.w0, size, rng)

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from what ``state_dict`` returned."""
        super().load_state_dict(state)
        self._set_features()

    def receive(self, total: FloatArray, num_included: int = 0) -> None:
        """Take the sum of all agents' releases, shape (k + 1, k + 1).

        Which of its own trials are in it plays no part, as it adds none.
        """
        super().receive(total, self._num_included)

    def _observe(self, x: FloatArray, reward: float) -> None:
        assert self.w0 is not None
        with np.errstate(over="ignore", invalid="ignore"):
            _, gradients = self.model.values_and_gradients(self.w0, x[None])
        [phi] = self._features(gradients)
        if not np.isfinite(phi).all():
            raise FloatingPointError(f"The model is not finite at action={x}.")
        y = self._scaled(reward)
        # A new array, as the old one may be in use.
        self._own = self._own + self._sums.settings.outer_products([phi], [y])[0]
        self._seen.append((phi, y))

    def leave_out(self) -> None:
        """Count a trial that is in no release."""
        self._seen.append((np.zeros(self._sums.settings.dimension), 0.0))

    def _ellipsoid_of(self, total: FloatArray) -> Ellipsoid:
        return posterior(
            total, self._noise_std, self._prior_variances, _REWARD_VARIANCE
        )

    def _believe(self, ellipsoid: Ellipsoid) -> None:
        """Go on from what a total says alone: own raw trials are not acted on."""
        self._cached = ellipsoid, float(ellipsoid.log_det)

    def _finite_bounds(
        self, x: FloatArray, values: FloatArray, gradients: FloatArray
    ) -> FloatArray:
        """Return each action's reward for a theta that is drawn from the posterior."""
        ellipsoid, _ = self._ellipsoid()
        key = (self._slot, self.num_in_sums, Purpose.SURROGATE_SAMPLE)
        draw = generator(self._seed, *key).standard_normal((len(self._own) - 1, 1))
        spread = math.sqrt(self.settings.beta) * ellipsoid.unwhitened(draw)[:, 0]
        return np.asarray(self._features(gradients) @ (ellipsoid.estimate + spread))
