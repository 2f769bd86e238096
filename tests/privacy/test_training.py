"""DP-SGD as a site's ledger counts it, and the noise that keeps to a total."""

from __future__ import annotations

import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld
from flwr.app import Context, RecordDict
from scipy.stats import norm

from flwr_fbo import PrivateChoice, charge_training
from flwr_fbo.privacy import DPSGD, plan_training
from flwr_fbo.privacy.filters import Spent
from flwr_fbo.privacy.gaussian import gaussian_mu
from flwr_fbo.privacy.guarantee import EXAMPLE, ONE_EXAMPLE_LESS
from flwr_fbo.privacy.loss_distribution import LossDistribution
from flwr_fbo.privacy.spending_ledger import (
    TRAINING,
    Charge,
    SpendingLedger,
    charge_facts,
)
from flwr_fbo.privacy.training import charges_of

DELTA = 1e-5
ALL: Any = "all"
Relation = dp_accounting.NeighboringRelation


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"noise_multiplier": 0.0}, "noise_multiplier=0.0"),
        ({"noise_multiplier": math.nan}, "noise_multiplier=nan"),
        ({"sampling_probability": 0.0}, "sampling_probability=0.0"),
        ({"sampling_probability": 1.5}, "sampling_probability=1.5"),
        ({"num_steps": 0}, "num_steps=0"),
        ({"num_steps": 2.5}, "num_steps=2.5"),
        ({"poisson": "yes"}, "poisson='yes'"),
    ],
)
def test_it_says_what_is_not_allowed(changes: dict[str, Any], said: str) -> None:
    fields = {"noise_multiplier": 1.0, "sampling_probability": 0.1, "num_steps": 5}
    with pytest.raises(ValueError, match=f"^{re.escape(said)} is not allowed"):
        DPSGD(**{**fields, **changes})


def test_shuffled_batches_amplify_nothing() -> None:
    # 64 of 500 examples: seven steps an epoch, so 20 steps are in three of them.
    assert DPSGD(1.0, 64 / 500, 20, poisson=False).charge == Charge(1.0, 1.0, 3)
    assert DPSGD(1.0, 1 / 7, 14, poisson=False).charge == Charge(1.0, 1.0, 2)
    assert DPSGD(1.0, 1.0, 4, poisson=False).charge == Charge(1.0, 1.0, 4)
    assert DPSGD(1.0, 0.128, 20).charge == Charge(1.0, 0.128, 20)


# The ledger's totals, and dp-accounting's.


def _mixture(seed: int) -> tuple[list[DPSGD], list[float]]:
    rng = np.random.default_rng(seed)
    trained = [
        DPSGD(
            round(float(rng.uniform(0.7, 3.0)), 3),
            round(float(10 ** rng.uniform(-3, -0.4)), 4),
            int(rng.integers(1, 300)),
        )
        for _ in range(rng.integers(1, 4))
    ]
    return trained, [float(z) for z in rng.uniform(2.0, 12.0, rng.integers(0, 5))]


@pytest.mark.parametrize(
    "seed",
    [
        seed if seed < 3 else pytest.param(seed, marks=pytest.mark.slow)
        for seed in range(20)
    ],
)
def test_a_ledger_has_what_dp_accounting_composes(tmp_path: Path, seed: int) -> None:
    """Of a training, planned whole, and of choices after it."""
    trained, choices = _mixture(seed)
    plan = charges_of("plan", trained)
    with SpendingLedger.held(tmp_path) as ledger:
        for k, charge in enumerate(plan, 1):
            about: dict[str, Any] = {"promised": plan, "plan": 1}
            unit = ONE_EXAMPLE_LESS
            ledger.add(charge_facts((TRAINING, "a"), k, charge, unit=unit, **about))
        for k, z in enumerate(choices, 1):
            ledger.record(("federation-tuner", "b"), k, Charge(z), unit=EXAMPLE)
        facts = ledger.facts()
    relations = {
        ONE_EXAMPLE_LESS: (Relation.ADD_OR_REMOVE_ONE, 1.0),
        # Its noise is for the norm of one contribution, and not for a distance.
        EXAMPLE: (Relation.REPLACE_ONE, 2.0),
    }
    for unit, (relation, factor) in relations.items():
        accountant = pld.PLDAccountant(relation)
        for each in trained:
            gaussian = dp_accounting.GaussianDpEvent(each.noise_multiplier)
            event = dp_accounting.PoissonSampledDpEvent(
                each.sampling_probability, gaussian
            )
            accountant.compose(event, each.num_steps)
        for z in choices:
            accountant.compose(dp_accounting.GaussianDpEvent(factor * z))
        exact = accountant.get_epsilon(DELTA)
        spent = Spent.of(unit, facts).epsilon(DELTA)
        assert exact * (1 - 2e-4) - 1e-4 <= spent <= 1.01 * exact


