"""Identities: each site's signing key, and the list of public keys that all pin."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from flwr_fbo._common.files import why_untrusted
from flwr_fbo._common.text import write_whole
from flwr_fbo._common.validation import require, require_instance
from flwr_fbo.secure.terms import canonical, require_hex, require_slots

SIGNATURE_BYTES = 64


class SigningKey:
    """A site's private Ed25519 key.

    Examples
    --------
    >>> from flwr_fbo.secure import SigningKey
    >>> key = SigningKey.draw()
    >>> len(bytes.fromhex(key.public))
    32

    Parameters
    ----------
    private : Ed25519PrivateKey
        The key itself.
    """

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private

    @classmethod
    def draw(cls) -> SigningKey:
        """Return a new key from the operating system's entropy."""
        return cls(Ed25519PrivateKey.generate())

    @property
    def public(self) -> str:
        """The public key, which goes into the roster: 32 bytes in hexadecimal."""
        return self._private.public_key().public_bytes_raw().hex()

    def sign(self, message: bytes) -> bytes:
        """Return the signature of a message."""
        return self._private.sign(message)

    def save(self, path: str | Path) -> None:
        """Write the key as PEM to a file that only its owner can read.

        Raises
        ------
        ValueError
            If others could replace the file.
        OSError
            If it cannot be written.
        """
        _require_trusted(Path(path))
        form = Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        write_whole(Path(path), self._private.private_bytes(*form).decode())

    @classmethod
    def load(cls, path: str | Path) -> SigningKey:
        """Return the key in a file.

        Raises
        ------
        ValueError
            If others can read or change the file, or it holds no Ed25519 key.
        OSError
            If it cannot be read.
        """
        _require_trusted(Path(path), is_secret=True)
        text = Path(path).read_bytes()
        try:
            private = load_pem_private_key(text, password=None)
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{path}: no private key that `flwr-fbo keys new` makes: it is not in "
                "PEM, or has a password."
            ) from error
        if not isinstance(private, Ed25519PrivateKey):
            raise ValueError(
                f"{path}: no private key that `flwr-fbo keys new` makes: it is not an "
                "Ed25519 key."
            )
        return cls(private)


@dataclass(frozen=True)
class Roster:
    """The public keys of all sites, which each site has got from a person it trusts.

    Whoever makes the roster calls `draw` after the slots are given out. Then nobody
    can choose its slot for its place in the communication graph.

    Examples
    --------
    >>> from flwr_fbo.secure import Roster, SigningKey
    >>> keys = {slot: SigningKey.draw() for slot in range(3)}
    >>> roster = Roster.draw({slot: key.public for slot, key in keys.items()})
    >>> roster.verify(1, keys[1].sign(b"text"), b"text")
    True

    Attributes
    ----------
    keys : mapping of int to str
        Ed25519 public key of each slot: 32 bytes in hexadecimal.
    seed : str
        Seed of the communication graph: 32 random bytes in hexadecimal.

    Raises
    ------
    ValueError
        If a field is not allowed; the message names it.
    """

    keys: Mapping[int, str]
    seed: str

    def __post_init__(self) -> None:
        require_instance("keys", self.keys, Mapping, allowed="keys by slot")
        require_slots("keys", tuple(sorted(self.keys)))
        owners: dict[str, int] = {}
        for slot, key in self.keys.items():
            require_hex(f"keys[{slot}]", key, 32)
            # With one key in two slots, one site would count as two.
            owner = owners.setdefault(key, slot)
            allowed = f"another key than that of slot {owner}"
            require(owner == slot, f"keys[{slot}]", key, allowed)
        require_hex("seed", self.seed, 32)

    @classmethod
    def draw(cls, keys: Mapping[int, str]) -> Roster:
        """Return a roster of some keys with a new seed."""
        return cls(dict(sorted(keys.items())), os.urandom(32).hex())

    @cached_property
    def _public_keys(self) -> dict[int, Ed25519PublicKey]:
        return {
            slot: Ed25519PublicKey.from_public_bytes(bytes.fromhex(key))
            for slot, key in self.keys.items()
        }

    @property
    def slots(self) -> tuple[int, ...]:
        """The slots that have a key, increasing."""
        return tuple(sorted(self.keys))

    def verify(self, slot: int, signature: bytes, message: bytes) -> bool:
        """Return whether a signature of a message is that of a slot."""
        try:
            self._public_keys[slot].verify(signature, message)
        except (KeyError, InvalidSignature):
            return False
        return True

    def digest(self) -> str:
        """Return what terms name the roster by."""
        return hashlib.sha256(self._text().encode()).hexdigest()

    def _text(self) -> str:
        keys = {str(slot): key for slot, key in self.keys.items()}
        return canonical({"keys": keys, "seed": self.seed})

    def save(self, path: str | Path) -> None:
        """Write the roster as JSON.

        Raises
        ------
        ValueError
            If others could replace the file.
        OSError
            If it cannot be written.
        """
        _require_trusted(Path(path))
        write_whole(Path(path), self._text() + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Roster:
        """Return the roster in a file.

        Raises
        ------
        ValueError
            If others can change the file, or it is malformed; the message names the
            file and the field.
        OSError
            If it cannot be read.
        """
        _require_trusted(Path(path))
        try:
            return cls._of_json(Path(path).read_text("utf-8"))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    @classmethod
    def _of_json(cls, text: str) -> Roster:
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError("no roster: it is not JSON.") from error
        ok = isinstance(values, dict) and set(values) == {"keys", "seed"}
        require(ok, "roster", text[:80], "an object with the fields keys and seed")
        keys = values["keys"]
        require_instance("keys", keys, dict, allowed="an object: keys by slot")
        for slot in keys:
            # "01" and "1" would be one slot.
            ok = slot.isdecimal() and slot == str(int(slot))
            require(ok, "keys", slot, "slots such as '7'")
        return cls({int(slot): key for slot, key in keys.items()}, values["seed"])


def _require_trusted(path: Path, *, is_secret: bool = False) -> None:
    """Raise ValueError if other users can change a file, or read a secret one."""
    fault = why_untrusted(path, is_secret=is_secret)
    if fault:
        raise ValueError(fault)


def digest_of(roster: Roster | None) -> str:
    """Return the digest of a roster; empty without one."""
    return "" if roster is None else roster.digest()
