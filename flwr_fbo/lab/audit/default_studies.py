"""The studies that `flwr-fbo audit` draws unless told otherwise, by strategy.

They are small, because an agent stands out most in a small study, and all have the same
large delta, where 10,000 studies with the canary and as many without show most: a noise
that keeps its promise at one delta keeps it at any other.

Epsilon is the strategy's own. A strategy that protects a client is audited twice: with
the canary's messages or without, where epsilon is promised as it is; and with messages
that flip, where 1.8 is promised for an epsilon of 0.5, and up to 2.6 with sampling. Of
a much larger promise so few studies would show little.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from flwr_fbo.bandits.fed_go_ucb.settings import NeuralPrivacy
from flwr_fbo.bandits.linear.settings import LinearUCBSettings
from flwr_fbo.lab.audit.bandit_audit import BanditAuditPlan
from flwr_fbo.lab.audit.secure_audit import SecureAuditPlan
from flwr_fbo.lab.audit.secure_bandit_audit import SecureBanditAuditPlan
from flwr_fbo.lab.audit.study_audit import StudyPlan
from flwr_fbo.lab.audit.tuning_audit import (
    TunerAuditPlan,
    TuningAuditPlan,
    WarmStartAuditPlan,
)
from flwr_fbo.privacy.accounting import calibrate_noise_multiplier
from flwr_fbo.privacy.continual_settings import ContinualSettings
from flwr_fbo.privacy.release import ReleaseSettings
from flwr_fbo.privacy.weights import WeightSchedule
from flwr_fbo.tuner.private_choice import PrivateChoice

EPSILON, FLIPPED_EPSILON, DELTA = 2.0, 0.5, 0.1

# From the strategy's epsilon and delta, which have defaults.
MakePlan = Callable[..., StudyPlan]


def _of_all(num_agents: int, noise_multiplier: float) -> ReleaseSettings:
    """Return releases to which all agents send, each for as much."""
    return ReleaseSettings(
        num_agents,
        clip_norm=1.0,
        noise_multiplier=noise_multiplier,
        sampling_probability=1.0,
        weights=WeightSchedule(peak=0.0),
    )


def fed_vote(epsilon: float = EPSILON, delta: float = DELTA) -> TuningAuditPlan:
    """Return `FedVote`'s: two releases, all agents take part in both."""
    z = calibrate_noise_multiplier(epsilon, delta, 1.0, 2)
    return TuningAuditPlan(_of_all(2, z), delta, (6, 10))


def dp_fts_de(epsilon: float = EPSILON, delta: float = DELTA) -> TuningAuditPlan:
    """Return `DPFTSDE`'s: sampling, sub-regions, and weights from first to last."""
    z = calibrate_noise_multiplier(epsilon, delta, 0.35, 3)
    settings = ReleaseSettings(4, 2, noise_multiplier=z, sampling_probability=0.35)
    return TuningAuditPlan(settings, delta, (1, 21, 40), 2)


def fed_warm_start(
    epsilon: float = EPSILON, delta: float = DELTA
) -> WarmStartAuditPlan:
    """Return `FedWarmStart`'s: four cohorts, and one who only follows."""
    z = calibrate_noise_multiplier(epsilon, delta, 1.0, 1)
    rounds = (10, 20, 30, 40)
    return WarmStartAuditPlan(_of_all(5, z), delta, rounds, 5)


def fed_ucb(epsilon: float = EPSILON, delta: float = DELTA) -> BanditAuditPlan:
    """Return `FedUCB`'s: a bandit with two arms, its second window changed."""
    settings = LinearUCBSettings(
        ContinualSettings(3, 2, epsilon, delta), local_data="released"
    )
    return BanditAuditPlan(
        settings,
        actions=((1.0, 0.0), (0.0, 1.0)),
        rewards=(1.0, -1.0),
        position=1,
    )


def fed_ucb_own(epsilon: float = EPSILON, delta: float = DELTA) -> BanditAuditPlan:
    """Return `FedUCB`'s where a site acts on its own raw trials: a finished table.

    Both arms always pay the same, so that only the changed reward tells them apart.
    """
    releases = ContinualSettings(3, 2, epsilon, delta)
    return BanditAuditPlan(
        LinearUCBSettings(releases, local_data="own"),
        actions=((1.0, 0.0), (0.0, 1.0)),
        rewards=(1.0, 1.0),
        window=4,
        position=4,
        plays_on=False,
    )


