"""Settings of Fed-GO-UCB, its privacy, and what an agent answers.

Privacy is not in the paper, whose agents send gradients and sums as they are. Here
agents release the sums of phase II by `ContinualRelease`, and leave phase I out: see
`flwr_fbo.bandits.fed_go_ucb.agent`.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from flwr_fbo._common.fields import (
    check_fields,
    choice,
    instance,
    integer,
    number,
)
from flwr_fbo._common.validation import require
from flwr_fbo.bandits.linear.settings import RewardTimeout
from flwr_fbo.models.langevin_regression import LangevinSettings
from flwr_fbo.privacy.continual_settings import REWARD_RANGE, ContinualSettings
from flwr_fbo.privacy.factorisation import Mechanism
from flwr_fbo.privacy.gaussian import DELTA, EPSILON

_log = logging.getLogger("flwr.fbo")

NeuralExploration = Literal["sampling", "optimism"]

# How often what trials add to a feature's direction is the noise's spectral norm there.
_SIGNAL_TO_NOISE = 2.0
_MOST_FEATURES = 64
# With fewer features regret was hardly below that of random play.
_FEW_FEATURES = 10


@dataclass(frozen=True)
class NeuralPrivacy:
    """Privacy of one trial of an agent.

    Examples
    --------
    >>> from flwr_fbo.bandits import NeuralPrivacy
    >>> privacy = NeuralPrivacy(epsilon=8.0, delta=1e-3, num_synchronisations=4)
    >>> privacy.schedule(num_evaluations=20)  # after which of them sums are released
    (4, 8, 12, 16)
    >>> privacy.for_study(num_agents=100, num_evaluations=100).num_features
    28

    Formal guarantees
    -----------------
    Adjacency: two runs are neighbours if they differ in *one trial* of one agent,
    action and reward, replaced by others. All that the agent sends is (epsilon, delta)-
    DP under it: sums that `ContinualRelease` releases, adaptively. Agents act on
    released totals only, never on their own raw trials. When agents send is a public
    schedule: the paper's trigger looks at raw data.

    An action's features have norm 1 by construction, and its reward is clipped, so that
    the promise holds whatever reward model and actions there are. See
    `ContinualRelease` for what is not covered.

    Attributes
    ----------
    epsilon : float
        Epsilon, from 1e-3 to 1e3; inf clips and keeps the schedule, without noise.
    delta : float
        Delta, from 1e-15 to below 1.
    num_synchronisations : int
        Number n >= 1 of synchronisations, evenly spaced. More of them mean more noise
        in each.
    num_features : int, optional
        Number k of features of an action, from 2 to 1000. They replace the network's
        gradients; see `flwr_fbo.models.network`. With None the most that the
        noise allows, at most 64: see `for_study`.
    reward_range : tuple of two floats
        Lowest and highest reward that count, from -1e6 to 1e6: rewards are clipped to
        this range, which is mapped to [-1, 1]. Most rewards should lie in it, and fill
        it. The range is public, so do not read it off private data.
    mechanism : {"toeplitz", "tree", "tree-honaker"}
        Factorisation of the running sums; see `flwr_fbo.privacy.factorisation`.
    """

    epsilon: float = field(metadata=EPSILON)
    delta: float = field(metadata=DELTA)
    num_synchronisations: int = field(
        default=10, metadata=integer(1, cap="max_synchronisations")
    )
    num_features: int | None = field(
        default=None, metadata=integer(2, optional=True, cap="max_features")
    )
    reward_range: tuple[float, float] = field(
        default=(-1.0, 1.0), metadata=REWARD_RANGE
    )
    mechanism: Mechanism = field(default="toeplitz", metadata=choice(Mechanism))

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "reward_range", tuple(self.reward_range))
        self._releases_of(self.num_features or 2)  # which names what it does not allow

    def scaled(self, reward: float) -> float:
        """Return a finite reward, clipped to the range and mapped to [-1, 1]."""
        low, high = self.reward_range
        scaled = (reward - (low + high) / 2) / ((high - low) / 2)
        return min(max(scaled, -1.0), 1.0)

    @property
    def releases(self) -> ContinualSettings:
        """The mechanism's settings.

        Raises
        ------
        ValueError
            If ``num_features`` is None.
        """
        k = self.num_features
        require(k is not None, "num_features", k, "a number here: see for_study")
        assert k is not None
        return self._releases_of(k)

    def _releases_of(self, num_features: int) -> ContinualSettings:
        return ContinualSettings(
            self.num_synchronisations,
            num_features,
            self.epsilon,
            self.delta,
            mechanism=self.mechanism,
        )

    def for_study(self, num_agents: int, num_evaluations: int) -> Self:
        """Return these settings with a number of features.

        The given one, or else the largest k <= 64 with

            M / k >= 2 s sqrt(2 k),

        where M is the number of trials in the last total, and s the noise's standard
        deviation on its diagonal. *Why.* M trials of norm 1 add M / k to a direction on
        average, and s sqrt(2 k) is about the spectral norm of the noise. So k is the
        largest number of directions that are told from noise. A heuristic: it has no
        part in the guarantee, and looks at no data.

        Parameters
        ----------
        num_agents : int
            Number N of agents, >= 1.
        num_evaluations : int
            T of each agent.

        Raises
        ------
        ValueError
            If there are more releases than evaluations to act on them.
        """
        last = self.schedule(num_evaluations)[-1]
        if self.num_features is not None:
            return self
        std = float(self._releases_of(2).release_std()[-1])
        signal, noise = num_agents * last, std * math.sqrt(num_agents)
        num_features = _MOST_FEATURES
        if noise > 0:
            root = signal / (_SIGNAL_TO_NOISE * math.sqrt(2) * noise)
            num_features = min(num_features, int(root ** (2 / 3)))
        if num_features < _FEW_FEATURES:
            _log.warning(
                "With epsilon=%g, %d agents and %d evaluations the noise allows %d "
                "features only: agents will hardly do better than random play. A "
                "larger epsilon, more agents or more evaluations allow more.",
                self.epsilon,
                num_agents,
                num_evaluations,
                num_features,
            )
        return replace(self, num_features=max(num_features, 2))

    def schedule(self, num_evaluations: int) -> tuple[int, ...]:
        """Return after how many evaluations each release is made.

        Evenly spaced, the last one early enough to be acted on.

        Raises
        ------
        ValueError
            If there are more releases than evaluations to act on them.
        """
        n = self.num_synchronisations
        expected = f"below the {num_evaluations} evaluations of an agent"
        require(n < num_evaluations, "num_synchronisations", n, expected)
        return tuple(k * num_evaluations // (n + 1) for k in range(1, n + 1))


@dataclass(frozen=True)
class FedGOUCBSettings:
    """Settings that all agents of a study share, except the model.

    The defaults were found on Hartmann-6 with rewards of noise 0.01, 20 agents and 100
    rounds. A small ridge lets the linearised network bend: what it cannot bend to, the
    agents never try.

    Examples
    --------
    >>> from flwr_fbo.bandits import FedGOUCBSettings, NeuralPrivacy
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
        Regularisation lambda, from 1e-15 to 1e15. With privacy it has no effect, as
        there is a prior.
    beta : float
        Squared radius of the confidence ball, or the factor of the covariance in what
        agents draw, from 1e-15 to 1e15: a constant. The radius of the theory (lemma 8)
        is too large in practice, and that of the experiments is not printed.
    threshold : float
        Threshold gamma of the trigger, from 1e-12 to 1e12: a larger one means fewer
        synchronisations. With privacy it has no effect, as synchronisations follow a
        public schedule.
    exploration : {"sampling", "optimism"}
        Choice of an agent in phase II. ``"sampling"``: the best action for parameters
        that it draws from N(w_hat, beta Sigma^-1). ``"optimism"``, as published: the
        one with the largest reward within the ball. Agents that choose at the same
        time, as in Flower, then all choose the same one; in the paper they take turns.
        With privacy it is ``"sampling"``.
    num_refinements : int
        >= 0, above 0 with ``exploration="optimism"`` only. With 0 an action's bound is
        that of the network linearised at w0. Else it is a value of the network itself,
        as in line 3 of algorithm 1: the largest at so many points of the ball, and one,
        on a projected gradient ascent that starts where the linear one is largest.
        The ball is about the linearised network: far out in it the network itself may
        give a well-known action a large value, and does on Hartmann-6, where agents
        with 3 do no better than DisLinUCB.
    privacy : NeuralPrivacy, optional
        Privacy of each trial. With None agents send gradients and sums of raw
        evaluations, as in the paper. See
        `flwr_fbo.bandits.fed_go_ucb.agent`.
    reward_timeout : RewardTimeout, optional
        Waiting time after which a reward that has not come is taken as known. Unless
        given a decision without a reward is never part of what is sent.
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
    ridge: float = field(default=1e-5, metadata=number(1e-15, 1e15))
    beta: float = field(default=0.1, metadata=number(1e-15, 1e15))
    threshold: float = field(default=2.0, metadata=number(1e-12, 1e12))
    exploration: NeuralExploration = field(
        default="sampling", metadata=choice(NeuralExploration)
    )
    num_refinements: int = field(default=0, metadata=integer(0))
    privacy: NeuralPrivacy | None = field(
        default=None,
        metadata=instance(
            NeuralPrivacy, allowed="NeuralPrivacy", optional=True, part=NeuralPrivacy
        ),
    )
    reward_timeout: RewardTimeout | None = field(
        default=None,
        metadata=instance(RewardTimeout, optional=True, part=RewardTimeout),
    )

    def __post_init__(self) -> None:
        check_fields(self)
        optimistic, steps = self.exploration == "optimism", self.num_refinements
        expected = "0, unless exploration is 'optimism'"
        require(optimistic or steps == 0, "num_refinements", steps, expected)
        if self.privacy is not None:
            expected = "'sampling', with privacy"
            require(not optimistic, "exploration", self.exploration, expected)
            explored = self.num_exploration
            expected = "0, with privacy: gradients are not released"
            require(explored in (None, 0), "num_exploration", explored, expected)
        if self.privacy is not None and self.reward_timeout is not None:
            low, high = self.privacy.reward_range
            value, expected = (
                self.reward_timeout.reward,
                f"a number from {low} to {high}",
            )
            require(low <= value <= high, "reward_timeout.reward", value, expected)

    @property
    def num_random_actions(self) -> int:
        """Random actions of each agent in phase I, by ``num_exploration``."""
        if self.num_exploration is not None:
            return self.num_exploration
        return 1 if self.privacy is None else 0

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
    """Answer of an agent: the sums of phase II, or what was asked in phase I.

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
