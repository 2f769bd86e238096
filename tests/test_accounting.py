import json
import logging
import math
import os
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_fbo.privacy.accounting import ReleaseAccountant, sampling_ratio
from flwr_fbo.privacy.noise import SeededEntropy
from flwr_fbo.privacy.release import Release, ReleaseSettings
from flwr_fbo.privacy.schedule import check_schedule, release_iterations
from flwr_fbo.servers.distributed_exploration import DistributedExplorationServer

# Poisson-subsampled Gaussian, delta = 1/N^1.1, computed with dp-accounting 0.6.0:
# N, T, q, z, epsilon.
RDP = [
    (200, 40, 0.15, 1.0, 4.8778),
    (200, 40, 0.25, 1.5, 4.2657),
    (29, 60, 0.35, 1.0, 13.4953),
    (29, 60, 0.35, 4.0, 1.4577),
    (50, 60, 0.1, 1.0, 3.0811),
]


@pytest.mark.parametrize(("n", "rounds", "q", "z", "epsilon"), RDP)
def test_renyi_epsilon(n: int, rounds: int, q: float, z: float, epsilon: float) -> None:
    accountant = ReleaseAccountant(q, n**-1.1)
    for _ in range(rounds):
        accountant.charge(z)
    spent = accountant.spent()
    assert spent.epsilon == pytest.approx(epsilon, abs=1e-2)
    assert spent.num_releases == rounds


def test_renyi_epsilon_of_the_whole_reference() -> None:
    folder = os.environ.get("FLWR_FBO_DATA", "")
    path = Path(folder).parent / "reference" / "privacy_loss.json"
    if not folder or not path.exists():
        pytest.skip("FLWR_FBO_DATA has no reference folder beside it")
    for row in json.loads(path.read_text())["rows"]:
        accountant = ReleaseAccountant(row["q"], row["delta"])
        for _ in range(row["T"]):
            accountant.charge(float(row["z"]))
        assert accountant.spent().epsilon == pytest.approx(row["rdp"], abs=1e-2)


def test_nothing_released_costs_nothing() -> None:
    assert ReleaseAccountant(0.35, 1e-3).spent().epsilon == 0.0


@pytest.mark.parametrize("q", [0.35, 1 / 3, 0.1, 1.0, 0.123456789012345, 1e-6])
def test_sampling_ratio_is_never_below(q: float) -> None:
    ratio = sampling_ratio(q)
    assert ratio >= Fraction(q) - Fraction(1, 10**15)
    assert float(ratio) == pytest.approx(q, abs=2e-9)
    assert ratio.denominator <= 10**9


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0, math.nan, "1e-3"])
def test_bad_delta_is_named(delta: Any) -> None:
    with pytest.raises(ValueError, match="delta="):
        ReleaseAccountant(0.35, delta)


def test_charges_need_noise() -> None:
    with pytest.raises(ValueError, match="noise_multiplier"):
        ReleaseAccountant(0.35, 1e-3).charge(0.0)


def test_the_log_stays_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    """dp-accounting warns of every Renyi order it leaves out, and sets up logging."""
    handlers = list(logging.root.handlers)
    accountant = ReleaseAccountant(0.35, 1e-3)
    accountant.charge(1.0)
    accountant.spent()
    assert logging.root.handlers == handlers
    assert not [r for r in caplog.records if r.name == "absl"]


def _server(**settings: Any) -> DistributedExplorationServer:
    release = Release(ReleaseSettings(4, **settings), SeededEntropy(0))
    return DistributedExplorationServer(release, 5, delta=1e-3, iterations=range(3))


def test_a_server_releases_once_a_round_and_not_after_the_last() -> None:
    server = _server()
    assert server.vectors is None
    for iteration in range(3):
        assert server.wants_messages(iteration)
        server.receive(iteration, {0: np.ones(5)})
    released = server.vectors
    assert released is not None
    assert released.shape == (1, 5)
    assert not server.wants_messages(3)
    server.receive(3, {0: np.ones(5)})
    assert server.vectors is released
    assert len(server.ledger) == server.privacy_spent.num_releases == 3


def test_a_second_draw_for_one_round_is_refused() -> None:
    server = _server()
    server.receive(0, {})
    with pytest.raises(ValueError, match="iteration=0 is not allowed: above 0"):
        server.receive(0, {})
    server.receive(2, {})  # iteration 1 failed, or had no release
    with pytest.raises(ValueError, match="iteration=1 is not allowed: above 2"):
        server.receive(1, {})


