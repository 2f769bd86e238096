"""`PrivateChoice`: how trials are chosen privately, and what that guarantees."""

from __future__ import annotations

from dataclasses import dataclass, field

from flwr_fbo._common.fields import (
    check_fields,
    choice,
    flag,
    integer,
    interval,
    ruled,
)
from flwr_fbo._common.validation import require
from flwr_fbo.privacy.gaussian import check_delta, check_epsilon
from flwr_fbo.privacy.guarantee import Protects, require_small_delta
from flwr_fbo.site.limits import ACCURACY_RANGE
from flwr_fbo.tuner.ballots.ballots import Ballots
from flwr_fbo.tuner.ballots.example_ballots import MOST_EXAMPLES, ExampleBallots
from flwr_fbo.tuner.ballots.rank_ballots import RankBallots

# Examples with which a client counts at most.
_MAX_EXAMPLES = 10_000


@dataclass(frozen=True)
class PrivateChoice:
    """A private choice among trials.

    Examples
    --------
    >>> from flwr_fbo import PrivateChoice
    >>> choice = PrivateChoice(epsilon=2, delta=1e-3)  # hides a client's scores
    >>> choice = PrivateChoice(epsilon=0.5, delta=1e-5, protects="example")
    >>> choice.ballots.voices  # the evidence grows with their number
    'examples'

    Attributes
    ----------
    epsilon : float
        Privacy budget of all choices together, from 1e-3 to 1e3; the rungs share it.
    delta : float
        Delta in (0, 1) at which epsilon holds; below 0.01 unless that is allowed. Take
        at most a tenth of one over the number of clients, or of examples in all: a
        warning is logged above it.
    protects : {"client", "example"}
        Unit of privacy. ``"client"``: all scores of a client. ``"example"``: one
        validation example, such as a patient with one record, that is replaced by
        another; then the metric must be a mean over the client's ``num-examples`` of
        values in a public range. See the notes.
    metric_range : tuple of float, optional
        Smallest and largest value that one example can have, where it is protected. By
        default 0 and 1, as of an accuracy. The app must clip each value to it, and each
        site that has a folder or limits must have ``fbo-metric-range`` in its node
        config for another one: `flwr_fbo.Limits.metric_range`.
    max_examples : int, optional
        Examples with which a client counts at most, from 1 to 2**20, where one is
        protected; 10,000 by default. It bounds what a client that lies can say.
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
    *Formal guarantees, protects="client"*. Adjacency: two studies are neighbours if
    they differ in that one client's ballots are all zeroed. Ballots are clipped to norm
    1 for each rung, whatever the number of trials; the sum of a rung's is released
    once, with Gaussian noise, and which trials survive is a function of the sums that
    were released so far. Covered is what the releases reveal of one client's *scores,
    given the models* that it scored.

    Not covered: the models themselves. They were trained on the clients' data, that of
    the client in question included, and the server sees them. With Flower's SecAgg or
    SecAgg+ in `main` it sees, under the assumptions of that protocol, one weighted mean
    of the clients' models for each round of each trial. These means are exact, and
    where two trials train alike, means over different clients can be subtracted. Masks
    do not make the choice private in the training data. The choice is private in the
    client's *training data* only where each training has client-level differential
    privacy of its own, and then at the composed epsilon of all trials, all rounds and
    this choice, with the rounds of trials that are trained again after a tuner was
    killed. A client's votes on models that it has trained alone, as in DP-Hype (PoPETs
    2026), are covered with its data; but such models are no federated training.

    *Formal guarantees, protects="example"*. Adjacency: two studies are neighbours if
    they differ in that one validation example of one client is replaced by another. A
    client's ballot has, for each trial, the sum of its examples' values, scaled to
    [0, 1], less the mean of these sums. One example moves it by at most the square root
    of K, the number of trials, in the L2 norm; exactly that for an even K
    (`flwr_fbo.tuner.ballots.example_ballots` has the proof). The sum of a rung's
    ballots is released once, with noise for that distance, and which trials survive
    follows from the sums. ``num-examples`` is public: it is exact at the server, with
    each ballot. Covered is what the releases reveal of one example *by its scores,
    given the models*. Not covered is the same as for a client, and what follows is
    under these conditions:

    - the app gives each example a value in ``metric_range``, whatever the model, and
      replies with their mean: ``numpy.clip(numpy.nan_to_num(values, nan=worst), low,
      high).mean()``. The range is the one that the site has allowed, not one in the run
      config, which the server writes;
    - that holds for each metric in the app's replies to ``evaluate``, as the server
      says which of them is the score;
    - whether it replies does not depend on one example, and ``num-examples`` is not
      smaller or larger than the number of values;
    - an example is in the validation data of one client, and once. A patient with k
      records has epsilon for a group of k: see `flwr_fbo.privacy.guarantee.of_group`.

    Then no example can make a mean missing, NaN or out of the range. One that is counts
    as the worst value of all the client's examples; a client without any valid mean
    sends a constant vector, by which the server counts the examples of such clients. It
    counts with the number of examples that it told last, also where the app raises an
    exception; clients that told none are counted by themselves. An app that breaks the
    first condition can have one example change a client's whole ballot: nothing is
    promised then, and where the mean is within the range nobody can see it. The
    client's examples in all of the trials are the same number, or it counts with the
    fewest.

    *Failures, protects="client"*. They are part of a client's ballot: a score that is
    missing, NaN or infinite ranks below all finite ones. A client that was asked, and
    has no finite score at all, sends a constant ballot of norm 1, which ranks no trial.
    So the sum of the released scores estimates how many clients have none. This is
    post-processing of the same release, at no further epsilon, and as uncertain as
    epsilon demands: a federation in which one client has scores looks much like one in
    which no client has. The tuner ends with an error if, at level 0.01, more than half
    of the clients have no score, and the trials do not differ from noise.

    Without ``aggregation`` the server reads each ballot and adds the noise: it is
    trusted. With `SecureAggregation` it learns the noisy sum of each rung's ballots,
    and who is in it; the guarantee then holds towards the server too, as
    `SecureRelease` and `IntegerNoise` state it. That adjacency and these limits stay:
    the server still trains the models, and sees them.
    """

    epsilon: float = field(metadata=ruled(lambda _, epsilon: check_epsilon(epsilon)))
    delta: float = field(metadata=ruled(lambda _, delta: check_delta(delta)))
    protects: Protects = field(default="client", metadata=choice(Protects))
    metric_range: tuple[float, float] | None = field(
        default=None, metadata=interval(optional=True)
    )
    max_examples: int | None = field(
        default=None, metadata=integer(1, MOST_EXAMPLES, optional=True)
    )
    noise_only: bool = field(default=False, metadata=flag())
    allow_large_delta: bool = field(default=False, metadata=flag())

    def __post_init__(self) -> None:
        check_fields(self)
        require_small_delta(self.delta, allow_large_delta=self.allow_large_delta)
        if self.protects == "client":
            allowed = "left out, unless protects='example'"
            for name in ("metric_range", "max_examples"):
                value = getattr(self, name)
                require(value is None, name, value, allowed)

    @property
    def ballots(self) -> Ballots:
        """What clients say of trials."""
        if self.protects == "client":
            return RankBallots()
        low, high = ACCURACY_RANGE if self.metric_range is None else self.metric_range
        most = _MAX_EXAMPLES if self.max_examples is None else self.max_examples
        return ExampleBallots(low, high, most)
