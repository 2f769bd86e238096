import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from flwr_fbo.secure.roster import Roster, SigningKey
from tests.support.attempts import make_roster


def test_a_roster_is_what_was_saved(tmp_path: Path) -> None:
    _, roster = make_roster(4)
    roster.save(tmp_path / "roster.json")
    loaded = Roster.load(tmp_path / "roster.json")
    assert loaded == roster
    assert loaded.digest() == roster.digest()
    assert Roster.draw(roster.keys).digest() != roster.digest()


def test_a_key_is_what_was_saved(tmp_path: Path) -> None:
    key = SigningKey.draw()
    key.save(tmp_path / "key.pem")
    assert (tmp_path / "key.pem").stat().st_mode & 0o777 == 0o600
    assert SigningKey.load(tmp_path / "key.pem").public == key.public


@pytest.mark.parametrize("mode", [0o640, 0o604])
def test_a_key_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key.pem"
    SigningKey.draw().save(path)
    path.chmod(mode)
    with pytest.raises(ValueError, match=r"key.pem is not used.*read it.*: chmod 600"):
        SigningKey.load(path)


def test_what_others_can_change_is_not_read_or_written(tmp_path: Path) -> None:
    _, roster = make_roster(2)
    roster.save(tmp_path / "roster.json")
    SigningKey.draw().save(tmp_path / "key.pem")
    tmp_path.chmod(0o777)
    for attempt in (
        lambda: Roster.load(tmp_path / "roster.json"),
        lambda: SigningKey.load(tmp_path / "key.pem"),
        lambda: roster.save(tmp_path / "new.json"),
        lambda: SigningKey.draw().save(tmp_path / "new.pem"),
    ):
        with pytest.raises(ValueError, match=f"is not used.*: chmod go-w {tmp_path}"):
            attempt()
    tmp_path.chmod(0o755)
    (tmp_path / "roster.json").chmod(0o666)
    with pytest.raises(ValueError, match=r"roster.json is not used.*: chmod go-w"):
        Roster.load(tmp_path / "roster.json")
    (tmp_path / "roster.json").chmod(0o644)
    assert Roster.load(tmp_path / "roster.json") == roster


def test_another_key_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    form = Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    texts = {
        b"nothing": "`flwr-fbo keys new` makes: it is not in PEM",
        X25519PrivateKey.generate().private_bytes(*form): "not an Ed25519 key",
    }
    for text, pattern in texts.items():
        path.write_bytes(text)
        path.chmod(0o600)
        with pytest.raises(ValueError, match=f"key.pem: .*{pattern}"):
            SigningKey.load(path)


def _without_seed(values: Any) -> Any:
    del values["seed"]
    return values


def _first_key(values: Any, slot: str, key: Any) -> Any:
    return {**values, "keys": {**values["keys"], slot: key}}


@pytest.mark.parametrize(
    ("change", "pattern"),
    [
        (_without_seed, "the fields keys and seed"),
        (lambda v: [v], "the fields keys and seed"),
        (lambda v: {**v, "seed": "00"}, "seed='00' .* of 32 bytes"),
        (lambda v: {**v, "keys": []}, r"keys=\[\]"),
        (lambda v: _first_key(v, "02", v["keys"]["2"]), "keys='02'"),
        (lambda v: _first_key(v, "2", 7), r"keys\[2\]=7"),
        (lambda v: _first_key(v, "2", "AB" * 32), r"keys\[2\]=.* lower-case"),
        (lambda v: _first_key(v, "2", v["keys"]["5"]), r"keys\[5\]=.* that of slot 2"),
    ],
)
def test_a_malformed_roster_is_refused_by_file_and_field(
    tmp_path: Path, change: Any, pattern: str
) -> None:
    _, roster = make_roster(3)
    path = tmp_path / "roster.json"
    roster.save(path)
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(ValueError, match=f"roster.json: .*{pattern}"):
        Roster.load(path)


def test_a_file_that_is_not_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "roster.json"
    SigningKey.draw().save(path)
    with pytest.raises(ValueError, match=r"roster.json: no roster: it is not JSON"):
        Roster.load(path)


def test_a_signature_is_that_of_one_slot_and_text() -> None:
    keys, roster = make_roster(2)
    signature = keys[2].sign(b"text")
    assert roster.verify(2, signature, b"text")
    assert not roster.verify(5, signature, b"text")
    assert not roster.verify(2, signature, b"another")
    assert not roster.verify(3, signature, b"text")
    assert not roster.verify(2, b"", b"text")
