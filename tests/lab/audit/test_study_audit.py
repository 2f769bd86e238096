"""The audit of whole studies: no false alarm, and every planted fault."""

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binomtest, norm

from flwr_fbo.lab.audit import study_audit
from flwr_fbo.lab.audit.default_studies import (
    STUDIES,
    dp_fts_de,
    fed_vote,
    fed_warm_start,
    federation_tuner,
    flipped,
    secure_fed_vote,
)
from flwr_fbo.lab.audit.planted_faults import (
    COHORT_FAULTS,
    FAULTS,
)
from flwr_fbo.lab.audit.study_audit import AuditTest, StreamEntropy, audit
from flwr_fbo.lab.audit.tuning_audit import TuningAuditPlan
from flwr_fbo.privacy.gaussian import gaussian_epsilon, gaussian_mu
from flwr_fbo.privacy.guarantee import REPLACED_CLIENT
from flwr_fbo.privacy.noise import Entropy, OsEntropy
from flwr_fbo.privacy.release import Release, ReleaseSettings

DELTA = 0.1
# A single release has epsilon = 1 at delta = 1e-3 for q = 0.35.
Z = 1.43


def one_release(
    num_agents: int = 2, num_sub_regions: int = 1, **more: Any
) -> TuningAuditPlan:
    of_plan = {"num_draws", "absence", "num_features"} & set(more)
    chosen = {"num_draws": 1000, **{key: more.pop(key) for key in of_plan}}
    settings = {"noise_multiplier": Z, **more}
    released = ReleaseSettings(num_agents, num_sub_regions, **settings)
    return TuningAuditPlan(released, 1e-3, (1,), **chosen)


# --- Correct studies


@pytest.mark.parametrize(
    "audited",
    [
        one_release(),
        one_release(8, 4, num_features=3, calibration="published"),
        one_release(1, sampling_probability=1.0, absence="zeros"),
    ],
)
def test_a_correct_single_release_is_not_flagged(audited: TuningAuditPlan) -> None:
    assert not audit(audited, StreamEntropy(1)).violated


@pytest.mark.parametrize("entropy", [StreamEntropy(1), OsEntropy()], ids=["seed", "os"])
def test_the_likelihood_ratio_has_the_law_that_is_promised(entropy: Entropy) -> None:
    """N(-mu^2/2, mu^2) without the canary, N(mu^2/2, mu^2) with it: tight."""
    study = replace(fed_vote(), num_draws=1000)
    mu = math.sqrt(2) / study.settings.noise_multiplier
    promised = study.promised
    assert gaussian_epsilon(promised.delta, mu) == pytest.approx(promised.epsilon)
    worlds = study.draw(entropy, None, lambda _: None)
    for evidence, sign in zip(worlds, (1, -1), strict=True):
        ratios = evidence.log_ratio
        # Six deviations of each: p < 1e-8 for all four.
        assert ratios.mean() == pytest.approx(sign * mu**2 / 2, abs=6 * mu / 1000**0.5)
        assert ratios.std() == pytest.approx(mu, rel=6 / 2000**0.5)


def test_a_sampled_likelihood_ratio_has_mean_one_without_the_canary() -> None:
    """E[p/q] = 1 under q, whatever is sampled and weighted; E[q/p] = 1 under p."""
    present, absent = replace(dp_fts_de(), num_draws=1000).draw(
        StreamEntropy(2), None, lambda _: None
    )
    for ratios in (np.exp(absent.log_ratio), np.exp(-present.log_ratio)):
        deviation = ratios.std() / math.sqrt(len(ratios))
        assert ratios.mean() == pytest.approx(1.0, abs=5 * deviation)


@pytest.mark.slow
def test_a_gaussian_is_bounded_as_closely_as_theory_allows() -> None:
    """Without sampling the best test is a threshold, and its rates are known."""
    audited = one_release(1, sampling_probability=1.0, num_draws=10_000)
    result = audit(audited, StreamEntropy(2))
    thresholds = np.linspace(-3, 5, 801)
    present, absent = norm.sf(thresholds - 1 / Z), norm.sf(thresholds)
    best = np.log(np.maximum(present - 1e-3, 1e-300) / absent).max()
    assert 0.4 * best < result.epsilon_lower < result.promised.epsilon


# --- Planted faults

