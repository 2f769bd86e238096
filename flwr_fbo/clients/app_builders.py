"""Client apps from a function that makes the objective: new ones, and existing ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flwr.app import Context
from flwr.clientapp import ClientApp
from optuna.distributions import BaseDistribution

from flwr_fbo._compat import TUNE_ACTION, Client, NumPyClient
from flwr_fbo._validation import require
from flwr_fbo.agents.tuning.trial import Objective
from flwr_fbo.clients.limits import Limits
from flwr_fbo.clients.site import SiteClient, add_site, site_app
from flwr_fbo.clients.tuning_site import TuningSite
from flwr_fbo.protocol.codec import is_instruction
from flwr_fbo.protocol.tuning_settings import Direction
from flwr_fbo.space.search_space import Params


def tuning_app(
    make_objective: Callable[[Context], Objective],
    *,
    enqueue: Sequence[Params] = (),
    trial_timeout: float | None = None,
    space: Mapping[str, BaseDistribution] | None = None,
    direction: Direction | None = None,
    limits: Limits | None = None,
) -> ClientApp:
    """Return a `ClientApp` that tunes what ``make_objective`` returns.

    Examples
    --------
    >>> from optuna.distributions import FloatDistribution
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.model_selection import cross_val_score
    >>> from sklearn.svm import SVC
    >>> from flwr_fbo import FedVote, InProcessGrid, tuning_app
    >>> def make_objective(context):
    ...     site = context.node_config["partition-id"]
    ...     X, y = (data[site::4] for data in load_iris(return_X_y=True))
    ...     return lambda trial: cross_val_score(SVC(C=trial["C"]), X, y, cv=3).mean()
    >>> app = tuning_app(make_objective)
    >>> space = {"C": FloatDistribution(1e-3, 1e3, log=True)}
    >>> strategy = FedVote(space, "maximize", num_agents=4, epsilon=8, delta=1e-3)
    >>> result = strategy.start(InProcessGrid(app, num_nodes=4), num_rounds=4)
    >>> len(result.rounds)
    4

    Parameters
    ----------
    make_objective : callable
        Function from the client's context to the objective: a function of a dict of
        parameters that returns a float. It is called before a round's trials; an
        exception in it is the client's error, not a failed trial.
    enqueue : sequence of dict
        Known-good settings, evaluated first.
    trial_timeout : float, optional
        Seconds after which an evaluation is ended and counts as failed.
    space, direction : optional
        Space and direction that the study must have. The server owns both; a different
        study is the client's error.
    limits : Limits, optional
        Limits on the spending of all studies at a site, and on the cost of a message.
        The node config may set more, such as ``fbo-max-epsilon``. Without limits a site
        takes part in any study, private or not, whose messages cost no more than the
        defaults of `Limits`.

    Notes
    -----
    The server reads each message: in a study of `FedVote` the site's exact best
    setting, in one of `DPFTSDE` or `FTS` a sample of the site's model. Only what the
    server sends to others is private. A site's log has the details of an error; the
    server learns the error's type.
    """
    return site_app(
        TuningSite(make_objective, enqueue, trial_timeout, space, direction, limits)
    )


def add_tuning(
    app: ClientApp,
    make_objective: Callable[[Context], Objective],
    *,
    enqueue: Sequence[Params] = (),
    trial_timeout: float | None = None,
    space: Mapping[str, BaseDistribution] | None = None,
    direction: Direction | None = None,
    limits: Limits | None = None,
) -> ClientApp:
    """Add a tuning stage to a Message-API app; its own ``train`` is left alone.

    The strategy reaches it with ``client_api="action"``. Other parameters are those
    of `tuning_app`.

    Examples
    --------
    >>> from flwr.app import Message
    >>> from flwr.clientapp import ClientApp
    >>> from optuna.distributions import FloatDistribution
    >>> from flwr_fbo import FedVote, InProcessGrid, add_tuning
    >>> app = ClientApp()
    >>> @app.train()
    ... def train(message, context):
    ...     return Message(message.content, reply_to=message)  # your own training
    >>> def make_objective(context):
    ...     return lambda trial: -abs(trial.suggest_float("x", 0, 1) - 0.3)
    >>> app = add_tuning(app, make_objective)
    >>> strategy = FedVote(
    ...     {"x": FloatDistribution(0, 1)}, "maximize", num_agents=4,
    ...     epsilon=8, delta=1e-3, client_api="action",
    ... )
    >>> result = strategy.start(InProcessGrid(app, num_nodes=4), num_rounds=4)
    >>> len(result.rounds)
    4

    Returns
    -------
    ClientApp
        The same app.
    """
    site = TuningSite(make_objective, enqueue, trial_timeout, space, direction, limits)
    add_site(app, site, TUNE_ACTION)
    return app


def with_tuning(
    client_fn: Callable[[Context], Client | NumPyClient],
    make_objective: Callable[[Context], Objective],
    *,
    enqueue: Sequence[Params] = (),
    trial_timeout: float | None = None,
    space: Mapping[str, BaseDistribution] | None = None,
    direction: Direction | None = None,
    limits: Limits | None = None,
) -> Callable[[Context], Client]:
    """Add a tuning stage to an app of ``NumPyClient`` s; they stay as they are.

    Other parameters are those of `tuning_app`.

    Examples
    --------
    >>> from flwr.client import NumPyClient
    >>> from flwr.clientapp import ClientApp
    >>> from optuna.distributions import FloatDistribution
    >>> from flwr_fbo import FedVote, InProcessGrid, with_tuning
    >>> class Trainer(NumPyClient):
    ...     def fit(self, parameters, config):
    ...         return parameters, 1, {}  # your own training
    >>> def make_objective(context):
    ...     return lambda trial: -abs(trial.suggest_float("x", 0, 1) - 0.3)
    >>> client_fn = with_tuning(lambda context: Trainer(), make_objective)
    >>> strategy = FedVote(
    ...     {"x": FloatDistribution(0, 1)}, "maximize", num_agents=4,
    ...     epsilon=8, delta=1e-3,
    ... )
    >>> grid = InProcessGrid(ClientApp(client_fn=client_fn), num_nodes=4)
    >>> result = strategy.start(grid, num_rounds=4)
    >>> len(result.rounds)
    4

    Parameters
    ----------
    client_fn : callable
        The app's own; called for every message that is not of a flwr_fbo strategy.

    Returns
    -------
    callable
        For ``ClientApp(client_fn=...)``.
    """
    require(callable(client_fn), "client_fn", client_fn, "a function")
    site = TuningSite(make_objective, enqueue, trial_timeout, space, direction, limits)

    def tuning_client_fn(context: Context) -> Client:
        return _TwoStages(
            lambda: client_fn(context).to_client(),
            lambda: SiteClient(lambda: site, context).to_client(),
        )

    return tuning_client_fn


class _TwoStages(Client):
    """Hands each message to the client it is for, made only then."""

    def __init__(self, own: Callable[[], Client], tuner: Callable[[], Client]) -> None:
        self._own = own
        self._tuner = tuner

    def get_properties(self, ins: Any) -> Any:
        return self._own().get_properties(ins)

    def get_parameters(self, ins: Any) -> Any:
        return self._own().get_parameters(ins)

    def fit(self, ins: Any) -> Any:
        is_tuning = is_instruction(ins.config)
        return (self._tuner if is_tuning else self._own)().fit(ins)

    def evaluate(self, ins: Any) -> Any:
        return self._own().evaluate(ins)
