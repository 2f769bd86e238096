"""The methods of an experiment, and how their curves look."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

# Colour, line style and marker.
Look = tuple[str, str, str]


@dataclass(frozen=True)
class Method:
    """One curve of an experiment.

    Attributes
    ----------
    name : str
        For files and commands.
    label : str
        For tables and figures.
    controls : tuple of str
        The methods that must be shown beside it.
    noisy : bool
        Whether the privacy setting has a part in what it does.
    noise_only : str, optional
        The control in which all its messages are zeroed; None where there is none.
    look : tuple of str, optional
        Colour, line style and marker in figures; chosen from a palette unless given.
    """

    name: str
    label: str
    controls: tuple[str, ...] = field(default=(), kw_only=True)
    noisy: bool = field(default=False, kw_only=True)
    noise_only: str | None = field(default=None, kw_only=True)
    look: Look | None = field(default=None, kw_only=True)

    def control(self, name: str) -> str:
        """Return the name of the control of that kind that belongs to this method."""
        return self.noise_only or name if name == "noise-only" else name


M = TypeVar("M", bound=Method)


def by_name(*methods: M) -> dict[str, M]:
    """Return methods by their names."""
    return {method.name: method for method in methods}
