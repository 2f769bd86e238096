"""A `NumPyClient` that tunes, for an app that has a ``client_fn``; see `tuning_app`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from flwr.app import Context
from optuna.distributions import BaseDistribution

from flwr_fbo.site.limits import Limits
from flwr_fbo.site.site import SiteClient, reported
from flwr_fbo.space.search_space import Params
from flwr_fbo.tuning.search.settings import Direction
from flwr_fbo.tuning.search.trial import Objective
from flwr_fbo.tuning.site.tuning_site import TuningSite


class TuningClient(SiteClient):
    """A `NumPyClient` with the Gaussian process and the search of one site.

    Examples
    --------
    >>> from flwr.clientapp import ClientApp
    >>> from optuna.distributions import FloatDistribution
    >>> from flwr_fbo import FedVote, InProcessGrid
    >>> from flwr_fbo.tuning import TuningClient
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
    make_objective, enqueue, space, direction, limits
        See `tuning_app`.
    context : flwr.app.Context
        Context of the message, as ``client_fn`` gets it.
    """

    def __init__(
        self,
        make_objective: Callable[[Context], Objective],
        context: Context,
        *,
        enqueue: Sequence[Params] = (),
        space: Mapping[str, BaseDistribution] | None = None,
        direction: Direction | None = None,
        limits: Limits | None = None,
    ) -> None:
        site = reported(
            lambda: TuningSite(make_objective, enqueue, space, direction, limits)
        )
        super().__init__(site, context)