# As many studies as each needs, in either world.
GROSS = [
    ("reused-noise", replace(fed_vote(), num_draws=1000)),
    ("noise-once", replace(fed_vote(), num_draws=1000)),
    ("presence-in-low-bits", replace(fed_vote(), num_draws=1000)),
    ("half-noise", replace(fed_vote(), num_draws=1000)),
    ("no-clip", replace(fed_vote(), num_draws=1000)),
]
ONE_AGENT = ReleaseSettings(1, noise_multiplier=0.6)
SUBTLE = [
    ("reused-noise", replace(dp_fts_de(), num_draws=1000)),
    ("correlated-noise", replace(fed_vote(), num_draws=5000)),
    ("noise-once", replace(dp_fts_de(), num_draws=1000)),
    ("mask-in-low-bits", replace(dp_fts_de(), num_draws=5000)),
    ("presence-in-low-bits", replace(dp_fts_de(), num_draws=1000)),
    ("sensitivity-over-sqrt-2", replace(fed_vote(), num_draws=5000)),
    ("noise-by-replies", replace(fed_vote(), num_draws=2000)),
    ("noise-by-sampled", replace(dp_fts_de(), num_draws=2000)),
    ("bare-empty-sample", replace(dp_fts_de(), num_draws=10_000, settings=ONE_AGENT)),
    ("counted-twice", replace(fed_vote(), num_draws=2000)),
    ("uniform-sensitivity", replace(dp_fts_de(), num_draws=5000, release_after=(1, 2))),
]
FAULTY = [
    # The command finds `no-clip` in the fast tests.
    *(
        pytest.param(
            *fault, id=fault[0], marks=[pytest.mark.slow] * (fault[0] == "no-clip")
        )
        for fault in GROSS
    ),
    *(pytest.param(*fault, marks=pytest.mark.slow) for fault in SUBTLE),
]


@pytest.mark.parametrize(("fault", "audited"), FAULTY)
def test_faults_of_tuning_studies_are_found(
    fault: str, audited: TuningAuditPlan
) -> None:
    result = audit(audited, StreamEntropy(3), FAULTS[fault])
    assert result.violated
    assert result.verdict == "VIOLATION: lower bound exceeds the accountant's"


def test_every_fault_is_looked_for() -> None:
    # That of less noise in `test_tuner_audit`, which draws enough.
    faults = set(FAULTS) - {"noise-9-percent-less"}
    assert {fault for fault, _ in GROSS + SUBTLE} == faults


@pytest.mark.parametrize(
    "fault",
    [
        "sent-again",
        *(
            pytest.param(fault, marks=pytest.mark.slow)
            for fault in COHORT_FAULTS
            # The last in `test_tuner_audit`, which draws enough.
            if fault not in ("sent-again", "noise-9-percent-less")
        ),
    ],
)
def test_faults_of_cohorts_are_found(fault: str) -> None:
    plan = replace(fed_warm_start(), num_draws=1000 if fault == "sent-again" else 2000)
    result = audit(plan, StreamEntropy(3), COHORT_FAULTS[fault])
    assert result.violated


def test_a_canary_that_sends_in_each_release_counts_once() -> None:
    """What it sends to other cohorts' releases is not in them, present or absent."""
    plan = replace(fed_warm_start(), num_draws=1000)
    assert gaussian_epsilon(DELTA, 1 / plan.settings.noise_multiplier) == (
        pytest.approx(plan.promised.epsilon)
    )
    worlds = plan.draw(StreamEntropy(1), None, lambda _: None)
    for evidence, sign in zip(worlds, (1, -1), strict=True):
        mu = evidence.shifts[0]
        np.testing.assert_allclose(mu, [0, 1 / plan.settings.noise_multiplier, 0, 0])
        ratios = evidence.log_ratio
        reach = 5 * mu[1] / 1000**0.5
        assert ratios.mean() == pytest.approx(sign * mu[1] ** 2 / 2, abs=reach)
        # Nothing of the canary is in any other release.
        for release in (0, 2, 3):
            along = evidence.projections[:, release, 1]
            assert along.mean() == pytest.approx(0.0, abs=5 / 1000**0.5)
            assert along.std() == pytest.approx(1.0, rel=5 / 2000**0.5)


