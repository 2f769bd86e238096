"""The command ``flwr-fbo ledger``: what a ledger says, and what it is asked for."""

from pathlib import Path

import pytest

from tests.support.command import invoke, one_line_error


@pytest.mark.parametrize("name", ["there", "gone"])
def test_a_folder_without_a_ledger_is_said_to_have_spent_nothing(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / "there").mkdir()
    result = invoke("ledger", "show", str(tmp_path / name))
    assert "nothing was spent there" in one_line_error(result)


def test_a_ledger_wants_a_delta_that_can_be(tmp_path: Path) -> None:
    result = invoke("ledger", "show", str(tmp_path), "--delta=nan")
    assert "Error: --delta=" in one_line_error(result)
