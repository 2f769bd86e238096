"""Keys and masks of one attempt: X25519, HKDF-SHA256, AES-GCM and AES-CTR.

Every key is derived for one purpose and bound to the terms and to the slots that it is
for. So AES-GCM and AES-CTR use a key once, with a nonce of zeros.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import (
    X25519PrivateKey,
    X25519PublicKey,
)
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from flwr_fbo.secure import wire
from flwr_fbo.secure.graph import MAX_COMPLETE, MaskGraph
from flwr_fbo.secure.roster import SIGNATURE_BYTES, Roster, digest_of
from flwr_fbo.secure.shares import SECRET_BYTES, SHARE_BYTES
from flwr_fbo.secure.terms import SumTerms

KEY_BYTES, COMMITMENT_BYTES, CHECK_BYTES = 32, 32, 16
# What a member advertises without its signature: two public keys.
ADVERT_BYTES = 2 * KEY_BYTES
# A share of each secret, encrypted, and a commitment to each.
ENCRYPTED_BYTES = 2 * SHARE_BYTES + 16
SHARED_BYTES = ENCRYPTED_BYTES + 2 * CHECK_BYTES
# Zeros, as each key encrypts one text; a key with two texts would need a nonce each.
_NONCE, _COUNTER = bytes(12), bytes(16)
_ANY_KEY = X25519PrivateKey.from_private_bytes(bytes(range(KEY_BYTES)))


@dataclass(frozen=True)
class SumKeys:
    """What members and aggregator derive from terms and roster of one attempt.

    Attributes
    ----------
    terms : SumTerms
        Members, thresholds and lengths of the sum.
    roster : Roster, optional
        The one that the terms name.
    """

    terms: SumTerms
    roster: Roster | None = None

    @cached_property
    def digest(self) -> bytes:
        """The digest of the terms."""
        return self.terms.digest()

    @cached_property
    def graph(self) -> MaskGraph:
        """Who masks with whom."""
        return MaskGraph.of(
            self.terms, None if self.roster is None else self.roster.seed
        )

    @property
    def signature_bytes(self) -> int:
        """The number of bytes of a signature: none without a roster."""
        return 0 if self.roster is None else SIGNATURE_BYTES

    def is_signed(self, slot: int, signature: bytes, text: bytes) -> bool:
        """Return whether a slot signed a text; without a roster nobody needs to."""
        return self.roster is None or self.roster.verify(slot, signature, text)

    def masking_key(self, seed: bytes, slot: int) -> X25519PrivateKey:
        """Return a member's masking key, which its seed gives."""
        private = self._derive(seed, "masking key", slot)
        return X25519PrivateKey.from_private_bytes(private)

    def commitment(self, seed: bytes, slot: int) -> bytes:
        """Return a commitment to the seed of a member's self mask."""
        return self._derive(seed, "commitment", slot)

    def share_check(self, share: bytes, kind: str, owner: int, holder: int) -> bytes:
        """Return a commitment to a share of a secret, of 16 bytes."""
        return self._derive(share, f"share of {kind}", owner, holder)[:CHECK_BYTES]

    def self_mask(self, seed: bytes, slot: int) -> wire.Numbers:
        """Return a member's self mask."""
        return self._expand(self._derive(seed, "self mask", slot))

    def pair_mask(
        self, private: X25519PrivateKey, public: bytes, slot: int, other: int
    ) -> wire.Numbers:
        """Return what ``slot`` adds for ``other``, who adds the negative."""
        # Sorted, so that both derive one key: then the two masks cancel in the sum.
        key = self._agree(private, public, "pair mask", *sorted((slot, other)))
        mask = self._expand(key)
        return mask if slot < other else np.negative(mask)

    def encrypt(
        self,
        private: X25519PrivateKey,
        public: bytes,
        sender: int,
        receiver: int,
        shares: bytes,
    ) -> bytes:
        """Return the encryption of two shares."""
        key = self._agree(private, public, "shares", sender, receiver)
        return AESGCM(key).encrypt(_NONCE, shares, None)

    def decrypt(
        self,
        private: X25519PrivateKey,
        public: bytes,
        sender: int,
        receiver: int,
        encrypted: bytes,
    ) -> bytes | None:
        """Return what `encrypt` encrypted; None if it is anything else."""
        key = self._agree(private, public, "shares", sender, receiver)
        try:
            return AESGCM(key).decrypt(_NONCE, encrypted, None)
        except InvalidTag:
            return None

    def advert_text(self, slot: int, keys: bytes) -> bytes:
        """Return what a member signs when it advertises its keys."""
        return self._text("advertise", wire.slot_bytes(slot), keys)

    def view_text(self, shared: Collection[int]) -> bytes:
        """Return what a member signs with its masked numbers: who shared."""
        return self._text("mask", wire.pack_set(shared, self.terms.slots))

    def confirm_text(self, shared: Collection[int], summed: Collection[int]) -> bytes:
        """Return what a member signs to confirm a sum."""
        slots = self.terms.slots
        return self._text(
            "confirm", wire.pack_set(shared, slots), wire.pack_set(summed, slots)
        )

    def _text(self, label: str, *parts: bytes) -> bytes:
        # The digest of the terms is in all that is signed or derived: what was said in
        # another attempt, or under other terms, means nothing here.
        return b"".join([label.encode(), b"\0", self.digest, *parts])

    def _derive(self, secret: bytes, label: str, *slots: int) -> bytes:
        info = self._text(label, wire.slot_bytes(*slots))
        return HKDF(hashes.SHA256(), KEY_BYTES, None, info).derive(secret)

    def _agree(
        self, private: X25519PrivateKey, public: bytes, label: str, *slots: int
    ) -> bytes:
        # X25519 raises where a public key of small order would give a known secret.
        try:
            common = private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError as error:
            first, second = slots
            text = f"the keys of slots {first} and {second} agree on no secret"
            raise wire.PayloadError(text) from error
        return self._derive(common, label, *slots)

    def _expand(self, key: bytes) -> wire.Numbers:
        # AES-CTR as the pseudorandom generator of Bonawitz et al.: uniform modulo
        # 2**num_bits, because num_bits is a multiple of 8.
        num_bytes = self.terms.num_bytes
        stream = Cipher(algorithms.AES(key), modes.CTR(_COUNTER)).encryptor()
        return wire.unpack_numbers(
            stream.update(bytes(self.terms.length * num_bytes)), num_bytes
        )