def fed_ucb_running(epsilon: float = EPSILON, delta: float = DELTA) -> BanditAuditPlan:
    """Return the same of a running clinic, for which nothing is promised."""
    return replace(fed_ucb_own(epsilon, delta), plays_on=True)


def fed_go_ucb(epsilon: float = EPSILON, delta: float = DELTA) -> BanditAuditPlan:
    """Return `FedGOUCB`'s sums: of actions of two features, a whole trial changed."""
    privacy = NeuralPrivacy(epsilon, delta, num_synchronisations=4, num_features=2)
    return BanditAuditPlan(
        LinearUCBSettings(privacy.releases, local_data="released"),
        actions=((1.0, 0.0), (0.6, 0.8)),
        rewards=(1.0, -1.0),
        change="trial",
        position=2,
    )


def federation_tuner(epsilon: float = EPSILON, delta: float = DELTA) -> TunerAuditPlan:
    """Return `FederationTuner`'s: two rungs, in each a choice between two trials."""
    return TunerAuditPlan.of(
        PrivateChoice(epsilon, delta, allow_large_delta=True), 5, 2
    )


def tuner_per_example(epsilon: float = EPSILON, delta: float = DELTA) -> TunerAuditPlan:
    """Return `FederationTuner`'s that protects one example, which is replaced."""
    return TunerAuditPlan.of(
        PrivateChoice(epsilon, delta, protects="example", allow_large_delta=True), 5, 2
    )


def flipped(make: Callable[[float, float], TuningAuditPlan]) -> MakePlan:
    """Return what makes the same plan with messages that flip."""

    def make_flipped(
        epsilon: float = FLIPPED_EPSILON, delta: float = DELTA
    ) -> TuningAuditPlan:
        return replace(make(epsilon, delta), adjacency="replaced")

    return make_flipped


STUDIES: dict[str, tuple[MakePlan, ...]] = {
    "FedVote": (fed_vote, flipped(fed_vote)),
    "DPFTSDE": (dp_fts_de, flipped(dp_fts_de)),
    "FedWarmStart": (fed_warm_start, flipped(fed_warm_start)),
    "FedUCB": (fed_ucb, fed_ucb_own, fed_ucb_running),
    "FedGOUCB": (fed_go_ucb,),
    "FederationTuner": (
        federation_tuner,
        flipped(federation_tuner),
        tuner_per_example,
    ),
}


def secure_fed_vote(epsilon: float = EPSILON, delta: float = DELTA) -> SecureAuditPlan:
    """Return `FedVote`'s with secure aggregation: two of four sites collude."""
    trusted = fed_vote(epsilon, delta)
    return _secure(trusted, replace(trusted.settings, num_agents=4))


def secure_dp_fts_de(epsilon: float = EPSILON, delta: float = DELTA) -> SecureAuditPlan:
    """Return `DPFTSDE`'s with secure aggregation, for which all sites take part."""
    trusted = dp_fts_de(epsilon, delta)
    times = len(trusted.release_after)
    z = calibrate_noise_multiplier(epsilon, delta, 1.0, times)
    with_all = replace(trusted.settings, sampling_probability=1.0, noise_multiplier=z)
    return _secure(trusted, with_all)


def _secure(trusted: TuningAuditPlan, settings: ReleaseSettings) -> SecureAuditPlan:
    return SecureAuditPlan(
        settings, trusted.delta, trusted.release_after, trusted.num_features
    )


def secure_fed_ucb(
    epsilon: float = EPSILON, delta: float = DELTA
) -> SecureBanditAuditPlan:
    """Return `FedUCB`'s with secure aggregation: three blocks, two of five collude."""
    releases = ContinualSettings(3, 2, epsilon, delta, mechanism="blocks")
    return SecureBanditAuditPlan(
        LinearUCBSettings(releases, local_data="released"),
        actions=((1.0, 0.0), (0.0, 1.0)),
        rewards=(1.0, -1.0),
        change="trial",
        position=1,
    )


SECURE_STUDIES: dict[str, tuple[MakePlan, ...]] = {
    "FedVote": (secure_fed_vote, flipped(secure_fed_vote)),
    "DPFTSDE": (secure_dp_fts_de, flipped(secure_dp_fts_de)),
    "FedUCB": (secure_fed_ucb,),
}
