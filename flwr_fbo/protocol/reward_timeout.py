"""What a bandit takes as a reward that has not come."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from flwr_fbo._validation import require_finite, require_positive


@dataclass(frozen=True)
class RewardTimeout:
    """How long a reward is awaited, and what it is taken to be after that.

    For events of which only those that happen are reported: a visit that was booked, a
    patient who came back. Of others nothing is ever heard.

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
    *Formal guarantees.* A decision is still part of one window of one release, with one
    reward, so that its guarantee is that of `ContinualSettings`.
    """

    seconds: float
    reward: float = 0.0

    def __post_init__(self) -> None:
        require_positive("seconds", self.seconds)
        require_finite("reward", self.reward)

    def to_dict(self) -> dict[str, float]:
        """Return the fields."""
        return asdict(self)
