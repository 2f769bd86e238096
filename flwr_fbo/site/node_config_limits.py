"""The limits of a site: what its app was given, and what its node config sets.

All of them hold for all that answers a server at the site, whoever was given them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp.typing import ClientAppCallable, Mod

from flwr_fbo._common.errors import NodeConfigError
from flwr_fbo._common.fields import from_json, to_json
from flwr_fbo._common.validation import did_you_mean
from flwr_fbo.site.limits import NO_LIMITS, Limits

# The entries of the node config that are limits, by name, and those that are none.
_NAMES = {f.name: f"fbo-{f.name.replace('_', '-')}" for f in fields(Limits)}
_OTHER_ENTRIES = {"fbo-folder", "fbo-roster", "fbo-key"}
_ENTRIES = {*_NAMES.values(), *_OTHER_ENTRIES}

# How near to one of ours a key is that is taken for it: max-delta is.
_CLOSE = 0.84

# Of the app that answers a message, while it does.
_OF_APP: ContextVar[tuple[Limits, ...]] = ContextVar("limits of the app", default=())
# Limits that an app's clients report, while a tuner has the app run a trial.
_HEARD: ContextVar[list[Limits]] = ContextVar("limits of an app's clients")
# Where they are kept, with the scores of the trials that they bind.
_RECORD = "fbo-tuner:limits"


def limiting(limits: Limits) -> Mod:
    """Return a mod behind which limits hold for all that an app answers."""

    def limited(
        message: Message, context: Context, call_next: ClientAppCallable
    ) -> Message:
        token = _OF_APP.set((*_OF_APP.get(), limits))
        try:
            return call_next(message, context)
        finally:
            _OF_APP.reset(token)

    return limited


def tell(limits: Limits | None) -> None:
    """Say which limits a client was given: a tuner cannot know before it is made."""
    heard = _HEARD.get(None)
    if heard is not None and limits is not None and limits not in heard:
        heard.append(limits)


@contextmanager
def hearing(context: Context) -> Iterator[None]:
    """Keep what clients tell of their limits, for this and for later messages."""
    heard = _heard(context)
    token = _HEARD.set(heard)
    try:
        yield
    finally:
        _HEARD.reset(token)
        if heard:
            text = json.dumps(to_json(heard))
            context.state[_RECORD] = ConfigRecord({"limits": text})


def _heard(context: Context) -> list[Limits]:
    record = context.state.config_records.get(_RECORD)
    rows = [] if record is None else json.loads(str(record["limits"]))
    return [from_json(Limits, row) for row in rows]


def site_limits(context: Context, own: Limits | None = None) -> tuple[Limits, ...]:
    """Return all limits of a site, each once: of whoever asks, app and node config."""
    limits = [] if own is None else [own]
    limits += [*_OF_APP.get(), *_heard(context), node_limits(context)]
    return tuple(dict.fromkeys(limits))


def node_limits(context: Context) -> Limits:
    """Return the limits of the node config: ``fbo-max-epsilon-per-client`` and so on.

    Raises
    ------
    NodeConfigError
        If one is not allowed or not known; the text names the key.
    """
    # A misspelled entry would not hold.
    for key in context.node_config:
        meant = _meant(key)
        if meant not in (None, key):
            text = f"node config {key} is not allowed: no such entry"
            near = did_you_mean(meant or key, _ENTRIES)
            raise NodeConfigError(f"{text}{near}.", public=f"{text}.")
    configured = {
        name: _value(context.node_config[key])
        for name, key in _NAMES.items()
        if key in context.node_config
    }
    try:
        return Limits(**configured) if configured else NO_LIMITS
    except ValueError as error:
        text = str(error)
        for name, key in _NAMES.items():
            text = text.replace(name, key)
        key = text.partition("=")[0]
        raise NodeConfigError(
            f"node config {text}", public=f"node config {key} is not allowed."
        ) from None


def is_our_entry(key: str) -> bool:
    """Return whether an entry of a node config is for us, also if it is misspelled."""
    return key == "agent-id" or _meant(key) is not None


@lru_cache(maxsize=64)  # a message is asked for its limits several times
def _meant(key: str) -> str | None:
    """Return the entry that a key is in another spelling, such as fbo_max_delta.

    That is "" for one that is like none of ours and begins with fbo, None for others.
    """
    if key in _ENTRIES:
        return key
    spelled = _plain(key)
    if spelled in ("maxepsilon", "fbomaxepsilon"):  # whose, it does not say
        return _NAMES["max_epsilon_per_client"]
    close = get_close_matches(spelled, _PLAIN, n=1, cutoff=_CLOSE)
    if close:
        return _PLAIN[close[0]]
    return "" if spelled.startswith("fbo") else None


def _plain(key: str) -> str:
    """Return a key's letters and digits alone."""
    return "".join(filter(str.isalnum, key.casefold()))


_PLAIN = {_plain(entry): entry for entry in _ENTRIES}


def _value(value: Any) -> Any:
    """Return a number, or a range, that a SuperNode's --node-config gives as text."""
    if not isinstance(value, str):
        return value
    try:
        if ".." in value:
            return tuple(map(float, value.split("..")))
        return int(value) if value.isdecimal() else float(value)
    except ValueError:
        return value
