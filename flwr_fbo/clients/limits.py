"""What a site takes part in, whatever the server says."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flwr_fbo._validation import is_number, require


class StudyRefusedError(RuntimeError):
    """A study promises less than a site wants."""


@dataclass(frozen=True)
class Limits:
    """What a study may spend at most at a site.

    Attributes
    ----------
    max_epsilon, max_delta : float, optional
        Together, as an epsilon says nothing without its delta: then what the study
        promises must hold as it is. Without them any private study will do; with
        ``max_epsilon=math.inf`` alone any at all.

    Raises
    ------
    ValueError
        If one is no number > 0, delta not below 1, or one is given without the other.
    """

    max_epsilon: float | None = None
    max_delta: float | None = None

    def __post_init__(self) -> None:
        for field in ("max_epsilon", "max_delta"):
            value = getattr(self, field)
            ok = value is None or (is_number(value) and value > 0)
            require(ok, field, value, "a number > 0")
        epsilon, delta = self.max_epsilon, self.max_delta
        ok = delta is None or delta < 1
        require(ok, "max_delta", delta, "below 1")
        if epsilon != math.inf:
            together = "given, or not, together with max_"
            ok = delta is None or epsilon is not None
            require(ok, "max_epsilon", epsilon, f"{together}delta={delta}")
            ok = epsilon is None or delta is not None
            require(ok, "max_delta", delta, f"{together}epsilon={epsilon}")

    @classmethod
    def of(
        cls, max_epsilon: float | None, max_delta: float | None, experimental: bool
    ) -> Limits:
        """Return the limits; where none is given, an experiment takes part in all."""
        if max_epsilon is None and max_delta is None and experimental:
            return cls(math.inf)
        return cls(max_epsilon, max_delta)

    def check(
        self, private: bool, epsilon: float, delta: float, raw: bool = False
    ) -> None:
        """Raise `StudyRefusedError` unless a study promises what the site wants.

        Parameters
        ----------
        private : bool
            Whether it has noise that nobody knows, at public times.
        epsilon, delta : float
        raw : bool
            Whether its agents act on their own raw data between releases.
        """
        most_epsilon, most_delta = self.max_epsilon, self.max_delta
        wrong = ""
        if most_epsilon == math.inf:
            return
        if not private:
            wrong = "is not private: no noise, seeded noise, or a trigger"
        elif most_epsilon is not None and raw:
            wrong = "has local_data='raw', which promises less than it says"
        elif most_epsilon is not None and epsilon > most_epsilon:
            wrong = f"has epsilon={epsilon:g}, and max_epsilon={most_epsilon:g}"
        elif most_delta is not None and delta > most_delta:
            wrong = f"has delta={delta:g}, and max_delta={most_delta:g}"
        if wrong:
            raise StudyRefusedError(f"This site takes no part: the study {wrong}.")
