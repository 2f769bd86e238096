"""Epsilon where agents are sampled: never too small, and quickly known."""

import math

import pytest
from dp_accounting.pld import privacy_loss_distribution as pld

from flwr_fbo.privacy.accounting import ReleaseAccountant
from flwr_fbo.privacy.gaussian import gaussian_delta
from flwr_fbo.privacy.loss_distribution import (
    LossDistribution,
    joint_delta,
    joint_epsilon,
    largest_epsilon,
)
from flwr_fbo.privacy.spending_ledger import Charge, composed_epsilon, least_epsilon

STEP = 2.0**-8


def _loss(count: int, q: float, z: float, step: float = STEP) -> LossDistribution:
    losses = LossDistribution.nothing(step)
    for _ in range(count):
        one = LossDistribution.of_release(q, z, step, "REMOVE")
        losses = losses.compose(one)
    return losses


@pytest.mark.parametrize("delta", [0.2, 1e-5, 1e-11])
@pytest.mark.parametrize(("count", "z"), [(1, 0.05), (2, 0.3), (7, 1.0), (9, 30.0)])
def test_epsilon_is_never_below_the_exact_one(
    count: int, z: float, delta: float
) -> None:
    """Where all take part, that is the Gaussian mechanism's."""
    one, rest = _loss(count, 1.0, z), _loss(1, 1.0, z)
    epsilon = joint_epsilon(one, rest, delta)
    exact = gaussian_delta(epsilon, math.sqrt(count + 1) / z)
    assert 0.9 * delta < exact <= delta or epsilon == 0.0
    assert joint_delta(one, rest, epsilon) == pytest.approx(delta) or epsilon == 0.0


@pytest.mark.parametrize(
    ("q", "z", "delta"),
    [
        (1e-3, 0.3, 1e-4),
        (1e-3, 20.0, 1e-7),
        (0.1, 1.0, 1e-7),
        (0.9, 0.3, 1e-7),
        (0.9, 20.0, 1e-4),
    ],
)
def test_one_release_costs_what_is_exact_for_it(
    q: float, z: float, delta: float
) -> None:
    charge = Charge(z, q)
    epsilon = composed_epsilon([charge], delta)
    least = least_epsilon([charge], delta)
    assert least * (1 - 1e-12) - 1e-15 <= epsilon <= least * (1 + 1e-3) + 1e-3


@pytest.mark.parametrize("delta", [0.1, 1e-8])
@pytest.mark.parametrize(("q", "z"), [(0.35, 1.0), (0.01, 0.5), (1.0, 2.0)])
def test_a_release_is_what_dp_accounting_makes_of_it(
    q: float, z: float, delta: float
) -> None:
    theirs = pld.from_gaussian_mechanism(
        z, sampling_prob=q, value_discretization_interval=STEP
    )
    ours = []
    for added in (False, True):
        one = LossDistribution.of_release(q, z, STEP, "ADD" if added else "REMOVE")
        ours.append(joint_epsilon(one, one, delta))
    expected = theirs.compose(theirs).get_epsilon_for_delta(delta)
    assert max(ours) == pytest.approx(expected, rel=1e-7, abs=1e-12)


def test_the_worse_direction_counts_whichever_it_is() -> None:
    left_out, added = (
        LossDistribution.of_release(0.35, 1.0, STEP, "ADD" if added else "REMOVE")
        for added in (False, True)
    )
    one, other = (joint_epsilon(loss, loss, 1e-3) for loss in (left_out, added))
    assert one > other + 0.1
    for losses in ((left_out, added), (added, left_out)):
        assert largest_epsilon(losses, losses, 1e-3) == one


def test_what_is_not_composed_yet_spends_as_much() -> None:
    one, nothing = _loss(5, 0.35, 1.0), LossDistribution.nothing(STEP)
    other = LossDistribution.of_release(0.05, 0.6, STEP, "REMOVE")
    whole = one.compose(other)
    for delta in (0.3, 1e-3, 1e-9):
        expected = joint_epsilon(whole, nothing, delta)
        assert joint_epsilon(one, other, delta) == pytest.approx(expected, rel=1e-5)
        assert joint_epsilon(other, one, delta) == pytest.approx(expected, rel=1e-5)
    # Below all losses of many releases that hide nothing, too.
    loud = _loss(30, 1.0, 0.1, 0.5)
    assert loud.lowest > 0
    assert joint_delta(loud, _loss(1, 1.0, 0.1, 0.5), 0.0) == pytest.approx(1.0)


def test_a_grid_as_coarse_as_the_loss_still_bounds_it() -> None:
    fine, coarse = (
        LossDistribution.of_release(0.5, 1e3, s, "REMOVE") for s in (2.0**-14, 1.0)
    )
    for epsilon in (0.0, 1e-4, 1e-3):
        bound = joint_delta(coarse, LossDistribution.nothing(1.0), epsilon)
        near = joint_delta(fine, LossDistribution.nothing(2.0**-14), epsilon)
        assert bound >= near * (1.0 - 1e-9)  # but for rounding


def test_more_than_can_be_hidden_costs_everything() -> None:
    one = LossDistribution.of_release(0.35, 1.0, STEP, "REMOVE")
    assert joint_epsilon(one, one, 1e-30) == math.inf
    either = pytest.approx(2.0 * one.infinite, rel=1e-6, abs=0.0)
    assert joint_delta(one, one, math.inf) == either
    assert one.infinite > 0.0
    assert composed_epsilon([Charge(1e-3, 0.35, 12)], 1e-20) == math.inf


def test_a_look_after_each_release_composes_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    composed = []
    compose = LossDistribution.compose

    def counting(self: LossDistribution, other: LossDistribution) -> LossDistribution:
        composed.append(1)
        return compose(self, other)

    monkeypatch.setattr(LossDistribution, "compose", counting)
    accountant = ReleaseAccountant(0.3456, 1e-3)  # nothing of it is known yet
    for _ in range(40):
        accountant.charge(1.234)
        accountant.epsilon()
    # Two directions; 2, 3, and the multiples of 4 before 40.
    assert len(composed) == 2 * (2 + 9)
