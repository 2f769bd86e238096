"""Whether the released scores of a rung differ from noise alone.

A client without a finite score sends a ballot of zeros, and nobody may see that: it is
part of the noisy sum. So the server can learn that *no* client has a score only from
the sum itself. The test is post-processing of what was released: it costs no epsilon.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.serverapp.exception import AggregationError

from flwr_fbo._arrays import FloatArray

_log = logging.getLogger("flwr.fbo")

# How often noise alone passes for a choice.
_LEVEL = 0.05
# The norm of the mean ballot of clients that agree: 1 if all ballots are the same. In
# four real federations it was 0.65 to 0.95 on average (`benchmarks/trained`).
_AGREEMENT = 2 / 3
# How often the scores of such clients may be missed where no choice is an error.
_MISSED = 0.01
# Of fewer trials honest ballots too may cancel, as in a vote of three against three.
_FEWEST_TRIALS = 4


@dataclass(frozen=True)
class Evidence:
    """What the released scores of one rung say.

    Attributes
    ----------
    p_value : float
        Probability that noise alone gives scores as different as these.
    missed : float
        Probability that scores of clients that agree would not differ from noise.
    """

    p_value: float
    missed: float

    @classmethod
    def of(cls, scores: FloatArray, noise_std: float, reach: float) -> Evidence:
        """Return what scores say.

        Parameters
        ----------
        scores : ndarray of shape (K,)
            Means of ballots, each of which has sum 0, with noise; K >= 2.
        noise_std : float
            > 0, of each score.
        reach : float
            Norm of the scores without noise if all ballots are the same.
        """
        from scipy.special import chdtrc, chdtri, chndtr

        degrees = len(scores) - 1
        energy = float(np.sum((scores - scores.mean()) ** 2)) / noise_std**2
        of_agreement = (_AGREEMENT * reach / noise_std) ** 2
        missed = chndtr(chdtri(degrees, _LEVEL), degrees, of_agreement)
        return cls(float(chdtrc(degrees, energy)), float(missed))

    @property
    def is_noise(self) -> bool:
        """Whether the scores do not differ from noise."""
        return self.p_value > _LEVEL


def check_evidence(
    number: int, scores: FloatArray, facts: Mapping[str, Any], num_agents: int
) -> None:
    """Warn if the scores of a rung do not differ from noise alone.

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
        If it is the first rung, and the scores of clients that agree would differ.
    """
    is_sum = facts.get("mechanism") == "gaussian" and not facts["noise_only"]
    if not is_sum or len(scores) < 2:
        return
    reach = facts["num_ballots"] / num_agents
    found = Evidence.of(scores, facts["noise_std"][0], reach)
    if not found.is_noise:
        return
    text = (
        f"The scores that rung {number + 1} released do not differ from noise alone "
        f"(p = {found.p_value:.2f})"
    )
    is_certain = found.missed < _MISSED and len(scores) >= _FEWEST_TRIALS
    if number == 0 and is_certain:
        raise AggregationError(
            f"{text}, and those of clients that agree would: there is nothing to "
            "choose by. Either no client has a finite score in any trial, or the "
            "clients' ballots cancel. The log of each site says whether it has scores. "
            "With folder=, another try needs a new folder."
        )
    _log.warning("%s: which trials go on may be chance.", text)
