"""Fields of a study that trackers log: names with text, and names with numbers."""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from flwr_fbo._common.text import flat
from flwr_fbo.study.callbacks import Callback, DecidedRung, Round, Started

Numbers = Mapping[str, float | None]


class Tracker(Callback):
    """Base of the trackers: turns what a study reports into texts and numbers.

    What is empty, infinite or NaN is left out.
    """

    @abstractmethod
    def log(
        self,
        title: str,
        texts: Mapping[str, str],
        numbers: Mapping[str, float],
        step: int,
    ) -> None:
        """Log some texts, which have a title, and some numbers, which have a step."""

    def on_start(self, started: Started) -> None:
        """Log the settings."""
        settings = {"method": started.method, **started.settings}
        settings |= {f"epsilon-{name}": it for name, it in started.terms.items()}
        self.log("settings", _texts_of(settings), {}, started.num_done)

    def on_round(self, finished: Round) -> None:
        """Log counts and epsilon."""
        names = ("answered", "failed", "late", "absent", "release", "epsilon")
        numbers = {name: getattr(finished, name) for name in names}
        self.log("", {}, _finite(numbers), finished.server_round)

    def on_rung(self, decided: DecidedRung) -> None:
        """Log scores and epsilon, and the settings of the trials."""
        texts = {f"rung-{decided.number}.survivors": json.dumps(decided.survivors)}
        numbers: dict[str, float | None] = {
            "rounds": decided.rounds,
            "trials": len(decided.trials),
        }
        for trial, setting, score in zip(
            decided.trials, decided.settings, decided.scores, strict=True
        ):
            texts |= _texts_of(setting, f"trial-{trial}.")
            numbers[f"score.trial-{trial}"] = score
        numbers["epsilon"] = decided.epsilon
        self.log("trials", texts, _finite(numbers), decided.number)

    def on_end(self, result: Any) -> None:
        """Log the setting that is recommended or chosen.

        Rounds and rungs have the epsilon: a bandit may go on after its end.
        """
        self.log("result", _texts_of(result.found), {}, 0)


def _texts_of(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested settings as texts, by dotted name."""
    return {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in flat(values, prefix)
        if value is not None and value != {}
    }


def _finite(values: Numbers) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in values.items()
        if value is not None and math.isfinite(value)
    }
