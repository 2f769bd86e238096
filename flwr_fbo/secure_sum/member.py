"""The member's half of a secure sum, after Bonawitz et al. (CCS 2017), figure 4.

Two checks go beyond the paper. A member signs, with its masked numbers, who shared
secrets with it; so the server cannot show different members different groups. And each
member checks for all members of a set that enough of their neighbours are in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from flwr_fbo._common.validation import require
from flwr_fbo.secure_sum.graph import MaskGraph
from flwr_fbo.secure_sum.masks import (
    ADVERT_BYTES,
    ENCRYPTED_BYTES,
    KEY_BYTES,
    SumKeys,
    check_roster,
    draw_seed,
    equal_keys,
    is_signed,
    signature_bytes,
)
from flwr_fbo.secure_sum.member_state import Kept, MemberState, from_hex, to_hex
from flwr_fbo.secure_sum.roster import Roster, SigningKey
from flwr_fbo.secure_sum.shares import SHARE_BYTES, split
from flwr_fbo.secure_sum.terms import Exchange, SumRefusedError, SumTerms
from flwr_fbo.secure_sum.wire import (
    Payload,
    PayloadError,
    cut,
    pack,
    pack_numbers,
    set_bytes,
    to_bytes,
    to_payload,
    unpack,
    unpack_set,
)

Integers = NDArray[np.int64] | NDArray[np.uint64]
NumbersOf = Callable[[], Integers]


class Member:
    """A site's half of one attempt at a sum: five requests in, five replies out.

    Examples
    --------
    >>> from flwr_fbo.secure_sum.terms import SumTerms
    >>> from flwr_fbo.secure_sum.wire import to_payload
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
    roster (`flwr_fbo.secure_sum.graph`).

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
    SumRefusedError
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
            raise SumRefusedError(f"The terms are refused: {wrong}.")
        public = None if key is None else key.public
        allowed = "the key that the roster has for the slot"
        pinned = None if roster is None else roster.keys[slot]
        require(public == pinned, "key", public, allowed)
        self._terms, self._slot, self._key, self._roster = terms, slot, key, roster
        self._keys = SumKeys.of(terms)
        self._graph = MaskGraph.of(terms, None if roster is None else roster.seed)
        self._neighbours = self._graph.neighbours(slot)
        new = MemberState(self._keys.digest.hex(), slot)
        self._state = MemberState.of_bytes(state) if state else new
        ok = (self._state.terms, self._state.slot) == (new.terms, slot)
        require(ok, "state", f"slot {self._state.slot}", "that of these terms and slot")

    @property
    def state(self) -> bytes:
        """What the caller puts on disk before the last reply leaves."""
        return self._state.to_bytes()

    @property
    def has_unmasked(self) -> bool:
        """Whether this member has answered the last exchange."""
        return self._state.answered == Exchange.UNMASK

    def answer(self, exchange: int, request: Payload, numbers: NumbersOf) -> Payload:
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
        SumRefusedError
            If the request is not what an honest server sends. The state is unchanged.
        ValueError
            If the numbers are not M integers.
        """
        try:
            text = to_bytes(request)
            seen = hashlib.sha256(text).hexdigest()
            last = self._state.answered
            if (exchange, seen) == (last, self._state.request):
                return to_payload(bytes.fromhex(self._state.reply))
            _check(exchange not in range(1, last + 1), "it is already answered")
            _check(
                exchange == last + 1 <= Exchange.UNMASK,
                f"exchange {exchange} does not follow {last}",
            )
            reply, kept = self._reply(Exchange(exchange), text, numbers)
        except PayloadError as error:
            raise SumRefusedError(f"Exchange {exchange}: {error}.") from error
        terms, slot = self._state.terms, self._state.slot
        # What was kept before is gone, but for what the exchange has kept again.
        answered = int(exchange)
        self._state = MemberState(terms, slot, answered, seen, reply.hex(), kept)
        return to_payload(reply)

    def _reply(
        self, exchange: Exchange, text: bytes, numbers: NumbersOf
    ) -> tuple[bytes, Kept]:
        match exchange:
            case Exchange.ADVERTISE:
                return self._advertise(text)
            case Exchange.SHARE:
                return self._share(text)
            case Exchange.MASK:
                return self._mask(text, numbers)
            case Exchange.CONFIRM:
                return self._confirm(text)
            case _:
                return self._unmask(text)

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
        kept, keys, slot = self._state.kept, self._keys, self._slot
        size = ADVERT_BYTES + signature_bytes(self._roster)
        adverts = unpack(text, size, self._neighbours)
        self._enough(adverts, "advertised keys")
        for other, advert in adverts.items():
            public, signature = cut(advert, ADVERT_BYTES)
            signed = keys.advert_text(other, public)
            ok = is_signed(self._roster, other, signature, signed)
            _check(ok, f"the keys of slot {other} lack its signature")
            adverts[other] = public
        own = {slot: bytes.fromhex(kept["advert"])}
        equal = equal_keys({**adverts, **own})
        _check(not equal, f"slots {sorted(equal)} have equal keys")

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
        reply = keys.commitment(self_seed, slot) + pack(records)
        secrets = {"encryption": kept["encryption"], "seed": kept["seed"]}
        return reply, {**secrets, "self": self_seed.hex(), "adverts": to_hex(adverts)}

    def _mask(self, text: bytes, numbers: NumbersOf) -> tuple[bytes, Kept]:
        kept, keys, slot = self._state.kept, self._keys, self._slot
        adverts = from_hex(kept["adverts"])
        shared_text, text = cut(text, set_bytes(self._terms.slots))
        shared = unpack_set(shared_text, self._terms.slots)
        self._enough_in(shared, "shared")
        encrypted = unpack(text, ENCRYPTED_BYTES, adverts)
        named = set(shared) & set(self._neighbours)
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
        masked = pack_numbers(total, self._terms.num_bytes)
        reply = masked + self._sign(keys.view_text(shared))
        return reply, {"shares": to_hex(shares), "shared": shared_text.hex()}

    def _confirm(self, text: bytes) -> tuple[bytes, Kept]:
        kept, slots = self._state.kept, self._terms.slots
        summed_text, text = cut(text, set_bytes(slots))
        summed = unpack_set(summed_text, slots)
        shared = unpack_set(bytes.fromhex(kept["shared"]), slots)
        strangers = sorted(set(summed) - set(shared))
        _check(not strangers, f"slots {strangers[:8]} of the sum did not share")
        self._enough_in(summed, "in the sum")
        _check(self._slot in summed, f"slot {self._slot} is not in the sum")
        lonely, count = self._graph.fewest(summed)
        least = self._graph.threshold
        _check(count >= least, f"slot {lonely} has {count} neighbours, needs {least}")
        others = set(self._neighbours) & set(summed)
        views = unpack(text, signature_bytes(self._roster), others)
        _check(set(views) == others, "not all members of the sum signed who shared")
        signed = self._keys.view_text(shared)
        for other, signature in views.items():
            ok = is_signed(self._roster, other, signature, signed)
            _check(ok, f"slot {other} did not sign that the same members shared")
        reply = self._sign(self._keys.confirm_text(shared, summed))
        return reply, {**kept, "summed": summed_text.hex()}

    def _unmask(self, text: bytes) -> tuple[bytes, Kept]:
        kept, slots = self._state.kept, self._terms.slots
        shared = unpack_set(bytes.fromhex(kept["shared"]), slots)
        summed = frozenset(unpack_set(bytes.fromhex(kept["summed"]), slots))
        signatures = unpack(text, signature_bytes(self._roster), summed)
        least = self._terms.threshold
        ok = len(signatures) >= least
        _check(ok, f"{len(signatures)} members confirmed, {least} are needed")
        signed = self._keys.confirm_text(shared, summed)
        for other, signature in signatures.items():
            ok = is_signed(self._roster, other, signature, signed)
            _check(ok, f"slot {other} did not confirm the same sum")
        chosen = {
            other: pair[SHARE_BYTES:] if other in summed else pair[:SHARE_BYTES]
            for other, pair in from_hex(kept["shares"]).items()
        }
        return pack(chosen), {}

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
        raise PayloadError(text)


def _private(text: str) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(bytes.fromhex(text))


def _as_numbers(values: Any, length: int) -> NDArray[np.uint64]:
    """Return a member's integers modulo 2**64."""
    ok = isinstance(values, np.ndarray) and values.dtype in (np.int64, np.uint64)
    allowed = f"a vector of {length} integers of 64 bits"
    require(ok and values.shape == (length,), "numbers", type(values), allowed)
    return np.array(values.astype(np.uint64))
