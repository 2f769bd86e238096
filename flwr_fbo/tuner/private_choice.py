"""`PrivateChoice`: how trials are chosen privately, and what that guarantees."""

from __future__ import annotations

from dataclasses import dataclass, field

from flwr_fbo._common.fields import check_fields, flag, ruled
from flwr_fbo.privacy.gaussian import check_delta, check_epsilon
from flwr_fbo.privacy.guarantee import require_small_delta


@dataclass(frozen=True)
class PrivateChoice:
    """A private choice among trials.

    Examples
    --------
    >>> from flwr_fbo import PrivateChoice
    >>> PrivateChoice(epsilon=2, delta=1e-3)
    PrivateChoice(epsilon=2, delta=0.001, noise_only=False, allow_large_delta=False)

    Attributes
    ----------
    epsilon : float
        Privacy budget of all choices together, from 1e-3 to 1e3; the rungs share it.
    delta : float
        Delta in (0, 1) at which epsilon holds; below 0.01 unless that is allowed. Take
        at most a tenth of one over the number of clients: a warning is logged above it.
    noise_only : bool
        The control: every ballot is replaced by zero, so that scores are noise alone.
    allow_large_delta : bool
        Whether delta may be 0.01 and more: for experiments.

    Raises
    ------
    ValueError
        If an argument is not allowed; the message names it.

    Notes
    -----
    *Formal guarantees*. Adjacency: two studies are neighbours if they differ in that
    one client's ballots are all zeroed. Ballots are clipped to norm 1 for each rung,
    whatever the number of trials; the sum of a rung's is released once, with Gaussian
    noise, and which trials survive is a function of the sums that were released so far.
    Covered is what the releases reveal of one client's *scores, given the models* that
    it scored. Not covered: the models themselves. They were trained on the clients'
    data, that of the client in question included, and the server sees them. With
    Flower's SecAgg or SecAgg+ in `main` it sees, under the assumptions of that
    protocol, one weighted mean of the clients' models for each round of each trial.
    These means are exact, and where two trials train alike, means over different
    clients can be subtracted. Masks do not make the choice private in the training
    data. The choice is private in the client's *training data* only where each training
    has client-level differential privacy of its own, and then at the composed epsilon
    of all trials, all rounds and this choice, with the rounds of trials that are
    trained again after a tuner was killed. A client's votes on models that it has
    trained alone, as in DP-Hype (PoPETs 2026), are covered with its data; but such
    models are no federated training.

    Failures at a client are part of its ballot: a score that is missing, NaN or
    infinite ranks below all finite ones. A client that was asked, and has no finite
    score at all, sends a constant ballot of norm 1, which ranks no trial. So the sum of
    the released scores estimates how many clients have none. This is post-processing of
    the same release, at no further epsilon, and as uncertain as epsilon demands: a
    federation in which one client has scores looks much like one in which no client
    has. The tuner ends with an error if, at level 0.01, more than half of the clients
    have no score, and the trials do not differ from noise.

    Without ``aggregation`` the server reads each ballot and adds the noise: it is
    trusted. With `SecureAggregation` it learns the noisy sum of each rung's ballots,
    and who is in it; the guarantee then holds towards the server too, as
    `SecureRelease` and `IntegerNoise` state it. That adjacency and these limits stay:
    the server still trains the models, and sees them.
    """

    epsilon: float = field(metadata=ruled(lambda _, epsilon: check_epsilon(epsilon)))
    delta: float = field(metadata=ruled(lambda _, delta: check_delta(delta)))
    noise_only: bool = field(default=False, metadata=flag())
    allow_large_delta: bool = field(default=False, metadata=flag())

    def __post_init__(self) -> None:
        check_fields(self)
        require_small_delta(self.delta, allow_large_delta=self.allow_large_delta)
