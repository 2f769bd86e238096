"""How whoever runs a server hosts a study: nothing here changes what is computed."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr_fbo._common.fields import (
    check_fields,
    choice,
    flag,
    integer,
    number,
    ruled,
)
from flwr_fbo._common.validation import require, require_int
from flwr_fbo._compat import ClientApi
from flwr_fbo.study.callbacks import Callback, check_callbacks

BEST_VALUE = "best-value"
METRICS = (BEST_VALUE,)

_FINGERPRINT = re.compile("SHA256:[A-Za-z0-9+/]{43}")


def _check_keys(name: str, keys: Any) -> None:
    require(isinstance(keys, Mapping), name, keys, "a mapping of slots to fingerprints")
    for slot, key in keys.items():
        require_int("slot", slot, 0)
        is_print = isinstance(key, str) and _FINGERPRINT.fullmatch(key) is not None
        expected = "as `ssh-keygen -lf` prints it, SHA256:"
        require(is_print, f"keys[{slot}]", key, expected)
    are_distinct = len(set(keys.values())) == len(keys)
    require(are_distinct, name, keys, "another key for every slot")


def _check_metrics(name: str, metrics: Any) -> None:
    are_names = isinstance(metrics, Collection) and not isinstance(metrics, str)
    are_known = are_names and all(metric in METRICS for metric in metrics)
    require(are_known, name, metrics, f"a collection of names out of {METRICS}")


@dataclass(frozen=True)
class Host:
    """How a study is hosted: whom it waits for, when it gives up, who is told.

    Examples
    --------
    >>> from optuna.distributions import FloatDistribution
    >>> from flwr_fbo import FTS, Host, InProcessGrid, tuning_app
    >>> app = tuning_app(lambda context: lambda trial: -abs(trial["C"] - 10.0))
    >>> space = {"C": FloatDistribution(1e-3, 1e3, log=True)}
    >>> strategy = FTS(space, "maximize", num_agents=20)
    >>> grid = InProcessGrid(app, num_nodes=18)
    >>> host = Host(min_agents=15, patience=600)
    >>> result = strategy.start(grid, num_rounds=2, host=host)
    >>> result.rounds[-1].answered, result.rounds[-1].absent
    (18, 2)

    Attributes
    ----------
    min_agents : int, optional
        Number of agents that must enrol before the first round, from 1 to N; all N by
        default. Later rounds need no minimum. A resumed study waits for these agents
        once, and then goes on with those that are there.
    patience : float
        Seconds, >= 0, to wait for these agents, and for a run that still holds the
        folder.
    authenticated : bool
        Whether SuperNodes authenticate (``flower-superlink --enable-supernode-auth``).
        If True, an agent's slot stays with the first node that names it as its
        ``agent-id``, and with that node's key. If the SuperLink's database is lost,
        resume with False. If False, a node that claims the slot of an absent agent
        takes its place, because a restarted SuperNode has a new node id. The first node
        that names a slot locks its true agent out: give ``keys`` to prevent that. True
        needs a ``folder``: without its record a run that starts again is another study,
        which the sites are charged for again.
    keys : mapping of int to str, optional
        Fingerprint of the SuperNode's public key for each slot, 0 to N - 1, as
        ``ssh-keygen -lf KEY.pub`` prints it (``"SHA256:..."``). Only that key gets the
        slot, under any node id. Needs ``authenticated=True``.
    new : bool
        Whether another study may begin although a folder beside its own has one with
        the same settings. If False, an authenticated study does not: a misspelled
        ``folder`` would charge the sites again.
    max_empty_rounds : int
        Number of rounds in a row, >= 1, without any result after which the run ends
        with an error. Earlier such rounds postpone a release that is due. Without
        connected nodes no round begins: the run ends with an error after ``patience``.
    client_api : {"both", "message", "numpy", "action"}
        Kind of client that reads the messages. `NumPyClient` and Message-API clients
        both read ``"both"``, but Flower's own client mods refuse it: with mods, name
        your kind of client. ``"action"`` is for apps with `add_tuning`.
    callbacks : list or tuple of Callback
        Objects that are told of each round and of the result. See `Callback`.
    metrics : collection of str
        Metrics that the clients of a tuning study report, averaged and logged:
        ``"best-value"`` or nothing. No privacy guarantee covers them.

    Raises
    ------
    ValueError
        If an argument is not allowed; the message names it.
    """

    min_agents: int | None = field(default=None, metadata=integer(1, optional=True))
    patience: float = field(
        default=300.0,
        metadata=number(0, math.inf, allowed="a number of seconds >= 0"),
    )
    authenticated: bool = field(default=False, metadata=flag())
    keys: Mapping[int, str] | None = field(
        default=None, metadata=ruled(_check_keys, optional=True)
    )
    new: bool = field(default=False, metadata=flag())
    max_empty_rounds: int = field(default=1, metadata=integer(1))
    client_api: ClientApi = field(default="both", metadata=choice(ClientApi))
    callbacks: Sequence[Callback] = field(
        default=(), metadata=ruled(lambda _, callbacks: check_callbacks(callbacks))
    )
    metrics: Collection[str] = field(default=(), metadata=ruled(_check_metrics))

    def __post_init__(self) -> None:
        check_fields(self)
        is_proven = self.keys is None or self.authenticated
        require(is_proven, "keys", self.keys, "with authenticated=True")