def test_a_server_goes_on_from_its_ledger() -> None:
    whole, first = _server(), _server()
    messages = {n: np.arange(5.0) for n in range(4)}
    for iteration in range(3):
        whole.receive(iteration, messages)
    first.receive(0, messages)
    second = _server()
    second.resume(first.ledger)
    np.testing.assert_array_equal(second.vectors, first.vectors)
    for iteration in (1, 2):
        second.receive(iteration, messages)
    np.testing.assert_array_equal(second.vectors, whole.vectors)
    assert second.privacy_spent == whole.privacy_spent


def test_the_budget_halts_the_releases() -> None:
    server = _server()
    for iteration in range(2):
        server.receive(iteration, {})
    two = server.privacy_spent.epsilon
    limited = _server()
    limited.max_epsilon = two + 1e-6
    for iteration in range(3):
        assert limited.wants_messages(iteration) == (iteration < 2)
        limited.receive(iteration, {0: np.ones(5)})
    assert limited.exhausted
    assert len(limited.ledger) == 2
    assert limited.privacy_spent.epsilon == two
    assert "releases stop before epsilon exceeds" in " ".join(limited.summary())
    with pytest.raises(ValueError, match="max_epsilon=0"):
        DistributedExplorationServer(server.release, 5, 1e-3, max_epsilon=0)


def test_a_budget_allows_what_costs_nothing_and_not_what_is_open() -> None:
    control = _server(noise_only=True)
    control.max_epsilon = 0.1
    assert control.wants_messages(0)
    without_noise = _server(noise_multiplier=0.0)
    without_noise.max_epsilon = 100.0
    assert not without_noise.wants_messages(0)


def test_the_ledger_holds_what_an_auditor_needs_and_no_secret() -> None:
    server = _server(num_sub_regions=2)
    messages = {n: np.arange(5.0) for n in range(4)}
    server.receive(0, messages)
    (row,) = server.ledger
    assert set(row.facts) == {
        "noise_multiplier",
        "sampling",
        "sampling_probability",
        "sensitivity",
        "noise_std",
        "private",
        "flwr_fbo",
    }
    assert row.facts["sensitivity"] == server.release.sensitivity(0)
    assert row.facts["private"] is False
    assert row.vectors is server.vectors


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("all", (0, 1, 2, 3, 4, 5)),
        (3, (0, 1, 2)),
        (0, ()),
        (99, (0, 1, 2, 3, 4, 5)),
        ([4, 1, 77], (1, 4)),
        (0.25, (0, 1, 2, 3)),  # 1/t: 1, 1/2, 1/3, 1/4
    ],
)
def test_schedules(schedule: Any, expected: tuple[int, ...]) -> None:
    check_schedule(schedule)
    assert release_iterations(schedule, 6, lambda t: 1 / t) == expected


@pytest.mark.parametrize(
    "schedule", ["some", -1, True, 1.0, math.nan, [0.5], [-1], None]
)
def test_schedules_that_are_none(schedule: Any) -> None:
    with pytest.raises(ValueError, match=r"releases=.* is not allowed"):
        check_schedule(schedule)


@pytest.mark.parametrize(("q", "z"), [(1e-9, 1.0), (1.0, 1e6), (0.35, 1e-3)])
def test_what_the_settings_allow_can_be_charged(q: float, z: float) -> None:
    server = _server(sampling_probability=q, noise_multiplier=z)
    server.receive(0, {})
    assert server.privacy_spent.epsilon >= 0.0


def test_published_noise_is_charged_at_what_it_is() -> None:
    joint, published = (
        _server(num_sub_regions=2, calibration=c) for c in ("joint", "published")
    )
    for server in (joint, published):
        server.receive(0, {})
    assert published.privacy_spent.epsilon < joint.privacy_spent.epsilon


def test_epsilon_without_noise_is_infinite_and_of_the_control_zero() -> None:
    open_server = _server(noise_multiplier=0.0)
    open_server.receive(0, {})
    assert open_server.privacy_spent.epsilon == math.inf
    control = _server(noise_only=True)
    control.receive(0, {})
    assert control.privacy_spent.epsilon == 0.0
    assert "NOT PRIVATE" in " ".join(open_server.summary())
    assert "control" in " ".join(control.summary())
