"""What a bandit takes as a reward that has not come."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from flwr_fbo._common.conversion import take_plain
from flwr_fbo._common.validation import require_finite, require_positive


@dataclass(frozen=True)
class RewardTimeout:
    """How long a reward is awaited, and what it is taken to be after that.

    Some events are reported only if they happen: a visit that was booked, a patient who
    came back. A site waits for a time, and then takes them not to have happened.

    Examples
    --------
    >>> from flwr_fbo import ContinualSettings, LinearUCBSettings, RewardTimeout
    >>> releases = ContinualSettings(
    ...     num_releases=30, dimension=10, epsilon=1.0, delta=1e-5
    ... )
    >>> no_visit = RewardTimeout(seconds=30 * 24 * 3600, reward=0.0)
    >>> settings = LinearUCBSettings(releases, reward_timeout=no_visit)

    Attributes
    ----------
    seconds : float
        > 0, from the choice on, by the clock of the site.
    reward : float
        What is recorded then, in [-B, B]; a reward that comes later is refused.

    Notes
    -----
    Rewards that come early differ from those that come late: if bad news comes at once,
    and silence counts as good news, early releases make an arm look worse than it is.

    *Formal guarantees.* Each decision still adds one reward to the sums, once, so that
    the guarantee is that of `ContinualSettings`. When a reward comes is private, too:
    one that is in a later release, or taken as known there, moves releases no more than
    another reward does (tested for the factorisations `toeplitz` and `tree`).
    """

    seconds: float
    reward: float = 0.0

    def __post_init__(self) -> None:
        take_plain(self)
        require_positive("seconds", self.seconds)
        require_finite("reward", self.reward)

    def to_dict(self) -> dict[str, float]:
        """Return the fields."""
        return asdict(self)
