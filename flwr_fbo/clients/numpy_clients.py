"""`NumPyClient`s around one site's agent, for an app that has a ``client_fn``.

`tuning_app`, `linear_bandit_app` and `neural_bandit_app` make an app of the same sites.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from flwr.app import Context
from optuna.distributions import BaseDistribution

from flwr_fbo.bandits.site.bandit_site import MakeEnvironment
from flwr_fbo.bandits.site.linear_bandit_site import LinearBanditSite
from flwr_fbo.bandits.site.neural_bandit_site import MakeModel, NeuralBanditSite
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


class LinearBanditClient(SiteClient):
    """A `NumPyClient` that synchronises the linear bandit of one site.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr.clientapp import ClientApp
    >>> from flwr_fbo import (
    ...     ContinualSettings, FedUCB, InProcessGrid, LinearBanditClient,
    ...     LinearUCBSettings,
    ... )
    >>> class Ward:
    ...     def contexts(self, t):
    ...         return np.eye(3)  # the actions of trial t
    ...     def reward(self, x):
    ...         return float(x @ [0.2, 0.3, 0.8])
    >>> def client_fn(context):
    ...     return LinearBanditClient(
    ...         context, make_environment=lambda context: Ward()
    ...     ).to_client()
    >>> releases = ContinualSettings(
    ...     num_releases=2, dimension=3, epsilon=4.0, delta=1e-5
    ... )
    >>> settings = LinearUCBSettings(releases, local_data="own")
    >>> strategy = FedUCB(settings, num_agents=4, schedule=[10, 20])
    >>> grid = InProcessGrid(ClientApp(client_fn=client_fn), num_nodes=4)
    >>> result = strategy.start(grid)
    >>> strategy.server.num_releases
    [2, 2, 2, 2]

    Parameters
    ----------
    context : flwr.app.Context
        Context of the message, as ``client_fn`` gets it.
    folder, make_environment, limits : optional
        See `linear_bandit_app`.
    """

    def __init__(
        self,
        context: Context,
        *,
        folder: str | Path | None = None,
        make_environment: MakeEnvironment | None = None,
        limits: Limits | None = None,
    ) -> None:
        site = reported(lambda: LinearBanditSite(folder, make_environment, limits))
        super().__init__(site, context)


class NeuralBanditClient(SiteClient):
    """A `NumPyClient` of `FedGOUCB`, around one agent and its environment.

    Examples
    --------
    >>> from flwr.clientapp import ClientApp
    >>> import numpy as np
    >>> from flwr_fbo import (
    ...     FedGOUCB, FedGOUCBSettings, InProcessGrid, Network, NeuralBanditClient
    ... )
    >>> class Kitchen:
    ...     def contexts(self, t):
    ...         return np.linspace(0, 1, 20)[:, None]  # the actions of trial t
    ...     def reward(self, x):
    ...         return float(np.sin(5 * x[0]))
    >>> def client_fn(context):
    ...     return NeuralBanditClient(context, lambda context: Kitchen()).to_client()
    >>> settings = FedGOUCBSettings(num_exploration=0)  # phase II only
    >>> model = Network(1, width=4)
    >>> strategy = FedGOUCB(settings, model, num_agents=2, num_evaluations=4)
    >>> grid = InProcessGrid(ClientApp(client_fn=client_fn), num_nodes=2)
    >>> len(strategy.start(grid).estimate)
    13

    Parameters
    ----------
    context : flwr.app.Context
        Context of the message, as ``client_fn`` gets it.
    make_environment, make_model, limits
        See `neural_bandit_app`.
    """

    def __init__(
        self,
        context: Context,
        make_environment: MakeEnvironment,
        make_model: MakeModel | None = None,
        limits: Limits | None = None,
    ) -> None:
        site = reported(lambda: NeuralBanditSite(make_environment, make_model, limits))
        super().__init__(site, context)
