"""A `NumPyClient` of a neural bandit, for an app that has a ``client_fn``."""

from __future__ import annotations

from flwr.app import Context

from flwr_fbo.bandits.site.bandit_site import MakeEnvironment
from flwr_fbo.bandits.site.neural_bandit_site import MakeModel, NeuralBanditSite
from flwr_fbo.site.limits import Limits
from flwr_fbo.site.site import SiteClient, reported


class NeuralBanditClient(SiteClient):
    """A `NumPyClient` of `FedGOUCB`, around one agent and its environment.

    Examples
    --------
    >>> from flwr.clientapp import ClientApp
    >>> import numpy as np
    >>> from flwr_fbo import FedGOUCB, InProcessGrid
    >>> from flwr_fbo.bandits import FedGOUCBSettings, Network, NeuralBanditClient
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
