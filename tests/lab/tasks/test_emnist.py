"""The network on digits by writer; where PyTorch is not installed, what says so."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import platformdirs
import pytest
from optuna.distributions import FloatDistribution
from typer.testing import CliRunner

from flwr_fbo._common.random import Purpose, generator
from flwr_fbo.cli import app
from flwr_fbo.lab.datasets.base import Split, data_folder
from flwr_fbo.lab.experiment_runner.config import builtin_experiments, load_experiment
from flwr_fbo.lab.experiment_runner.tuning_experiment import TuningExperiment, run_one
from flwr_fbo.lab.tasks import emnist
from flwr_fbo.lab.tasks.emnist import EmnistTask
from flwr_fbo.space.search_space import SearchSpace
from tests.support.emnist import needs_torch

needs_digits = pytest.mark.skipif(
    not any((data_folder() / name).is_dir() for name in ("digits", "emnist")),
    reason=f"no folder digits or emnist in {data_folder()}",
)

GOOD = {"learning_rate": 3e-3, "decay": 1e-4, "l2": 1e-5}
SETTINGS = [
    GOOD,
    {"learning_rate": 1e-3, "decay": 1e-4, "l2": 1e-5},
    {"learning_rate": 1e-3, "decay": 0.02, "l2": 1e-5},
    {"learning_rate": 1e-3, "decay": 1e-4, "l2": 0.02},
]


def _images(num: int, rng: np.random.Generator) -> tuple[Any, Any]:
    """Return ten noisy bars, float32 in [0, 1]."""
    y = np.arange(num) % 10
    X = rng.random((num, 28, 28), dtype=np.float32) * 0.5
    for image, label in zip(X, y, strict=True):
        image[2 * label + 4 : 2 * label + 6] += 0.5
    return X, y


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return one writer, whom all clients hold; there are 7."""
    rng = np.random.default_rng(0)
    data = Split(*_images(50, rng), *_images(80, rng))
    monkeypatch.setattr(emnist, "partition", lambda client: data)
    monkeypatch.setattr(emnist, "num_partitions", lambda: 7)
    return data


@needs_torch
def test_each_setting_matters_and_a_run_repeats(writer: Any) -> None:
    from flwr_fbo.lab.tasks import _cnn as cnn

    def weights(seed: int, client: int, setting: dict[str, float]) -> bytes:
        rng = generator(seed, client, Purpose.TRAINING)
        start = cnn.Start.draw(rng, len(writer.y_train))
        network = cnn.Network(writer.X_train, writer.y_train, start, **setting)
        return bytes(network._layers[-1][0].detach().numpy())

    first = [weights(0, 0, setting) for setting in SETTINGS]
    assert len(set(first)) == len(SETTINGS)
    assert weights(0, 0, GOOD) == first[0]
    assert weights(1, 0, GOOD) != first[0]
    assert weights(0, 1, GOOD) != first[0]


@needs_torch
def test_the_rate_decays_as_documented(writer: Any) -> None:
    """Adam's first step is as long as its rate; so small, the later ones are nearly."""
    from flwr_fbo.lab.tasks import _cnn as cnn

    start = cnn.Start.draw(np.random.default_rng(0), len(writer.y_train))
    num_steps = 10 * 4  # batches of 16, 16, 16 and 2

    def moved(decay: float) -> float:
        setting = {"learning_rate": 1e-7, "decay": decay, "l2": 1e-7}
        network = cnn.Network(writer.X_train, writer.y_train, start, **setting)
        return float(network._layers[-1][1].detach().abs().max())

    expected = sum(1 / (1 + 0.02 * t) for t in range(num_steps)) / num_steps
    assert moved(0.02) / moved(1e-7) == pytest.approx(expected, rel=0.01)


@needs_torch
def test_the_error_is_counted_on_the_validation_digits(writer: Any) -> None:
    task = EmnistTask()
    good = task.objective(0, 7, seed=0)(GOOD)
    assert good < 0.2
    assert good * 80 == pytest.approx(round(good * 80))
    assert task.objective(0, 7, seed=0)(GOOD) == good
    none = task.objective(0, 7, seed=0)({**GOOD, "learning_rate": 1e-7})
    assert 0.6 < none <= 1.0


