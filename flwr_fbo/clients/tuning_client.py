"""The Flower NumPyClient of tuning studies, around one agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from flwr.app import Context
from optuna.distributions import BaseDistribution

from flwr_fbo._compat import NumPyClient
from flwr_fbo._validation import require
from flwr_fbo.agents.tuning.trial import Objective
from flwr_fbo.clients.session import Answer, Tuner
from flwr_fbo.protocol.tuning_settings import Direction
from flwr_fbo.space.search_space import Params


class Site(Protocol):
    """What carries out instructions: a `Tuner`, or a `LinearBanditSite`."""

    def answer(
        self,
        context: Context,
        arrays: Sequence[np.ndarray[Any, Any]],
        config: Mapping[str, Any],
    ) -> Answer:
        """Carry out one instruction."""


class SiteClient(NumPyClient):
    """A `NumPyClient` that hands every instruction to a site."""

    def __init__(self, site: Site, context: Context) -> None:
        self._site = site
        self._context = context

    def fit(
        self, parameters: list[np.ndarray[Any, Any]], config: dict[str, Any]
    ) -> tuple[list[np.ndarray[Any, Any]], int, dict[str, Any]]:
        """Carry out one instruction of a flwr_fbo strategy.

        Returns
        -------
        tuple of list of ndarray, int and dict
            The message if one is wanted, an array; 1, whatever the size of the site's
            data, which is nobody's business; metrics that were asked for.
        """
        reply = self._site.answer(self._context, parameters, config)
        return list(reply.arrays), 1, dict(reply.metrics)


class TuningClient(SiteClient):
    """Tunes one site's objective in a federation.

    Parameters
    ----------
    objective : callable
        Takes a `Trial`: a dict of parameters with Optuna's ``suggest_`` methods.
        Returns a float. An exception (``optuna.TrialPruned`` too) or a value that is
        not finite makes it a failed trial; the agent goes on.
    context : flwr.app.Context
        The client's context. The agent's memory is a journal in the folder that
        ``fbo-folder`` of the node or run config names, else in ``context.state``.
    enqueue : sequence of dict
        Known-good settings, evaluated first.
    trial_timeout : float, optional
        Seconds after which an evaluation is ended and counts as failed.
    space, direction : optional
        Declare what the study's must be; see `tuning_app`.

    Examples
    --------
    >>> def client_fn(context):
    ...     return TuningClient(make_objective(context), context).to_client()
    >>> app = ClientApp(client_fn=client_fn)  # doctest: +SKIP
    """

    def __init__(
        self,
        objective: Objective,
        context: Context,
        *,
        enqueue: Sequence[Params] = (),
        trial_timeout: float | None = None,
        space: Mapping[str, BaseDistribution] | None = None,
        direction: Direction | None = None,
    ) -> None:
        require(callable(objective), "objective", objective, "a function")
        tuner = Tuner(
            lambda context: objective, enqueue, trial_timeout, space, direction
        )
        super().__init__(tuner, context)
