"""The member's half of a secure sum, after Bonawitz et al. (CCS 2017), figure 4.

Two checks go beyond the paper. A member signs, with its masked numbers, who shared
secrets with it; so the server cannot show different members different groups. And each
member checks for all members of a set that enough of their neighbours are in it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from flwr_fbo._common.errors import RefusedError
from flwr_fbo._common.validation import require
from flwr_fbo.secure import wire
from flwr_fbo.secure.masks import (
    ADVERT_BYTES,
    ENCRYPTED_BYTES,
    KEY_BYTES,
    SumKeys,
    check_roster,
    draw_seed,
    equal_keys,
)
from flwr_fbo.secure.roster import Roster, SigningKey
from flwr_fbo.secure.shares import SHARE_BYTES, split
from flwr_fbo.secure.terms import (
    Exchange,
    SumTerms,
    canonical,
)

Integers = NDArray[np.int64] | NDArray[np.uint64]
NumbersOf = Callable[[], Integers]
Kept = Mapping[str, Any]


class Member:
    """A site's half of one attempt at a sum: five requests in, five replies out.

    Examples
    --------
    >>> from flwr_fbo.secure.terms import SumTerms
    >>> from flwr_fbo.secure.wire import to_payload
    >>> terms = SumTerms("5a", "01", (0, 1, 2), 3, 3, length=2, num_bits=16)
    >>> member = Member(terms, slot=1)
    >>> reply = member.answer(1, to_payload(b""), lambda: np.array([3, -4]))
    >>> len(reply)  # two public keys
    64
    >>> same = Member(terms, slot=1, state=member.state)
    >>> bool((same.answer(1, to_payload(b""), lambda: np.zeros(2)) == reply).all())
    True

    Formal guarantees
    -----------------
    Let C of the n members collude with the server, chosen before the keys are drawn and
    before the roster's seed is. Let T be the threshold.

    With a roster the server may deviate from the protocol in any way. If C < 2 T - n
    and C < T - 1, and each honest member answers from its latest `state`, the server
    and its accomplices learn of one attempt nothing but this: the sum, modulo
    2**num_bits, of the numbers of all honest members in one set. The set has at least
    ``min_summed`` members, of whom at least ``min_summed`` - C are honest. Two attempts
    are two sums: their difference can be the numbers of one member, if the same numbers
    are summed twice over different sets.

    Without a roster this holds for a server that follows the protocol and looks at
    everything, and for C < T - 1.

    Above 50 members C is at most a fifth of n. The statement then fails with
    probability at most 2**-30 over the roster's seed, or over the attempt without a
    roster (`flwr_fbo.secure.graph`).

    A malicious server can still choose who takes part, claim that members dropped out
    while ``min_summed`` remain, stop, and return a wrong sum. A malicious member can
    add any numbers, and can make an attempt fail. All of it holds against an adversary
    who breaks none of X25519, Ed25519, HKDF-SHA256 and AES. Not covered are the time of
    this process and its memory: Python does not erase deleted secrets.

    Parameters
    ----------
    terms : SumTerms
        Terms that the caller has checked: that the context is that of its study.
    slot : int
        Slot of this site.
    key : SigningKey, optional
        Its private key; with a roster only.
    roster : Roster, optional
        Pinned public keys of all sites.
    state : bytes
        `state` of the same member after its last answer; empty at first. An older
        state, or a lost one, would let the member answer an exchange twice.

    Raises
    ------
    RefusedError
        If the terms are not for this slot and roster.
    ValueError
        If the key is not the slot's, or the state is another member's.
    """

    def __init__(
        self,
        terms: SumTerms,
        slot: int,
        key: SigningKey | None = None,
        roster: Roster | None = None,
        state: bytes = b"",
    ) -> None:
        wrong = check_roster(terms, roster)
        if slot not in terms.slots:
            wrong = f"slot {slot} is not in the terms"
        if wrong is not None:
            raise RefusedError.told(f"The terms are refused: {wrong}.")
        public = None if key is None else key.public
        allowed = "the key that the roster has for the slot"
        pinned = None if roster is None else roster.keys[slot]
        require(public == pinned, "key", public, allowed)
        self._terms, self._slot, self._key = terms, slot, key
        self._keys = SumKeys(terms, roster)
        self._graph = self._keys.graph
        self._neighbours = self._graph.neighbours(slot)
        # The last exchange that was answered, 0 before the first one; a digest of its
        # request, and its reply. What the next exchanges need, in hexadecimal: secrets.
        self._answered, self._request, self._reply = 0, "", b""
        self._kept: Kept = {}
        if state:
            self._restore(json.loads(state))

    @property
    def state(self) -> bytes:
        """What the caller puts on disk before the last reply leaves."""
        return canonical(
            {
                "terms": self._keys.digest.hex(),
                "slot": self._slot,
                "answered": self._answered,
                "request": self._request,
                "reply": self._reply.hex(),
                "kept": self._kept,
            }
        ).encode()

    def _restore(self, values: dict[str, Any]) -> None:
        about = values["terms"], values["slot"]
        ok = about == (self._keys.digest.hex(), self._slot)
        require(ok, "state", f"slot {about[1]}", "that of these terms and slot")
        self._answered, self._request = values["answered"], values["request"]
        self._reply, self._kept = bytes.fromhex(values["reply"]), values["kept"]

    @property
    def has_unmasked(self) -> bool:
        """Whether this member has answered the last exchange."""
        return self._answered == Exchange.UNMASK

    def answer(
        self, exchange: int, request: wire.Payload, numbers: NumbersOf
    ) -> wire.Payload:
        """Return the reply to a request; the same again if it is the last one again.

        Parameters
        ----------
        exchange : int
            From 1 to 5.
        request : vector of uint8
            Anything: it comes from the server.
        numbers : callable
            Returns the member's integers, shape (M,); called in exchange 3 only.

        Raises
        ------
        RefusedError
            If the request is not what an honest server sends. The state is unchanged.
        ValueError
            If the numbers are not M integers.
        """
        steps: tuple[Callable[[bytes], tuple[bytes, Kept]], ...] = (
            self._advertise,
            self._share,
            partial(self._mask, numbers=numbers),
            self._confirm,
            self._unmask,
        )
        last = self._answered
        try:
            text = wire.to_bytes(request)
            seen = hashlib.sha256(text).hexdigest()
            # A reply that was lost is sent again. Another request for the same exchange
            # never gets a second answer: of two sums the difference would be known.
            if (exchange, seen) == (last, self._request):
                return wire.to_payload(self._reply)
            _check(exchange not in range(1, last + 1), "it is already answered")
            follows = exchange == last + 1 <= Exchange.UNMASK
            _check(follows, f"exchange {exchange} does not follow {last}")
            reply, kept = steps[last](text)
        except wire.PayloadError as error:
            # Which names slots and lengths only.
            raise RefusedError.told(f"Exchange {exchange}: {error}.") from error
        # What was kept before is gone, but for what the exchange has kept again.
        self._answered, self._request = last + 1, seen
        self._reply, self._kept = reply, kept
        return wire.to_payload(reply)

    def _advertise(self, text: bytes) -> tuple[bytes, Kept]:
        _check(not text, "the first request is not empty")
        encryption, seed = X25519PrivateKey.generate(), draw_seed()
        masking = self._keys.masking_key(seed, self._slot)
        advert = b"".join(
            key.public_key().public_bytes_raw() for key in (encryption, masking)
        )
        reply = advert + self._sign(self._keys.advert_text(self._slot, advert))
        own = {"encryption": encryption.private_bytes_raw().hex(), "seed": seed.hex()}
        return reply, {**own, "advert": advert.hex()}

    def _share(self, text: bytes) -> tuple[bytes, Kept]:
        kept, keys, slot = self._kept, self._keys, self._slot
        size = ADVERT_BYTES + self._keys.signature_bytes
        adverts = wire.unpack(text, size, self._neighbours)
        self._enough(adverts, "advertised keys")
        for other, advert in adverts.items():
            # Else the server could put keys of its own in the place of a member's.
            public, signature = wire.cut(advert, ADVERT_BYTES)
            signed = keys.advert_text(other, public)
            ok = self._keys.is_signed(other, signature, signed)
            _check(ok, f"the keys of slot {other} lack its signature")
            adverts[other] = public
        own = {slot: bytes.fromhex(kept["advert"])}
        equal = equal_keys({**adverts, **own})
        _check(not equal, f"slots {sorted(equal)} have equal keys")

        # Two secrets, as in Bonawitz et al.: a server may get shares of one of them.
        # The self mask hides a message that arrives after its member was said to have
        # dropped out, and its pair masks were recovered.
        self_seed, masking_seed = draw_seed(), bytes.fromhex(kept["seed"])
        threshold, count = self._graph.threshold, len(self._neighbours)
        masking_shares = split(masking_seed, count, threshold)
        self_shares = split(self_seed, count, threshold)
        places = {other: place for place, other in enumerate(self._neighbours)}
        encryption = _private(kept["encryption"])
        records = {}
        for other, public in adverts.items():
            first, second = masking_shares[places[other]], self_shares[places[other]]
            encrypted = keys.encrypt(
                encryption, public[:KEY_BYTES], slot, other, first + second
            )
            checks = keys.share_check(first, "masking", slot, other)
            checks += keys.share_check(second, "self", slot, other)
            records[other] = encrypted + checks
        reply = keys.commitment(self_seed, slot) + wire.pack(records)
        secrets = {"encryption": kept["encryption"], "seed": kept["seed"]}
        return reply, {
            **secrets,
            "self": self_seed.hex(),
            "adverts": wire.to_hex(adverts),
        }

    def _mask(self, text: bytes, numbers: NumbersOf) -> tuple[bytes, Kept]:
        kept, keys, slot = self._kept, self._keys, self._slot
        adverts = wire.from_hex(kept["adverts"])
        shared_text, text = wire.cut(text, wire.set_bytes(self._terms.slots))
        shared = wire.unpack_set(shared_text, self._terms.slots)
        self._enough_in(shared, "shared")
        encrypted = wire.unpack(text, ENCRYPTED_BYTES, adverts)
        named = set(shared) & set(self._neighbours)
        # Who did not share could not be unmasked: it must not be masked with.
        ok = slot in shared and set(encrypted) == named
        _check(ok, "the shares are not those of the members who shared")
        encryption = _private(kept["encryption"])
        shares = {}
        for other, record in encrypted.items():
            public = adverts[other][:KEY_BYTES]
            pair = keys.decrypt(encryption, public, other, slot, record)
            if pair is not None and len(pair) == 2 * SHARE_BYTES:
                shares[other] = pair
        # A malicious member can send a few bad ones; the server need not have done it.
        unread = sorted(set(encrypted) - set(shares))
        self._enough(shares, f"readable shares (not those of slots {unread[:8]})")

        total = _as_numbers(numbers(), self._terms.length)
        total += keys.self_mask(bytes.fromhex(kept["self"]), slot)
        masking = keys.masking_key(bytes.fromhex(kept["seed"]), slot)
        for other in encrypted:
            public = adverts[other][KEY_BYTES:]
            total += keys.pair_mask(masking, public, slot, other)
        masked = wire.pack_numbers(total, self._terms.num_bytes)
        # Signed with the numbers: who is shown another group signs another text, and
        # exchange 4 fails.
        reply = masked + self._sign(keys.view_text(shared))
        return reply, {"shares": wire.to_hex(shares), "shared": shared_text.hex()}

    def _confirm(self, text: bytes) -> tuple[bytes, Kept]:
        kept, slots = self._kept, self._terms.slots
        summed_text, text = wire.cut(text, wire.set_bytes(slots))
        summed = wire.unpack_set(summed_text, slots)
        shared = wire.unpack_set(bytes.fromhex(kept["shared"]), slots)
        strangers = sorted(set(summed) - set(shared))
        _check(not strangers, f"slots {strangers[:8]} of the sum did not share")
        self._enough_in(summed, "in the sum")
        _check(self._slot in summed, f"slot {self._slot} is not in the sum")
        # For all members, not for its neighbours only: if one of them were cut off, the
        # sum of the others would be known without it.
        lonely, count = self._graph.fewest(summed)
        least = self._graph.threshold
        _check(count >= least, f"slot {lonely} has {count} neighbours, needs {least}")
        others = set(self._neighbours) & set(summed)
        views = wire.unpack(text, self._keys.signature_bytes, others)
        _check(set(views) == others, "not all members of the sum signed who shared")
        signed = self._keys.view_text(shared)
        for other, signature in views.items():
            ok = self._keys.is_signed(other, signature, signed)
            _check(ok, f"slot {other} did not sign that the same members shared")
        reply = self._sign(self._keys.confirm_text(shared, summed))
        return reply, {**kept, "summed": summed_text.hex()}

    def _unmask(self, text: bytes) -> tuple[bytes, Kept]:
        kept, slots = self._kept, self._terms.slots
        shared = wire.unpack_set(bytes.fromhex(kept["shared"]), slots)
        summed = frozenset(wire.unpack_set(bytes.fromhex(kept["summed"]), slots))
        # More than half of the slots confirm this one set, and members confirm once: no
        # other set can be unmasked (Bonawitz et al., section 6.2).
        signatures = wire.unpack(text, self._keys.signature_bytes, summed)
        least = self._terms.threshold
        ok = len(signatures) >= least
        _check(ok, f"{len(signatures)} members confirmed, {least} are needed")
        signed = self._keys.confirm_text(shared, summed)
        for other, signature in signatures.items():
            ok = self._keys.is_signed(other, signature, signed)
            _check(ok, f"slot {other} did not confirm the same sum")
        # The share of one secret a member, never both: see `_share`.
        chosen = {
            other: pair[SHARE_BYTES:] if other in summed else pair[:SHARE_BYTES]
            for other, pair in wire.from_hex(kept["shares"]).items()
        }
        return wire.pack(chosen), {}

    def _sign(self, message: bytes) -> bytes:
        return b"" if self._key is None else self._key.sign(message)

    def _enough(self, found: dict[int, bytes], what: str) -> None:
        """Refuse fewer neighbours than recover a secret."""
        least = self._graph.threshold
        _check(len(found) >= least, f"{len(found)} {what}, {least} are needed")

    def _enough_in(self, members: tuple[int, ...], what: str) -> None:
        least = self._terms.min_summed
        _check(
            len(members) >= least, f"{len(members)} members {what}, fewer than {least}"
        )


def _check(condition: bool, text: str) -> None:
    if not condition:
        raise wire.PayloadError(text)


def _private(text: str) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(bytes.fromhex(text))


def _as_numbers(values: Any, length: int) -> NDArray[np.uint64]:
    """Return a member's integers modulo 2**64."""
    ok = isinstance(values, np.ndarray) and values.dtype in (np.int64, np.uint64)
    allowed = f"a vector of {length} integers of 64 bits"
    require(ok and values.shape == (length,), "numbers", type(values), allowed)
    return np.array(values.astype(np.uint64))
