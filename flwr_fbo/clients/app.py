"""A whole Message-API `ClientApp` from a function that makes the objective."""

from __future__ import annotations

from collections.abc import Callable

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flwr_fbo._compat import to_array_record
from flwr_fbo._validation import require
from flwr_fbo.agents.base import Objective
from flwr_fbo.clients.session import answer


def tuning_app(make_objective: Callable[[Context], Objective]) -> ClientApp:
    """Return a `ClientApp` that tunes what ``make_objective`` returns.

    Parameters
    ----------
    make_objective : callable
        Takes the client's context and returns the objective: a function of a dict of
        parameters that returns a float. It is called once a round; what it raises is
        the client's error, not a failed trial.

    Examples
    --------
    >>> def make_objective(context):
    ...     X, y = load_site(context)
    ...     return lambda params: cross_val_score(SVC(**params), X, y).mean()
    >>> app = tuning_app(make_objective)  # doctest: +SKIP
    """
    require(callable(make_objective), "make_objective", make_objective, "a function")
    app = ClientApp()

    @app.train()
    def tune(message: Message, context: Context) -> Message:
        content = message.content
        if "config" not in content.config_records:
            raise ValueError(
                "This message is not written for Message-API clients: give the "
                'strategy client_api="both" or "message".'
            )
        arrays = [a.numpy() for a in content.array_records["arrays"].values()]
        config = content.config_records["config"]
        reply = answer(lambda: make_objective(context), context, arrays, config)
        return Message(
            RecordDict(
                {
                    "arrays": to_array_record(reply.arrays),
                    "metrics": MetricRecord(dict(reply.metrics)),
                }
            ),
            reply_to=message,
        )

    return app
