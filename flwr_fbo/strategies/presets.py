"""FedVote's default settings, and the published ones of DP-FTS-DE."""

from __future__ import annotations

from dataclasses import dataclass, field

from flwr_fbo._validation import nearest, require
from flwr_fbo.privacy.schedule import MIN_FOLLOW_PROBABILITY, Schedule
from flwr_fbo.privacy.weights import WeightSchedule
from flwr_fbo.protocol.fed_vote_settings import VotingSettings
from flwr_fbo.protocol.tuning_settings import ThompsonSettings


@dataclass(frozen=True)
class Preset:
    """Settings of a private tuning strategy; see `PrivateTuningStrategy`.

    Attributes
    ----------
    agent : ThompsonSettings or VotingSettings
    clip_norm : float
        S.
    sampling_probability : float
        q.
    releases : "all", int, float or collection of int
    weights : WeightSchedule
    """

    agent: ThompsonSettings | VotingSettings = field(default_factory=ThompsonSettings)
    clip_norm: float = 22.0
    sampling_probability: float = 0.35
    releases: Schedule = MIN_FOLLOW_PROBABILITY
    weights: WeightSchedule = field(default_factory=WeightSchedule)

    @property
    def votes(self) -> bool:
        """Whether its agents vote."""
        return isinstance(self.agent, VotingSettings)


# Two releases that share the budget: when agents have looked around for themselves, and
# when they have tried what the first votes pointed at.
VOTES = Preset(
    VotingSettings(),
    clip_norm=1.0,
    sampling_probability=1.0,
    releases=(1, 5),
    weights=WeightSchedule(peak=0.0),
)
# Those of DP-FTS-DE's paper, by the names of `DPFTSDE(preset=...)`.
PUBLISHED = {
    "paper": Preset(),
    "paper-synthetic": Preset(
        ThompsonSettings(num_features=50, follow="inverse-sqrt"),
        clip_norm=11.0,
        weights=WeightSchedule(num_constant_rounds=5, num_decay_rounds=5),
    ),
}
STRATEGIES = ("FedVote", "DPFTSDE")


def preset_of(strategy: str, preset: str | None) -> Preset:
    """Return the settings of a strategy by name, as files and commands give them.

    Raises
    ------
    ValueError
        If there is no such strategy, or it has no such preset.
    """
    require(strategy in STRATEGIES, "strategy", strategy, nearest(strategy, STRATEGIES))
    if strategy == "FedVote":
        require(preset is None, "preset", preset, "left out, with FedVote")
        return VOTES
    preset = "paper" if preset is None else preset
    known = isinstance(preset, str) and preset in PUBLISHED
    require(known, "preset", preset, nearest(str(preset), PUBLISHED))
    return PUBLISHED[preset]
