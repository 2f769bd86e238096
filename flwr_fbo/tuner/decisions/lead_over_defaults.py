"""The lead of a trial over the app's defaults, and how sure it is.

Released scores are means of ballots with Gaussian noise. The noise is known, and so is
what ballots by chance add up to: ranks in random order, and sums over examples that
vary as a binomial. So a lead can be told from chance: that of a model. Whether its
settings are better is another question, see `settings_effect`. All of it is
post-processing of what was released, and costs no epsilon.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.tuner.decisions.drawn_tuners import (
    drawn_tuners,
    std_of_lead,
    stds_of_leads,
)
from flwr_fbo.tuner.decisions.settings_effect import DrawnTrials, settings_p_value
from flwr_fbo.tuner.decisions.survivors import ballots_in, survivors_of, voices_in

# What is so rare where no model, or no setting, is better is beyond chance. Of 200 such
# tuners more than 1 in 20 then beat the defaults with probability 0.003 only.
BEATEN_LEVEL = 0.02


@dataclass(frozen=True)
class Lead:
    """The lead of one trial's model over that of the app's defaults.

    That is one question, and whether its *settings* are better is another: training
    twice with the same settings gives two models, and one of them is ahead.

    Attributes
    ----------
    trial : int
        The one that is ahead, from 1.
    deviations : float
        Lead in standard deviations of chance, over all rungs that both were in. Chance
        is the noise, and the ballots of clients that order the trials at random; where
        one example is protected, examples that models of equal chances get right.
    p_value : float
        How often, at most, the defaults would be beaten by so much if no model were
        better than another for any client. Clients whose trials tie add less chance
        than a random order, and models that are right about the same examples less than
        a binomial: so the actual rate is lower.
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
        Scores that each rung released, and their trials.
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
    ballots = ballots_in(rows[-1])
    plans = tuple((len(r.vectors), voices_in(r), r.facts["noise_std"][0]) for r in rows)
    parts = []
    for row, plan in zip(rows, plans, strict=True):
        rung = dict(zip(row.facts["trials"], row.vectors, strict=True))
        if 0 in rung:
            parts.append(
                (rung[best] - rung[0]) / std_of_lead(*plan, num_agents, ballots)
            )
    # Each part has variance 1 if trials are alike.
    lead = float(sum(parts) / stds_of_leads(plans, num_agents, ballots)[len(parts) - 1])
    drawn = drawn_tuners(plans, num_agents, ballots=ballots)[1]
    # The tuner itself is one of those that are counted: so p is never 0, nor too small.
    p_of_model = (1 + int(np.sum(drawn >= lead))) / (1 + len(drawn))
    p_of_settings = None
    if trials is not None:
        p_of_settings = settings_p_value(rows, trials, best)
    return Lead(best, lead, p_of_model, p_of_settings)
