"""The commands that make keys and a roster."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flwr_fbo.cli import app
from flwr_fbo.secure.roster import Roster, SigningKey


def run(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["keys", *map(str, arguments)])
    return result.exit_code, result.output


def public_key(path: Path) -> str:
    code, text = run("new", path)
    assert code == 0, text
    return text.rsplit("Public key: ", 1)[1].strip()


def test_keys_and_a_roster_fit_together(tmp_path: Path) -> None:
    keys = {slot: public_key(tmp_path / f"{slot}.pem") for slot in range(3)}
    file = tmp_path / "roster.json"
    code, text = run("roster", file, *(f"{slot}={key}" for slot, key in keys.items()))
    assert code == 0, text
    found = Roster.load(file)
    assert dict(found.keys) == keys
    assert f"Digest: {found.digest()}" in text
    for slot, key in keys.items():
        path = tmp_path / f"{slot}.pem"
        assert run("public", path) == (0, f"{key}\n")
        assert SigningKey.load(path).public == key
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    code, shown = run("show", file)
    assert code == 0
    assert found.digest() in shown
    assert all(f"  {slot}: {key}" in shown for slot, key in keys.items())


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "a.pem"
    key = public_key(path)
    code, text = run("new", path)
    assert code == 1
    assert text == f"Error: FILE={str(path)!r} is not allowed: a new file.\n"
    assert SigningKey.load(path).public == key
    file = tmp_path / "roster.json"
    pairs = [f"{slot}={_drawn()}" for slot in range(2)]
    assert run("roster", file, *pairs)[0] == 0
    before = file.read_text()
    assert run("roster", file, *pairs)[0] == 1
    assert file.read_text() == before


def _drawn() -> str:
    return SigningKey.draw().public


def test_two_rosters_of_the_same_keys_differ(tmp_path: Path) -> None:
    pairs = [f"{slot}={_drawn()}" for slot in range(2)]
    texts = [run("roster", tmp_path / name, *pairs)[1] for name in ("a", "b")]
    assert len({text.rsplit("Digest: ", 1)[1] for text in texts}) == 2


def test_a_file_in_no_folder_is_named(tmp_path: Path) -> None:
    pairs = [f"{slot}={_drawn()}" for slot in range(2)]
    for command, *more in (["new"], ["roster", *pairs]):
        code, text = run(command, tmp_path / "none" / "file", *more)
        assert code == 1
        assert "none/file' is not allowed: a file in a folder that exists" in text


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        (["0=abc"], "SLOT=PUBLIC_KEY='0=abc' is not allowed"),
        (["0=" + "0" * 64, "0=" + "1" * 64], "SLOT=0 is not allowed: given once"),
        (["0=" + "0" * 64], "SLOT=[0] is not allowed: two or more slots"),
        (["0=" + "0" * 64, "2=" + "1" * 64], "SLOT=[0, 2] is not allowed: 0 to 1 for"),
        (["0=" + "0" * 64, "1=" + "0" * 64], "another key than that of slot 0"),
    ],
)
def test_what_is_no_roster_is_named(
    pairs: list[str], words: str, tmp_path: Path
) -> None:
    code, text = run("roster", tmp_path / "roster.json", *pairs)
    assert code == 1
    assert words in " ".join(text.split())
    assert not (tmp_path / "roster.json").exists()


def test_a_file_that_is_no_roster_is_named(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text("{}")
    code, text = run("show", file)
    assert code == 1
    assert "other.json" in text
    key = tmp_path / "key.pem"
    run("new", key)
    assert run("show", key) == (1, f"Error: {key}: no roster: it is not JSON.\n")
    file.chmod(0o600)
    code, text = run("public", file)
    assert code == 1
    assert text.startswith(
        f"Error: {file}: no private key that `flwr-fbo keys new` makes: it is not in "
    )
