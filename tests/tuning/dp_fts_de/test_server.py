"""The server of DP-FTS-DE: when it releases, what it may spend, and that it goes on."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from flwr_fbo.privacy.filters import Spent
from flwr_fbo.privacy.noise import SeededEntropy
from flwr_fbo.privacy.release import Release, ReleaseSettings
from flwr_fbo.privacy.spending_ledger import Charge
from flwr_fbo.study.server import Step
from flwr_fbo.tuning.dp_fts_de.server import DPFTSDEServer


def _server(**settings: Any) -> DPFTSDEServer:
    release = Release(ReleaseSettings(4, **settings), SeededEntropy(0))
    return DPFTSDEServer(release, 5, delta=1e-3, iterations=range(3))


def test_a_server_releases_once_a_round_and_not_after_the_last() -> None:
    server = _server()
    assert server.vectors is None
    for iteration in range(3):
        assert server.step(iteration).release == iteration + 1
        server.receive(server.step(iteration), {0: np.ones(5)})
    released = server.vectors
    assert released is not None
    assert released.shape == (1, 5)
    assert server.step(3) == Step(3)
    server.receive(server.step(3), {0: np.ones(5)})
    assert server.vectors is released
    assert len(server.ledger) == server.privacy_spent.num_releases == 3


def test_a_second_draw_for_one_release_is_refused() -> None:
    server = _server()
    first = server.step(0)
    server.receive(first, {})
    with pytest.raises(ValueError, match="release=1 is not allowed: 2"):
        server.receive(first, {})


def test_a_postponed_release_is_made_first_as_it_was_planned() -> None:
    messages = {n: np.arange(5.0) for n in range(4)}
    on_time, late = _server(), _server()
    assert late.step(1) == Step(1, release=1)  # none was made after iteration 0
    for iteration in range(3):
        on_time.receive(on_time.step(iteration), messages)
        late.receive(late.step(iteration + 1), messages)
    for planned, made in zip(on_time.ledger, late.ledger, strict=True):
        np.testing.assert_array_equal(planned.vectors, made.vectors)
        assert planned.iteration == made.iteration
        assert made.facts["made_after"] == planned.facts["made_after"] + 1
    assert late.step(4) == Step(4)
    assert on_time.privacy_spent == late.privacy_spent


def test_a_server_goes_on_from_its_ledger() -> None:
    whole, first = _server(), _server()
    messages = {n: np.arange(5.0) for n in range(4)}
    for iteration in range(3):
        whole.receive(whole.step(iteration), messages)
    first.receive(first.step(0), messages)
    second = _server()
    second.resume(first.ledger)
    np.testing.assert_array_equal(second.vectors, first.vectors)
    for iteration in (1, 2):
        second.receive(second.step(iteration), messages)
    np.testing.assert_array_equal(second.vectors, whole.vectors)
    assert second.privacy_spent == whole.privacy_spent


def test_the_budget_halts_the_releases() -> None:
    server = _server()
    for iteration in range(2):
        server.receive(server.step(iteration), {})
    two = server.privacy_spent.epsilon
    limited = _server()
    limited.limit(two + 1e-6)
    for iteration in range(3):
        step = limited.step(iteration)
        assert (step.release > 0, step.is_exhausted) == (iteration < 2, iteration == 2)
        limited.receive(step, {0: np.ones(5)})
    assert len(limited.ledger) == 2
    assert limited.privacy_spent.epsilon == two
    assert "allows 2 of 3 planned releases" in " ".join(limited.summary())


def test_what_other_studies_spent_is_not_there_any_more() -> None:
    alone, second = _server(), _server()
    charges = tuple(alone.charge(t) for t in range(3))

    def together(some: Sequence[Charge]) -> Spent:
        """Return what both studies spend; with sampling each counts whole."""
        return Spent((charges, tuple(some)))

    enough = together(charges[:1]).epsilon(1e-3)
    for epsilon, allowed in ((enough, 1), (0.999 * enough, 0), (2 * enough, 3)):
        second.limit(epsilon, together)
        assert second.num_allowed == allowed
    alone.limit(enough)
    assert alone.num_allowed == 3


def test_a_budget_allows_what_costs_nothing_and_not_what_is_open() -> None:
    control = _server(noise_only=True)
    control.limit(0.1)
    assert control.step(0).release == 1
    without_noise = _server(noise_multiplier=0.0)
    without_noise.limit(100.0)
    assert without_noise.step(0) == Step(0, is_exhausted=True)


def test_the_ledger_holds_what_an_auditor_needs_and_no_secret() -> None:
    server = _server(num_sub_regions=2)
    messages = {n: np.arange(5.0) for n in range(4)}
    server.receive(server.step(0), messages)
    (row,) = server.ledger
    assert set(row.facts) == {
        "noise_multiplier",
        "sampling",
        "sample_size",
        "population_size",
        "sensitivity",
        "noise_std",
        "private",
        "noise_only",
        "flwr_fbo",
        "made_after",
    }
    assert row.facts["sensitivity"] == server.release.sensitivity(0)
    assert row.facts["private"] is False
    assert row.vectors is server.vectors
