"""What docs/research/compared.md says of packages that are installed here."""

import inspect
import re
from importlib import import_module
from pathlib import Path

import optuna
import pytest
from flwr.serverapp import strategy

PAGE = (Path(__file__).parents[1] / "docs/research/compared.md").read_text()


def test_flowers_wrappers_count_as_the_page_says() -> None:
    wrapper = strategy.DifferentialPrivacyServerSideFixedClipping
    base = inspect.getsource(wrapper.__mro__[1])
    assert "no amplification by sampling, equal weights" in PAGE
    assert "SamplingMethod.NO_AMPLIFICATION" in base
    assert "equal client weights" in base
    assert "numpy's global generator" in PAGE
    noise = import_module("flwr.supercore.differential_privacy")
    assert "np.random.normal" in inspect.getsource(noise)
    named = re.search(r"(DifferentialPrivacy\w+)` and its three siblings", PAGE)
    assert named is not None
    found = [name for name in dir(strategy) if name.startswith("DifferentialPrivacy")]
    assert len(found) == 4
    assert named[1] in found


@pytest.mark.parametrize(
    "name", ["TPESampler", "GPSampler", "CmaEsSampler", "NSGAIISampler"]
)
def test_optunas_samplers_have_no_option_of_privacy(name: str) -> None:
    options = inspect.signature(getattr(optuna.samplers, name)).parameters
    assert not {"epsilon", "delta", "noise_multiplier"} & set(options)


@pytest.mark.parametrize(
    "name",
    [
        "client.NumPyClient",
        "server.LegacyContext",
        "server.strategy.Strategy",
        "server.workflow.DefaultWorkflow",
    ],
)
def test_flower_still_has_what_code_for_an_older_one_needs(name: str) -> None:
    module, _, thing = f"flwr.{name}".rpartition(".")
    assert hasattr(import_module(module), thing)
