"""Receipts: what a server has got from a site, signed, so that no count is forgotten.

A site marks each charge of a study with a number of its own (`fresh_head`), and tells
the server the newest mark. The server signs it, with the releases that it has got, and
sends that back with its next message. A folder that is lost, older or another's lacks
the mark. From the receipts `flwr-fbo ledger recover` makes the missing charges again.

A mark is a random number. So it says nothing of other studies and sites, and two copies
of a ledger that go on apart never draw the same one.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

from flwr_fbo._common.fields import (
    check_fields,
    from_json,
    instance,
    integer,
    ruled,
    to_json,
)
from flwr_fbo._common.validation import require
from flwr_fbo.privacy.spending_ledger import UNPROTECTED, Charge, Promise, StudyKey
from flwr_fbo.study.codec import LONGEST_RECEIPT, read_json

# What a reply's metrics have of its site's ledger.
CHARGES, HEAD = "charges", "head"

_HEAD_BITS = 62  # a metric of Flower is an integer of 64 bits
_MOST_CHARGES, _MOST_RELEASES = 2**31, 10_000
_PURPOSE = b"flwr_fbo receipt 1\n"


class Mark(NamedTuple):
    """Mark of one charge of a study, different from all others.

    Attributes
    ----------
    charges : int
        Number of the charge in the study at its site, from 1; 0 before the first.
    head : int
        Below 2**62.
    """

    charges: int = 0
    head: int = 0


def fresh_head() -> int:
    """Return the number of a new mark."""
    return secrets.randbits(_HEAD_BITS)


def as_head(digest: bytes) -> int:
    """Return a digest as the number of a mark."""
    return int.from_bytes(digest[:8], "big") >> (64 - _HEAD_BITS)


def read_mark(metrics: Mapping[str, Any]) -> Mark | None:
    """Return the mark that a reply's metrics have, if it is one."""
    found = metrics.get(CHARGES), metrics.get(HEAD)
    limits = _MOST_CHARGES, 2**_HEAD_BITS
    pairs = zip(found, limits, strict=True)
    if not all(type(number) is int and 0 <= number < limit for number, limit in pairs):
        return None
    charges, head = found
    assert isinstance(charges, int)
    assert isinstance(head, int)
    return Mark(charges, head)


def _check_study(name: str, value: Any) -> None:
    is_valid = isinstance(value, str) and 1 <= len(value) <= 64 and value.isprintable()
    require(is_valid, name, value, "1 to 64 printable characters")


def _check_releases(name: str, value: Any) -> None:
    is_valid = isinstance(value, tuple) and all(
        type(release) is int for release in value
    )
    is_valid = is_valid and all(
        UNPROTECTED <= release <= _MOST_RELEASES for release in value
    )
    is_valid = is_valid and len(set(value)) == len(value)
    require(
        is_valid, name, value, f"numbers of releases, 0 to {_MOST_RELEASES}, each once"
    )


@dataclass(frozen=True)
class Receipt:
    """Record of the releases that a server has got from one site in one study.

    Attributes
    ----------
    study_kind, study_id : str
        Kind and id of the study.
    slot : int
        The site's; -1 where it has none.
    charges, head : int
        The newest `Mark` that the server knows of.
    releases : tuple of int
        The releases that it has got, from 1, or `UNPROTECTED`, in order.
    promise : Promise
        Charges of the releases.
    """

    study_kind: str = field(metadata=ruled(_check_study))
    study_id: str = field(metadata=ruled(_check_study))
    slot: int = field(metadata=integer(-1))
    charges: int = field(metadata=integer(0, _MOST_CHARGES - 1))
    head: int = field(metadata=integer(0, 2**_HEAD_BITS - 1))
    releases: tuple[int, ...] = field(metadata=ruled(_check_releases))
    promise: Promise = field(metadata=instance(Promise, part=Promise))

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def study(self) -> StudyKey:
        """Kind and id of the study."""
        return self.study_kind, self.study_id

    @property
    def mark(self) -> Mark:
        """The newest mark that the server knows of."""
        return Mark(self.charges, self.head)

    def charge_of(self, release: int) -> Charge:
        """Return what a release, from 1, or `UNPROTECTED` costs."""
        if release == UNPROTECTED:
            return Charge(0.0)
        return self.promise.charge_of(release)


@dataclass(frozen=True)
class SignedReceipt:
    """A receipt with its server's key, once the signature was checked.

    Attributes
    ----------
    study_kind, study_id, slot, mark
        As in `Receipt`.
    server : str
        The server's public key: 32 bytes in hexadecimal.
    text : str
        As it is sent and stored, in one line.
    """

    study_kind: str
    study_id: str
    slot: int
    mark: Mark
    server: str
    text: str

    @classmethod
    def read(cls, text: Any) -> SignedReceipt:
        """Return the receipt in a text: what each message is checked by.

        Raises
        ------
        ValueError
            If the text is not a receipt, or somebody has changed it.
        """
        length = len(text) if isinstance(text, str) else -1
        expected = f"a text of up to {LONGEST_RECEIPT} characters"
        require(0 < length <= LONGEST_RECEIPT, "receipt", length, expected)
        try:
            values = read_json(text)
            server, body = values["server"], values["receipt"]
            key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(server))
            signature = bytes.fromhex(values["signature"])
            key.verify(signature, _PURPOSE + body.encode())
            document = read_json(body)
            mark = read_mark(document)
            study, slot = (
                (document["study_kind"], document["study_id"]),
                document["slot"],
            )
        except (AttributeError, KeyError, RecursionError, TypeError) as error:
            raise ValueError(f"This is no receipt: {error!r}.") from None
        except InvalidSignature:
            raise ValueError("The signature of this receipt is wrong.") from None
        for name in study:
            _check_study("study", name)
        require(mark is not None and type(slot) is int, "receipt", slot, "a slot")
        assert mark is not None
        return cls(*study, slot, mark, server, text)

    @property
    def study(self) -> StudyKey:
        """Kind and id of the study."""
        return self.study_kind, self.study_id

    @property
    def receipt(self) -> Receipt:
        """All that it says.

        Raises
        ------
        ValueError
            If the server has signed something else than a receipt of this version.
        """
        try:
            found: Receipt = from_json(
                Receipt, read_json(read_json(self.text)["receipt"])
            )
        except (AttributeError, KeyError, RecursionError, TypeError) as error:
            raise ValueError(f"This is no receipt: {error!r}.") from None
        except ValueError as error:
            # Its signature is right: the server means it.
            raise ValueError(
                "The server that signed this receipt has another version of flwr_fbo. "
                "Install the same one at the server and at this site, and try again. "
                f"({error})"
            ) from None
        return found


