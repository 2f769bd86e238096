"""The audit of studies with secure aggregation: no false alarm, and every fault."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flwr_fbo.lab.audit.default_studies import (
    DELTA,
    flipped,
    secure_dp_fts_de,
    secure_fed_vote,
)
from flwr_fbo.lab.audit.secure_audit import (
    SECURE_FAULTS,
    SecureAuditPlan,
    SecureSites,
    Share,
)
from flwr_fbo.lab.audit.study_audit import StreamEntropy, audit
from flwr_fbo.privacy.gaussian import gaussian_epsilon
from flwr_fbo.privacy.guarantee import REPLACED_CLIENT, Guarantee
from flwr_fbo.privacy.noise import Entropy, OsEntropy
from flwr_fbo.privacy.release import ReleaseSettings
from tests.support.attempts import make_attempt

# --- What the adversary learns


@pytest.mark.slow
@pytest.mark.parametrize("entropy", [StreamEntropy(1), OsEntropy()], ids=["seed", "os"])
def test_the_honest_shares_alone_keep_the_promise(entropy: Entropy) -> None:
    """The likelihood ratio is N(-mu^2/2, mu^2) without the canary: tight."""
    study = replace(secure_fed_vote(), num_draws=1000)
    mu = math.sqrt(2) / study.settings.noise_multiplier
    assert gaussian_epsilon(DELTA, mu) == pytest.approx(study.promised.epsilon)
    worlds = study.draw(entropy, None, lambda _: None)
    for evidence, sign in zip(worlds, (1, -1), strict=True):
        ratios = evidence.log_ratio
        # Six deviations of each: p < 1e-8 for all four.
        assert ratios.mean() == pytest.approx(sign * mu**2 / 2, abs=6 * mu / 1000**0.5)
        assert ratios.std() == pytest.approx(mu, rel=6 / 2000**0.5)


class KeepsWhatIsSent(SecureSites):
    """Sites whose shares a test can read."""

    shares: dict[int, Share]

    def share(self, slot: int) -> Share:
        drawn = self.sums.noise(0).draw_share()
        self.shares = {**getattr(self, "shares", {}), slot: drawn}
        return self.shares[slot]


def test_masked_sums_are_what_the_audit_sums() -> None:
    """The masks of five real exchanges cancel; the rest is as the audit draws it."""
    settings = replace(secure_dp_fts_de().settings, num_agents=5)
    for honest in ((0, 1, 2), tuple(range(5))):
        sites = KeepsWhatIsSent(settings, OsEntropy(), 3, honest)
        rng = np.random.default_rng(len(honest))
        messages = dict(enumerate(rng.standard_normal((5, 3))))
        learnt = sites.learnt(20, messages)
        noise = sites.sums.noise(0)
        attempt = make_attempt(5, length=noise.length, num_bits=noise.num_bits)
        for slot, member in enumerate(attempt.terms.slots):
            sent = sites.sums.release.contribution(20, slot, messages[slot])
            attempt.numbers[member] = noise.encode(sent) + sites.shares[slot]
        attempt.play()
        assert attempt.aggregator.summed == attempt.terms.slots
        known = sum(sites.shares[slot] for slot in range(5) if slot not in honest)
        left = attempt.aggregator.total - np.asarray(known).astype(np.uint64)
        np.testing.assert_array_equal(noise.decode(left), noise.decode(learnt))


def test_the_canary_is_honest_and_so_are_those_after_it() -> None:
    study = replace(secure_dp_fts_de(), num_draws=1000, honest=3)
    assert study.honest_slots[0] == study.canary
    assert len(set(study.honest_slots)) == 3
    assert set(study.honest_slots) < set(range(4))


# --- Planted faults

# As many studies as each needs, in either world; the command finds `half-shares` in
# the fast tests.
FAULTY = [
    ("half-shares", replace(secure_fed_vote(), num_draws=2000)),
    ("reused-shares", replace(secure_fed_vote(), num_draws=1000)),
    ("no-share", replace(secure_fed_vote(), num_draws=5000)),
    ("honest-too-high", replace(secure_fed_vote(), num_draws=5000)),
    ("shares-drawn-again", replace(secure_fed_vote(), num_draws=5000)),
]


@pytest.mark.parametrize(
    ("fault", "audited"),
    [
        pytest.param(
            *case, id=case[0], marks=[pytest.mark.slow] * (case[1].num_draws > 1000)
        )
        for case in FAULTY
    ],
)
def test_faults_of_sites_are_found(fault: str, audited: SecureAuditPlan) -> None:
    assert audit(audited, StreamEntropy(3), SECURE_FAULTS[fault]).violated


def test_every_fault_is_looked_for() -> None:
    assert {fault for fault, _ in FAULTY} == set(SECURE_FAULTS)


# The others are found by messages that are zeroed, in the same sums.
@pytest.mark.parametrize("fault", ["half-shares", "reused-shares"])
def test_faults_are_found_by_messages_that_flip(fault: str) -> None:
    plan = replace(flipped(secure_fed_vote)(), num_draws=1000)
    assert plan.promised.guarantee == Guarantee(REPLACED_CLIENT, "sums")
    assert audit(plan, StreamEntropy(3), SECURE_FAULTS[fault]).violated


@pytest.mark.slow
def test_one_release_shows_no_reused_share() -> None:
    audited = replace(secure_fed_vote(), num_draws=1000, release_after=(2,))
    assert not audit(audited, StreamEntropy(3), SECURE_FAULTS["reused-shares"]).violated


@pytest.mark.slow
def test_counting_on_all_is_no_fault_where_all_are_honest() -> None:
    audited = replace(secure_fed_vote(), num_draws=1000, honest=4)
    fault = SECURE_FAULTS["honest-too-high"]
    assert not audit(audited, StreamEntropy(3), fault).violated


# --- Plans


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"settings": ReleaseSettings(2)}, "sampling_probability=0.35"),
        ({"absence": "missing"}, "absence='missing'"),
        ({"honest": 0}, "honest=0"),
        ({"honest": 5}, "honest=5"),
    ],
)
def test_bad_plans_are_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match="is not allowed") as error:
        replace(secure_fed_vote(), **change)
    assert words in str(error.value)
