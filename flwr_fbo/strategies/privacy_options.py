"""Privacy of a tuning study: how releases are made, counted and limited."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Self

from flwr_fbo._common.fields import (
    check_fields,
    choice,
    flag,
    instance,
    integer,
    number,
    positive,
    ruled,
)
from flwr_fbo._common.validation import check_folder, is_number, require
from flwr_fbo.privacy.accounting import Method
from flwr_fbo.privacy.release import Calibration
from flwr_fbo.privacy.sampling import Sampling
from flwr_fbo.privacy.weights import WeightSchedule

SCHEDULES = ("release_after", "min_follow_probability")


def _check_rounds(name: str, value: Any) -> None:
    are_rounds = (
        isinstance(value, Collection)
        and not isinstance(value, str)
        and all(is_number(r) and isinstance(r, int) and r >= 1 for r in value)
    )
    require(are_rounds, name, value, "a collection of rounds >= 1")


@dataclass(frozen=True)
class Privacy:
    """How the releases of a tuning study are made, counted and limited.

    Omitted settings are those of the strategy, or of its preset.

    Examples
    --------
    >>> from optuna.distributions import FloatDistribution
    >>> from flwr_fbo import FedVote, Privacy
    >>> strategy = FedVote(
    ...     {"C": FloatDistribution(1e-3, 1e3, log=True)},
    ...     "maximize",
    ...     num_agents=20,
    ...     privacy=Privacy(noise_multiplier=2.0, max_epsilon=4.0),
    ...     delta=1e-3,
    ... )

    Attributes
    ----------
    noise_multiplier : float, optional
        Noise multiplier z >= 0: the noise's standard deviation over the sensitivity. Do
        not give it together with the strategy's ``epsilon``, which determines it. 1 if
        neither is given.
    clip_norm : float, optional
        Clipping norm S of an agent's message; ``math.inf`` is allowed without noise.
    sampling_probability : float, optional
        Probability q in (0, 1] that an agent takes part in a release.
    sampling : {"poisson", "fixed-size"}
        How agents are sampled; see `ReleaseSettings`. A fixed size needs
        ``accountant="rdp"``; do not compare its epsilon with Poisson sampling's.
    calibration : {"joint", "published"}
        How z becomes noise; see `ReleaseSettings`. ``"joint"`` gives the least noise
        for a given z.
    accountant : {"pld", "rdp", "moments"}
        Method that counts epsilon: the tightest, Flower's Renyi accountant, or the
        papers'.
    release_after : collection of int, optional
        Rounds, from 1, after which there is a release; not together with the next
        one. A round without a release costs no privacy, and agents keep their
        last vectors.
    min_follow_probability : float, optional
        Probability, from 0 to below 1, with which an agent must follow a release.
        Releases end when it is lower; with 0 there is one after every round.
    min_answers : int, optional
        Number of agents, >= 1, that must answer before a release; by default half of
        those enrolled. Until then the release is postponed, at no epsilon, because who
        answers is public. Late answers count while the release is open.
    max_epsilon : float, optional
        Privacy budget at the study's delta. A release that would exceed it is not made,
        and no later one.
    budget : str or Path, optional
        Absolute path of the folder with a ledger that outlives the study.
        ``max_epsilon`` then limits all studies with this folder together, also if one
        is chosen after another was read: see `flwr_fbo.privacy.filters`.
    when_exhausted : {"halt", "raise"}
        What happens at ``max_epsilon``: releases end and the agents go on, or `start`
        raises ``PrivacyBudgetExhausted``.
    weights : WeightSchedule, optional
        Weights of the agents in each sub-region, by iteration; with `DPFTSDE` only.
    noise_only : bool
        Whether every contribution is replaced by zero, as a control.
    allow_large_delta : bool
        Whether the study's ``delta`` may be 0.01 and more: for experiments.

    Raises
    ------
    ValueError
        If an argument is not allowed; the message names it.
    """

    noise_multiplier: float | None = None
    clip_norm: float | None = None
    sampling_probability: float | None = None
    sampling: Sampling = "poisson"
    calibration: Calibration = "joint"
    accountant: Method = "pld"
    release_after: Collection[int] | None = field(
        default=None, metadata=ruled(_check_rounds, optional=True)
    )
    min_follow_probability: float | None = field(
        default=None, metadata=number(0, below=1, optional=True)
    )
    min_answers: int | None = field(default=None, metadata=integer(1, optional=True))
    max_epsilon: float | None = field(default=None, metadata=positive(optional=True))
    budget: str | Path | None = field(default=None, metadata=ruled(check_folder))
    when_exhausted: Literal["halt", "raise"] = field(
        default="halt", metadata=choice(Literal["halt", "raise"])
    )
    weights: WeightSchedule | None = field(
        default=None, metadata=instance(WeightSchedule, optional=True)
    )
    noise_only: bool = field(default=False, metadata=flag())
    allow_large_delta: bool = field(default=False, metadata=flag())

    def __post_init__(self) -> None:
        check_fields(self)
        given = [name for name in SCHEDULES if getattr(self, name) is not None]
        require(len(given) <= 1, "privacy", given, f"at most one of {SCHEDULES}")
        if self.budget is not None:
            is_limited = self.max_epsilon is not None
            require(is_limited, "max_epsilon", None, "given, where budget is")
            method = self.accountant
            require(method == "pld", "accountant", method, "'pld', with a budget")

    def iterations(
        self, horizon: int, follow_probability: Callable[[int], float]
    ) -> tuple[int, ...]:
        """Return the iterations after which a release is due, in order.

        Parameters
        ----------
        horizon : int
            T, the last iteration; its messages would be of no use to anybody.
        follow_probability : callable
            1 - p_t for t >= 1: how likely an agent follows in iteration t.
        """
        iterations = range(horizon)
        if self.release_after is not None:
            return tuple(t for t in iterations if t + 1 in self.release_after)
        least = self.min_follow_probability or 0.0
        return tuple(t for t in iterations if follow_probability(t + 1) >= least)

    @property
    def has_schedule(self) -> bool:
        """Whether it says after which rounds there are releases."""
        return any(getattr(self, name) is not None for name in SCHEDULES)

    def filled(self, other: Privacy) -> Self:
        """Return the settings with what is not given taken from another's."""
        scheduled = self if self.has_schedule else other
        schedules = {name: getattr(scheduled, name) for name in SCHEDULES}
        values: dict[str, Any] = {
            setting.name: getattr(other, setting.name)
            if getattr(self, setting.name) is None
            else getattr(self, setting.name)
            for setting in fields(self)
        }
        return type(self)(**{**values, **schedules})