@pytest.mark.parametrize("sizes", [(1, 1), (0, 1, 1, 1)])
def test_bad_cohorts_are_named(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="cohort_sizes="):
        replace(fed_warm_start(), num_draws=1000, cohort_sizes=sizes)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["presence-in-low-bits", "mask-in-low-bits"])
def test_low_bits_tell_where_noise_fills_them(fault: str) -> None:
    """The floats of OpenDP's noise have random low bits, those of a grid zeros."""
    assert audit(
        replace(dp_fts_de(), num_draws=10_000), OsEntropy(), FAULTS[fault]
    ).violated


@pytest.mark.slow
def test_one_release_shows_no_fault_of_several() -> None:
    for fault in ("reused-noise", "noise-once"):
        audited = replace(fed_vote(), num_draws=1000, release_after=(2,))
        assert not audit(audited, StreamEntropy(3), FAULTS[fault]).violated


def test_who_answers_shows_only_if_the_absent_do_not() -> None:
    audited = one_release(absence="zeros")
    assert not audit(audited, StreamEntropy(3), FAULTS["noise-by-replies"]).violated


def test_an_undefined_release_is_told_from_a_defined_one() -> None:
    """A clip that divides by the norm of a message of zeros."""

    class DividesByZero(Release):
        def release(
            self, iteration: int, messages: Mapping[int, Any], num_features: int
        ) -> NDArray[np.float64]:
            lost = math.nan if not np.any(messages[0]) else 0.0
            return np.full((1, num_features), lost)

    found = audit(one_release(absence="zeros"), StreamEntropy(0), DividesByZero)
    assert found.violated
    assert found.false_positives == 0


# --- Messages that flip

NO_SAMPLING = [fed_vote, fed_warm_start, federation_tuner, secure_fed_vote]


@pytest.mark.parametrize("make", NO_SAMPLING)
def test_a_message_that_flips_is_twice_as_far_as_zeros(
    make: Callable[..., TuningAuditPlan],
) -> None:
    """It shows more than is promised for zeros, and no more than for another one."""
    zeroed = replace(make(epsilon=0.5), num_draws=2000)
    flips = replace(flipped(make)(), num_draws=2000)
    assert flips.promised.guarantee.unit == REPLACED_CLIENT
    assert flips.promised.epsilon == zeroed.promised.epsilon_if_replaced
    least = zeroed.promised.epsilon
    result = audit(flips, StreamEntropy(5))
    assert least < result.epsilon_lower < flips.promised.epsilon
    assert audit(zeroed, StreamEntropy(5)).epsilon_lower < least


@pytest.mark.parametrize("make", NO_SAMPLING)
def test_the_likelihood_ratio_of_flips_has_the_law_that_4_71_is_of(
    make: Callable[..., TuningAuditPlan],
) -> None:
    """Epsilon 2 at delta 1e-3 for zeros is 4.71 for another message: exactly 2 mu."""
    plan = replace(make(2.0, 1e-3), adjacency="replaced", num_draws=1000)
    promised = plan.promised
    assert promised.epsilon == pytest.approx(4.71, abs=0.01)
    mu = gaussian_mu(promised.epsilon, 1e-3)
    assert mu == pytest.approx(2 * gaussian_mu(2.0, 1e-3), rel=2e-3)
    worlds = plan.draw(StreamEntropy(1), None, lambda _: None)
    for evidence, sign in zip(worlds, (1, -1), strict=True):
        ratios = evidence.log_ratio
        assert ratios.mean() == pytest.approx(sign * mu**2 / 2, abs=6 * mu / 1000**0.5)
        assert ratios.std() == pytest.approx(mu, rel=6 / 2000**0.5)


@pytest.mark.slow
@pytest.mark.no_cover
def test_the_bound_comes_near_4_71_for_2_and_never_exceeds_it() -> None:
    plan = replace(fed_vote(2.0, 1e-3), adjacency="replaced", num_draws=80_000)
    result = audit(plan, StreamEntropy(0))
    assert 0.65 * 4.71 < result.epsilon_lower < result.promised.epsilon


