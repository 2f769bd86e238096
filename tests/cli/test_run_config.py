"""Values of a run config, for `flwr run` and in a pyproject.toml."""

import shlex
import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest
from flwr.common.config import parse_config_args

from flwr_fbo.cli.run_config import run_config_option, toml_value, write_run_config

TEXT = """\
# rate = 7
[tool.other]
rate = 1   # not this one

[ tool.flwr.app.config ] # that one
rate   =   0.001\t# learning-rate = 9
'epochs' = 1
name = "a # b"
optimizer.lr = 1e-3
flag = true

[tool.flwr.app.config.deep]
rate = 5
"""
VALUES: dict[str, Any] = {
    "rate": 1e-05,
    "epochs": 3,
    "name": 'quo"te \\ # é',
    "optimizer.lr": 0.25,
    "flag": False,
    "deep.rate": 6,
}
WANTED = """\
# rate = 7
[tool.other]
rate = 1   # not this one

[ tool.flwr.app.config ] # that one
rate   =   1.0e-05\t# learning-rate = 9
'epochs' = 3
name = "quo\\"te \\\\ # é"
optimizer.lr = 0.25
flag = false

[tool.flwr.app.config.deep]
rate = 6
"""


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_values_are_written_and_nothing_else(tmp_path: Path, end: str) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_bytes(TEXT.replace("\n", end).encode())
    file.chmod(0o640)
    write_run_config(file, VALUES)
    assert file.read_bytes() == WANTED.replace("\n", end).encode()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


@pytest.mark.parametrize(
    "text",
    [
        "[tool.flwr.app]\nconfig = {rate = 1.0}\n",
        "[tool.flwr.app.config]\nnumber = 1\n",
        '[tool.flwr.app.config]\nrate = """1\n2"""\n',
        '[tool.flwr.app.config]\nx = """\nrate = 2.0\n"""\nrate = 1.0\n',
    ],
)
def test_what_has_no_line_of_its_own_is_left_alone(tmp_path: Path, text: str) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"a line of its own\. Nothing was written"):
        write_run_config(file, {"rate": 0.5})
    assert file.read_text() == text


@pytest.mark.parametrize(
    "value", [True, False, 3, -2.5, 1e-7, 1e22, "a b", "it's", 'say "x"', "$HOME `x`"]
)
def test_the_line_to_copy_gives_flower_the_same_value(value: Any) -> None:
    assert tomllib.loads(f"x = {toml_value(value)}") == {"x": value}
    option, config = shlex.split(run_config_option({"key": value, "other": 1}))
    assert option == "--run-config"
    if '"' not in str(value):  # Flower's own parser has no text with both
        assert parse_config_args([config]) == {"key": value, "other": 1}