def draw_seed() -> bytes:
    """Return a secret from the operating system's entropy."""
    return os.urandom(SECRET_BYTES)


def is_usable(public: bytes) -> bool:
    """Return whether an X25519 public key agrees on a secret with any key."""
    try:
        _ANY_KEY.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        return False
    return True


def equal_keys(adverts: dict[int, bytes]) -> set[int]:
    """Return the slots with a key that is there twice.

    All are to be different (Bonawitz et al., figure 4, round 1): who sends a copy of
    another one's key does not know the secret that its masks come from.
    """
    owners: dict[bytes, int] = {}
    equal: set[int] = set()
    for slot, advert in adverts.items():
        for key in (advert[:KEY_BYTES], advert[KEY_BYTES:ADVERT_BYTES]):
            if key in owners:
                equal |= {slot, owners[key]}
            owners[key] = slot
    return equal


def check_roster(terms: SumTerms, roster: Roster | None) -> str | None:
    """Return what is wrong with a roster under some terms, or None.

    A sparse graph is safe only if the server cannot choose who is on the ring, so the
    terms of a large sum name the whole roster.
    """
    if terms.roster != digest_of(roster):
        return "the terms name another roster than the pinned one"
    if roster is not None and not set(terms.slots) <= set(roster.slots):
        return "the terms name slots that the roster lacks"
    if roster is not None and MAX_COMPLETE < len(terms.slots) != len(roster.slots):
        return f"terms of more than {MAX_COMPLETE} members name the whole roster"
    return None
