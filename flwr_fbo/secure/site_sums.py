"""A site's side of secure sums: its key, the roster that it pins, and its replies.

What a site must never do is give two sums of one message away: their difference would
be the messages of those who are in one of them only, under the noise of so few. So a
site answers the last exchange of one attempt a release, once, and its share of a
release's noise is drawn once, whatever is attempted. Both are on disk before a reply
leaves, and keys that are no longer needed are overwritten there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.errors import NodeConfigError, RefusedError, refused
from flwr_fbo._common.validation import require
from flwr_fbo.journal.journal import Journal

if TYPE_CHECKING:
    from flwr_fbo.secure.integer_noise import SumNoise
    from flwr_fbo.secure.roster import Roster, SigningKey
    from flwr_fbo.secure.sum_settings import GroupedSums
    from flwr_fbo.secure.terms import SumRequest
    from flwr_fbo.secure.wire import Payload

_ROSTER, _KEY = "fbo-roster", "fbo-key"
# A server that needs more for one release has something else in mind.
_MOST_ATTEMPTS = 1000
# The arrays in the journal.
_PROGRESS, _MEMBER, _SHARE = "sum-progress", "sum-member", "sum-share"
_NO_SHARE = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class SumIdentity:
    """A site in secure sums: its key and roster, and its replies.

    It has neither where the server is trusted to follow the protocol.

    Attributes
    ----------
    key : SigningKey, optional
        The site's private key.
    roster : Roster, optional
        The public keys of all sites, which the site pins.
    """

    key: SigningKey | None = None
    roster: Roster | None = None

    @classmethod
    def of(cls, node_config: Mapping[str, Any]) -> SumIdentity:
        """Return the identity whose files a node config names.

        Raises
        ------
        NodeConfigError
            If only one of ``fbo-roster`` and ``fbo-key`` is there, a file is not what
            it should be, or the roster lacks the key.
        """
        roster, key = (_path(node_config, name) for name in (_ROSTER, _KEY))
        if roster is None and key is None:
            return cls()
        if roster is None or key is None:
            text = f"{_ROSTER} and {_KEY} are given together in the node config"
            raise NodeConfigError.told(f"{text}.")
        # Most sites have no roster, and do not load what one needs.
        from flwr_fbo.secure.roster import Roster, SigningKey

        with _named(_ROSTER):
            pinned = Roster.load(roster)
        with _named(_KEY):
            own = SigningKey.load(key)
            has_key = own.public in pinned.keys.values()
            require(has_key, "public key", own.public, f"a key of the roster {roster}")
        return cls(own, pinned)

    @staticmethod
    def pins_roster(node_config: Mapping[str, Any]) -> bool:
        """Return whether a site lets nothing be read but sums, by its node config."""
        return _ROSTER in node_config

    @cached_property
    def slot(self) -> int:
        """The slot that the roster gives the key; -1 without a roster."""
        if self.roster is None or self.key is None:
            return -1
        slots = {key: slot for slot, key in self.roster.keys.items()}
        return slots[self.key.public]

    def check(self, sums: GroupedSums[SumNoise] | None, slot: int) -> None:
        """Raise `RefusedError` unless a study is summed under the pinned roster.

        Parameters
        ----------
        sums : SecureSums or BlockSums, optional
            How the study is summed; None if the server is trusted.
        slot : int
            Slot that the site knows it holds, or -1.
        """
        named = "" if sums is None else sums.roster
        if self.roster is None:
            if named:
                raise refused(
                    f"the study has a roster; give {_ROSTER} and {_KEY} in the node "
                    "config"
                )
            return
        if sums is None:
            raise refused("it pins a roster, and the study has no secure aggregation")
        # The roster decides, and not the server: else it could enrol sites of its own,
        # and learn a sum of which it knows all terms but one.
        if named != self.roster.digest():
            raise refused("the study does not have the roster that it pins")
        # Under two slots a site would be summed twice, with one share of its privacy.
        if slot not in (-1, self.slot):
            raise refused(
                f"its slot is {slot}, and the roster has its key for slot {self.slot}"
            )

    def reply(
        self,
        journal: Journal,
        sums: GroupedSums[SumNoise],
        request: SumRequest,
        contribution: Callable[[], FloatArray],
    ) -> Payload:
        """Return the site's reply to one exchange of a secure sum.

        Parameters
        ----------
        journal : Journal
            That of the site's agent: what the next exchange needs is put there first.
        sums : SecureSums or BlockSums
            How the study is summed; the caller has checked it.
        request : SumRequest
            What the server asks; its payload can be anything.
        contribution : callable
            Returns what the site adds: a message, shape (P * M,), of norm 1 at most; or
            a block, shape (d + 1, d + 1). It is called in exchange 3 of each attempt.

        Raises
        ------
        RefusedError
            If an honest server would not ask that; nothing has left.
        """
        # Most studies have no such sums: their clients do not load the cryptography.
        from flwr_fbo.secure.member import Member

        group = sums.group_of(request.slot)
        progress, state, share = _begun(journal.load_unnumbered(), request)
        terms = sums.terms(request.about, request.release, group, request.attempt)
        member = Member(terms, request.slot, self.key, self.roster, state)

        def numbers() -> NDArray[np.uint64]:
            nonlocal share
            noise = sums.noise(group)
            # Drawn once a release: over several attempts new shares would average out.
            if share.size == 0:
                share = noise.draw_share()
            return noise.wrapped(noise.encode(contribution()) + share)

        reply = member.answer(request.exchange, request.payload, numbers)
        progress.has_unmasked = progress.has_unmasked or member.has_unmasked
        # On disk before it leaves: a site that forgets what it answered would answer
        # again, and two answers to one exchange can be subtracted.
        journal.put(
            {
                _PROGRESS: np.array(json.dumps(asdict(progress))),
                _MEMBER: np.frombuffer(member.state, np.uint8),
                # Whoever reads the disk later could take the site's noise off the sum.
                _SHARE: _NO_SHARE if progress.has_unmasked else share,
            }
        )
        return reply


@contextmanager
def _named(entry: str) -> Iterator[None]:
    """Raise NodeConfigError, with the entry's name, where a file cannot be used."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise NodeConfigError(
            f"node config {entry}: {error}", public=f"{entry} cannot be used."
        ) from None


