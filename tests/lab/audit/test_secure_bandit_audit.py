"""The audit of bandits with secure sums: no false alarm, and every fault."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.lab.audit.default_studies import secure_fed_ucb
from flwr_fbo.lab.audit.secure_audit import Share
from flwr_fbo.lab.audit.secure_bandit_audit import BLOCK_FAULTS, BlockSites
from flwr_fbo.lab.audit.study_audit import StreamEntropy, audit
from flwr_fbo.privacy.continual_settings import ContinualSettings
from flwr_fbo.privacy.noise import Entropy, OsEntropy
from tests.support.attempts import make_attempt

RELEASES = ContinualSettings(3, 2, 2.0, 0.1, mechanism="blocks")


# --- What the adversary learns


class KeepsWhatIsSent(BlockSites):
    """Sites whose shares a test can read."""

    shares: dict[int, Share]

    def share(self, slot: int) -> Share:
        self.shares = {**getattr(self, "shares", {}), slot: super().share(slot)}
        return self.shares[slot]


def test_masked_sums_are_what_the_audit_sums() -> None:
    """The masks of five real exchanges cancel; the rest is as the audit draws it."""
    sites = KeepsWhatIsSent(RELEASES, OsEntropy(), 2)
    block = RELEASES.gram([[0.6, 0.8]], [1.0])
    learnt = sites.release(1, block)
    noise, group = sites.sums.noise(0), sites.sums.groups[0]
    assert sorted(sites.shares) == [0, 1]
    attempt = make_attempt(
        5,
        length=noise.length,
        num_bits=noise.num_bits,
        threshold=group.min_summed,
    )
    known = np.zeros(noise.length, dtype=np.int64)
    for slot, member in enumerate(attempt.terms.slots):
        theirs = RELEASES.gram([[slot / 10, 0.0]], [0.5])
        own = noise.encode(block if slot == 0 else theirs)
        share = sites.shares.get(slot, noise.draw_share())
        attempt.numbers[member] = own + share
        # Of those who collude all, of the honest site its block; the third is away.
        if slot > 2:
            known += own + share
        elif slot == 1:
            known += own
    away = attempt.terms.slots[2]
    attempt.play(
        replies=lambda exchange, found: {s: r for s, r in found.items() if s != away}
    )
    assert len(attempt.aggregator.summed) == group.min_summed
    left = attempt.aggregator.total - known.astype(np.uint64)
    np.testing.assert_array_equal(noise.decode(left), learnt)


@pytest.mark.parametrize("entropy", [StreamEntropy(1), OsEntropy()], ids=["seed", "os"])
def test_the_honest_shares_alone_keep_the_promise(entropy: Entropy) -> None:
    """The likelihood ratio is N(-mu^2/2, mu^2) without the change: tight."""
    study = replace(secure_fed_ucb(), num_draws=1000, has_misfits=False)
    mu = study.settings.releases.mu
    worlds = study.draw(entropy, None, lambda _: None)
    for evidence, sign in zip(worlds, (1, -1), strict=True):
        ratios = evidence.log_ratio
        # Six deviations of each: p < 1e-8 for all four.
        assert ratios.mean() == pytest.approx(sign * mu**2 / 2, abs=6 * mu / 1000**0.5)
        assert ratios.std() == pytest.approx(mu, rel=6 / 2000**0.5)


def test_a_release_that_is_asked_for_again_is_the_same() -> None:
    sites = BlockSites(RELEASES, OsEntropy(), 2)
    total = RELEASES.gram([[0.6, 0.8]], [1.0])
    np.testing.assert_array_equal(sites.release(1, total), sites.release(1, 2 * total))


# --- No false alarm, and planted faults


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 2.0, 4.0])
def test_what_is_promised_is_kept(epsilon: float) -> None:
    found = audit(replace(secure_fed_ucb(epsilon), num_draws=5000), StreamEntropy(5))
    assert found.promised.epsilon == pytest.approx(epsilon, rel=1e-6)
    assert not found.violated
    assert found.epsilon_lower > 0.4 * epsilon


def test_what_is_promised_is_kept_in_few_studies() -> None:
    found = audit(replace(secure_fed_ucb(), num_draws=1000), StreamEntropy(5))
    assert not found.violated
    assert found.epsilon_lower > 0.5


# As many studies as each needs, in either world.
FAULTY = {
    "no-share": 5000,
    "reused-shares": 1000,
    "trial-in-two-blocks": 5000,
    "does-not-wait": 5000,
    "quiet-misfits": 1000,
}


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (draws > 1000))
        for name, draws in FAULTY.items()
    ],
)
def test_faults_of_sites_are_found(fault: str) -> None:
    # Without misfits all of mu^2 is the blocks': fewer studies show a fault of them.
    has_misfits = fault == "quiet-misfits"
    plan = replace(secure_fed_ucb(), has_misfits=has_misfits)
    audited = replace(plan, num_draws=FAULTY[fault])
    assert audit(audited, StreamEntropy(3), BLOCK_FAULTS[fault]).violated


def blocks_learnt(build: Any, entropy: Entropy) -> FloatArray:
    """Return the noise of two blocks on the diagonal, in planned deviations."""
    sites, one = build(RELEASES, entropy, 2), RELEASES.gram([[0.6, 0.8]], [1.0])
    totals = [one, 1000 * one]
    learnt = [sites.release(k, total) for k, total in enumerate(totals, 1)]
    blocks = learnt[0] - totals[0], learnt[1] - learnt[0] - (totals[1] - totals[0])
    return np.array([np.diagonal(block) for block in blocks]) / RELEASES.noise_std


@pytest.mark.parametrize(
    ("build", "variance"),
    [
        (BlockSites, 1.0),
        *((BLOCK_FAULTS[n], 0.5) for n in ("no-share", "does-not-wait")),
    ],
)
def test_faults_take_half_of_the_noise(build: Any, variance: float) -> None:
    """Of 3,000 normals: ten deviations of their variance."""
    entropy = StreamEntropy(2)
    noise = np.array([blocks_learnt(build, entropy) for _ in range(500)])
    assert np.mean(noise**2) == pytest.approx(variance, rel=10 * math.sqrt(2 / 3000))


def test_faults_over_two_releases_are_what_they_are_called() -> None:
    entropy = StreamEntropy(2)
    first, second = blocks_learnt(BLOCK_FAULTS["reused-shares"], entropy)
    np.testing.assert_array_equal(first, second)
    sites = BLOCK_FAULTS["trial-in-two-blocks"](RELEASES, entropy, 2)
    many = 1e6 * RELEASES.gram([[0.0, 1.0]], [-1.0])
    learnt = [sites.release(k, many) for k in (1, 2)]
    # There is no new trial in the second block.
    np.testing.assert_allclose(learnt[1] - learnt[0], many, atol=100)


def test_every_fault_is_looked_for() -> None:
    assert set(FAULTY) == set(BLOCK_FAULTS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", ["reused-shares", "trial-in-two-blocks", "quiet-misfits"]
)
def test_one_release_shows_no_fault_of_several(fault: str) -> None:
    study = secure_fed_ucb()
    releases = replace(study.settings.releases, num_releases=1)
    settings = replace(study.settings, releases=releases)
    audited = replace(study, settings=settings, position=0, num_draws=1000)
    assert not audit(audited, StreamEntropy(3), BLOCK_FAULTS[fault]).violated


# --- Plans


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"honest": 1}, "honest=1"),
        ({"mechanism": "toeplitz"}, "mechanism='toeplitz' is not allowed: 'blocks'"),
        ({"epsilon": math.inf}, "epsilon=inf"),
    ],
)
def test_bad_plans_are_named(change: dict[str, Any], words: str) -> None:
    study = secure_fed_ucb()
    of_plan = {name: change.pop(name) for name in list(change) if name == "honest"}
    settings = study.settings
    if change:
        settings = replace(settings, releases=replace(settings.releases, **change))
    with pytest.raises(ValueError, match="is not allowed") as error:
        replace(study, settings=settings, **of_plan)
    assert words in str(error.value)
