"""The Flower NumPyClient of tuning studies, around one agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from flwr.app import Context
from optuna.distributions import BaseDistribution

from flwr_fbo.algorithms.search.settings import Direction
from flwr_fbo.algorithms.search.trial import Objective
from flwr_fbo.clients.site import SiteClient
from flwr_fbo.clients.tuning_site import TuningSite
from flwr_fbo.space.search_space import Params
from flwr_fbo.study.limits import Limits


class TuningClient(SiteClient):
    """Tunes one site's objective in a federation.

    Examples
    --------
    >>> from flwr.clientapp import ClientApp
    >>> from optuna.distributions import FloatDistribution
    >>> from flwr_fbo import FedVote, InProcessGrid, TuningClient
    >>> def make_objective(context):
    ...     return lambda trial: -abs(trial.suggest_float("x", 0, 1) - 0.3)
    >>> def client_fn(context):
    ...     return TuningClient(make_objective, context).to_client()
    >>> app = ClientApp(client_fn=client_fn)
    >>> space = {"x": FloatDistribution(0, 1)}
    >>> strategy = FedVote(space, "maximize", num_agents=4, epsilon=8, delta=1e-3)
    >>> result = strategy.start(InProcessGrid(app, num_nodes=4), num_rounds=4)
    >>> len(result.rounds)
    4

    Parameters
    ----------
    make_objective : callable
        Function from the client's context to the objective. The objective takes a
        `Trial`, a dict of parameters with Optuna's ``suggest_`` methods, and returns a
        float. After an exception (``optuna.TrialPruned`` too) or a value that is not
        finite the trial has failed, and the agent goes on.
    context : flwr.app.Context
        The client's context. The agent's memory is a journal in the folder that
        ``fbo-folder`` of the node or run config names, else in ``context.state``.
    enqueue : sequence of dict
        Known-good settings, evaluated first.
    trial_timeout : float, optional
        Seconds after which an evaluation is ended and counts as failed.
    space, direction, limits : optional
        See `tuning_app`.

    Notes
    -----
    The server reads each message: in a study of `FedVote` the site's exact best
    setting, in one of `DPFTSDE` or `FTS` a sample of the site's model. Only what the
    server sends to others is private.
    """

    def __init__(
        self,
        make_objective: Callable[[Context], Objective],
        context: Context,
        *,
        enqueue: Sequence[Params] = (),
        trial_timeout: float | None = None,
        space: Mapping[str, BaseDistribution] | None = None,
        direction: Direction | None = None,
        limits: Limits | None = None,
    ) -> None:
        super().__init__(
            lambda: TuningSite(
                make_objective, enqueue, trial_timeout, space, direction, limits
            ),
            context,
        )
