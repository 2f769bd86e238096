"""What ``flwr-fbo privacy`` says of a study that is not begun."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class StudyPlan:
    """What a planned study spends, and what it is worth.

    Attributes
    ----------
    values : mapping of str to value
        All of it, for JSON.
    lines : sequence of str
        The same for people.
    """

    values: Mapping[str, Any]
    lines: Sequence[str]