@needs_torch
def test_what_the_user_set_in_torch_changes_nothing_and_stays(writer: Any) -> None:
    import torch

    error = EmnistTask().objective(0, 7, seed=0)
    expected = error(SETTINGS[1])
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    state = torch.manual_seed(7).get_state()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad(), torch.device("meta"):
            assert error(SETTINGS[1]) == expected
            assert not torch.is_grad_enabled()
        assert torch.get_num_threads() == 2
        assert torch.get_default_dtype() is torch.float64
        assert torch.equal(torch.get_rng_state(), state)
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(torch.float32)


@needs_torch
def test_a_fault_leaves_the_threads_as_they_were(writer: Any) -> None:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(ValueError, match="learning rate"):
            EmnistTask().objective(0, 7, seed=0)({**GOOD, "learning_rate": -1.0})
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


@needs_torch
def test_the_number_of_writers_is_named(writer: Any) -> None:
    EmnistTask().check(7)
    with pytest.raises(ValueError, match=r"num_agents=8 .* at most 7 \(one writer"):
        EmnistTask().check(8)
    with pytest.raises(ValueError, match="num_agents=0 is not allowed"):
        EmnistTask().check(0)


@pytest.mark.parametrize("log", [True, False])
def test_the_ranges_are_the_published_ones(log: bool) -> None:
    space = dict(EmnistTask(log=log).space)
    assert set(space) == {"learning_rate", "decay", "l2"}
    assert set(map(repr, space.values())) == {
        repr(FloatDistribution(1e-7, 0.02, log=log))
    }
    assert EmnistTask.direction == "minimize"


def test_log_is_a_bool() -> None:
    with pytest.raises(ValueError, match="log='no' is not allowed"):
        EmnistTask(log="no")  # type: ignore[arg-type]


def test_without_torch_the_extra_is_named(
    writer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "flwr_fbo.lab.tasks._cnn", raising=False)
    monkeypatch.delattr("flwr_fbo.lab.tasks._cnn", raising=False)
    for call in (
        lambda: EmnistTask().check(5),
        lambda: EmnistTask().objective(0, 5, 0),
    ):
        with pytest.raises(ImportError, match=r"pip install 'flwr-fbo\[torch\]'"):
            call()
    result = CliRunner().invoke(app, ["run", "emnist", "--output", str(tmp_path)])
    assert result.exit_code == 1
    assert result.output.startswith("Error: The emnist task needs PyTorch")
    assert len(result.output.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@needs_torch
@needs_digits
def test_good_settings_read_the_digits() -> None:
    EmnistTask().check(50)
    errors = [EmnistTask().objective(i, 50, seed=0)(GOOD) for i in range(2)]
    assert np.mean(errors) < 0.12


@needs_torch
@needs_digits
@pytest.mark.slow
def test_the_experiment_runs() -> None:
    emnist_experiment = load_experiment(builtin_experiments()["emnist"])
    assert isinstance(emnist_experiment, TuningExperiment)
    assert emnist_experiment.task == EmnistTask()
    assert (emnist_experiment.num_agents, emnist_experiment.num_evaluations) == (50, 70)
    plan = replace(emnist_experiment, num_agents=1, num_evaluations=11)
    run = run_one(plan, "private", seed=0)
    assert run.failed_trials == 0
    assert (np.diff(run.best_so_far) <= 0).all()


@needs_torch
def test_a_surface_stands_in_for_the_network(
    writer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda name: tmp_path)
    monkeypatch.setattr(emnist, "GRID_SHAPE", (2, 2, 2))
    task, exact = EmnistTask(log=False, surface=True), EmnistTask(log=False)
    with joblib.parallel_config("threading"):
        task.check(1)
    looked_up = task.objective(0, 7, 5)
    for corner in ((0.0, 0.0, 0.0), (1.0, 0.0, 1.0)):
        params = SearchSpace(task.space).from_unit(np.array(corner))
        assert looked_up(params) == exact.objective(0, 7, 0)(params)


def test_a_surface_on_log_scales_is_refused() -> None:
    with pytest.raises(ValueError, match="surface=True is not allowed: False, where"):
        EmnistTask(surface=True)
