"""The server of FedWarmStart: which messages are in which release."""

import warnings

import numpy as np
import pytest
from numpy.typing import NDArray

from flwr_fbo.privacy.noise import SeededEntropy
from flwr_fbo.privacy.release import Release, ReleaseSettings
from flwr_fbo.privacy.weights import WeightSchedule
from flwr_fbo.study.server import Step
from flwr_fbo.tuning.fed_warm_start.server import FedWarmStartServer
from flwr_fbo.tuning.fed_warm_start.settings import Cohorts


def released(server: FedWarmStartServer) -> NDArray[np.float64]:
    vectors = server.vectors
    assert vectors is not None
    return vectors


def server_of(z: float = 0.5) -> FedWarmStartServer:
    settings = ReleaseSettings(
        num_agents=5,
        clip_norm=1.0,
        noise_multiplier=z,
        sampling_probability=1.0,
        weights=WeightSchedule(peak=0.0),
    )
    server = FedWarmStartServer(Release(settings, SeededEntropy(1)), 4, 1e-3, (2, 5))
    server.cohorts = Cohorts(5, (2, 2), z)
    return server


def test_only_the_open_cohort_is_in_a_release() -> None:
    vector = np.array([0.6, 0.8, 0.0, 0.0])
    ours, all_of_them = server_of(), server_of()
    step = ours.step(2)
    assert [ours.sends(slot, step) for slot in range(5)] == [True] * 2 + [False] * 3
    ours.receive(step, {0: vector, 1: vector})
    all_of_them.receive(step, dict.fromkeys(range(5), vector))
    np.testing.assert_array_equal(released(ours), released(all_of_them))
    # Noise, and two fifths of the vector.
    empty = server_of()
    empty.receive(step, {})
    np.testing.assert_allclose(released(ours) - released(empty), [0.4 * vector])


def test_a_message_that_is_too_long_counts_as_zero(
    caplog: pytest.LogCaptureFixture,
) -> None:
    vector, long = np.array([1.0, 0.0, 0.0, 0.0]), np.full(4, 0.6)
    ours, empty, exact = server_of(), server_of(), server_of()
    step = ours.step(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is squared, and that overflows
        ours.receive(step, {0: long, 1: np.full(4, 1e200)})
    empty.receive(step, {1: None})
    np.testing.assert_array_equal(released(ours), released(empty))
    assert "agent 0: its message counts as zero: norm 1.2 is above 1" in caplog.text
    exact.receive(step, {0: (1 + 9e-10) * vector})
    assert not np.array_equal(released(exact), released(empty))
    longer = server_of()
    longer.receive(step, {0: (1 + 2e-9) * vector})
    np.testing.assert_array_equal(released(longer), released(empty))


def test_a_postponed_release_postpones_those_after_it() -> None:
    server = server_of()
    assert [server.step(t).release for t in range(4)] == [0, 0, 1, 1]
    server.receive(server.step(4), {})
    # Made two iterations late: so is the next one.
    assert [server.step(t).release for t in range(5, 9)] == [0, 0, 2, 2]
    assert [server.plays(slot) for slot in range(5)] == [True] * 4 + [False]
    server.receive(server.step(8), {})
    assert server.plays(4)
    assert server.step(9) == Step(9)
    with pytest.raises(ValueError, match="release=1"):
        server.receive(Step(9, 1), {})
