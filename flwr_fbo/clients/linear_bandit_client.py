"""A `NumPyClient` of a linear bandit, for an app that has a ``client_fn``."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context

from flwr_fbo.bandits.site.bandit_site import MakeEnvironment
from flwr_fbo.bandits.site.linear_bandit_site import LinearBanditSite
from flwr_fbo.site.limits import Limits
from flwr_fbo.site.site import SiteClient, reported


class LinearBanditClient(SiteClient):
    """A `NumPyClient` that synchronises the linear bandit of one site.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr.clientapp import ClientApp
    >>> from flwr_fbo import FedUCB, InProcessGrid
    >>> from flwr_fbo.bandits import (
    ...     ContinualSettings,
    ...     LinearBanditClient,
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
    >>> settings = LinearUCBSettings(releases, "own")
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
