"""Default settings of our own strategies, and the published ones of DP-FTS-DE."""

from __future__ import annotations

from dataclasses import dataclass

from flwr_fbo._common.validation import require, require_known
from flwr_fbo.algorithms.dp_fts_de.settings import DPFTSDESettings
from flwr_fbo.algorithms.fed_vote.settings import LEAST_EVALUATIONS, FedVoteSettings
from flwr_fbo.algorithms.fed_warm_start.settings import FedWarmStartSettings
from flwr_fbo.privacy.weights import WeightSchedule
from flwr_fbo.strategies.options import Privacy


@dataclass(frozen=True)
class Preset:
    """Settings of a private tuning strategy; see `PrivateTuningStrategy`.

    Attributes
    ----------
    agent : DPFTSDESettings, FedVoteSettings or FedWarmStartSettings
    privacy : Privacy
    weights : WeightSchedule
    """

    agent: DPFTSDESettings | FedVoteSettings | FedWarmStartSettings
    privacy: Privacy
    weights: WeightSchedule

    @property
    def is_lean(self) -> bool:
        """Whether its agents start lean: at one point, and then by improvement."""
        return not isinstance(self.agent, DPFTSDESettings)


# When agents have looked around for themselves, and when they have tried what the first
# votes pointed at.
VOTES = Preset(
    FedVoteSettings(),
    Privacy(clip_norm=1.0, sampling_probability=1.0, release_after=(5, 9)),
    WeightSchedule(peak=0.0),
)
# A release a cohort, each with one message of each of its sites.
WARM_START = Preset(
    FedWarmStartSettings(),
    Privacy(clip_norm=1.0, sampling_probability=1.0),
    WeightSchedule(peak=0.0),
)
# Those of DP-FTS-DE's paper, by the names of `DPFTSDE(preset=...)`: releases until one
# agent in twenty would follow.
PUBLISHED = {
    "paper": Preset(
        DPFTSDESettings(),
        Privacy(clip_norm=22.0, sampling_probability=0.35, min_follow_probability=0.05),
        WeightSchedule(),
    ),
    "paper-synthetic": Preset(
        DPFTSDESettings(
            num_features=50,
            num_sub_regions=2,
            lengthscale=0.03,
            regularization=0.01,
            follow="inverse-sqrt",
        ),
        Privacy(clip_norm=11.0, sampling_probability=0.25, min_follow_probability=0.05),
        WeightSchedule(num_constant_rounds=5, num_decay_rounds=5),
    ),
}
_OURS = {"FedVote": VOTES, "FedWarmStart": WARM_START}


def votes_after(horizon: int) -> tuple[int, ...]:
    """Return the iterations after which agents vote, by default.

    Two votes guide the search; they come earlier in a study of fewer than 12 rounds, so
    that what they say can be tried. Where agents evaluate enough for the study to
    recommend a setting, a third vote comes one round before the last.

    Parameters
    ----------
    horizon : int
        T >= 1, the last iteration.
    """
    planned = VOTES.privacy.release_after
    assert planned is not None
    latest = ((horizon - 1) // 2, horizon - 1)
    guiding = {min(*pair) for pair in zip(planned, latest, strict=True)}
    has_third = horizon >= LEAST_EVALUATIONS  # of iteration 0 there is one, too
    return tuple(sorted(guiding | {horizon - 1} if has_third else guiding))


STRATEGIES = (*_OURS, "DPFTSDE")


def privacy_of(preset: Preset, privacy: Privacy | None) -> Privacy:
    """Return what is given, and the preset's for what is not."""
    if privacy is None:
        return preset.privacy
    require(isinstance(privacy, Privacy), "privacy", privacy, "a Privacy")
    return privacy.filled(preset.privacy)


def preset_of(strategy: str, preset: str | None) -> Preset:
    """Return the settings of a strategy by name, as files and commands give them.

    Raises
    ------
    ValueError
        If there is no such strategy, or it has no such preset.
    """
    require_known("strategy", strategy, STRATEGIES)
    if strategy in _OURS:
        require(preset is None, "preset", preset, f"left out, with {strategy}")
        return _OURS[strategy]
    preset = "paper" if preset is None else preset
    require_known("preset", preset, PUBLISHED)
    return PUBLISHED[preset]
