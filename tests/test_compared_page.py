"""What docs/research/compared.md says of packages that are installed here."""

import inspect
import re
from importlib import import_module
from pathlib import Path

import optuna
import pytest
from flwr.serverapp import strategy

from benchmarks import compared_bandits, one_training

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/research/compared.md").read_text()


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


def test_the_tables_of_losses_are_what_the_command_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    one_training.show(ROOT / "benchmarks/one_training.jsonl")
    printed = capsys.readouterr().out.splitlines()
    begin = PAGE.index("## Measured on the same federations")
    section = PAGE[begin : PAGE.index("## With bandit libraries")]
    rows = [row for row in section.splitlines() if " ± " in row and row[0] == "|"]
    assert len(rows) > len(one_training.METHODS)
    assert [row for row in rows if row not in printed] == []
    tutorial = (ROOT / "docs/app/federation-tuner.md").read_text()
    for heading, num_numbers in (("## What is chosen", 4), ("## Beside a loop", 7)):
        section = tutorial.split(heading)[1].split("\n## ")[0]
        numbers = re.findall(r"0\.\d{4} ± 0\.\d{4}", " ".join(section.split()))
        assert len(numbers) == num_numbers
        assert [one for one in numbers if one not in "".join(printed)] == []


def test_the_table_of_bandit_libraries_is_what_the_command_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    compared_bandits.show(ROOT / "benchmarks/compared_bandits.jsonl")
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 2 + len(compared_bandits.METHODS)
    for line in printed:
        assert line in PAGE.splitlines()
    assert f"over {len(compared_bandits.SEEDS)} seeds" in PAGE
