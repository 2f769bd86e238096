"""What the agents of Fed-GO-UCB may send, where it is to be private.

Not in the paper, whose agents send gradients and sums as they are. Here both phases are
released by mechanisms, each at the whole epsilon: see `NeuralPrivacy`.
"""

from __future__ import annotations

from dataclasses import dataclass

from flwr_fbo._validation import require, require_int
from flwr_fbo.privacy.continual_settings import ContinualSettings
from flwr_fbo.privacy.factorisation import Mechanism
from flwr_fbo.privacy.gradients import GradientSettings


@dataclass(frozen=True)
class NeuralPrivacy:
    """Privacy of one trial of an agent, in both phases.

    Examples
    --------
    >>> from flwr_fbo import NeuralPrivacy
    >>> privacy = NeuralPrivacy(epsilon=8.0, delta=1e-3, num_synchronisations=4)
    >>> privacy.schedule(num_evaluations=20)  # after which of them sums are released
    (4, 8, 12, 16)

    Formal guarantees
    -----------------
    Adjacency: two runs are neighbours if they differ in *one trial* of one agent,
    action and reward, replaced by others. All that the agent sends is (epsilon, delta)-
    DP under it: a trial is either in the gradients of phase I (`GradientRelease`) or in
    the sums of phase II (`ContinualRelease`), which is public, and each of the two is
    (epsilon, delta)-DP by itself, adaptively. A trial of phase I changes later ones
    through what was released only, as exploration does not look at rewards; and in
    phase II agents act on released totals only, never on their own raw trials. When
    agents send is a public schedule: the paper's trigger looks at raw data.

    Gradients, features and residuals are clipped, so that the promise holds whatever w
    and w0 the server sends. See the two mechanisms for what is not covered.

    Attributes
    ----------
    epsilon : float
        Epsilon, from 1e-3 to 1e3; inf clips and keeps the schedule, without noise.
    delta : float
        Delta, from 1e-15 to below 1.
    num_synchronisations : int
        Number n >= 1 of synchronisations in phase II, evenly spaced. More of them mean
        more noise in each.
    regression_clip : float
        Clipping norm C of a trial's gradient in phase I.
    num_features : int
        Number k of features of an action in phase II, from 2 to 1000. They replace the
        network's gradients; see `flwr_fbo.models.reference_features`.
    feature_clip, residual_clip : float
        Clipping norms L and B of phase II: of an action's features, which have mean
        square 1 over the unit cube, and of the residual y - f(x; w0). Noise grows with
        L^2 + B^2.
    mechanism : {"toeplitz", "tree", "tree-honaker"}
        Factorisation of phase II; see `flwr_fbo.privacy.factorisation`.
    """

    epsilon: float
    delta: float
    num_synchronisations: int = 4
    regression_clip: float = 1.0
    num_features: int = 16
    feature_clip: float = 1.0
    residual_clip: float = 1.0
    mechanism: Mechanism = "toeplitz"

    def __post_init__(self) -> None:
        require_int("num_synchronisations", self.num_synchronisations, 1)
        require_int("num_features", self.num_features, 2)
        _ = self.releases, self.gradients(1, 1)  # which name what they do not allow

    @property
    def releases(self) -> ContinualSettings:
        """The mechanism's settings in phase II."""
        return ContinualSettings(
            self.num_synchronisations,
            self.num_features,
            self.epsilon,
            self.delta,
            max_action_norm=self.feature_clip,
            max_reward=self.residual_clip,
            mechanism=self.mechanism,
        )

    def gradients(self, num_steps: int, num_parameters: int) -> GradientSettings:
        """Return the mechanism's settings in phase I, for so many steps."""
        return GradientSettings(
            num_steps, num_parameters, self.epsilon, self.delta, self.regression_clip
        )

    def schedule(self, num_evaluations: int) -> tuple[int, ...]:
        """Return after how many evaluations of phase II each release is made.

        Evenly spaced, the last one early enough to be acted on.

        Raises
        ------
        ValueError
            If there are more releases than evaluations to act on them.
        """
        n = self.num_synchronisations
        allowed = f"below the {num_evaluations} evaluations of phase II"
        require(n < num_evaluations, "num_synchronisations", n, allowed)
        return tuple(k * num_evaluations // (n + 1) for k in range(1, n + 1))
