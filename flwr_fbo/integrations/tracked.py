"""What trackers log of a study: names with text, and names with numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from flwr_fbo._common.text import flat
from flwr_fbo.space.search_space import Params
from flwr_fbo.strategies.result import StudyResult, TuningResult
from flwr_fbo.study.callbacks import DecidedRung, Round
from flwr_fbo.tuner.federation_result import FederationResult


def texts_of(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested settings as texts, by dotted name; what is empty is left out."""
    return {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in flat(values, prefix)
        if value is not None and value != {}
    }


def numbers_of_round(finished: Round) -> dict[str, float]:
    """Return what there is to plot of a round."""
    counts = {
        "answered": finished.answered,
        "failed": finished.failed,
        "late": finished.late,
        "absent": finished.absent,
        "release": finished.release,
    }
    return _finite({**counts, "epsilon": finished.epsilon})


def numbers_of_rung(decided: DecidedRung) -> dict[str, float]:
    """Return what there is to plot of a rung; a trial that has failed has no score."""
    counts = {"rounds": decided.rounds, "trials": len(decided.trials)}
    scores = {
        f"score.trial-{trial}": score
        for trial, score in zip(decided.trials, decided.scores, strict=True)
    }
    return _finite({**counts, **scores, "epsilon": decided.epsilon})


def texts_of_rung(decided: DecidedRung) -> dict[str, str]:
    """Return the settings of a rung's trials, and which of them go on."""
    texts = {f"rung-{decided.number}.survivors": json.dumps(decided.survivors)}
    for trial, setting in zip(decided.trials, decided.settings, strict=True):
        texts |= texts_of(setting, f"trial-{trial}.")
    return texts


def texts_of_result(result: StudyResult | FederationResult) -> dict[str, str]:
    """Return the setting that is recommended or chosen, and the privacy spent."""
    chosen: Params = {}
    if isinstance(result, FederationResult):
        chosen = {"chosen-trial": result.best_trial, "chosen": result.best}
    elif isinstance(result, TuningResult) and result.recommendation.params is not None:
        name = "warm-start" if result.recommendation.is_start else "recommended"
        chosen = {name: result.recommendation.params}
    spent = result.privacy_spent
    if spent is not None and math.isfinite(spent.epsilon):
        of_spent = {"epsilon": spent.epsilon, "delta": spent.delta}
        chosen["privacy-spent"] = {**of_spent, "num-releases": spent.num_releases}
    return texts_of(chosen)


def _finite(values: Mapping[str, float | None]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in values.items()
        if value is not None and math.isfinite(value)
    }
