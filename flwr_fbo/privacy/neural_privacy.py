"""What the agents of Fed-GO-UCB may send, where it is to be private.

Not in the paper, whose agents send gradients and sums as they are. Here agents release
the sums of phase II by `ContinualRelease`, and leave phase I out: see
`flwr_fbo.algorithms.fed_go_ucb.agent`.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field, replace
from typing import Any, Self

from flwr_fbo._common.fields import check_fields, choice, integer, ruled
from flwr_fbo._common.validation import is_number, require
from flwr_fbo.privacy.budget import DELTA, EPSILON
from flwr_fbo.privacy.continual_settings import ContinualSettings
from flwr_fbo.privacy.factorisation import Mechanism

_log = logging.getLogger("flwr.fbo")

# How often what trials add to a feature's direction is the noise's spectral norm there.
_SIGNAL_TO_NOISE = 2.0
_MOST_FEATURES = 64
# With fewer features regret was hardly below that of random play.
_FEW_FEATURES = 10


_RANGE = "(low, high), low < high, -1e6 to 1e6"


def _is_range(ends: Any) -> bool:
    if not (isinstance(ends, tuple) and len(ends) == 2):
        return False
    numbers = all(is_number(end) and -1e6 <= end <= 1e6 for end in ends)
    return numbers and ends[0] + 1e-6 <= ends[1]


@dataclass(frozen=True)
class NeuralPrivacy:
    """Privacy of one trial of an agent.

    Examples
    --------
    >>> from flwr_fbo import NeuralPrivacy
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
        default=(-1.0, 1.0),
        metadata=ruled(lambda name, ends: require(_is_range(ends), name, ends, _RANGE)),
    )
    mechanism: Mechanism = field(default="toeplitz", metadata=choice(Mechanism))

    def __post_init__(self) -> None:
        check_fields(self)
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
        allowed = _MOST_FEATURES
        if noise > 0:
            root = signal / (_SIGNAL_TO_NOISE * math.sqrt(2) * noise)
            allowed = min(allowed, int(root ** (2 / 3)))
        if allowed < _FEW_FEATURES:
            _log.warning(
                "With epsilon=%g, %d agents and %d evaluations the noise allows %d "
                "features only: agents will hardly do better than random play. A "
                "larger epsilon, more agents or more evaluations allow more.",
                self.epsilon,
                num_agents,
                num_evaluations,
                allowed,
            )
        return replace(self, num_features=max(allowed, 2))

    def schedule(self, num_evaluations: int) -> tuple[int, ...]:
        """Return after how many evaluations each release is made.

        Evenly spaced, the last one early enough to be acted on.

        Raises
        ------
        ValueError
            If there are more releases than evaluations to act on them.
        """
        n = self.num_synchronisations
        allowed = f"below the {num_evaluations} evaluations of an agent"
        require(n < num_evaluations, "num_synchronisations", n, allowed)
        return tuple(k * num_evaluations // (n + 1) for k in range(1, n + 1))
