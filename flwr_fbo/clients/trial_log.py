"""What a site's log says of each trial, in a line."""

from __future__ import annotations

import logging
import time
from contextlib import suppress

from flwr_fbo.algorithms.search.agent import Agent
from flwr_fbo.algorithms.search.trial import Objective, Trial

_log = logging.getLogger("flwr.fbo")


def logged(
    objective: Objective, agent: Agent, num_iterations: int, level: int
) -> Objective:
    """Return the objective, which then logs each of its trials as it ends.

    Parameters
    ----------
    objective : callable
    agent : Agent
        Whose trials they are.
    num_iterations : int
        T, the last iteration of the study.
    level : int
        Of the log.
    """
    num_trials = agent.num_first + num_iterations

    def timed(trial: Trial) -> float:
        began = time.monotonic()
        returned = objective(trial)
        seconds = time.monotonic() - began
        with suppress(
            TypeError, ValueError, RuntimeError
        ):  # not a number: told elsewhere
            value = float(returned)
            better = max if agent.direction == "maximize" else min
            before = agent.best_value
            best = value if before is None else better(before, value)
            _log.log(
                level,
                "agent %d: trial %d of %d: %.6g in %.1f s, best so far %.6g",
                agent.slot,
                trial.number + 1,
                num_trials,
                value,
                seconds,
                best,
            )
        return returned

    return timed
