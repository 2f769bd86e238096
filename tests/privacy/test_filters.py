"""What studies that a server chooses one after another spend together."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flwr_fbo.privacy import plan_training
from flwr_fbo.privacy.filters import Spent
from flwr_fbo.privacy.gaussian import (
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
    poisson_epsilon,
)
from flwr_fbo.privacy.guarantee import (
    CLIENT,
    EXAMPLE,
    ONE_EXAMPLE_LESS,
    Guarantee,
    PrivacyUnit,
)
from flwr_fbo.privacy.loss_distribution import composed_losses
from flwr_fbo.privacy.spending_ledger import (
    Charge,
    Promise,
    charge_facts,
    composed_epsilon,
)
from tests.adversaries import adaptive_servers
from tests.adversaries.adaptive_servers import (
    RULES,
    Adversary,
    Study,
    by_filter,
    reached,
    rounded_up,
)

Z = st.floats(0.5, 30.0).map(lambda z: round(z, 2))
GAUSSIAN = st.builds(lambda z, n: (Charge(z, 1.0, n),), Z, st.integers(1, 5))
SAMPLED = st.builds(
    lambda z, q, n: (Charge(z, q, n),),
    Z,
    st.sampled_from([0.01, 0.1, 0.35, 0.9]),
    st.sampled_from([1, 3, 10]),
)
GROUPS = st.lists(st.one_of(GAUSSIAN, SAMPLED), min_size=1, max_size=4).map(tuple)
DELTAS = st.sampled_from([1e-2, 1e-3, 1e-5])
# What composing on a grid adds at most to epsilon: see `ReleaseAccountant`.
GRID = 2e-3
EXAMPLES = settings(max_examples=60, deadline=None)


@EXAMPLES
@given(st.lists(GAUSSIAN, min_size=1, max_size=6), DELTAS, st.randoms())
def test_gaussian_releases_cost_what_one_mechanism_does(
    groups: list[Any], delta: float, random: Any
) -> None:
    """In any order, to the bit: adaptivity is free."""
    squares = sum(c.num_releases / c.noise_multiplier**2 for [c] in groups)
    exact = gaussian_epsilon(delta, math.sqrt(squares))
    spent = Spent(tuple(groups)).epsilon(delta)
    assert exact * (1 - 1e-9) <= spent <= exact * (1 + 1e-5) + 1e-6
    random.shuffle(groups)
    shuffled = Spent(tuple(groups))
    assert shuffled.epsilon(delta) == pytest.approx(spent, rel=1e-9)
    apart = [
        (replace(c, num_releases=1),) for [c] in groups for _ in range(c.num_releases)
    ]
    assert Spent(tuple(apart)).epsilon(delta) == pytest.approx(
        spent, rel=1e-5, abs=1e-6
    )


@EXAMPLES
@given(GROUPS, DELTAS)
def test_it_is_never_below_what_a_fixed_sequence_costs(
    groups: tuple[Any, ...], delta: float
) -> None:
    spent = Spent(groups)
    fixed = composed_epsilon([c for group in groups for c in group], delta)
    assert spent.epsilon(delta) >= fixed * (1 - GRID) - GRID
    assert spent.least_epsilon(delta) <= fixed + GRID
    if len(groups) == 1:
        assert spent.epsilon(delta) <= fixed


@EXAMPLES
@given(GROUPS, st.one_of(GAUSSIAN, SAMPLED), DELTAS)
def test_another_charge_never_makes_it_less(
    groups: tuple[Any, ...], more: Any, delta: float
) -> None:
    before = Spent(groups).epsilon(delta)
    assert Spent((*groups, more)).epsilon(delta) >= before
    [last] = groups[-1]
    longer = (replace(last, num_releases=last.num_releases + 1),)
    # The grid of a longer study is another one.
    assert Spent((*groups[:-1], longer)).epsilon(delta) >= before * (1 - GRID) - GRID
    assert Spent(groups).epsilon(delta / 2) >= before


@EXAMPLES
@given(GROUPS, DELTAS)
def test_studies_with_sampling_may_change_places_with_gaussian_ones(
    groups: tuple[Any, ...], delta: float
) -> None:
    """But for the first, and among themselves: these have shares of delta in order."""
    first, *others = groups
    sampled = [g for g in others if g[0].sampling_probability < 1]
    gaussian = [g for g in others if g[0].sampling_probability == 1]
    spent = Spent(groups).epsilon(delta)
    for order in ([*sampled, *gaussian], [*gaussian, *sampled]):
        assert Spent((first, *order)).epsilon(delta) == pytest.approx(spent, rel=1e-9)


@EXAMPLES
@given(SAMPLED, st.sampled_from([1e-2, 1e-4, 1e-8, 1e-11]))
# A little more likely than its share: mu is below the distance of the dots.
@example((Charge(13.94, 0.35),), 1e-2)
@example((Charge(3.9789, 0.1),), 1e-2)
@example((Charge(398.9, 0.1),), 1e-4)
def test_a_study_is_a_gaussian_mechanism_but_for_its_share(
    group: Any, share: float
) -> None:
    """At every epsilon, between the dots too; and no smaller one is."""
    [charge] = group
    q, z, count = charge.sampling_probability, charge.noise_multiplier, 1
    unsampled = 1 / z
    for added, loss in enumerate(composed_losses(((q, z, count),), replaced=False)):
        mu = loss.gaussian_parameter(share, unsampled)
        assert mu <= unsampled
        points = np.concatenate(
            [np.linspace(0, 12 / z, 997), np.geomspace(1e-4, 60, 98)]
        )
        points = points[points * z < 30]
        study = np.array([_exact_delta(x, q, z, added=bool(added)) for x in points])

        def above(mu: float, points: Any = points) -> Any:
            if mu == 0:
                return np.zeros_like(points)
            return np.array([gaussian_delta(x, mu) for x in points])

        assert np.all(study <= share + above(mu) + 1e-15)
        if 0 < mu < unsampled * 0.999:
            assert np.any(study * 1.002 > share + above(0.98 * mu))


def _exact_delta(epsilon: float, q: float, z: float, *, added: bool) -> float:
    """Return delta of one sampled release, by its formula."""
    if not added:
        return q * gaussian_delta(math.log1p(math.expm1(epsilon) / q), 1 / z)
    share = -math.expm1(epsilon + math.log1p(-q))
    if share <= 0:
        return 0.0
    return share * gaussian_delta(epsilon + math.log(q) - math.log(share), 1 / z)


@pytest.mark.parametrize(
    ("first", "reserved"),
    [((Charge(5.0, 0.35, 4),), 0.05), ((Charge(9.0),), 1e-6)],
)
def test_shares_of_delta_never_add_up_to_more_than_is_reserved(
    first: tuple[Any, ...], reserved: float
) -> None:
    """D / (j (j + 1)) for the j-th study with sampling: D, however many follow.

    What comes first is composed as it is.
    """
    delta, study = 1e-3, (Charge(5.0, 0.35, 4),)
    losses = composed_losses(((0.35, 5.0, 4),), replaced=False)
    squares = 0.0
    for j in range(1, 6):
        share = reserved * delta / (j * (j + 1))
        squares += max(loss.gaussian_parameter(share, 0.4) for loss in losses) ** 2
        one_gaussian = Charge(1 / math.sqrt(squares))
        exact = composed_epsilon([*first, one_gaussian], delta * (1 - reserved))
        spent = Spent((first, *[study] * j)).epsilon(delta)
        assert spent == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("total", [ONE_EXAMPLE_LESS, EXAMPLE])
def test_what_comes_first_is_exact_beside_gaussian_releases(total: PrivacyUnit) -> None:
    """A training that is planned, and then choices: but for a twentieth of delta."""
    delta, plan = 1e-5, (Charge(1.0, 0.05, 540),)
    choices = ((Charge(8.0),), (Charge(5.0),), (Charge(8.0),))
    entries = ((0.05, 1.0, 540), (1.0, 8.0, 2), (1.0, 5.0, 1))
    fixed = poisson_epsilon(entries, delta, replaced=total == EXAMPLE)
    spent = Spent((plan, *choices), total=total).epsilon(delta)
    assert fixed < spent < 1.004 * fixed
    # The other way about the server could choose the training by what it has read.
    assert Spent((*choices, plan), total=total).epsilon(delta) > spent


def test_nothing_costs_nothing_and_no_noise_costs_everything() -> None:
    for nothing in (Spent(), Spent(((),))):
        assert nothing.epsilon(1e-3) == 0.0
        assert nothing.epsilon_left(2.0, 1e-3) == 2.0
        assert not nothing.exceeds(1e-9, 1e-3)
    open_site = Spent(((Charge(1.0),), (Charge(0.0),)))
    assert open_site.epsilon(1e-3) == math.inf
    terms = Guarantee(CLIENT)
    assert open_site.text(1e-3, terms).startswith("epsilon infinite per client")
    assert open_site.epsilon_left(2.0, 1e-3) == 0.0
    assert Spent(((Charge(0.01, 0.5, 3),),)).text(1e-3, terms).startswith("epsilon >= ")
    # Less likely than its share of delta: only that is used.
    assert Spent(((Charge(1e-3, 1e-9),), (Charge(1e5),))).epsilon(1e-3) < 1e-3


@pytest.mark.parametrize(
    "groups",
    [
        [(Charge(4.0),)],
        [(Charge(2.0, 0.5, 3),), (Charge(9.0),)],
        [(Charge(9.0),), (Charge(2.0, 0.5, 3),)],
    ],
)
def test_what_is_left_fits_and_a_little_more_does_not(groups: list[Any]) -> None:
    delta = 1e-5
    left = Spent(tuple(groups)).epsilon_left(3.0, delta)
    assert 0.1 < left < 3.0
    for factor, fits in ((1.0, True), (1.001, False)):
        z = 1 / gaussian_mu(left * factor, delta)
        together = Spent((*groups, (Charge(z),)))
        assert together.exceeds(3.0 * (1 + 1e-6), delta) != fits
    assert Spent(((Charge(0.1),),)).epsilon_left(3.0, delta) == 0


def test_beside_a_training_that_was_planned_for_the_limit_nothing_is_left() -> None:
    """It fits alone, at delta, and nothing beside it at delta without D."""
    limit, delta = 8.0, 1e-5
    plan = plan_training(limit, delta, sampling_probability=0.05, num_steps=540)
    spent = Spent(((plan.training.charge,),), 1)
    assert spent.epsilon(delta) <= limit
    assert spent.epsilon_left(limit, delta) == 0.0
    assert 0.0 < spent.epsilon_left(limit + 0.2, delta) < limit


def test_a_study_that_is_all_of_a_limit_fits_and_nothing_after_it() -> None:
    for group in ((Charge(3.36, 0.35, 40),), (Charge(1 / gaussian_mu(2.0, 1e-3)),)):
        limit = composed_epsilon(group, 1e-3)
        assert not Spent((group,)).exceeds(limit, 1e-3)
        assert Spent((group, (Charge(1e6),))).exceeds(limit, 1e-3)


# What a ledger has.

A, B = ("tuning", "a"), ("tuner", "b")
PROMISED = (Charge(5.0, 0.35, 6), Charge(4.0, 0.35, 4))
WHOLE = Promise(PROMISED, private=True, delta=1e-3)


def facts(study: tuple[str, str], *releases: int, owner: int = 0) -> list[Any]:
    """Return what a ledger has of some releases of `WHOLE`."""
    return [
        charge_facts(study, k, WHOLE.charge_of(k), owner, 1e-3, WHOLE.charges)
        for k in releases
    ]


def test_a_study_with_sampling_counts_whole_with_its_first_release() -> None:
    one = Spent.of(CLIENT, facts(A, 1))
    assert one.groups == (PROMISED,)
    assert one.num_releases == 1
    in_any_order = Spent.of(CLIENT, facts(A, 9, 2, 7))
    assert in_any_order == replace(one, num_releases=3)
    assert Spent.of(CLIENT, [*facts(A, 1), *facts(B, 1, 2), *facts(A, 2)]).groups == (
        PROMISED,
        PROMISED,
    )
    # Two agents with one ledger, counted together.
    assert len(Spent.of(CLIENT, [*facts(A, 1), *facts(A, 1, owner=1)]).groups) == 2


def test_one_without_is_charged_release_by_release() -> None:
    rows = [
        charge_facts(A, k, Charge(3.0), 0, 1e-3, (Charge(3.0, 1, 9),)) for k in (1, 2)
    ]
    assert all("promised" not in row for row in rows)
    assert Spent.of(CLIENT, rows) == Spent(((Charge(3.0),),) * 2, 2)


def test_a_promise_that_changes_is_another_study() -> None:
    other = charge_facts(A, 2, Charge(5.0, 0.35), 0, 1e-3, [Charge(5.0, 0.35, 2)])
    assert len(Spent.of(CLIENT, [*facts(A, 1), other]).groups) == 2


def test_what_was_not_promised_counts_besides() -> None:
    lies = {**facts(A, 1)[0], "charge": [0.5, 1.0, 1]}
    assert Spent.of(CLIENT, [lies]).groups == ((*PROMISED, Charge(0.5)),)
    unprotected = charge_facts(A, 0, Charge(0.0), 0)
    assert Spent.of(CLIENT, [*facts(A, 1), unprotected]).epsilon(1e-3) == math.inf


def test_rows_of_earlier_versions_count_as_one_study_that_ended() -> None:
    old = [charge_facts(A, k, Charge(5.0, 0.35)) for k in (1, 2, 3)]
    assert all("promised" not in row for row in old)
    assert Spent.of(CLIENT, old).groups == ((Charge(5.0, 0.35),) * 3,)
    exact = composed_epsilon([Charge(5.0, 0.35, 3)], 1e-3)
    assert Spent.of(CLIENT, old).epsilon(1e-3) == pytest.approx(exact, rel=1e-9)
    # What the study releases later counts besides.
    assert len(Spent.of(CLIENT, [*old, *facts(A, 4, owner=-1)]).groups) == 2


def test_a_study_that_is_planned_counts_once_in_its_place() -> None:
    begun = [*facts(A, 1), *facts(B, 1)]
    before = Spent.of(CLIENT, begun)
    for study in (A, B):
        assert Spent.of(CLIENT, begun, study, WHOLE).groups == before.groups
    assert Spent.of(CLIENT, begun, B, WHOLE).num_releases == 11
    third = Spent.of(CLIENT, begun, ("tuning", "c"), WHOLE)
    assert third.groups == (PROMISED,) * 3
    assert third.num_releases == 12
    gaussian = [charge_facts(B, 1, Charge(3.0))]
    promised = (Charge(3.0, 1, 4), Charge(2.0))
    planned = Spent.of(CLIENT, [*gaussian, *facts(A, 1)], B, Promise(promised))
    assert planned.num_releases == 6
    counted = {
        c.noise_multiplier: sum(
            d.num_releases
            for group in planned.groups
            for d in group
            if d.noise_multiplier == c.noise_multiplier
        )
        for c in promised
    }
    assert counted == {3.0: 4, 2.0: 1}


# The adversary.

SMALL: dict[str, Any] = {"steps": 200, "depth": 2, "size": 1}


@pytest.mark.parametrize("limit", [(2.0, 1e-3), (1.0, 1e-5)])
def test_the_best_server_stays_within_a_limit(limit: tuple[float, float]) -> None:
    least, most = reached(by_filter, limit, **{**SMALL, "depth": 3, "size": 2})
    assert 0.9 < least <= 1.0
    assert least <= most <= rounded_up(SMALL["steps"])


@pytest.mark.parametrize("rule", [name for name in RULES if name != "filter"])
def test_it_goes_beyond_a_limit_where_the_rule_is_wrong(rule: str) -> None:
    least, most = reached(RULES[rule], (2.0, 1e-3), **SMALL)
    assert 1.1 < least <= most < 2.0


@pytest.mark.parametrize(
    "parts", [((Charge(1.3, 0.3),),), ((Charge(4.0, 0.35, 5),),) * 2]
)
def test_of_one_study_it_reaches_what_that_costs(parts: Any) -> None:
    delta, study = 1e-3, Study(parts)
    epsilon = composed_epsilon(study.whole, delta)
    found = [
        max(
            Adversary(
                lambda groups, *_: groups == (study.whole,),
                epsilon,
                delta,
                [study],
                added=added,
                upper=upper,
                steps=400,
                depth=1,
            ).delta()
            for added in (False, True)
        )
        for upper in (False, True)
    ]
    assert 0.98 * delta < found[0] <= delta * (1 + 1e-3)
    assert delta * (1 - 1e-3) <= found[1] < 1.001 * delta


def test_each_study_that_it_chooses_from_fits_alone() -> None:
    limit = 2.0, 1e-3
    for study in adaptive_servers.family(*limit, size=2):
        assert by_filter((study.whole,), *limit), study