class ServerKey:
    """The key of one study's server, which signs its receipts.

    Parameters
    ----------
    private : bytes, optional
        Key as `private` returned it; a new key by default.
    """

    def __init__(self, private: bytes | None = None) -> None:
        self.private = secrets.token_bytes(32) if private is None else private

    @cached_property
    def _key(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self.private)

    def signed(self, receipt: Receipt) -> str:
        """Return a receipt as it is sent: one line of JSON."""
        # A text in a text: what is signed is what is read, to the last character.
        body = json.dumps(to_json(receipt), separators=(",", ":"))
        values = {
            "receipt": body,
            "server": self._key.public_key().public_bytes_raw().hex(),
            "signature": self._key.sign(_PURPOSE + body.encode()).hex(),
        }
        return json.dumps(values, separators=(",", ":"))


class ReceiptBook:
    """Records of the sites' ledgers, as the server of one study knows them.

    What is noted is in receipts only after `commit`: once it is in the server's own
    record, so that no run that goes on knows less than a site was told.

    Parameters
    ----------
    study : tuple of str
        Its kind and its id.
    promise : Promise
        Charges of the study.
    key : ServerKey, optional
        A new one by default.
    """

    def __init__(
        self, study: StudyKey, promise: Promise, key: ServerKey | None = None
    ) -> None:
        self._study, self._promise = study, promise
        self._key = ServerKey() if key is None else key
        self._newest: dict[int, tuple[Mark, tuple[int, ...]]] = {}
        self._committed = dict(self._newest)
        self._texts: dict[int, str] = {}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> ReceiptBook:
        """Return the book that `to_json` gave."""
        kind, study_id = values["study"]
        key = ServerKey(bytes.fromhex(values["key"]))
        book = cls((kind, study_id), from_json(Promise, values["promise"]), key)
        for site, charges, head, releases in values["sites"]:
            book._newest[int(site)] = Mark(charges, head), tuple(releases)
        book.commit()
        return book

    def mark(self, site: int) -> Mark | None:
        """Return the newest mark of a site, if one is known."""
        known = self._newest.get(site)
        return None if known is None else known[0]

    def site_of(self, mark: Mark) -> int:
        """Return the site that has told a mark; -1 if none has."""
        sites = (site for site, (known, _) in self._newest.items() if known == mark)
        return next(sites, -1)

    def is_behind(self, site: int, mark: Mark | None) -> bool:
        """Return whether a site's ledger lacks a charge that the server knows of."""
        known = self.mark(site)
        if known is None or not known.charges:
            return False
        if mark is None or mark.charges < known.charges:
            return True
        return mark.charges == known.charges and mark.head != known.head

    def note(self, site: int, mark: Mark | None, releases: Iterable[int] = ()) -> None:
        """Note what a site has told, and the releases that came with it."""
        known = self._newest.get(site)
        if mark is None and known is None:
            return  # it keeps no ledger
        newest, had = (Mark(), ()) if known is None else known
        got = dict.fromkeys((*had, *releases))
        self._newest[site] = (mark or newest, tuple(got))

    def commit(self) -> None:
        """Give receipts of all that was noted from now on."""
        changed = {
            site
            for site, entry in self._newest.items()
            if self._committed.get(site) != entry
        }
        self._texts = {s: t for s, t in self._texts.items() if s not in changed}
        self._committed = dict(self._newest)

    def receipt(self, site: int, slot: int | None = None) -> str:
        """Return the receipt of a site, signed; empty without one.

        Parameters
        ----------
        site : int
            Number of the site, as the server counts sites.
        slot : int, optional
            The site's; by default the same number.
        """
        if site not in self._committed:
            return ""
        if site not in self._texts:
            mark, releases = self._committed[site]
            at = site if slot is None else slot
            receipt = Receipt(*self._study, at, *mark, releases, self._promise)
            self._texts[site] = self._key.signed(receipt)
        return self._texts[site]

    @property
    def sites(self) -> list[int]:
        """The sites that receipts can be given to."""
        return sorted(self._committed)

    def to_json(self) -> dict[str, Any]:
        """Return all that was noted, with the private key, as JSON values."""
        sites = [
            [site, *mark, list(releases)]
            for site, (mark, releases) in sorted(self._newest.items())
        ]
        return {
            "study": list(self._study),
            "promise": to_json(self._promise),
            "key": self._key.private.hex(),
            "sites": sites,
        }