def _path(node_config: Mapping[str, Any], name: str) -> Path | None:
    given = node_config.get(name)
    if given is None:
        return None
    path = Path(str(given))
    if not path.is_absolute():
        allowed = "is not allowed: an absolute path."
        raise NodeConfigError(
            f"node config {name}={given!r} {allowed}", public=f"{name} {allowed}"
        )
    return path


@dataclass
class _Progress:
    """How far the sum of one release is.

    Attributes
    ----------
    release : int
        From 1.
    attempts : list of int
        All attempts that began; the last one is under way.
    has_unmasked : bool
        Whether its last exchange was answered.
    """

    release: int
    attempts: list[int]
    has_unmasked: bool = False


def _begun(
    arrays: Mapping[str, NDArray[Any]], request: SumRequest
) -> tuple[_Progress, bytes, NDArray[np.int64]]:
    """Return the progress of a release, the member's state, and its share of noise.

    The last two are empty before there are any.
    """
    release, attempt = request.release, request.attempt
    text = arrays.get(_PROGRESS)
    known = None if text is None else _Progress(**json.loads(str(text)))
    if known is None or release > known.release:
        return _Progress(release, [attempt]), b"", _NO_SHARE
    if release < known.release:
        raise RefusedError.told(
            f"The sum of release {release} is over: release {known.release} began."
        )
    share = arrays[_SHARE]
    if attempt == known.attempts[-1]:
        return known, arrays[_MEMBER].tobytes(), share
    # Another set of sites would be summed, under the same shares: the difference of the
    # two sums is the messages of those who are in one of them only.
    if known.has_unmasked:
        raise RefusedError.told(
            f"A sum of release {release} was unmasked: there can be no other."
        )
    # Its keys are overwritten: it could only begin again, with other masks.
    if attempt in known.attempts:
        raise RefusedError.told(f"Release {release}: this attempt was given up.")
    if not request.begins:
        raise RefusedError.told(
            f"Release {release}: exchange {request.exchange} of an attempt that did "
            "not begin."
        )
    if len(known.attempts) >= _MOST_ATTEMPTS:
        raise RefusedError.told(f"Release {release}: too many attempts.")
    known.attempts.append(attempt)
    return known, b"", share