def test_two_contributions_are_never_further_apart_than_opposite_ones() -> None:
    """The pair of `flwr_fbo.privacy.guarantee`, by the definition, in the plane."""
    z, q = 1.0, 0.3
    side = np.linspace(-9, 9, 601)
    x, y = np.meshgrid(side, side, indexing="ij")
    area = (side[1] - side[0]) ** 2
    of_none = norm.pdf(x, 0, z) * norm.pdf(y, 0, z)

    def world(vector: Any) -> Any:
        there = norm.pdf(x, vector[0], z) * norm.pdf(y, vector[1], z)
        return (1 - q) * of_none + q * there

    pair = LossDistribution.of_release(q, z, 2.0**-8, "REPLACE")
    rng = np.random.default_rng(5)
    pairs = rng.normal(size=(12, 2, 2))
    pairs /= np.maximum(1.0, np.linalg.norm(pairs, axis=2))[..., None]
    opposite = np.array([[[1.0, 0.0], [-1.0, 0.0]]])
    largest = []
    for u, v in np.concatenate([pairs, opposite]):
        first, second = world(u), world(v)
        for steps in (-128, 0, 64, 192):
            epsilon = pair.step * steps
            excess = np.maximum(0.0, first - math.exp(epsilon) * second)
            delta = float(excess.sum() * area)
            above = pair.infinite + pair.tails[2][:-1][::-1][steps - pair.lowest]
            assert delta <= above + 1e-5  # of the sum over a grid
            largest.append((steps, delta, above))
    # And it is no more than that.
    assert all(
        delta == pytest.approx(above, rel=1e-3) for _, delta, above in largest[-4:]
    )


# What libraries say of a training.


def _opacus(
    z: float = 1.1, *, sample_rate: float | None = 0.05, **more: Any
) -> tuple[Any, Any]:
    """Return an optimizer and a data loader as `make_private` returns them."""
    batches = SimpleNamespace(**more)
    if sample_rate is not None:
        batches.sample_rate = sample_rate

    class Loader:
        batch_sampler = batches

        def __len__(self) -> int:
            return 20

    return SimpleNamespace(noise_multiplier=z), Loader()


def test_an_opacus_optimizer_and_its_loader_are_read() -> None:
    assert DPSGD.from_opacus(*_opacus(), epochs=2) == DPSGD(1.1, 0.05, 40)
    shuffled = DPSGD.from_opacus(*_opacus(sample_rate=None), epochs=3)
    assert shuffled == DPSGD(1.1, 1 / 20, 60, poisson=False)
    assert shuffled.charge == Charge(1.1, 1.0, 3)
    optimizer, loader = _opacus()
    with pytest.raises(ValueError, match=r"^optimizer=.* of Opacus's PrivacyEngine"):
        DPSGD.from_opacus(object(), loader)
    with pytest.raises(ValueError, match=r"^data_loader="):
        DPSGD.from_opacus(optimizer, [])
    with pytest.raises(ValueError, match=r"^data_loader="):  # of a BatchMemoryManager
        DPSGD.from_opacus(*_opacus(sample_rate=None, max_batch_size=8))
    with pytest.raises(ValueError, match=r"^epochs=0"):
        DPSGD.from_opacus(optimizer, loader, epochs=0)


@pytest.mark.parametrize(
    "name", ["fraction_std", "unclipped_num_std", "target_unclipped_quantile"]
)
def test_opacus_with_an_adapted_clipping_norm_is_refused(name: str) -> None:
    """It releases how many gradients were clipped, which z alone does not have."""
    optimizer, loader = _opacus()
    setattr(optimizer, name, 0.5)
    with pytest.raises(ValueError, match=r"^optimizer=.*a fixed clipping norm"):
        DPSGD.from_opacus(optimizer, loader)


def test_opacus_with_accumulated_gradients_is_refused() -> None:
    """A step over four batches samples four times as often."""
    optimizer, loader = _opacus()
    optimizer.accumulated_iterations = 4
    with pytest.raises(ValueError, match=r"^accumulated_iterations=4 .*each batch"):
        DPSGD.from_opacus(optimizer, loader)
    optimizer.accumulated_iterations = 1
    assert DPSGD.from_opacus(optimizer, loader) == DPSGD(1.1, 0.05, 20)

    class Fresh(SimpleNamespace):
        @property
        def accumulated_iterations(self) -> int:
            raise ValueError("Per sample gradient not found.")

    fresh = Fresh(noise_multiplier=1.1)
    assert DPSGD.from_opacus(fresh, loader) == DPSGD(1.1, 0.05, 20)


