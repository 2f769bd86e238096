"""Callbacks: what a study reports while it runs.

A callback gets what has been released, settings and counts: nothing of one agent.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr_fbo._common.validation import require_all
from flwr_fbo.space.search_space import Params

_log = logging.getLogger("flwr.fbo")


@dataclass(frozen=True)
class Started:
    """A study that begins, or goes on.

    Attributes
    ----------
    study : str
        Name of the study; the same after a restart with the same folder.
    method : str
        Class of the strategy, or ``"FederationTuner"``.
    settings : mapping of str to JSON value
        Without seeds.
    num_done : int
        Rounds or rungs of earlier runs, which are not reported again.
    terms : mapping of str to JSON value
        Terms of the epsilon that rounds and rungs report: ``delta``, ``unit``,
        ``adjacency``, ``trust`` and ``conditions``, see `Guarantee`. Empty where there
        is none.
    """

    study: str
    method: str
    settings: Mapping[str, Any]
    num_done: int
    terms: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Round:
    """Answers of the agents in one round.

    Attributes
    ----------
    server_round : int
        From 1.
    answered, failed, late, absent : int
        Agents that answered, answered with an error, were asked and did not answer in
        time, were not there to be asked. Together all agents that the round is for.
    epsilon : float or None
        Spent so far, under the terms of `Started`; None where the method releases
        nothing, or all of it.
    release : int
        Number of the release that agents were asked for, from 1; 0 for none.
    """

    server_round: int
    answered: int
    failed: int
    late: int
    absent: int
    epsilon: float | None = None
    release: int = 0


@dataclass(frozen=True)
class DecidedRung:
    """A rung of a `FederationTuner` after its release.

    Attributes
    ----------
    number : int
        From 1.
    rounds : int
        Rounds of training at its end.
    trials : tuple of int
        From 0; trial 0 is the app's own defaults.
    settings : tuple of dict
        Settings of these trials.
    scores : tuple of float
        Released score of each: with privacy a mean rank with noise, larger is better;
        else the metric's exact mean.
    survivors : tuple of int
        The best first; with privacy not by these scores alone: see `FederationTuner`.
    epsilon : float or None
        Spent so far, under the terms of `Started`; None without privacy.
    """

    number: int
    rounds: int
    trials: tuple[int, ...]
    settings: tuple[Params, ...]
    scores: tuple[float, ...]
    survivors: tuple[int, ...]
    epsilon: float | None


class Callback:
    """Base of a callback: override the methods that you need.

    Strategies call `on_round`, `FederationTuner` calls `on_rung`. A callback runs in
    the ServerApp's process, and the study waits for it. If it raises an exception, a
    warning is logged and the study goes on.

    A round or rung is recorded in the study's folder first, and then reported. So it is
    reported at most once. If the process is killed between the two, it is not reported
    at all; the result has it.

    Examples
    --------
    >>> from optuna.distributions import FloatDistribution
    >>> from flwr_fbo import FedVote, Host, InProcessGrid, tuning_app
    >>> from flwr_fbo.integrations import Callback
    >>> class Printed(Callback):
    ...     def on_round(self, finished):
    ...         print(f"round {finished.server_round}: {finished.answered} agents")
    >>> strategy = FedVote(
    ...     space={"x": FloatDistribution(0, 1)},
    ...     direction="maximize",
    ...     num_agents=4,
    ...     epsilon=2,
    ...     delta=1e-3,
    ... )
    >>> app = tuning_app(lambda context: lambda trial: trial.suggest_float("x", 0, 1))
    >>> grid, host = InProcessGrid(app, num_nodes=4), Host(callbacks=[Printed()])
    >>> result = strategy.start(grid, num_rounds=2, host=host)
    round 1: 4 agents
    round 2: 4 agents
    """

    def on_start(self, started: Started) -> None:
        """Take note of a study, before its first round."""

    def on_round(self, finished: Round) -> None:
        """Take note of a round of a strategy."""

    def on_rung(self, decided: DecidedRung) -> None:
        """Take note of a rung of a `FederationTuner`."""

    def on_error(self, error: BaseException) -> None:
        """Take note that the study ends without a result, with what is raised.

        A run that goes on with it begins with `on_start` again.
        """

    def on_end(self, result: Any) -> None:
        """Take note of the result: what ``start`` returns.

        Also of a study that was complete before: after a restart it is reported again.
        """


def check_callbacks(callbacks: Any) -> tuple[Callback, ...]:
    """Return callbacks as a tuple; raise ValueError for anything else."""
    expected = "a list or tuple of Callback objects"
    require_all("callbacks", callbacks, Callback, allowed=expected)
    return tuple(callbacks)


def tell(callbacks: Iterable[Callback], method: str, fact: Any) -> None:
    """Call a method of several callbacks; one that fails does not stop the study."""
    for callback in callbacks:
        try:
            getattr(callback, method)(fact)
        except Exception as error:  # somebody else's code
            _log.warning(
                "The callback %s has failed in %s; the study goes on: %r",
                type(callback).__name__,
                method,
                error,
            )


def tell_of_end(
    callbacks: Iterable[Callback], study: str, folder: Path | None, error: BaseException
) -> None:
    """Log that a study ends without a result, and what to do; tell the callbacks."""
    told = f"{type(error).__name__}: {error}".removesuffix(": ").removesuffix(".")
    then = (
        "Nothing of it is recorded"
        if folder is None
        else (f"What was done is in {folder}: a run with that folder goes on")
    )
    _log.error("study %s ends without a result: %s. %s.", study, told, then)
    tell(callbacks, "on_error", error)
