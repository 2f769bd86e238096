"""What the released scores of a rung say, besides which trials are best.

They are means of ballots with Gaussian noise. The ballot of a client with scores sums
to zero, and that of a client without any is the same for all trials (`no_scores`). So
the sum of the released scores counts the clients without scores, and what is left shows
whether trials differ by more than the noise. Both are post-processing of what was
released: they cost no epsilon.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.serverapp.exception import AggregationError

from flwr_fbo._common.arrays import FloatArray

_log = logging.getLogger("flwr.fbo")

# Trials that noise alone makes as different as often as this are not told apart.
_LEVEL, _ERROR_LEVEL = 0.05, 0.01
# Standard deviations above what a count may be: exceeded with probability 0.01.
_SURE = 2.33


@dataclass(frozen=True)
class Evidence:
    """What the scores of one rung say.

    Attributes
    ----------
    p_value : float
        Probability that noise alone makes the trials as different as they are.
    num_silent : float
        Estimated number of clients without a finite score.
    std : float
        Of this estimate.
    """

    p_value: float
    num_silent: float
    std: float

    @classmethod
    def of(cls, scores: FloatArray, noise_std: float, num_agents: int) -> Evidence:
        """Return what scores say.

        Parameters
        ----------
        scores : ndarray of shape (K,)
            Sums of ballots over N, with noise; K >= 2.
        noise_std : float
            > 0, of each score.
        num_agents : int
            N.
        """
        from scipy.special import chdtrc

        energy = float(np.sum((scores - scores.mean()) ** 2)) / noise_std**2
        p_value = float(chdtrc(len(scores) - 1, energy))
        in_common = float(scores.sum()) / len(scores) ** 0.5
        return cls(p_value, num_agents * in_common, num_agents * noise_std)


def check_evidence(
    number: int, scores: FloatArray, facts: Mapping[str, Any], num_agents: int
) -> None:
    """Warn if the trials of a rung are not told apart, or clients have no scores.

    Parameters
    ----------
    number : int
        Of the rung, from 0.
    scores : ndarray of shape (K,)
    facts : mapping
        Of the release, as in the ledger.
    num_agents : int
        N, by which the sum of the ballots was divided.

    Raises
    ------
    AggregationError
        If both are so, for more than half of the clients. An error where at least half
        of the clients have scores has probability 0.01 at most.
    """
    is_sum = facts.get("mechanism") == "gaussian" and not facts["noise_only"]
    if not is_sum or len(scores) < 2:
        return
    found = Evidence.of(scores, facts["noise_std"][0], num_agents)
    num_ballots, rung = facts["num_ballots"], number + 1
    silent = min(round(found.num_silent), num_ballots)
    noise = (
        f"The scores that rung {rung} released do not differ from noise alone "
        f"(p = {found.p_value:.2f})"
    )
    is_most = found.num_silent > num_ballots / 2 + _SURE * found.std
    if is_most and found.p_value > _ERROR_LEVEL:
        raise AggregationError(
            f"{noise}, and about {silent} of {num_ballots} clients have no finite "
            "score in any trial: there is nothing to choose by. Is the metric NaN? "
            "The log of each site says whether it has scores. With folder=, another "
            "try needs a new folder."
        )
    if found.num_silent > _SURE * found.std:
        _log.warning(
            "About %d of %d clients have no finite score in any trial of rung %d "
            "(standard error %.1f).",
            silent,
            num_ballots,
            rung,
            found.std,
        )
    if found.p_value > _LEVEL:
        _log.warning("%s: which trials go on may be chance.", noise)
