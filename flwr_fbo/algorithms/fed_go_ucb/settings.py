"""Settings of Fed-GO-UCB, and what an agent answers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Self

from flwr_fbo._common.fields import check_fields, instance, integer, positive
from flwr_fbo._common.validation import require
from flwr_fbo.models.langevin import LangevinSettings
from flwr_fbo.privacy.neural_privacy import NeuralPrivacy


@dataclass(frozen=True)
class FedGOUCBSettings:
    """Settings that all agents of a study share, except the model.

    The defaults were found on Hartmann-6 with rewards of noise 0.01, 20 agents and 100
    rounds. A small ridge lets the linearised network bend: what it cannot bend to, the
    agents never try.

    Examples
    --------
    >>> from flwr_fbo import NeuralPrivacy, FedGOUCBSettings
    >>> privacy = NeuralPrivacy(epsilon=8.0, delta=1e-3, num_features=16)
    >>> settings = FedGOUCBSettings(privacy=privacy)
    >>> settings.num_random_actions  # phase I is left out
    0
    >>> settings.sums_shape(num_parameters=76)
    (17, 17)

    Attributes
    ----------
    num_exploration : int, optional
        Number >= 0 of random actions of each agent in phase I. The paper's T0 is of all
        agents together. With 0 phase I is left out: w0 is the start of the regression.
        With None it is 1, or 0 with privacy, where no other number is allowed.
    regression : LangevinSettings
        Settings of phase I. With privacy only ``start`` has an effect.
    ridge : float
        Regularisation lambda > 0. With privacy it has no effect, as there is a prior.
    beta : float
        Squared radius > 0 of the confidence ball: a constant. The radius of the theory
        (lemma 8) is too large in practice, and that of the experiments is not printed.
        With privacy the factor of the posterior's covariance in what agents draw.
    threshold : float
        Threshold gamma > 0 of the trigger: a larger one means fewer synchronisations.
        With privacy it has no effect, as synchronisations follow a public schedule.
    num_refinements : int
        >= 0. With 0 an action's bound is that of the network linearised at w0. Else it
        is a value of the network itself, as in line 3 of algorithm 1: the largest at so
        many points of the ball, and one, on a projected gradient ascent that starts
        where the linear one is largest.
        The ball is about the linearised network: far out in it the network itself may
        give a well-known action a large value, and does on Hartmann-6, where agents
        with 3 do no better than DisLinUCB.
    privacy : NeuralPrivacy, optional
        Privacy of each trial. With None agents send gradients and sums of raw
        evaluations, as in the paper. See
        `flwr_fbo.algorithms.fed_go_ucb.agent`.
    """

    num_exploration: int | None = field(
        default=None, metadata=integer(0, optional=True, cap="max_trials")
    )
    regression: LangevinSettings = field(
        default_factory=LangevinSettings,
        metadata=instance(
            LangevinSettings, allowed="LangevinSettings", part=LangevinSettings
        ),
    )
    ridge: float = field(default=1e-5, metadata=positive())
    beta: float = field(default=0.1, metadata=positive())
    threshold: float = field(default=2.0, metadata=positive())
    num_refinements: int = field(default=0, metadata=integer(0))
    privacy: NeuralPrivacy | None = field(
        default=None,
        metadata=instance(
            NeuralPrivacy, allowed="NeuralPrivacy", optional=True, part=NeuralPrivacy
        ),
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.privacy is not None:
            steps = self.num_refinements
            require(steps == 0, "num_refinements", steps, "0, with privacy")
            explored = self.num_exploration
            allowed = "0, with privacy: gradients are not released"
            require(explored in (None, 0), "num_exploration", explored, allowed)

    @property
    def num_random_actions(self) -> int:
        """Random actions of each agent in phase I, by ``num_exploration``."""
        if self.num_exploration is not None:
            return self.num_exploration
        return 1 if self.privacy is None else 0

    @property
    def largest_uniform_share(self) -> float:
        """The largest share of decisions that is made without regard to rewards.

        All of them, where there is a phase I: the server says when it is over.
        """
        return 1.0 if self.num_random_actions > 0 else 0.0

    def for_study(self, num_agents: int, num_evaluations: int) -> Self:
        """Return these settings with all that depends on the size of a study.

        Raises
        ------
        ValueError
            See `NeuralPrivacy.for_study`.
        """
        if self.privacy is None:
            return self
        privacy = self.privacy.for_study(num_agents, num_evaluations)
        return replace(self, privacy=privacy)

    def sums_shape(self, num_parameters: int) -> tuple[int, int]:
        """Return the shape of an agent's sums: see `AgentReply`."""
        if self.privacy is None:
            return num_parameters + 1, num_parameters
        size = self.privacy.releases.dimension + 1
        return size, size


@dataclass(frozen=True, eq=False)
class AgentReply:
    """What an agent has answered: the sums of phase II, or what was asked in phase I.

    Attributes
    ----------
    num_evaluations : int
        Number of evaluations of phase II so far, those in ``values``.
    values : ndarray of shape (d_w + 1, d_w), or (k + 1, k + 1) with privacy, or None
        Sum of g g', and in the last row of g (y - f(x; w0)). With privacy a release of
        the sum of z z', z an action's k features and its clipped reward. In phase I the
        gradient. None where nothing was asked for, or nothing has come.
    wants_synchronisation : bool
        Whether the agent has learned enough by itself.
    """

    num_evaluations: int
    values: Any
    wants_synchronisation: bool = False
