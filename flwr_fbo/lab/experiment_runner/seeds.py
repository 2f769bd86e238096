"""The seeds of a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Seeds:
    """The three seeds of a run, which must not be one and the same.

    Attributes
    ----------
    study : int
        Of the agents' draws.
    features : int
        Of the shared features; public.
    noise : int
        Of the releases' noise and masks, in place of real entropy.
    """

    study: int
    features: int
    noise: int

    @classmethod
    def of_run(cls, run: int) -> Seeds:
        """Return three seeds that no other run shares."""
        return cls(3 * run, 3 * run + 1, 3 * run + 2)
