"""Comparison of a tuned setting and the default on data that the tuning has not seen.

The best of many trials looks better than it is, and the default may be well chosen. So
a site scores both once, by a function of its own, before it trains with one of them.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr_fbo.space.search_space import Params
from flwr_fbo.tuning.search.settings import Direction

# Returns the value of a setting on held-out data.
Score = Callable[[Params], float]

_log = logging.getLogger("flwr.fbo")

# A lead of so many differences of two scores of one setting may be chance.
_DIFFERENCES = 2.0


@dataclass(frozen=True)
class Comparison:
    """The held-out scores of a default and a tuned setting.

    Attributes
    ----------
    default, tuned : dict
        The two settings, as JSON values.
    default_score, tuned_score : float
        NaN where the score failed.
    direction : {"maximize", "minimize"}
        Direction of the scores.
    run_id : int
        The Flower run that made it.
    """

    default: Params
    tuned: Params
    default_score: float
    tuned_score: float
    direction: Direction
    run_id: int

    @property
    def tuned_is_better(self) -> bool:
        """True if the tuned setting scores better; a tie keeps the default."""
        if self.has_failed:
            return not math.isnan(self.tuned_score)
        gain = self.tuned_score - self.default_score
        return gain > 0 if self.direction == "maximize" else gain < 0

    @property
    def has_failed(self) -> bool:
        """True if a score failed."""
        return math.isnan(self.default_score) or math.isnan(self.tuned_score)

    @property
    def is_alarming(self) -> bool:
        """True if somebody should look: tuning made it worse, or a score failed."""
        is_worse = not self.tuned_is_better and self.tuned_score != self.default_score
        return self.has_failed or is_worse

    @property
    def outcome(self) -> str:
        """Name of the better setting at this site, in a sentence."""
        tuned, default = (
            "could not be scored" if math.isnan(score) else f"scores {score:.4g}"
            for score in (self.tuned_score, self.default_score)
        )
        if self.tuned_is_better:
            return f"The tuned setting is better: it {tuned}, the default {default}."
        if self.tuned_score == self.default_score:
            return f"The default is kept: it {default}, as does the tuned setting."
        return f"The default is kept: it {default}, the tuned setting {tuned}."

    def doubt(self, tuning_score: float) -> str:
        """Return why the lead of the tuned setting may be chance, or nothing.

        Nobody knows the noise of a score. But the tuned setting was scored twice, in
        the tuning and here, and a lead of at most twice the difference may be noise.
        One difference says little of the noise: where both settings are equally good,
        about one lead in three is larger than that, and passes.

        Parameters
        ----------
        tuning_score : float
            Score of the tuned setting in the tuning, in the unit of the other scores.
        """
        if self.has_failed or not self.tuned_is_better:
            return ""
        lead = abs(self.tuned_score - self.default_score)
        if lead > _DIFFERENCES * abs(self.tuned_score - tuning_score):
            return ""
        return (
            f"The lead of {lead:.2g} may be chance: in the tuning the same setting "
            f"scored {tuning_score:.4g}."
        )

    def is_of(self, default: Params, tuned: Params, run_id: int) -> bool:
        """Return whether it still holds for two settings.

        One with a failed score holds in its own run only: its cause may be mended.
        """
        same = (self.default, self.tuned) == (as_json(default), as_json(tuned))
        return same and (not self.has_failed or self.run_id == run_id)


def compared(
    score: Score, default: Params, tuned: Params, direction: Direction, run_id: int
) -> Comparison:
    """Score both settings; an exception or no number is a failed score, and logged."""
    return Comparison(
        as_json(default),
        as_json(tuned),
        _score_of(score, default, "default"),
        _score_of(score, tuned, "tuned setting"),
        direction,
        run_id,
    )


def as_json(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return a setting as JSON values; what is none is its `repr`."""
    setting: dict[str, Any] = json.loads(json.dumps(dict(params), default=repr))
    return setting


def _score_of(score: Score, params: Params, which: str) -> float:
    try:
        return float(score(dict(params)))
    except (Exception, SystemExit) as error:  # of the app's own code, any fault
        _log.warning(
            "The held-out score of the %s %s failed: %s: %s",
            which,
            dict(params),
            type(error).__name__,
            " ".join(str(error).split()),
        )
        return math.nan
