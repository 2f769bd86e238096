"""The limits that a SuperNode's node config sets."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import fields
from typing import Any

from flwr.app import Context

from flwr_fbo._validation import did_you_mean
from flwr_fbo.clients.limits import NO_LIMITS, Limits, SumLimits
from flwr_fbo.clients.site_journal import NodeConfigError


def _node_names(kind: type[Limits] | type[SumLimits]) -> dict[str, str]:
    """Return the key of the node config for each limit that is a number."""
    names = [f.name for f in fields(kind) if f.name != "sums"]
    return {name: f"fbo-{name.replace('_', '-')}" for name in names}


# The entries of the node config that are limits, and those that are none.
_OF_SUMS, _NAMES = _node_names(SumLimits), _node_names(Limits)
_OTHER_ENTRIES = {"fbo-folder", "fbo-roster", "fbo-key"}
_ENTRIES = {*_OF_SUMS.values(), *_NAMES.values(), *_OTHER_ENTRIES}


def node_limits(context: Context) -> Limits:
    """Return the limits of the node config: ``fbo-max-epsilon`` and its like.

    Raises
    ------
    NodeConfigError
        If one is not allowed or not known; the text names the key.
    """
    _check_known(context.node_config, _ENTRIES)
    sums, given = (
        {
            field: _number(context.node_config[key])
            for field, key in known.items()
            if key in context.node_config
        }
        for known in (_OF_SUMS, _NAMES)
    )
    try:
        if not sums and not given:
            return NO_LIMITS
        return Limits(**given, sums=SumLimits(**sums))
    except ValueError as error:
        text = str(error)
        for field, key in (_NAMES | _OF_SUMS).items():
            text = text.replace(field, key)
        key = text.partition("=")[0]
        raise NodeConfigError(
            f"node config {text}", public=f"node config {key} is not allowed."
        ) from None


def _check_known(given: Iterable[str], known: Set[str]) -> None:
    """Raise NodeConfigError if an entry is misspelled: it would not hold."""
    for key in given:
        if key.startswith("fbo-") and key not in known:
            text = f"node config {key} is not allowed: no such entry"
            meant = did_you_mean(key, known)
            raise NodeConfigError(f"{text}{meant}.", public=f"{text}.")


def _number(value: Any) -> Any:
    """Return a number that a SuperNode's --node-config may give as text."""
    if not isinstance(value, str):
        return value
    try:
        return int(value) if value.isdecimal() else float(value)
    except ValueError:
        return value
