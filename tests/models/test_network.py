"""Reward models: gradients against finite differences, and against autograd."""

import os
import sys
from typing import Any

import numpy as np
import pytest

from flwr_fbo.lab.simulation.neural_bandits import LinearModel
from flwr_fbo.models.network import Network, RewardModel, TorchModel

D, N = 6, 11


def _torch() -> Any:
    if "FLWR_FBO_REQUIRE_TORCH" in os.environ:
        import torch

        return torch
    return pytest.importorskip("torch")


def _point(model: RewardModel, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return model.initial(rng), rng.uniform(-1, 1, (N, model.dimension))


def _finite_differences(model: RewardModel, w: Any, x: Any) -> Any:
    step = 1e-5
    columns = []
    for j in range(model.num_parameters):
        shift = np.zeros(model.num_parameters)
        shift[j] = step
        columns.append(
            (model.values(w + shift, x) - model.values(w - shift, x)) / (2 * step)
        )
    return np.stack(columns, axis=-1)


@pytest.mark.parametrize("model", [Network(D), Network(1, 3), LinearModel(D)])
def test_gradients_are_finite_differences(model: RewardModel) -> None:
    w, x = _point(model)
    values, gradients = model.values_and_gradients(w, x)
    assert gradients.shape == (N, model.num_parameters)
    np.testing.assert_allclose(values, model.values(w, x), rtol=1e-14)
    np.testing.assert_allclose(gradients, _finite_differences(model, w, x), atol=1e-6)


@pytest.mark.parametrize("model", [Network(D)])
def test_each_point_may_have_parameters_of_its_own(model: RewardModel) -> None:
    _, x = _point(model)
    w = np.random.default_rng(1).standard_normal((N, model.num_parameters))
    values, gradients = model.values_and_gradients(w, x)
    for i in range(N):
        value, gradient = model.values_and_gradients(w[i], x[i : i + 1])
        np.testing.assert_allclose(values[i], value[0], rtol=1e-12)
        np.testing.assert_allclose(gradients[i], gradient[0], rtol=1e-12)


def test_saturated_units_give_no_warning_and_finite_numbers() -> None:
    model = Network(D)
    w, x = _point(model)
    values, gradients = model.values_and_gradients(1e6 * w, x)
    assert np.isfinite(values).all()
    assert np.isfinite(gradients).all()


def test_a_linear_model_starts_at_zero_and_has_a_constant() -> None:
    model = LinearModel(D)
    w, x = _point(model)
    assert not w.any()
    values, gradients = model.values_and_gradients(w, x)
    assert not values.any()
    assert np.array_equal(gradients, np.column_stack([x, np.ones(N)]))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dimension": 0}, "dimension=0 is not allowed"),
        ({"dimension": 2, "spread": 0.0}, "spread=0.0 is not allowed"),
    ],
)
def test_a_bad_network_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Network(**fields)


def _module(torch: Any) -> Any:
    return torch.nn.Sequential(
        torch.nn.Linear(D, 25), torch.nn.Sigmoid(), torch.nn.Linear(25, 1)
    )


def test_the_network_is_that_of_autograd() -> None:
    torch = _torch()
    network, theirs = Network(D), TorchModel(_module(torch), D)
    assert theirs.num_parameters == network.num_parameters
    w, x = _point(network)
    for parameters in (w, np.random.default_rng(2).standard_normal((N, w.size))):
        ours = network.values_and_gradients(parameters, x)
        for mine, other in zip(
            ours, theirs.values_and_gradients(parameters, x), strict=True
        ):
            np.testing.assert_allclose(mine, other, rtol=0, atol=1e-10)
        np.testing.assert_allclose(
            theirs.values(parameters, x), ours[0], rtol=0, atol=1e-10
        )


def test_a_torch_module_starts_where_it_is() -> None:
    torch = _torch()
    module = _module(torch)
    model = TorchModel(module, D)
    w, x = _point(model)
    expected = module(torch.from_numpy(x).float()).detach().numpy()[:, 0]
    np.testing.assert_allclose(model.values(w, x), expected, atol=1e-5)
    assert next(module.parameters()).dtype == torch.float32  # the user's is as it was


def test_without_torch_the_error_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"flwr-fbo\[torch\]"):
        TorchModel(object(), D)
