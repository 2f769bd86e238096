"""The Flower `NumPyClient` around one agent."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import Context

from flwr_fbo._compat import NumPyClient
from flwr_fbo._validation import require
from flwr_fbo.agents.base import Objective
from flwr_fbo.clients.session import answer


class ThompsonClient(NumPyClient):
    """Tunes one site's objective in a federation.

    Parameters
    ----------
    objective : callable
        Takes a dict of parameters, returns a float. An exception or a value that is
        not finite makes it a failed trial; the agent goes on.
    context : flwr.app.Context
        The client's context; the agent's memory is kept in ``context.state``.

    Examples
    --------
    >>> def client_fn(context):
    ...     return ThompsonClient(make_objective(context), context).to_client()
    >>> app = ClientApp(client_fn=client_fn)  # doctest: +SKIP
    """

    def __init__(self, objective: Objective, context: Context) -> None:
        require(callable(objective), "objective", objective, "a function")
        self._objective = objective
        self._context = context

    def fit(
        self, parameters: list[np.ndarray[Any, Any]], config: dict[str, Any]
    ) -> tuple[list[np.ndarray[Any, Any]], int, dict[str, Any]]:
        """Carry out one instruction of a flwr_fbo strategy.

        Returns
        -------
        tuple of list of ndarray, int and dict
            The message of shape (M,) if one is wanted; 1, whatever the size of the
            site's data, which is nobody's business; metrics that were asked for.
        """
        reply = answer(lambda: self._objective, self._context, parameters, config)
        return list(reply.arrays), 1, dict(reply.metrics)
