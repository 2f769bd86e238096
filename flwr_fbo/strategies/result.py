"""What a study gives back: Flower's result, and what tuning adds to it."""

from __future__ import annotations

from dataclasses import dataclass, field

from flwr.serverapp.strategy import Result

from flwr_fbo.privacy.accounting import PrivacySpent
from flwr_fbo.space import Params


@dataclass(frozen=True)
class Round:
    """How the agents answered in one round.

    Attributes
    ----------
    server_round : int
        From 1.
    results, failures, missing : int
        Agents that answered, answered with an error, did not answer.
    epsilon : float or None
        Spent so far; None where the method releases nothing, or all of it.
    """

    server_round: int
    results: int
    failures: int
    missing: int
    epsilon: float | None = None


@dataclass(repr=False)
class TuningResult(Result):
    """The result of a study.

    Attributes
    ----------
    recommended : dict or None
        One setting for the federation: the maximiser of the function that was released
        last. It is computed from released vectors alone, and so costs no privacy. None
        where nothing was released.
    privacy_spent : PrivacySpent or None
        Epsilon at delta of all releases; None where the method releases nothing.
    rounds : list of Round
    """

    recommended: Params | None = None
    privacy_spent: PrivacySpent | None = None
    rounds: list[Round] = field(default_factory=list)
