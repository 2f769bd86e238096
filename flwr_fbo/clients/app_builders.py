"""Client apps from a function that makes the objective: new ones, and existing ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from optuna.distributions import BaseDistribution

from flwr_fbo._common.validation import require, require_function
from flwr_fbo._compat import (
    TUNE_ACTION,
    Client,
    NumPyClient,
    add_first_mod,
    message_type,
)
from flwr_fbo.site.limits import Limits
from flwr_fbo.site.node_config_limits import tell
from flwr_fbo.site.site import SiteClient, add_site, site_app
from flwr_fbo.space.search_space import Params
from flwr_fbo.study.codec import is_instruction
from flwr_fbo.tuning.search.comparison import Score
from flwr_fbo.tuning.search.settings import Direction
from flwr_fbo.tuning.search.trial import Objective
from flwr_fbo.tuning.site.tuning_journals import best_params
from flwr_fbo.tuning.site.tuning_site import TuningSite

# Returns the default setting, and the score of a setting on held-out data.
Compare = Callable[[Context], tuple[Params, Score]]


def tuning_app(
    make_objective: Callable[[Context], Objective],
    *,
    enqueue: Sequence[Params] = (),
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
    space, direction : optional
        Space and direction that the study must have. The server owns both; a different
        study is the client's error.
    limits : Limits, optional
        Limits on the spending of all studies at a site, and on the cost of a message.
        The node config may set more, such as ``fbo-max-epsilon-per-client``. Without
        limits a site takes part in any study, private or not, whose messages cost no
        more than the defaults of `Limits`.

    Notes
    -----
    The server reads each message: in a study of `FedVote` the site's exact best
    setting, in one of `DPFTSDE` or `FTS` a sample of the site's model. Only what the
    server sends to others is private. A site's log has the details of an error; the
    server learns the error's type.
    """
    return site_app(TuningSite(make_objective, enqueue, space, direction, limits))


def add_tuning(
    app: ClientApp,
    make_objective: Callable[[Context], Objective],
    compare: Compare | None,
    *,
    enqueue: Sequence[Params] = (),
    space: Mapping[str, BaseDistribution] | None = None,
    direction: Direction | None = None,
    limits: Limits | None = None,
) -> ClientApp:
    """Add a tuning stage to a Message-API app; its own ``train`` is left alone.

    The strategy reaches it with ``Host(client_api="action")``. Other parameters are
    those of `tuning_app`.

    Examples
    --------
    >>> from flwr.app import Message
    >>> from flwr.clientapp import ClientApp
    >>> from optuna.distributions import FloatDistribution
    >>> from flwr_fbo import FedVote, Host, InProcessGrid, add_tuning
    >>> app = ClientApp()
    >>> @app.train()
    ... def train(message, context):
    ...     return Message(message.content, reply_to=message)  # your own training
    >>> def make_objective(context):
    ...     return lambda trial: -abs(trial.suggest_float("x", 0, 1) - 0.3)
    >>> def compare(context):  # the default, and a score on held-out data
    ...     return {"x": 0.5}, lambda params: -abs(params["x"] - 0.3)
    >>> app = add_tuning(app, make_objective, compare)
    >>> strategy = FedVote(
    ...     {"x": FloatDistribution(0, 1)}, "maximize", num_agents=4,
    ...     epsilon=8, delta=1e-3,
    ... )
    >>> grid, host = InProcessGrid(app, num_nodes=4), Host(client_api="action")
    >>> result = strategy.start(grid, num_rounds=4, host=host)
    >>> len(result.rounds)
    4

    Parameters
    ----------
    app : ClientApp
        The Message-API app, which gains a ``train`` action.
    compare : callable or None
        See `with_tuning`.

    Returns
    -------
    ClientApp
        The same app.
    """
    site = TuningSite(make_objective, enqueue, space, direction, limits)
    _check(compare)
    add_site(app, site, TUNE_ACTION)
    if compare is not None:
        add_first_mod(app, _comparing(compare))
    return app


def with_tuning(
    client_fn: Callable[[Context], Client | NumPyClient],
    make_objective: Callable[[Context], Objective],
    compare: Compare | None,
    *,
    enqueue: Sequence[Params] = (),
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
    >>> def compare(context):  # the default, and a score on held-out data
    ...     return {"x": 0.5}, lambda params: -abs(params["x"] - 0.3)
    >>> client_fn = with_tuning(lambda context: Trainer(), make_objective, compare)
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
    compare : callable or None
        Takes the client's context and returns a pair: the default setting, and the
        score of a setting on held-out data. It is called before each of the app's own
        messages, so load the data in the score. Both settings are scored before the
        first of these messages that follows the tuning; see `best_params`, which then
        returns the better one to ``client_fn``. With None `best_params` returns the
        tuned setting, and warns that it was not compared with the default. Otherwise a
        site warns if the lead of its tuned setting may be chance. If it prefers that
        setting, it warns that the average of all sites was not compared, unless
        ``fbo-tuned`` is in the run config.

    Returns
    -------
    callable
        For ``ClientApp(client_fn=...)``.
    """
    require_function("client_fn", client_fn)
    _check(compare)
    site = TuningSite(make_objective, enqueue, space, direction, limits)

    def tuning_client_fn(context: Context) -> Client:
        tell(limits)

        def own_client() -> Client:
            if compare is not None:
                _settle(context, compare)
            return client_fn(context).to_client()

        return _TwoStages(
            own_client,
            lambda: SiteClient(site, context).to_client(),
        )

    return tuning_client_fn


def _check(compare: object) -> None:
    expected = "a function of the context, or None"
    require_function("compare", compare, expected, optional=True)


def _settle(context: Context, compare: Compare) -> None:
    """Decide between the default and the tuned setting, unless that was done."""
    pair = compare(context)
    is_valid = isinstance(pair, tuple) and len(pair) == 2
    require(is_valid, "what compare returned", pair, "a pair: the default, and a score")
    default, score = pair
    best_params(context, default, compare=score)


def _comparing(
    compare: Compare,
) -> Callable[[Message, Context, ClientAppCallable], Message]:
    """Return a mod that compares before each message that is not of the tuning."""

    def compare_first(
        message: Message, context: Context, call_next: ClientAppCallable
    ) -> Message:
        if message.metadata.message_type != message_type("action"):
            _settle(context, compare)
        return call_next(message, context)

    return compare_first


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
