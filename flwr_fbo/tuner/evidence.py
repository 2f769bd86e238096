"""How sure a choice is: what released scores say, besides which trials are best.

They are means of ballots with Gaussian noise. The ballot of a client with scores sums
to zero, and that of a client without any is the same for all trials (`no_scores`). So
the sum of the released scores counts the clients without scores, and what is left shows
whether trials differ by more than the noise. The noise is known, and so is what ballots
in random order add up to. So a lead can be told from chance: that of a model. Whether
its settings are better is another question, see `settings_effect`. All of it is
post-processing of what was released, and costs no epsilon.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from flwr.serverapp.exception import AggregationError

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy.accounting import calibrate_noise_multiplier
from flwr_fbo.tuner.ballots import ballot_entries
from flwr_fbo.tuner.choice import (
    carried_variance,
    carry,
    head_start,
    survivors_of,
)
from flwr_fbo.tuner.private_choice import PrivateChoice
from flwr_fbo.tuner.settings_effect import DrawnTrials, settings_p_value

_log = logging.getLogger("flwr.fbo")

# Trials that noise alone makes as different more often than this are not told apart.
_ERROR_LEVEL = 0.01
# What is so rare where no model, or no setting, is better is beyond chance. Of 200 such
# tuners more than 1 in 20 then beat the defaults with probability 0.003 only.
BEATEN_LEVEL = 0.02
# Standard deviations above what a count may be: exceeded with probability 0.01.
_SURE = 2.33
# Tuners without a better trial that are drawn for a p-value, and clients that are drawn
# for each: the sum of so many ballots is normal enough to be scaled up for more.
_NUM_NULLS, _MOST_CLIENTS = 20_000, 32
# So much of the gain, lost although all clients agree, is worth a warning; and so much
# may be lost where epsilon, or the number of clients, is called enough.
_TOO_MUCH, LITTLE = 0.1, 0.05
# Proposed are round numbers: these, times powers of ten.
_ROUND_NUMBERS, _MOST_TIMES = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0), 50.0


@dataclass(frozen=True)
class Lead:
    """How far the model of one trial is ahead of that of the app's defaults.

    That is one question, and whether its *settings* are better is another: training
    twice with the same settings gives two models, and one of them is ahead.

    Attributes
    ----------
    trial : int
        The one that is ahead, from 1.
    deviations : float
        In standard deviations of chance, over all rungs that both were in. Chance is
        the noise, and the ballots of clients that order the trials at random.
    p_value : float
        How often, at most, the defaults would be beaten by so much if no model were
        better than another for any client. Clients whose trials tie add less chance
        than a random order, and so the actual rate is lower.
    settings_p_value : float or None
        How often other trials with settings like its own would be so far ahead of those
        with settings like the defaults, if no setting had any effect. None if fewer
        than 5 settings were drawn at random.
    """

    trial: int
    deviations: float
    p_value: float
    settings_p_value: float | None = None

    @property
    def is_of_model(self) -> bool:
        """Whether the model is ahead beyond chance: with p at most 0.02."""
        return self.p_value <= BEATEN_LEVEL

    @property
    def is_of_settings(self) -> bool:
        """Whether its settings are better, beyond chance: with p at most 0.02."""
        p = self.settings_p_value
        return self.is_of_model and p is not None and p <= BEATEN_LEVEL


def lead_over_defaults(
    rows: Sequence[LedgerRow], num_agents: int, trials: DrawnTrials | None = None
) -> Lead | None:
    """Return the lead of the chosen trial over the app's defaults.

    None where these are chosen or have failed, so that there is nothing to be ahead of,
    and where a rung was not decided by a sum of ballots: exact scores have no known
    noise.

    Parameters
    ----------
    rows : sequence of LedgerRow
        What each rung released, and of which trials.
    num_agents : int
        N, by which the sums of ballots were divided.
    trials : DrawnTrials, optional
        Their settings. Unless given, nothing is said of settings.
    """
    if any(row.facts.get("mechanism") != "gaussian" for row in rows):
        return None
    best = rows[-1].facts["trials"][survivors_of(rows, 1)[0]]
    if best == 0 or any(0 in row.facts.get("failed", ()) for row in rows):
        return None
    plans = tuple(
        (len(r.vectors), r.facts["num_ballots"], r.facts["noise_std"][0]) for r in rows
    )
    parts = []
    for row, plan in zip(rows, plans, strict=True):
        rung = dict(zip(row.facts["trials"], row.vectors, strict=True))
        if 0 in rung:
            parts.append((rung[best] - rung[0]) / _std_of_lead(*plan, num_agents))
    lead = float(sum(parts)) / math.sqrt(len(parts))
    drawn = _drawn_tuners(plans, num_agents)[1]
    p_of_model = (1 + int(np.sum(drawn >= lead))) / (1 + len(drawn))
    p_of_settings = None
    if trials is not None:
        p_of_settings = settings_p_value(rows, trials, best)
    return Lead(best, lead, p_of_model, p_of_settings)


def _std_of_lead(
    num_trials: int, num_ballots: int, noise_std: float, num_agents: int
) -> float:
    """Return the standard deviation of a difference of scores if trials are alike.

    Twice the variance of the noise, and that of the ballots: the entries of one are in
    random order then, and as they sum to 0 and have norm 1, their difference has the
    variance 2 / K + 2 / (K (K - 1)) = 2 / (K - 1).
    """
    of_ballots = num_ballots / (num_agents**2 * (num_trials - 1))
    return math.sqrt(2 * (noise_std**2 + of_ballots))


@lru_cache(maxsize=16)
def _drawn_tuners(
    plans: tuple[tuple[int, int, float], ...], num_agents: int, agree: bool = False
) -> tuple[np.ndarray[Any, np.dtype[np.intp]], FloatArray]:
    """Draw tuners in which no trial is better: what they choose, and its lead.

    Whole tuners, as the best of many trials is ahead by chance in the rungs that it
    has survived, as `survivors_of` has it. The lead is that over the defaults; -inf
    where these are chosen: then they are not beaten. Where only some of the trials are
    as good as the defaults, and others are worse, there is less to select from, and
    leads are smaller.

    Parameters
    ----------
    plans : tuple of tuple
        Of each rung: trials, ballots, and the noise of a score.
    num_agents : int
        N.
    agree : bool
        The opposite: all clients order the trials alike, the defaults, trial 0, are the
        worst, and the last trial is the best.
    """
    rng = np.random.default_rng(0)  # so that the same record has the same p-value
    shape = _NUM_NULLS, plans[0][0]
    trials = np.tile(np.arange(shape[1]), (shape[0], 1))
    before, lead = np.zeros((2, *shape))
    variance, num_shared = 0.0, np.zeros(shape[0])
    for number, (num_trials, num_ballots, noise_std) in enumerate(plans):
        entries = np.tile(ballot_entries(num_trials), (_NUM_NULLS, 1))
        num_drawn = min(num_ballots, _MOST_CLIENTS)
        sums = np.zeros_like(entries)
        if agree:
            ranks = np.argsort(np.argsort(trials, axis=1), axis=1)
            sums += num_ballots * np.take_along_axis(entries, ranks, axis=1)
        else:
            for _ in range(num_drawn):
                sums += rng.permuted(entries, axis=1)
            sums *= math.sqrt(num_ballots / max(num_drawn, 1))
        scores = sums / num_agents + rng.normal(0.0, noise_std, sums.shape)
        is_default = trials == 0
        has_default = is_default.any(axis=1)
        of_default = np.where(is_default, scores, 0.0).sum(axis=1, keepdims=True)
        std = _std_of_lead(num_trials, num_ballots, noise_std, num_agents)
        lead += np.where(has_default[:, None], (scores - of_default) / std, 0.0)
        num_shared += has_default
        # As in `survivors_of`.
        before = carry(scores, before)
        variance = carried_variance(noise_std, variance)
        decided = before + head_start(num_trials, variance**0.5) * is_default
        left = plans[number + 1][0] if number + 1 < len(plans) else 1
        places = np.argsort(-decided, axis=1, kind="stable")[:, :left]
        trials = np.take_along_axis(trials, places, axis=1)
        before = np.take_along_axis(before, places, axis=1)
        lead = np.take_along_axis(lead, places, axis=1)
    drawn = lead[:, 0] / np.sqrt(np.maximum(num_shared, 1))
    chosen = trials[:, 0]
    return chosen, np.where(chosen == 0, -np.inf, drawn)


def rung_evidence(
    scores: FloatArray, noise_std: float, num_agents: int
) -> tuple[float, float, float]:
    """Return what the scores of one rung say.

    Parameters
    ----------
    scores : ndarray of shape (K,)
        Sums of ballots over N, with noise; K >= 2.
    noise_std : float
        > 0, of each score.
    num_agents : int
        N.

    Returns
    -------
    p_value : float
        Probability that noise alone makes the trials as different as they are.
    num_silent : float
        Estimated number of clients without a finite score.
    std : float
        Of this estimate.
    """
    from scipy.special import chdtrc

    energy = float(np.sum((scores - scores.mean()) ** 2)) / noise_std**2
    p_value = float(chdtrc(len(scores) - 1, energy))
    in_common = float(scores.sum()) / len(scores) ** 0.5
    return p_value, num_agents * in_common, num_agents * noise_std


def check_evidence(row: LedgerRow, num_agents: int) -> None:
    """Warn if clients have no scores; raise if most have none.

    How sure the choice is, the result says once, of all rungs together.

    Parameters
    ----------
    row : LedgerRow
        What the rung released.
    num_agents : int
        N, by which the sum of the ballots was divided.

    Raises
    ------
    AggregationError
        If more than half of the clients have none, and the trials do not differ by more
        than noise. An error where at least half of the clients have scores has
        probability 0.01 at most.
    """
    scores, facts = row.vectors, row.facts
    is_sum = facts.get("mechanism") == "gaussian" and not facts["noise_only"]
    if not is_sum or len(scores) < 2:
        return
    noise_std = facts["noise_std"][0]
    p_value, num_silent, std = rung_evidence(scores, noise_std, num_agents)
    num_ballots, rung = facts["num_ballots"], row.iteration + 1
    silent = min(round(num_silent), num_ballots)
    is_most = num_silent > num_ballots / 2 + _SURE * std
    if is_most and p_value > _ERROR_LEVEL:
        raise AggregationError(
            f"The scores that rung {rung} released do not differ from noise alone (p = "
            f"{p_value:.2f}), and about {silent} of {num_ballots} clients have no "
            "finite score in any trial: there is nothing to choose by. Is the metric "
            "NaN? "
            "The log of each site says whether it has scores. With folder=, another "
            "try needs a new folder."
        )
    if num_silent > _SURE * std:
        _log.warning(
            "About %d of %d clients have no finite score in any trial of rung %d "
            "(standard error %.1f).",
            silent,
            num_ballots,
            rung,
            std,
        )


def lost_if_all_agree(
    sizes: tuple[int, ...], num_agents: int, privacy: PrivateChoice
) -> tuple[float, float]:
    """Return what of the gain is lost by noise although all clients agree.

    All clients order the trials alike, and the app's defaults are the last. The gain
    is how many trials the best one is ahead of the defaults: clients send ranks. On
    real trials about the same part of the gain in accuracy is lost, and as often the
    defaults are chosen (`python -m benchmarks.how_sure`).

    Parameters
    ----------
    sizes : tuple of int
        Number of trials of each rung.
    num_agents : int
        N >= 1, all of which give a ballot.
    privacy : PrivateChoice

    Returns
    -------
    lost : float
        Part of the gain, from 0 to 1, by drawing whole tuners.
    kept : float
        How often the defaults are chosen, from 0 to 1.
    """
    about = privacy.epsilon, privacy.delta, 1.0, len(sizes)
    noise_std = calibrate_noise_multiplier(*about) / num_agents
    plans = tuple((num_trials, num_agents, noise_std) for num_trials in sizes)
    chosen, _ = _drawn_tuners(plans, num_agents, agree=True)
    return 1 - float(chosen.mean()) / (sizes[0] - 1), float(np.mean(chosen == 0))


@lru_cache(maxsize=16)
def too_few_clients(
    sizes: tuple[int, ...], num_agents: int, privacy: PrivateChoice
) -> str:
    """Return a warning if much of the gain is lost even if all clients agree.

    Parameters are those of `lost_if_all_agree`.

    Returns
    -------
    str
        What would be enough, too; empty where there is nothing to warn of.
    """
    lost, kept = lost_if_all_agree(sizes, num_agents, privacy)
    if lost <= _TOO_MUCH:
        return ""
    enough = enough_to_gain(sizes, num_agents, privacy)
    would_do = ""
    if enough:
        would_do = (
            f" With {' or '.join(enough)} at most {100 * LITTLE:.0f} % would be lost."
        )
    return (
        f"Too few clients for epsilon {privacy.epsilon:g}: even if all {num_agents} "
        "agree, and rank the app's defaults last, about "
        f"{100 * lost:.0f} % of what the best trial gains over them is lost, and they "
        f"are chosen in about {100 * kept:.0f} of 100 tuners.{would_do}"
    )


def enough_to_gain(
    sizes: tuple[int, ...], num_agents: int, privacy: PrivateChoice
) -> list[str]:
    """Return which epsilon, and how many clients, lose little if all agree.

    Parameters are those of `lost_if_all_agree`; little is at most `LITTLE`.
    """
    enough = []
    for epsilon in _round_numbers_above(privacy.epsilon):
        more = replace(privacy, epsilon=epsilon)
        if lost_if_all_agree(sizes, num_agents, more)[0] <= LITTLE:
            enough.append(f"epsilon {epsilon:g}")
            break
    for number in _round_numbers_above(num_agents):
        if number.is_integer() and (
            lost_if_all_agree(sizes, int(number), privacy)[0] <= LITTLE
        ):
            enough.append(f"{number:g} clients")
            break
    return enough


def _round_numbers_above(value: float) -> Iterator[float]:
    """Yield larger round numbers, up to 50 times the value."""
    power = 10.0 ** math.floor(math.log10(value))
    for scale in (power, 10 * power, 100 * power):
        for number in _ROUND_NUMBERS:
            found = float(f"{scale * number:.2g}")
            if value < found <= _MOST_TIMES * value:
                yield found
