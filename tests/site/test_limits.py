"""Limits as values: those allowed, and how promises and charges are held to them.

`test_site_budget.py` has sites that keep to them over several studies.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
from flwr.app import Context, RecordDict, UserConfig
from flwr.clientapp import ClientApp

from flwr_fbo import Limits, add_tuning, linear_bandit_app, tuning_app, with_tuning
from flwr_fbo._common.errors import RefusedError
from flwr_fbo.bandits import neural_bandit_app
from flwr_fbo.privacy.filters import Spent
from flwr_fbo.privacy.spending_ledger import Charge, Promise
from flwr_fbo.site.node_config_limits import node_limits


def _context(**node_config: Any) -> Context:
    config: UserConfig = {
        f"fbo-{key.replace('_', '-')}": value for key, value in node_config.items()
    }
    return Context(1, 1, config, RecordDict(), {})


WRONG: list[tuple[dict[str, Any], str]] = [
    *(({field: value}, field) for field in ("max_epsilon", "max_delta") for value in (
        0.0, math.nan, "much",
    )),
    ({"max_epsilon": 4.0}, r"max_delta=None .* max_epsilon=4"),
    ({"max_delta": 0.1}, r"max_epsilon=None .* max_delta=0.1"),
    ({"max_epsilon": 4.0, "max_delta": 1.0}, r"max_delta=1.0 .* between 0 and 1"),
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
    for name in ("epsilon", "delta", "releases", "uniform_share"):
        key = f"fbo-max-{name.replace('_', '-')}"
        named = named.replace(f"max_{name}", key)
    return named


def test_a_promise_is_refused_by_name() -> None:
    limits = Limits(3.0, 1e-3)
    limits.check_promise(Promise((Charge(1.0),), True))
    with pytest.raises(RefusedError, match="the study is not private"):
        limits.check_promise(Promise((Charge(1.0),), False))
    with pytest.raises(RefusedError, match="asks for a metric, which is not pr"):
        limits.check_promise(Promise((Charge(1.0),), True), "a metric")
    for others in (Limits(), Limits(math.inf), Limits(max_releases=1)):
        others.check_promise(Promise(), "a metric")


def test_all_charges_together_are_compared_with_each_limit() -> None:
    charges = Spent(((Charge(2.0),),) * 4, 4)  # mu = 1
    Limits(4.0, 1e-3, 4).check_spent(charges)
    with pytest.raises(
        RefusedError,
        match=r"is epsilon=3\.\d+ at max_delta=0\.001, and max_epsilon=3\.",
    ):
        Limits(3.0, 1e-3).check_spent(charges)
    with pytest.raises(RefusedError, match="is 4 releases, and max_releases=3"):
        Limits(max_releases=3).check_spent(charges)
    with pytest.raises(RefusedError, match="epsilon>=inf"):
        Limits(3.0, 1e-3).check_spent(Spent(((Charge(0.0),),), 1))


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
        make(Limits(2.0, 1e-3))
