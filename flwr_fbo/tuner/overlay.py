"""A run config with a trial's settings on top, which notes what is read of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


class Overlay(dict[str, Any]):
    """A run config with some of its values replaced.

    Parameters
    ----------
    run_config : mapping
    settings : mapping
        What replaces its values.

    Attributes
    ----------
    settings : dict
    read : set of str
        The keys of the settings that were read; whoever reads all reads each of them.
    """

    def __init__(
        self, run_config: Mapping[str, Any], settings: Mapping[str, Any]
    ) -> None:
        super().__init__({**run_config, **settings})
        self.settings = dict(settings)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        if key in self.settings:
            self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or a default."""
        if key in self.settings:
            self.read.add(key)
        return super().get(key, default)

    def __iter__(self) -> Iterator[str]:
        self.read.update(self.settings)
        return super().__iter__()

    def keys(self) -> Any:
        """Return the keys."""
        self.read.update(self.settings)
        return super().keys()

    def items(self) -> Any:
        """Return keys and values."""
        self.read.update(self.settings)
        return super().items()

    def values(self) -> Any:
        """Return the values."""
        self.read.update(self.settings)
        return super().values()


def merged_config(record: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a config record, and of the settings that it lacks.

    What the server's `main` has put there stays: it has read the same settings.
    """
    return {**settings, **record}
