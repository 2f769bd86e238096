"""What an environment gives an agent: what fits the study, whatever its data are.

The server sets the bounds of a trial. Whether a site answers must not depend on where
its rewards and contexts lie, or a server could find them by its bounds: so what does
not fit is clipped or left out, and only the site's own log says so.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Protocol, TypeVar, cast

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.conversion import float_array, number, within
from flwr_fbo._common.errors import OutOfTimeError
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.site.time_limit import CheckTime

T = TypeVar("T")

_log = logging.getLogger("flwr.fbo")


class BanditEnvironment(Protocol):
    """A bandit that is played without waiting, for experiments.

    What it gives in trial t may depend on nothing but t: a trial that was cut off is
    played again.
    """

    def contexts(self, t: int) -> FloatArray:
        """Return the actions of trial t >= 0, shape (K, d)."""

    def reward(self, x: FloatArray) -> float:
        """Return what action ``x`` gives in the trial whose contexts were last."""


def fitting_actions(
    environment: BanditEnvironment, t: int, dimension: int, longest: float = math.inf
) -> FloatArray | None:
    """Return the actions of trial t, or None if it is left out.

    That is where the environment fails, there are none, or one is not finite or longer
    than allowed. And where they have another dimension than the study: as an error that
    would tell a server, which writes the dimension, in which trials there are any.
    """
    given = _unless_it_fails(lambda: environment.contexts(t), t)
    actions = None if given is None else _numbers(given)
    if actions is None or actions.size == 0:
        if given is not None:
            _leave_out(t, "there are no actions")
        return None
    if actions.ndim != 2 or actions.shape[1] != dimension:
        _leave_out(t, f"actions of shape {actions.shape} are not (K, {dimension})")
        return None
    actions = within(actions, np.linalg.norm(actions, axis=1), longest)
    # A NaN compares false, as it should.
    if not np.all(np.linalg.norm(actions, axis=1) <= longest * (1 + 1e-9)):
        _leave_out(t, f"an action is longer than {longest:g}, or not finite")
        return None
    if not np.isfinite(actions).all():
        _leave_out(t, "an action is not finite")
        return None
    return actions


def fitting_reward(
    environment: BanditEnvironment,
    t: int,
    x: FloatArray,
    allowed: tuple[float, float] = (-math.inf, math.inf),
) -> float | None:
    """Return what an action gives in trial t, clipped; None if it is left out."""
    given = _unless_it_fails(lambda: number("reward", environment.reward(x)), t)
    if given is None:
        return None
    if math.isnan(given) or (math.isinf(given) and math.isinf(allowed[1])):
        _leave_out(t, f"its reward is {given}")
        return None
    clipped = min(max(given, allowed[0]), allowed[1])
    if clipped != given:
        _log.warning("Trial %d: its reward %g was clipped to %g.", t, given, clipped)
    return clipped


def _unless_it_fails(play: Callable[[], T], t: int) -> T | None:
    try:
        return play()
    except (JournalError, OutOfTimeError):
        raise
    except (Exception, SystemExit) as error:  # of any kind: it is the site's own
        _leave_out(t, f"the environment raised {error!r}")
        return None


def _numbers(given: object) -> FloatArray | None:
    try:
        return float_array("actions", given)
    except ValueError:
        return None


def _leave_out(t: int, why: str) -> None:
    _log.warning("Trial %d is left out of what this site releases: %s.", t, why)


def environment_in_time(
    environment: BanditEnvironment, check: CheckTime
) -> BanditEnvironment:
    """Return the environment, as one that begins no trial too late."""

    def contexts(t: int) -> FloatArray:
        check()
        return environment.contexts(t)

    limited = SimpleNamespace(contexts=contexts, reward=environment.reward)
    return cast(BanditEnvironment, limited)
