"""A site's part in the secure sums of its messages, in its agent's journal.

What a site must never do is give two sums of one message away: their difference would
be the messages of those who are in one of them only, under the noise of so few. So a
site answers the last exchange of one attempt a release, once, and its share of a
release's noise is drawn once, whatever is attempted. Both are on disk before a reply
leaves, and keys that are no longer needed are overwritten there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.errors import RefusedError
from flwr_fbo.journal.journal import Journal
from flwr_fbo.privacy.integer_noise import IntegerNoise
from flwr_fbo.secure_sum.member import Member
from flwr_fbo.site.sum_identity import SumIdentity
from flwr_fbo.study.secure_sums import SecureSums

# A server that needs more for one release has something else in mind.
_MOST_ATTEMPTS = 1000
# The arrays in the journal.
_PROGRESS, _MEMBER, _SHARE = "sum-progress", "sum-member", "sum-share"
_NO_SHARE = np.zeros(0, dtype=np.int64)


@dataclass
class _Progress:
    """Progress of the sum of one release.

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


def sum_reply(
    journal: Journal,
    identity: SumIdentity,
    sums: SecureSums,
    study: str,
    release: int,
    slot: int,
    attempt: int,
    exchange: int,
    payload: NDArray[np.uint8],
    contribution: Callable[[], FloatArray],
) -> NDArray[np.uint8]:
    """Return a site's reply to one exchange of a secure sum.

    Parameters
    ----------
    journal : Journal
        The agent's.
    identity : SumIdentity
        The site's key and roster.
    sums : SecureSums
        Settings of the study's secure sums.
    study : str
        Study that is summed, as JSON: the same for all sites.
    release : int
        From 1, as the site was promised it.
    slot : int
        The site's.
    attempt : int
        Number that the server draws afresh.
    exchange : int
        From 1 to 5.
    payload : vector of uint8
        Anything.
    contribution : callable
        Returns what the site adds, shape (P * M,), norm 1 at most.

    Raises
    ------
    RefusedError
        If an honest server would not ask that; nothing has left.
    """
    group = sums.group_of(slot)
    progress, state, share = _begun(
        journal.load_unnumbered(), release, attempt, exchange
    )
    terms = sums.terms(study, release, group, attempt)
    member = Member(terms, slot, identity.key, identity.roster, state)

    def numbers() -> NDArray[np.uint64]:
        nonlocal share
        noise: IntegerNoise = sums.noise(group)
        if share.size == 0:
            share = noise.draw_share()
        return noise.wrapped(noise.encode(contribution()) + share)

    reply = member.answer(exchange, payload, numbers)
    progress.has_unmasked = progress.has_unmasked or member.has_unmasked
    journal.put(
        {
            _PROGRESS: np.array(json.dumps(asdict(progress))),
            _MEMBER: np.frombuffer(member.state, np.uint8),
            _SHARE: _NO_SHARE if progress.has_unmasked else share,
        }
    )
    return reply


def _begun(
    arrays: Mapping[str, NDArray[Any]], release: int, attempt: int, exchange: int
) -> tuple[_Progress, bytes, NDArray[np.int64]]:
    """Return the progress of a release, the member's state, and its share of noise.

    Both are empty before there are any.
    """
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
    if known.has_unmasked:
        raise RefusedError.told(
            f"A sum of release {release} was unmasked: there can be no other."
        )
    if attempt in known.attempts:
        raise RefusedError.told(f"Release {release}: this attempt was given up.")
    if exchange != 1:
        raise RefusedError.told(
            f"Release {release}: exchange {exchange} of an attempt that did not begin."
        )
    if len(known.attempts) >= _MOST_ATTEMPTS:
        raise RefusedError.told(f"Release {release}: too many attempts.")
    known.attempts.append(attempt)
    return known, b"", share
