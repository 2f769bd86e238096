"""Aggregator of one attempt at a secure sum: five exchanges with the sites.

`flwr_fbo.secure.collector` begins attempts, until one of a release gives its sum.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from flwr_fbo._common.validation import require
from flwr_fbo.secure import wire
from flwr_fbo.secure.masks import (
    ADVERT_BYTES,
    CHECK_BYTES,
    COMMITMENT_BYTES,
    ENCRYPTED_BYTES,
    KEY_BYTES,
    SHARED_BYTES,
    SumKeys,
    check_roster,
    equal_keys,
    is_usable,
)
from flwr_fbo.secure.roster import Roster
from flwr_fbo.secure.shares import SHARE_BYTES, combine
from flwr_fbo.secure.terms import Exchange, SumFailedError, SumTerms, canonical

_log = logging.getLogger("flwr.fbo")
Records = dict[int, bytes]


class Aggregator:
    """The server's half of one attempt at a sum.

    Examples
    --------
    >>> from flwr_fbo.secure.member import Member
    >>> from flwr_fbo.secure.terms import SumTerms
    >>> terms = SumTerms("5a", "01", (0, 1, 2), 3, 3, length=2, num_bits=16)
    >>> members = {slot: Member(terms, slot) for slot in terms.slots}
    >>> aggregator = Aggregator(terms)
    >>> while aggregator.exchange != Exchange.DONE:
    ...     aggregator.receive({
    ...         slot: members[slot].answer(
    ...             aggregator.exchange, request, lambda: np.array([1, 2])
    ...         )
    ...         for slot, request in aggregator.requests().items()
    ...     })
    >>> aggregator.total
    array([3, 6], dtype=uint64)

    Parameters
    ----------
    terms : SumTerms
        Members, thresholds and lengths of the sum.
    roster : Roster, optional
        The one that the terms name.
    state : bytes
        `state` of an aggregator of the same terms; empty at first. It holds no secret.

    Raises
    ------
    ValueError
        If the terms name another roster, or the state is not of these terms.
    """

    def __init__(
        self, terms: SumTerms, roster: Roster | None = None, state: bytes = b""
    ) -> None:
        wrong = check_roster(terms, roster)
        require(wrong is None, "roster", terms.roster, f"the one of the terms: {wrong}")
        self._terms, self._keys = terms, SumKeys(terms, roster)
        self._graph = graph = self._keys.graph
        self._neighbours = {slot: graph.neighbours(slot) for slot in graph.ring}
        #: The exchange that is under way.
        self.exchange = Exchange.ADVERTISE
        # Replies by slot to the exchanges 1, 2, 3 and 4: of 3 the signatures only.
        self._replies: list[Records] = []
        self._total = np.zeros(terms.length, dtype=np.uint64)
        if state:
            self._restore(json.loads(state))

    @property
    def state(self) -> bytes:
        """What an aggregator goes on from: all that was received, as JSON."""
        total = wire.pack_numbers(self._total, self._terms.num_bytes)
        return canonical(
            {
                "terms": self._keys.digest.hex(),
                "exchange": int(self.exchange),
                "replies": [wire.to_hex(records) for records in self._replies],
                "total": total.hex(),
            }
        ).encode()

    def _restore(self, values: dict[str, Any]) -> None:
        ok = values["terms"] == self._keys.digest.hex()
        require(ok, "state", values["terms"], "that of the same terms")
        self.exchange = Exchange(values["exchange"])
        self._replies = [wire.from_hex(records) for records in values["replies"]]
        total = bytes.fromhex(values["total"])
        self._total = wire.unpack_numbers(total, self._terms.num_bytes)

    @property
    def summed(self) -> tuple[int, ...]:
        """The slots in the sum; empty before the masked numbers are there."""
        return self._members(Exchange.MASK)

    @property
    def total(self) -> wire.Numbers:
        """The sum modulo 2**num_bits, shape (M,).

        Raises
        ------
        RuntimeError
            Before the last exchange is done.
        """
        if self.exchange != Exchange.DONE:
            raise RuntimeError(f"The sum is at exchange {int(self.exchange)} of 5.")
        return self._total

    def requests(self) -> dict[int, wire.Payload]:
        """Return the request to each member that the current exchange needs."""
        match self.exchange:
            case Exchange.ADVERTISE:
                texts = dict.fromkeys(self._terms.slots, b"")
            case Exchange.SHARE:
                adverts = self._replies[0]
                texts = {slot: wire.pack(self._near(slot, adverts)) for slot in adverts}
            case Exchange.MASK:
                texts = self._encrypted_shares()
            case Exchange.CONFIRM:
                views = self._replies[2]
                summed = wire.pack_set(views, self._terms.slots)
                texts = {s: summed + wire.pack(self._near(s, views)) for s in views}
            case Exchange.UNMASK:
                # Fewer signatures cost each member less time to check them.
                confirmed = sorted(self._replies[3].items())[: self._terms.threshold]
                texts = dict.fromkeys(self.summed, wire.pack(dict(confirmed)))
            case _:
                texts = {}
        return {slot: wire.to_payload(text) for slot, text in texts.items()}

    def receive(self, replies: Mapping[int, Any]) -> None:
        """Take what arrived in the current exchange, and go on to the next one.

        Parameters
        ----------
        replies : mapping
            Anything by slot. A member whose reply is missing or malformed drops out.

        Raises
        ------
        SumFailedError
            If too few are left. The exchange can be asked again: members answer the
            same request with the same reply.
        """
        match self.exchange:
            case Exchange.ADVERTISE:
                self._receive_adverts(replies)
            case Exchange.SHARE:
                asked = self._replies[0]
                shared = self._valid(replies, asked, self._checked_shares)
                self._require(len(shared), self._terms.min_summed)
                self._go_on(shared)
            case Exchange.MASK:
                self._receive_masked(replies)
            case Exchange.CONFIRM:
                confirmed = self._valid(replies, self._replies[2], self._checked_vote)
                self._require(len(confirmed), self._terms.threshold)
                self._go_on(confirmed)
            case Exchange.UNMASK:
                self._receive_secrets(replies)
            case _:
                raise RuntimeError("The sum is done.")

    def _members(self, exchange: Exchange) -> tuple[int, ...]:
        """Return who answered an exchange, increasing."""
        done = self._replies[exchange - 1 : exchange]
        return tuple(sorted(done[0])) if done else ()

    def _near(self, slot: int, records: Records) -> Records:
        """Return the records of a member's neighbours."""
        return {s: records[s] for s in self._neighbours[slot] if s in records}

    def _valid(
        self,
        replies: Mapping[int, Any],
        asked: Mapping[int, Any],
        check: Callable[[int, bytes], bytes],
    ) -> Records:
        """Return what ``check`` makes of each reply; others drop out."""
        found = {}
        for slot in sorted(asked):
            if slot in replies:
                try:
                    found[slot] = check(slot, wire.to_bytes(replies[slot]))
                except wire.PayloadError as error:
                    self._drop(slot, str(error))
        return found

    def _drop(self, slot: int, reason: str) -> None:
        text = "Slot %d drops out of exchange %d of a secure sum: %s."
        _log.warning(text, slot, self.exchange, reason)

    def _require(self, count: int, needed: int) -> None:
        if count < needed:
            raise SumFailedError(
                f"Exchange {int(self.exchange)} of a secure sum has {count} valid "
                f"replies and needs {needed}."
            )

    def _go_on(self, found: Records) -> None:
        self._replies.append(found)
        self.exchange = Exchange(self.exchange + 1)

    def _check_signature(self, slot: int, signature: bytes, text: bytes) -> None:
        if len(signature) != self._keys.signature_bytes:
            raise wire.PayloadError("its reply has a wrong length")
        if not self._keys.is_signed(slot, signature, text):
            raise wire.PayloadError("its signature is not valid")

    def _receive_adverts(self, replies: Mapping[int, Any]) -> None:
        asked = dict.fromkeys(self._terms.slots)
        adverts = self._valid(replies, asked, self._checked_advert)
        for slot in equal_keys(adverts):
            self._drop(slot, "it has the same key as another")
            del adverts[slot]
        self._require(len(adverts), self._terms.min_summed)
        self._go_on(adverts)

    def _checked_advert(self, slot: int, reply: bytes) -> bytes:
        keys, signature = wire.cut(reply, ADVERT_BYTES)
        self._check_signature(slot, signature, self._keys.advert_text(slot, keys))
        if not (is_usable(keys[:KEY_BYTES]) and is_usable(keys[KEY_BYTES:])):
            raise wire.PayloadError("a key is no key")
        return reply

    def _checked_shares(self, slot: int, reply: bytes) -> bytes:
        _, rest = wire.cut(reply, COMMITMENT_BYTES)
        asked = self._near(slot, self._replies[0])
        if set(wire.unpack(rest, SHARED_BYTES, asked)) != set(asked):
            raise wire.PayloadError("it shared with other members than asked")
        return reply

    def _shared_by(self, slot: int) -> Records:
        """Return what a member sent for each neighbour."""
        _, rest = wire.cut(self._replies[1][slot], COMMITMENT_BYTES)
        return wire.unpack(rest, SHARED_BYTES, self._neighbours[slot])

    def _encrypted_shares(self) -> Records:
        """Return who shared, and the shares for each of them."""
        shared = self._members(Exchange.SHARE)
        boxes: dict[int, Records] = {slot: {} for slot in shared}
        for sender in shared:
            for receiver, record in self._shared_by(sender).items():
                if receiver in boxes:
                    boxes[receiver][sender] = record[:ENCRYPTED_BYTES]
        view = wire.pack_set(shared, self._terms.slots)
        return {slot: view + wire.pack(box) for slot, box in boxes.items()}

    def _receive_masked(self, replies: Mapping[int, Any]) -> None:
        masked = self._valid(replies, self._replies[1], self._checked_masked)
        size = self._terms.length * self._terms.num_bytes
        self._require(len(masked), self._terms.min_summed)
        # Members refuse such a set too: with fewer than a threshold of neighbours a
        # member's secrets could not be recovered, and it could be cut off from others.
        lonely, count = self._graph.fewest(masked)
        if count < self._graph.threshold:
            raise SumFailedError(
                f"Slot {lonely} of a secure sum has {count} neighbours left and needs "
                f"{self._graph.threshold}."
            )
        self._go_on({slot: reply[size:] for slot, reply in masked.items()})
        for reply in masked.values():
            self._total += wire.unpack_numbers(reply[:size], self._terms.num_bytes)

    def _checked_masked(self, slot: int, reply: bytes) -> bytes:
        size = self._terms.length * self._terms.num_bytes
        _, signature = wire.cut(reply, size)
        text = self._keys.view_text(self._members(Exchange.SHARE))
        self._check_signature(slot, signature, text)
        return reply

    def _checked_vote(self, slot: int, reply: bytes) -> bytes:
        shared = self._members(Exchange.SHARE)
        text = self._keys.confirm_text(shared, self.summed)
        self._check_signature(slot, reply, text)
        return reply

    def _receive_secrets(self, replies: Mapping[int, Any]) -> None:
        found = self._valid(replies, self._replies[2], self._checked_secrets)
        held = {
            holder: wire.unpack(text, SHARE_BYTES, self._neighbours[holder])
            for holder, text in found.items()
        }
        keys, total = self._keys, self._total.copy()
        # The self masks of the members in the sum are taken off, and the pair masks of
        # those who dropped out after they had shared: never both of one member
        # (Bonawitz et al., section 6), for its message would be bare without them.
        for slot in self.summed:
            seed = self._recover(slot, "self", held)
            promised = self._replies[1][slot][:COMMITMENT_BYTES]
            # A wrong seed would make a wrong sum that looks like any other.
            self._check_secret(slot, keys.commitment(seed, slot) == promised)
            total -= keys.self_mask(seed, slot)
        for slot in sorted(set(self._replies[1]) - set(self.summed)):
            seed = self._recover(slot, "masking", held)
            private = keys.masking_key(seed, slot)
            public = private.public_key().public_bytes_raw()
            self._check_secret(slot, public == self._masking_public(slot))
            for other in self._near(slot, self._replies[2]):
                # What the other one added for this member is its negative.
                public = self._masking_public(other)
                total += keys.pair_mask(private, public, slot, other)
        self._go_on(found)
        self._total = total & np.uint64(2**self._terms.num_bits - 1)

    def _masking_public(self, slot: int) -> bytes:
        return self._replies[0][slot][KEY_BYTES:ADVERT_BYTES]

    def _checked_secrets(self, slot: int, reply: bytes) -> bytes:
        """Return a reply whose shares belong to the members that shared."""
        wire.unpack(reply, SHARE_BYTES, self._near(slot, self._replies[1]))
        return reply

    def _check_secret(self, slot: int, ok: bool) -> None:
        if not ok:
            raise SumFailedError(
                f"The shares of slot {slot} in a secure sum are not those of its seed."
            )

    def _recover(self, owner: int, kind: str, held: Mapping[int, Records]) -> bytes:
        """Return a secret of a member from the shares that its neighbours sent."""
        shares = {}
        first = ENCRYPTED_BYTES + (CHECK_BYTES if kind == "self" else 0)
        checks = self._shared_by(owner)
        for place, holder in enumerate(self._neighbours[owner], 1):
            share = held.get(holder, {}).get(owner)
            if share is None or holder not in checks:
                continue
            # What the owner committed to: one bad holder cannot spoil the secret.
            promised = checks[holder][first : first + CHECK_BYTES]
            if self._keys.share_check(share, kind, owner, holder) == promised:
                shares[place] = share
            else:
                self._drop(holder, f"its share of slot {owner} is wrong")
            if len(shares) == self._graph.threshold:
                break
        else:
            raise SumFailedError(
                f"A secure sum has {len(shares)} shares of slot {owner} and needs "
                f"{self._graph.threshold}."
            )
        seed = combine(shares)
        self._check_secret(owner, seed is not None)
        return seed or b""