# As many studies as each needs, in either world. Who sends is the same in both, so that
# `presence-in-low-bits` and `noise-by-replies` cannot show.
FLIPPING = {
    "FedVote": {
        "half-noise": 1000,
        "reused-noise": 1000,
        "noise-once": 1000,
        "no-clip": 1000,
        "counted-twice": 1000,
        "sensitivity-over-sqrt-2": 5000,
        "correlated-noise": 5000,
    },
    "DPFTSDE": {"reused-noise": 1000, "no-clip": 1000, "mask-in-low-bits": 10_000},
    "FedWarmStart": {
        "half-noise": 1000,
        "reused-noise": 1000,
        "counted-twice": 1000,
        "sent-again": 5000,
        "sensitivity-over-sqrt-2": 5000,
    },
    "FederationTuner": {
        "half-noise": 1000,
        "reused-noise": 1000,
        "counted-twice": 1000,
        "correlated-noise": 5000,
        "sensitivity-over-sqrt-2": 5000,
    },
}
QUICK = {
    ("FedVote", "half-noise"),
    ("FederationTuner", "half-noise"),
    ("DPFTSDE", "no-clip"),
}


@pytest.mark.parametrize(
    ("study", "fault", "num_draws"),
    [
        pytest.param(study, fault, draws, marks=[pytest.mark.slow] * is_slow)
        for study, faults in FLIPPING.items()
        for fault, draws in faults.items()
        for is_slow in [(study, fault) not in QUICK]
    ],
)
def test_faults_are_found_by_messages_that_flip(
    study: str, fault: str, num_draws: int
) -> None:
    plan = replace(STUDIES[study][1](), num_draws=num_draws)
    assert plan.promised.guarantee.unit == REPLACED_CLIENT
    assert audit(plan, StreamEntropy(3), plan.faults[fault]).violated


# --- The bound


@pytest.mark.parametrize(("hits", "false_alarms"), [(0, 0), (40, 3), (1000, 1000)])
def test_the_bound_is_clopper_and_pearsons(hits: int, false_alarms: int) -> None:
    def interval(count: int) -> Any:
        # Two-sided at 99.8 % is one-sided at 99.9 %.
        return binomtest(count, 1000).proportion_ci(0.998, "exact")

    rate = (interval(hits).low - 1e-3) / interval(false_alarms).high
    bound = study_audit._epsilon_lower(
        np.array([hits]), np.array([false_alarms]), 1000, 1e-3, 1e-3
    )
    assert bound[0] == pytest.approx(math.log(max(rate, 1.0)))


def test_a_test_reads_as_it_counts() -> None:
    low = AuditTest("low bits", -1, -0.5, guesses_present=False)
    assert str(low) == 'absent if "low bits" is <= 0.500'
    assert low.count(np.array([-1.0, 0.0, 2.0])) == 2
    high = AuditTest("likelihood ratio", 1, 6.0, guesses_present=True)
    assert high.count(np.array([5.0, 6.0, 7.0])) == 2


def test_the_same_seed_finds_the_same() -> None:
    one, other = (audit(one_release(), StreamEntropy(9)) for _ in range(2))
    assert one == other


def test_seeded_noise_is_on_a_grid() -> None:
    """So the low bits of a release tell nothing of what was added to the noise."""
    entropy, std = StreamEntropy(0), np.array([3.0])
    noised = entropy.add_noise(0, np.full((1, 1000), 0.7), std)
    np.testing.assert_array_equal(np.rint(noised * 2**29), noised * 2**29)
    assert noised.std() == pytest.approx(3.0, rel=0.15)


# --- Plans


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"settings": ReleaseSettings(2, noise_multiplier=0.0)}, "noise_multiplier=0"),
        (
            {
                "settings": ReleaseSettings(
                    2, sampling="fixed-size", sampling_probability=0.5
                )
            },
            "sampling='fixed-size'",
        ),
        ({"num_draws": 999}, "num_draws=999"),
        ({"release_after": ()}, "release_after=()"),
        ({"release_after": (3, 3)}, "release_after=(3, 3)"),
        ({"absence": "gone"}, "absence='gone'"),
        ({"adjacency": "opposite"}, "adjacency='opposite'"),
    ],
)
def test_bad_plans_are_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match="is not allowed") as error:
        replace(fed_vote(), **change)
    assert words in str(error.value)


def test_a_study_is_described_in_short_lines() -> None:
    for make in itertools.chain(*STUDIES.values()):
        lines = make().describe()
        assert list(lines) == ["Study", "Privacy", "Canary"]
        assert max(map(len, lines.values())) <= 90
