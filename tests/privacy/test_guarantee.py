"""Terms of an epsilon, and what follows from one for another unit or adjacency."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from dp_accounting.dp_event import GaussianDpEvent
from dp_accounting.pld import PLDAccountant
from optuna.distributions import FloatDistribution
from scipy.integrate import quad
from scipy.stats import norm

from flwr_fbo import (
    DPFTSDE,
    DecentralizedFedUCB,
    FedGOUCB,
    FedUCB,
    FedVote,
    Privacy,
    PrivateChoice,
)
from flwr_fbo.bandits import (
    ContinualSettings,
    FedGOUCBSettings,
    LinearUCBSettings,
    Network,
    NeuralPrivacy,
    PeerGraph,
)
from flwr_fbo.privacy.accounting import PrivacySpent, ReleaseAccountant
from flwr_fbo.privacy.gaussian import gaussian_epsilon, gaussian_mu, poisson_epsilon
from flwr_fbo.privacy.guarantee import (
    CLIENT,
    EXAMPLE,
    ONE_EXAMPLE_LESS,
    Guarantee,
    PrivacyUnit,
    delta_warning,
    of_group,
    profile_text,
    replaced_epsilon,
)

SERVER = Guarantee(CLIENT, "server")


def _by_dp_accounting(z: float, delta: float, count: int = 1) -> float:
    accountant = PLDAccountant()
    accountant.compose(GaussianDpEvent(z), count)
    return float(accountant.get_epsilon(delta))


@pytest.mark.parametrize(("epsilon", "delta"), [(2.0, 1e-3), (0.5, 1e-6), (8.0, 1e-5)])
def test_a_message_that_is_replaced_is_twice_as_far(
    epsilon: float, delta: float
) -> None:
    found = of_group(epsilon, delta, 2)
    z = 1 / gaussian_mu(epsilon, delta)
    assert found == pytest.approx(_by_dp_accounting(z / 2, delta), rel=5e-3)
    # The worst pair, by the definition: m and -m, at distance 2 with noise z.
    worst, _ = quad(
        lambda x: max(
            0.0, norm.pdf(x, 1.0, z) - math.exp(found) * norm.pdf(x, -1.0, z)
        ),
        -40 * z,
        40 * z,
        points=[1.0, -1.0, found * z**2 / 2],
        limit=500,
    )
    assert worst == pytest.approx(delta, rel=1e-3)


def test_the_numbers_of_the_pages() -> None:
    assert of_group(2.0, 1e-3, 2) == pytest.approx(4.714, abs=1e-3)
    visits = [of_group(4.0, 1e-5, k) for k in (1, 2, 3, 10)]
    assert visits == pytest.approx([4.0, 9.085, 15.08, 81.40], rel=1e-3)
    # A patient of two hospitals: two messages that are replaced.
    assert of_group(2.0, 1e-3, 4) == pytest.approx(11.72, abs=0.01)
    mu = gaussian_mu(2.0, 1e-3)
    # How often an observer is surer than epsilon says, and the mean best guess.
    assert norm.sf(2.0 / mu - mu / 2) == pytest.approx(5.47e-3, rel=1e-2)
    assert norm.cdf(mu / 2) == pytest.approx(0.635, abs=1e-3)
    assert mu / gaussian_mu(2.0, 1e-6) == pytest.approx(1.54, abs=0.005)
    assert of_group(math.inf, 1e-5, 2) == math.inf
    said = profile_text(gaussian_mu(2.0, 1e-3), 1e-3)
    assert said.endswith("3.23 at delta 1e-06, 4.13 at delta 1e-09")
    with pytest.raises(ValueError, match="size=0"):
        of_group(4.0, 1e-5, 0)


def test_an_accountant_says_both_adjacencies() -> None:
    accountant = ReleaseAccountant(1.0, 1e-3)
    accountant.charge(2.0, 3)
    spent = accountant.spent(SERVER)
    assert spent.epsilon_if_replaced == pytest.approx(
        _by_dp_accounting(1.0, 1e-3, 3), rel=5e-3
    )
    assert str(spent) == (
        f"epsilon {spent.epsilon:.4g} per client (message or zeros, delta 0.001; "
        f"{spent.epsilon_if_replaced:.4g} if replaced by another)"
    )
    assert spent.to_json()["unit"] == "client"


@pytest.mark.parametrize(("q", "z", "count"), [(0.35, 1.5, 4), (0.1, 1.0, 40)])
def test_with_sampling_it_is_a_bound_and_no_worse_than_without(
    q: float, z: float, count: int
) -> None:
    found = replaced_epsilon(((q, z, count),), 1e-3)
    zeroed = poisson_epsilon(((q, z, count),), 1e-3)
    assert zeroed < found <= gaussian_epsilon(1e-3, 2 * math.sqrt(count) / z)
    # One release, by the definition: both worlds are mixtures, of m and of -m.
    one = replaced_epsilon(((q, z, 1),), 1e-3)
    x = np.linspace(-30 * z, 30 * z, 400_001)
    worlds = [
        (1 - q) * norm.pdf(x, 0, z) + q * norm.pdf(x, sign, z) for sign in (1, -1)
    ]
    excess = np.maximum(0.0, worlds[0] - math.exp(one) * worlds[1])
    assert np.trapezoid(excess, x) <= 1e-3


def test_no_epsilon_is_made_or_printed_without_its_terms() -> None:
    bare: Any = PrivacySpent
    with pytest.raises(TypeError, match="guarantee"):
        bare(1.0, 1e-5, 1, "pld")
    bandit = Guarantee(EXAMPLE, "local", ("for a finished table",))
    spent = PrivacySpent(4.0, 1e-5, 2, "gdp", guarantee=bandit)
    said = "epsilon 4.0 per example (replaced by another, delta 1e-05), for a finished"
    assert spent.text(".1f") == f"{said} table"
    assert f"{spent}" == f"{said.replace('4.0', '4')} table"
    less = PrivacySpent(
        4.0,
        1e-5,
        2,
        "pld",
        guarantee=Guarantee(ONE_EXAMPLE_LESS),
        epsilon_if_replaced=4.0,
    )
    terms = "(with or without it, delta 1e-05; 4 if replaced by another)"
    assert str(less) == f"epsilon 4 per example {terms}"
    gone: Any = "gone"
    with pytest.raises(ValueError, match="adjacency='gone'"):
        PrivacyUnit("client", gone)


def test_a_large_delta_needs_a_switch() -> None:
    with pytest.raises(ValueError, match=r"delta=0.2 is not allowed: below 0.01"):
        PrivateChoice(2, delta=0.2)
    assert PrivateChoice(2, 0.2, allow_large_delta=True).delta == 0.2
    space = {"x": FloatDistribution(0, 1)}
    with pytest.raises(ValueError, match=r"delta=0.01 is not allowed: below 0.01"):
        FedVote(space, "maximize", 15, epsilon=2, delta=0.01)
    allowed = Privacy(allow_large_delta=True)
    FedVote(space, "maximize", 15, epsilon=2, delta=0.01, privacy=allowed)


BANDIT_RELEASES = ContinualSettings(2, 3, epsilon=4.0, delta=0.01)
LINEAR = LinearUCBSettings(BANDIT_RELEASES, local_data="released")
NEURAL = FedGOUCBSettings(privacy=NeuralPrivacy(4.0, 0.01, 2, num_features=4))


@pytest.mark.parametrize(
    "make",
    [
        partial(FedUCB, LINEAR, 4, schedule=[5, 10]),
        partial(
            DecentralizedFedUCB, LINEAR, PeerGraph.named("ring", 4), schedule=[5, 10]
        ),
        partial(FedGOUCB, NEURAL, Network(3), 4, num_evaluations=40),
    ],
    ids=["linear", "peers", "neural"],
)
def test_a_bandit_needs_it_too_where_its_noise_is_real(make: Any) -> None:
    with pytest.raises(ValueError, match=r"delta=0.01 is not allowed: below 0.01"):
        make()
    make(allow_large_delta=True)
    make(noise_seed=1)  # nothing is private
    with pytest.raises(ValueError, match="allow_large_delta=1"):
        make(allow_large_delta=1)


def test_a_delta_that_is_not_well_below_one_over_the_units_is_warned_of() -> None:
    assert delta_warning(1e-3, 100, CLIENT) == ""
    said = delta_warning(1e-3, 101, CLIENT)
    assert "not well below one over the 101 clients" in said
    assert "at most 0.00099" in said


@pytest.mark.parametrize(("num_agents", "delta"), [(5, 1e-3), (1000, 1e-4)])
@pytest.mark.parametrize("strategy", [FedVote, DPFTSDE])
def test_a_delta_that_is_not_given_is_small_enough(
    strategy: Any, num_agents: int, delta: float
) -> None:
    """What is promised by default keeps to the rule, and nothing is warned of."""
    space = {"x": FloatDistribution(0, 1)}
    noisy = Privacy(noise_multiplier=1.0)
    server = strategy(space, "maximize", num_agents, privacy=noisy).server
    assert server.delta == delta
    assert "not well below" not in "".join(server.summary())


def test_little_noise_with_sampling_has_a_finite_epsilon() -> None:
    sampled = ((0.01, 0.02, 5),)
    assert 700 < replaced_epsilon(sampled, 1e-5) < math.inf
