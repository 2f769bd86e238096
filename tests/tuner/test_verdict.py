"""The verdict on the app's defaults: what is chosen is not what is claimed."""

import math

import pytest

from flwr_fbo.tuner.decisions.lead_over_defaults import Lead
from flwr_fbo.tuner.federation_result import Rung
from flwr_fbo.tuner.verdict import how_sure
from flwr_fbo.tuning import FederationResult


@pytest.mark.parametrize(
    ("best", "lead", "is_beaten", "told"),
    [
        (0, None, False, "were chosen."),
        (3, None, False, "have a worse score."),
        (3, Lead(3, -0.1, 0.6, 0.001), False, "were not chosen: over all rungs"),
        (3, Lead(3, 1.2, 0.1, 0.001), False, "(p = 0.1), maybe by chance."),
        (3, Lead(3, 4.0, 0.001, 0.03), False, "better is not shown (p = 0.03): two"),
        (3, Lead(3, 4.0, 0.001), False, "with fewer than 5 settings"),
        (3, Lead(3, 4.0, 1e-5, 0.02), True, "beaten: the model of trial 3"),
    ],
)
def test_what_is_chosen_is_not_what_is_claimed(
    best: int, lead: Lead | None, is_beaten: bool, told: str
) -> None:
    """A model that is ahead beyond chance, and settings that are better: two claims."""
    rungs = (Rung(1, (0, 3), (0.1, 0.2), (best,)),)
    settings = tuple({"x": float(n)} for n in range(4))
    result = FederationResult(settings, rungs, None, "", lead)
    assert result.best_trial == best
    assert result.defaults_beaten is is_beaten
    assert told in str(result)
    assert ("beaten" in str(result)) is is_beaten
    is_maybe = lead is not None and not lead.is_of_model and lead.deviations > 0
    assert ("chance" in str(result)) is is_maybe


@pytest.mark.parametrize(
    ("best", "lead", "have_failed", "told"),
    [
        (0, None, False, "your own settings were chosen. Keep them"),
        (3, None, True, "your own settings could not be scored"),
        (3, None, False, "by the metric"),
        (3, Lead(3, 1.2, 0.1, 0.001), False, "not. The chosen model is ahead"),
        (3, Lead(3, 4.0, 0.001), False, "use it. The chosen model is better"),
        (3, Lead(3, 4.0, 1e-5, 0.02), False, "use it. The chosen model is better"),
    ],
)
def test_who_tunes_is_told_what_to_do(
    best: int, lead: Lead | None, have_failed: bool, told: str
) -> None:
    words = how_sure(best, lead, have_failed=have_failed, by_metric="by the metric")
    assert words.startswith(told)
    is_shown = lead is not None and lead.is_of_settings
    assert ("its settings are better" in words) is is_shown
    is_open = told.startswith("use it") and not is_shown
    assert ("fewer than 5 settings were drawn" in words) is is_open


def test_defaults_without_a_score_are_not_beaten() -> None:
    rungs = (Rung(1, (0, 3), (-math.inf, 0.2), (3,)),)
    settings = tuple({"x": float(n)} for n in range(4))
    result = FederationResult(settings, rungs, None)
    assert result.verdict.startswith("could not be scored")
    assert not result.defaults_beaten