def test_an_event_of_dp_accounting_is_read() -> None:
    step = dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(1.1))
    event = dp_accounting.ComposedDpEvent(
        [
            dp_accounting.SelfComposedDpEvent(step, 20),
            dp_accounting.GaussianDpEvent(3.0),
            dp_accounting.NoOpDpEvent(),
        ]
    )
    found = (DPSGD(1.1, 0.05, 20), DPSGD(3.0, 1.0, 1))
    assert DPSGD.from_dp_event(event) == found
    # As an execution plan of jax-privacy has it, and an accountant.
    assert DPSGD.from_dp_event(SimpleNamespace(dp_event=event)) == found
    accountant = pld.PLDAccountant()
    accountant.compose(step, 20)
    assert DPSGD.from_dp_event(accountant) == (DPSGD(1.1, 0.05, 20),)
    cut = dp_accounting.TruncatedSubsampledGaussianDpEvent(500, 0.05, 30, 1.1)
    for other in (cut, dp_accounting.LaplaceDpEvent(1.0), None):
        with pytest.raises(ValueError, match=r"^event=.*Gaussian mechanisms alone"):
            DPSGD.from_dp_event(other)


def test_many_equal_parts_of_an_event_are_one_charge(tmp_path: Path) -> None:
    """More than a promise may have different ones."""
    step = dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(1.1))
    found = DPSGD.from_dp_event(dp_accounting.ComposedDpEvent([step] * 200))
    assert charges_of("training", found) == (Charge(1.1, 0.05, 200),)
    config: Any = {"fbo-folder": str(tmp_path)}
    charge_training(Context(7, 1, config, RecordDict(), {}), found)


# A total that training and choice keep to.


def _composed(training: DPSGD, mu: float) -> float:
    accountant = pld.PLDAccountant(Relation.ADD_OR_REMOVE_ONE)
    gaussian = dp_accounting.GaussianDpEvent(training.noise_multiplier)
    event = dp_accounting.PoissonSampledDpEvent(training.sampling_probability, gaussian)
    accountant.compose(event, training.num_steps)
    if mu:
        accountant.compose(dp_accounting.GaussianDpEvent(1 / mu))
    return float(accountant.get_epsilon(DELTA))


@pytest.mark.parametrize("total", [2.0, 8.0])
@pytest.mark.parametrize("protects", ["client", "example", None])
def test_training_and_choice_fit_into_a_total(total: float, protects: Any) -> None:
    choice = None if protects is None else PrivateChoice(0.5, DELTA, protects)
    plan = plan_training(
        total, DELTA, sampling_probability=0.05, num_steps=540, choice=choice
    )
    mu = 0.0 if protects is None else gaussian_mu(0.5, DELTA)
    mu *= 2 if protects == "client" else 1  # another message is twice as far as zeros
    assert 0.985 * total < _composed(plan.training, mu) <= total
    assert 0.998 * total < plan.together.epsilon <= total
    assert plan.of_training.epsilon <= plan.together.epsilon
    assert plan.together.epsilon_if_replaced is not None
    assert plan.together.epsilon_if_replaced > plan.together.epsilon
    assert plan.together.guarantee.unit == ONE_EXAMPLE_LESS
    if choice is not None:
        alone = 0.5 if protects == "example" else 1.067
        assert plan.of_choice.epsilon == pytest.approx(alone, rel=1e-3)


@pytest.mark.parametrize("q", [0.05, 1.0])
def test_a_total_that_no_training_fits_into_is_refused_by_its_least(q: float) -> None:
    """With sampling a twentieth of delta is set aside: the choice has less of it."""
    given: Any = {"sampling_probability": q, "num_steps": 540}
    choice = PrivateChoice(0.5, DELTA, protects="example")
    said = (
        r"^epsilon=0.5001 is not allowed: above what the choice spends beside any tra"
    )
    if q < 1:
        with pytest.raises(ValueError, match=f"{said}ining, 0.50"):
            plan_training(0.5001, DELTA, choice=choice, **given)
    plan = plan_training(0.51, DELTA, choice=choice, **given)
    assert plan.together.epsilon <= 0.51


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"epsilon": 0.3}, "^epsilon=0.3 is not allowed: above what the choice spends"),
        ({"epsilon": 1e4}, "^epsilon=10000.0"),
        ({"delta": 0.0}, "^delta=0.0"),
        ({"num_steps": 0}, "^num_steps=0"),
        ({"sampling_probability": 2.0}, "^sampling_probability=2.0"),
        (
            {"choice": SimpleNamespace(epsilon=0.5, delta=DELTA, protects=ALL)},
            "^choice.protects=.all.",
        ),
    ],
)
def test_a_plan_says_what_is_not_allowed(changes: dict[str, Any], said: str) -> None:
    given = {
        "epsilon": 4.0,
        "delta": DELTA,
        "sampling_probability": 0.1,
        "num_steps": 50,
        "choice": PrivateChoice(0.5, DELTA),
    }
    with pytest.raises(ValueError, match=said):
        plan_training(**{**given, **changes})
