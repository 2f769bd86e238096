"""`flwr-fbo keys` and `flwr-fbo roster`: what sites make to trust no server."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flwr_fbo.cli import app
from flwr_fbo.secure_sum.roster import Roster, SigningKey


def _invoke(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(a) for a in arguments])


def _public() -> str:
    return SigningKey.draw().public


def test_a_key_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "site.key"
    made = _invoke("keys", "new", path)
    assert made.exit_code == 0, made.output
    assert made.output == f"{SigningKey.load(path).public}\n"
    assert path.stat().st_mode & 0o777 == 0o600
    before = path.read_bytes()
    again = _invoke("keys", "new", path)
    assert again.exit_code == 1
    wanted = f"Error: PATH='{path}' is not allowed: a file that does not exist yet.\n"
    assert again.output == wanted
    assert path.read_bytes() == before
    assert _invoke("keys", "show", path).output == made.output


def test_a_file_without_a_folder_is_refused(tmp_path: Path) -> None:
    for command in (("keys", "new"), ("roster", "new")):
        result = _invoke(*command, tmp_path / "none/file", *_arguments(2)[command[0]])
        assert result.exit_code == 1
        assert "none/file' is not allowed: a file in a folder that exists" in (
            result.output
        )


def _arguments(num_sites: int) -> dict[str, list[str]]:
    return {"keys": [], "roster": [f"{i}={_public()}" for i in range(num_sites)]}


def test_a_roster_has_the_keys_and_prints_its_digest(tmp_path: Path) -> None:
    keys = {slot: _public() for slot in range(3)}
    given = [f"{slot}={keys[slot]}" for slot in (2, 0, 1)]
    digests = []
    for name in ("first.json", "second.json"):
        made = _invoke("roster", "new", tmp_path / name, *given)
        assert made.exit_code == 0, made.output
        loaded = Roster.load(tmp_path / name)
        assert loaded.keys == keys
        assert made.output == f"{loaded.digest()}\n"
        shown = _invoke("roster", "show", tmp_path / name).output
        lines = [f"slot {slot}  {key}" for slot, key in keys.items()]
        assert shown.splitlines() == [*lines, f"digest  {loaded.digest()}"]
        digests.append(loaded.digest())
    assert len(set(digests)) == 2  # each has a seed of its own


def test_a_roster_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "roster.json"
    given = _arguments(2)["roster"]
    assert _invoke("roster", "new", path, *given).exit_code == 0
    before = path.read_bytes()
    assert _invoke("roster", "new", path, *given).exit_code == 1
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda a, b: [f"0={a}"], "SLOT=[0] is not allowed: two or more slots"),
        (lambda a, b: [f"0={a}", f"2={b}"], "SLOT=[0, 2] is not allowed: 0 to 1 for 2"),
        (lambda a, b: [f"0={a}", f"0={b}"], "SLOT=0 is not allowed: each slot once"),
        (lambda a, b: [f"0={a}", f"1={a}"], "allowed: another key than that of slot 0"),
        (lambda a, b: [f"0={a}", f"1={b[:-2]}"], "digits of 32 bytes"),
        (lambda a, b: [f"0={a}", "1"], "keys[1]='' is not allowed"),
        (lambda a, b: [f"0={a}", f"x={b}"], "allowed: a slot, '=' and its public key"),
        (lambda a, b: [a, b], "allowed: a slot, '=' and its public key"),
    ],
)
def test_what_is_wrong_with_a_roster_is_one_line(
    tmp_path: Path, given: Callable[[str, str], list[str]], words: str
) -> None:
    path = tmp_path / "roster.json"
    result = _invoke("roster", "new", path, *given(_public(), _public()))
    assert result.exit_code == 1
    assert words in result.output
    assert len(result.output.splitlines()) == 1
    assert not path.exists()


def test_files_of_the_other_kind_are_refused(tmp_path: Path) -> None:
    key, roster = tmp_path / "site.key", tmp_path / "roster.json"
    _invoke("keys", "new", key)
    _invoke("roster", "new", roster, *_arguments(2)["roster"])
    shown = _invoke("roster", "show", key)
    assert shown.output == f"Error: {key}: no roster: it is not JSON.\n"
    shown = _invoke("keys", "show", roster)
    assert shown.output == (
        f"Error: {roster}: no private key in PEM without a password.\n"
    )


def test_a_changed_roster_has_another_digest(tmp_path: Path) -> None:
    path = tmp_path / "roster.json"
    digest = _invoke("roster", "new", path, *_arguments(2)["roster"]).output.strip()
    values = json.loads(path.read_text())
    values["keys"]["1"] = _public()
    path.write_text(json.dumps(values))
    assert digest not in _invoke("roster", "show", path).output
