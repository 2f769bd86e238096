"""Limits as values: those allowed, and how promises and charges are held to them.

`test_site_budget.py` has sites that keep to them over several studies.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from flwr.app import Context, RecordDict, UserConfig
from flwr.clientapp import ClientApp

from flwr_fbo import Limits, add_tuning, linear_bandit_app, tuning_app, with_tuning
from flwr_fbo._common.errors import RefusedError
from flwr_fbo.bandits import neural_bandit_app
from flwr_fbo.privacy.filters import Spent
from flwr_fbo.privacy.gaussian import gaussian_epsilon
from flwr_fbo.privacy.guarantee import CLIENT, EXAMPLE, PrivacyUnit
from flwr_fbo.privacy.spending_ledger import TOTALS, Charge, Promise, charge_facts
from flwr_fbo.site.node_config_limits import node_limits


def _context(**node_config: Any) -> Context:
    config: UserConfig = {
        f"fbo-{key.replace('_', '-')}": value for key, value in node_config.items()
    }
    return Context(1, 1, config, RecordDict(), {})


WRONG: list[tuple[dict[str, Any], str]] = [
    *(({field: value}, field) for field in (
        "max_epsilon_per_client", "max_epsilon_per_example", "max_delta",
    ) for value in (0.0, math.nan, "much")),
    ({"max_epsilon_per_client": 4.0}, r"max_delta=None .* max_epsilon_per_client=4"),
    ({"max_epsilon_per_example": 4.0}, r"max_delta=None .* max_epsilon_per_example=4"),
    ({"max_delta": 0.1}, r"max_delta=0.1 .* max_epsilon_per_client or _per_example"),
    ({"max_epsilon_per_client": 4.0, "max_delta": 1.0}, r"max_delta=1.0 .* betw"),
    ({"max_releases": 0}, r"max_releases=0 .* an integer >= 1"),
    ({"max_releases": "many"}, r"max_releases='many'"),
    ({"max_uniform_share": 1.1}, r"max_uniform_share=1.1 .* from 0 to 1"),
    ({"max_uniform_share": "few"}, r"max_uniform_share='few'"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "named"), WRONG)
def test_a_wrong_limit_is_named(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Limits(**given)
    with pytest.raises(ValueError, match=rf"node config {_key(named)}"):
        node_limits(_context(**given))


def _key(named: str) -> str:
    """Return a pattern of field names as one of keys."""
    for name in (
        "epsilon_per_client",
        "epsilon_per_example",
        "delta",
        "releases",
        "uniform_share",
    ):
        key = f"fbo-max-{name.replace('_', '-')}"
        named = named.replace(f"max_{name}", key)
    return named


def test_a_promise_is_refused_by_name() -> None:
    limits = Limits(max_epsilon_per_client=3.0, max_delta=1e-3)
    limits.check_promise(Promise((Charge(1.0),), True))
    with pytest.raises(RefusedError, match="the study is not private"):
        limits.check_promise(Promise((Charge(1.0),), False))
    with pytest.raises(RefusedError, match="asks for a metric, which is not pr"):
        limits.check_promise(Promise((Charge(1.0),), True), "a metric")
    anything = Limits(max_epsilon_per_client=math.inf)
    for others in (Limits(), anything, Limits(max_releases=1)):
        others.check_promise(Promise(), "a metric")


def test_a_limit_of_a_client_allows_nothing_that_protects_an_example() -> None:
    client = Promise((Charge(1.0),), True)
    example = replace(client, unit=EXAMPLE)
    of_client = Limits(max_epsilon_per_client=9.0, max_delta=1e-3)
    of_client.check_promise(client)
    with pytest.raises(RefusedError, match="limits a client alone") as error:
        of_client.check_promise(example)
    assert error.value.public == "This site takes no part: max_epsilon_per_example."
    # What protects a client protects its examples, and counts as such.
    of_example = Limits(max_epsilon_per_example=9.0, max_delta=1e-3)
    for promise in (client, example):
        of_example.check_promise(promise)
        replace(of_client, max_epsilon_per_example=1.0).check_promise(promise)


def test_each_unit_has_its_own_limit() -> None:
    facts = [
        charge_facts(("tuning", "a"), 1, Charge(2.0), unit=CLIENT),  # mu = 1/2
        charge_facts(("linear-bandit", "b"), 1, Charge(1.0), unit=EXAMPLE),  # mu = 1
    ]
    charged = {unit: Spent.of(unit, facts) for unit in TOTALS}
    client = gaussian_epsilon(1e-3, 0.5)
    assert charged[CLIENT].epsilon(1e-3) == pytest.approx(client, rel=1e-9)
    # Another message is twice as far as zeros: mu = 1 and mu = 1 together.
    example = gaussian_epsilon(1e-3, math.sqrt(2.0))
    assert charged[EXAMPLE].epsilon(1e-3) == pytest.approx(example, rel=1e-5)
    Limits(max_epsilon_per_client=client, max_delta=1e-3).check_spent(charged)
    few = Limits(max_epsilon_per_example=0.99 * example, max_delta=1e-3)
    with pytest.raises(RefusedError, match=r"per example .* max_epsilon_per_example"):
        few.check_spent(charged)
    replace(few, max_epsilon_per_example=1.01 * example).check_spent(charged)


def test_all_charges_together_are_compared_with_each_limit() -> None:
    charges = _both(Spent(((Charge(2.0),),) * 4, 4))  # mu = 1
    Limits(max_epsilon_per_client=4.0, max_delta=1e-3, max_releases=4).check_spent(
        charges
    )
    with pytest.raises(
        RefusedError,
        match=r"is epsilon 3\.\d+ per client \(.*delta 0\.001\), and "
        r"max_epsilon_per_client=3",
    ):
        Limits(max_epsilon_per_client=3.0, max_delta=1e-3).check_spent(charges)
    with pytest.raises(RefusedError, match="is 4 releases, and max_releases=3"):
        Limits(max_releases=3).check_spent(charges)
    nothing_hidden = _both(Spent(((Charge(0.0),),), 1))
    with pytest.raises(RefusedError, match="epsilon infinite per client"):
        Limits(max_epsilon_per_client=3.0, max_delta=1e-3).check_spent(nothing_hidden)


def _both(spent: Spent) -> dict[PrivacyUnit, Spent]:
    return dict.fromkeys(TOTALS, spent)


def _environment(context: Context) -> Any:
    raise AssertionError("not made")


def test_every_app_takes_limits() -> None:
    makers: list[Callable[[Any], Any]] = [
        lambda limits: tuning_app(_environment, limits=limits),
        lambda limits: add_tuning(ClientApp(), _environment, None, limits=limits),
        lambda limits: with_tuning(_environment, _environment, None, limits=limits),
        lambda limits: linear_bandit_app(limits=limits),
        lambda limits: neural_bandit_app(_environment, limits=limits),
    ]
    for make in makers:
        with pytest.raises(ValueError, match=r"limits=3 is not allowed: Limits"):
            make(3)
        make(Limits(max_epsilon_per_client=2.0, max_delta=1e-3))
