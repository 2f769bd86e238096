"""The chooser that the arguments of a `FederationTuner` ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from flwr_fbo._common.validation import require, require_instance
from flwr_fbo.secure import SecureAggregation
from flwr_fbo.tuner.choosers.chooser import Chooser
from flwr_fbo.tuner.choosers.exact import ExactChooser
from flwr_fbo.tuner.choosers.private import PrivateChooser
from flwr_fbo.tuner.choosers.score import Score
from flwr_fbo.tuner.choosers.secure import SecureChooser
from flwr_fbo.tuner.choosers.server import ServerChooser
from flwr_fbo.tuner.private_choice import PrivateChoice

# Who scores the trials: the clients that evaluate a model, or the server itself.
ScoreSource = Literal["clients", "server"]


def make_chooser(
    sizes: Sequence[int],
    *,
    num_clients: int,
    score: Score,
    score_source: ScoreSource,
    privacy: PrivateChoice | None,
    aggregation: SecureAggregation | None,
    noise_seed: int | None,
) -> Chooser:
    """Return what compares the trials.

    Parameters
    ----------
    sizes : sequence of int
        Number of trials of each rung: all rungs share epsilon.
    num_clients : int
        N >= 1, the most clients that take part.
    score : Score
        Weighted sum of metrics that a trial is compared by.
    score_source : {"clients", "server"}
        Whose scores trials are compared by. The server's need no release.
    privacy : PrivateChoice or None
        None: the clients' scores are read.
    aggregation : SecureAggregation or None
        How clients sum their ballots, and add the noise themselves.
    noise_seed : int or None
        *Experiments only*: makes the noise repeat, which protects nobody.

    Raises
    ------
    ValueError
        If these do not fit together; the message names the field.
    ImportError
        If real noise is wanted and OpenDP is missing; the message names the extra.
    """
    if aggregation is not None:
        require_instance("aggregation", aggregation, SecureAggregation)
        allowed = "given, with secure aggregation"
        require(privacy is not None, "privacy", privacy, allowed)
        allowed = "None, where the clients draw the noise"
        require(noise_seed is None, "seeds.noise", noise_seed, allowed)
    if score_source == "server":
        allowed = "None with score='server': no client's scores are released"
        require(privacy is None, "privacy", privacy, allowed)
        return ServerChooser(num_clients, score)
    if privacy is None:
        return ExactChooser(num_clients)
    if privacy.protects == "example":
        # A sum of several means, or of one with a weight, has another range.
        (weight, *others) = score.weights.values()
        allowed = (
            "one name with protects='example': of a mean over num-examples. Have the "
            "app combine several for each example"
        )
        require(weight == 1 and not others, "metric", score.weights, allowed)
    if aggregation is not None:
        return SecureChooser(privacy, num_clients, sizes, aggregation)
    return PrivateChooser(privacy, num_clients, len(sizes), noise_seed)
