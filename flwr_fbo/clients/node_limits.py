"""The limits that a SuperNode's node config sets."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import fields
from typing import Any

from flwr.app import Context

from flwr_fbo._validation import did_you_mean
from flwr_fbo.clients.limits import NO_LIMITS, Limits, SumLimits
from flwr_fbo.clients.site_journal import NodeConfigError

# Entries of a node config that are no limits.
_OTHER_ENTRIES = {"fbo-folder", "fbo-roster", "fbo-key"}


def node_limits(context: Context) -> Limits:
    """Return the limits of the node config: ``fbo-max-epsilon`` and its like.

    Raises
    ------
    NodeConfigError
        If one is not allowed or not known; the text names the key.
    """
    of_sums, names = _node_names(SumLimits), _node_names(Limits)
    limits = {*of_sums.values(), *names.values()}
    _check_known(context.node_config, limits | _OTHER_ENTRIES)
    sums, given = (
        {
            field: _number(context.node_config[key])
            for field, key in known.items()
            if key in context.node_config
        }
        for known in (of_sums, names)
    )
    names |= of_sums
    try:
        if not sums and not given:
            return NO_LIMITS
        return Limits(**given, sums=SumLimits(**sums))
    except ValueError as error:
        text = str(error)
        for field, key in names.items():
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


def _node_names(kind: type[Limits] | type[SumLimits]) -> dict[str, str]:
    """Return the key of the node config for each limit that is a number."""
    names = [f.name for f in fields(kind) if f.name != "sums"]
    return {name: f"fbo-{name.replace('_', '-')}" for name in names}


def _number(value: Any) -> Any:
    """Return a number that a SuperNode's --node-config may give as text."""
    if not isinstance(value, str):
        return value
    try:
        return int(value) if value.isdecimal() else float(value)
    except ValueError:
        return value
