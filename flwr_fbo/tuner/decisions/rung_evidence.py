"""Evidence in what one rung released: of different trials, and of silent clients.

Released scores are means of ballots with Gaussian noise. The ballot of a client with
scores sums to zero, and that of a client without any is the same for all trials
(`no_scores`; half of its examples, where one of them is protected). So the sum of the
released scores counts the clients without scores, or their examples, and what is left
shows whether trials differ by more than the noise. It is post-processing
of what was released, and costs no epsilon.
"""

from __future__ import annotations

import logging

import numpy as np
from flwr.serverapp.exception import AggregationError

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.tuner.ballots.ballots import Ballots
from flwr_fbo.tuner.ballots.rank_ballots import RankBallots
from flwr_fbo.tuner.decisions.survivors import ballots_in, voices_in

_log = logging.getLogger("flwr.fbo")

# Trials that noise alone makes as different more often than this are not told apart.
_ERROR_LEVEL = 0.01
# Standard deviations above what a count may be: exceeded with probability 0.01.
_SURE = 2.33


def rung_evidence(
    scores: FloatArray,
    noise_std: float,
    num_voices: int,
    ballots: type[Ballots] = RankBallots,
) -> tuple[float, float, float]:
    """Return what the scores of one rung say.

    Parameters
    ----------
    scores : ndarray of shape (K,)
        Scores with noise; K >= 2.
    noise_std : float
        > 0, of each score.
    num_voices : int
        Number of clients N, or of examples, that ballots were divided by.
    ballots : type of Ballots
        What clients say of trials.

    Returns
    -------
    p_value : float
        Probability that noise alone makes the trials as different as they are.
    num_silent : float
        Estimated number of clients without a finite score, or of their examples.
    std : float
        Of this estimate.
    """
    from scipy.special import chdtrc

    energy = float(np.sum((scores - scores.mean()) ** 2)) / noise_std**2
    p_value = float(chdtrc(len(scores) - 1, energy))
    return p_value, *ballots.silent(scores, noise_std, num_voices)


def check_evidence(row: LedgerRow, num_agents: int) -> None:
    """Warn if clients have no scores; raise if most have none.

    How sure the choice is, the result says once, of all rungs together.

    Parameters
    ----------
    row : LedgerRow
        Scores that the rung released.
    num_agents : int
        N, by which the sum of the ballots was divided.

    Raises
    ------
    AggregationError
        If more than half of the clients have none, and the trials do not differ by more
        than noise; or if none has any, however different noise makes the trials. An
        error where at least half of the clients have scores has probability 0.01 at
        most.
    """
    scores, facts = row.vectors, row.facts
    is_sum = facts.get("mechanism") == "gaussian" and not facts["noise_only"]
    if not is_sum or len(scores) < 2:
        return
    noise_std = facts["noise_std"][0]
    ballots, num_voices, rung = ballots_in(row), voices_in(row), row.iteration + 1
    # Ranks were divided by N, whoever answered.
    divisor = num_agents if ballots.voices == "clients" else num_voices
    found = rung_evidence(scores, noise_std, divisor, ballots)
    p_value, num_silent, std = found
    silent = min(round(num_silent), num_voices)
    are, have = f"of {num_voices} clients", "have"
    if ballots.voices == "examples":
        are, have = f"of {num_voices} examples", "are at clients that have"
    # Exact: whose app gives no answer to evaluate tells no number of examples.
    num_empty, asked = facts.get("num_without_examples", 0), facts["num_ballots"]
    empty = f"{num_empty} of {asked} clients tell no number of examples"
    is_most = num_silent > num_voices / 2 + _SURE * std or num_empty > asked / 2
    is_everybody = num_silent > num_voices - 1 + _SURE * std or num_empty == asked > 0
    if is_everybody or (is_most and p_value > _ERROR_LEVEL):
        raise AggregationError(
            f"The scores that rung {rung} released do not differ from noise (p = "
            f"{p_value:.2g}), and about {silent} {are} {have} no "
            f"finite score in any trial{', and ' * bool(num_empty)}"
            f"{empty * bool(num_empty)}: there is nothing to choose by. Is the metric "
            "NaN, or out of its range, or num-examples 0 in the replies to evaluate? "
            "The log of each site says whether it has scores. With folder=, "
            "another try needs a new folder."
        )
    if num_empty:
        _log.warning("In rung %d %s.", rung, empty)
    if num_silent > _SURE * std:
        _log.warning(
            "About %d %s %s no finite score in any trial of rung %d "
            "(standard error %.1f).",
            silent,
            are,
            have,
            rung,
            std,
        )
