"""What all sites have in common: contexts, arms, rewards and privacy."""

from math import inf

from flwr_fbo.bandits import (
    ContinualSettings,
    EllipsoidSampling,
    FeatureEncoder,
    LinearUCBSettings,
    Number,
    RewardTimeout,
)

WEEK = 2.0  # seconds: 604800 in earnest
BIOPSY, IMAGING, FOLLOW_UP = ARMS = ("biopsy now", "imaging", "routine follow-up")

# What an arm costs, by diagnosis. Made up, and no medical advice.
COSTS = {
    BIOPSY: {"malignant": 0.0, "benign": 0.7},
    IMAGING: {"malignant": 0.4, "benign": 0.25},
    FOLLOW_UP: {"malignant": 1.0, "benign": 0.0},
}

# Bounds are public: round numbers around the ranges that the published description of
# the data set gives, 7.93 to 36.04 and 0 to 0.291. Values above 30 are clipped.
CONTEXT = {"worst radius": Number(5, 30), "worst concave points": Number(0, 0.3)}
ENCODER = FeatureEncoder(CONTEXT, blocks=ARMS)

# After a routine follow-up only bad news is reported. Silence means that all is well.
SILENCE = RewardTimeout(seconds=5 * WEEK, reward=1.0)


def releases(epsilon: float, num_releases: int) -> ContinualSettings:
    """Return what sites release, and how."""
    return ContinualSettings(
        num_releases,
        ENCODER.dimension,
        epsilon=epsilon,
        delta=1e-5,
        reward_range=(0, 1),
    )


# A site by itself: linear UCB on its own data, which never leave it. A rival should be
# a good one: with the default ridge it earns less here.
ALONE = LinearUCBSettings(
    releases(inf, 1),
    local_data="own",
    ridge=0.1,
    width=0.2,
    encoder=ENCODER,
    reward_timeout=SILENCE,
)


def settings(epsilon: float, num_releases: int) -> LinearUCBSettings:
    """Return the settings of a study."""
    return LinearUCBSettings(
        releases(epsilon, num_releases),
        local_data="released",
        encoder=ENCODER,
        # Bad news comes first, and misleads: explore more than by default.
        exploration=EllipsoidSampling(radius=0.5, uniform_share=0.05),
        reward_timeout=SILENCE,
    )
