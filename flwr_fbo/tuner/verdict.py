"""The verdict on the app's defaults in words: whether they were beaten, how surely.

`verdict_on_defaults` is for those who call the tuner: `FederationResult.verdict`, its
log, its reports. `how_sure` is for those who run ``flwr-fbo tune``: it says what to do.
The numbers come from `flwr_fbo.tuner.decisions.lead_over_defaults`.
"""

from __future__ import annotations

from flwr_fbo.tuner.decisions.lead_over_defaults import BEATEN_LEVEL, Lead
from flwr_fbo.tuner.decisions.settings_effect import MIN_DRAWN

YOURS = "your own settings"
_FAILED = "training or evaluation failed with them"


def verdict_on_defaults(
    best_trial: int, lead: Lead | None, *, have_failed: bool
) -> str:
    """Return the end of a sentence that begins with "The app's defaults".

    Parameters
    ----------
    best_trial : int
        The trial that was chosen; 0 has the defaults.
    lead : Lead or None
        Its lead over the defaults; None where the scores' noise is not known.
    have_failed : bool
        Whether the defaults have no score.
    """
    # Chosen is what has the smallest expected loss; claimed is what is significant.
    if best_trial == 0:
        return "were chosen"
    if have_failed:
        return f"could not be scored: {_FAILED}"
    if lead is None:
        return "have a worse score"
    if lead.deviations <= 0:
        return (
            f"were not chosen: over all rungs trial {best_trial} is not ahead of them"
        )
    ahead = (
        f"the model of trial {best_trial} is ahead of theirs by "
        f"{lead.deviations:.1f} standard deviations ({text_of_p(lead.p_value)})"
    )
    if not lead.is_of_model:
        return f"were not chosen: {ahead}, maybe by chance"
    models_differ = "two trainings with the same settings give different models"
    if lead.settings_p_value is None:
        return (
            f"were not chosen: {ahead}. That its settings are better cannot be "
            f"shown with fewer than {MIN_DRAWN} settings that are drawn: "
            f"{models_differ}, too"
        )
    of_settings = text_of_p(lead.settings_p_value)
    if not lead.is_of_settings:
        return (
            f"were not chosen: {ahead}. That its settings are better is not shown "
            f"({of_settings}): {models_differ}, too"
        )
    better = f"other trials show that its settings are better ({of_settings})"
    return f"were beaten: {ahead}, and {better}"


def how_sure(
    best_trial: int, lead: Lead | None, *, have_failed: bool, by_metric: str
) -> str:
    """Return how sure a choice is and what to do, after "How sure:".

    Parameters
    ----------
    best_trial : int
        The trial that was chosen; 0 has the defaults.
    lead : Lead or None
        Its lead over the defaults; None where the scores' noise is not known.
    have_failed : bool
        Whether the defaults have no score.
    by_metric : str
        Words for what the app's own metric says, said where there is no lead.
    """
    if best_trial == 0:
        return f"{YOURS} were chosen. Keep them"
    if have_failed:
        return f"{YOURS} could not be scored: {_FAILED}"
    if lead is None:
        return by_metric
    level = f"where {BEATEN_LEVEL:g} or less counts as shown"
    ahead = f"{lead.deviations:.1f} standard deviations of chance"
    if not lead.is_of_model:
        return (
            f"not. The chosen model is ahead of that with {YOURS} by {ahead} ("
            f"{text_of_p(lead.p_value)}, {level}). It may be no better"
        )
    better = f"use it. The chosen model is better than that with {YOURS}, by {ahead}"
    better += f" ({text_of_p(lead.p_value)}, {level})"
    if lead.is_of_settings:
        of_settings = text_of_p(lead.settings_p_value or 0.0)
        better += ", and other trials show that its settings are better"
        return f"{better} ({of_settings})"
    shown = f"fewer than {MIN_DRAWN} settings were drawn"
    if lead.settings_p_value is not None:
        shown = text_of_p(lead.settings_p_value)
    return (
        f"{better}. Whether its settings made it better, or luck in one training, "
        f"is not shown ({shown}); a small epsilon seldom shows that"
    )


def text_of_p(p_value: float) -> str:
    """Return a p-value in words."""
    return "p < 0.0001" if p_value < 1e-4 else f"p = {p_value:.2g}"
