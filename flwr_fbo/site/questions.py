"""Questions that a site answers without a charge: few, and too coarse to bisect.

Whether a site takes part in a study depends on what is left of its limits, and so on
what other federations have spent. A server that asks about one study after another, and
plays none of them, could read both to four digits. So the ledger of a site with limits
has a book of the promises that were asked about:

- It answers by what is left only for promises that spend at least twice as much as the
  largest one that it took, and at most half as much as the smallest one that it
  refused. Whatever lies between is refused in any case: that tells nothing, and is not
  counted.
- It answers `Limits.max_questions` of the others a day, and ten times as many in all,
  that no release has been charged for. Asking about the same promise again is free.
- What exceeds a limit by itself is refused, and not in the book: that tells nothing of
  what is left.
- Each of these refusals has one and the same text, `LIMITS_REACHED`.

A training is no question: it is charged as soon as it fits. See `Gate.charge_training`.

What remains: a server learns what is left to a factor of two, and from a question that
it repeats, that others have spent so much of it.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from flwr_fbo._common.errors import RefusedError, refused
from flwr_fbo._common.fields import to_json
from flwr_fbo.journal.npy import from_json_array, to_json_array
from flwr_fbo.privacy.filters import Spent
from flwr_fbo.privacy.spending_ledger import (
    Promise,
    SpendingLedger,
    counted_in,
)
from flwr_fbo.site.limits import LIMITS_REACHED, Limits

# Array of a site's ledger that has the book.
QUESTIONS = "questions"
# Days' worth of questions that are answered in all.
_DAYS_IN_ALL = 10
# Two promises whose shares differ by less than this factor are not told apart; with
# less than this relative difference they are one, as calibration rounds.
_COARSE, _ROUNDING = 2.0, 1e-6
_FORGET = "to answer again: flwr-fbo ledger questions FOLDER --forget"


@dataclass(frozen=True)
class Questions:
    """The book of one site.

    Attributes
    ----------
    limits : str
        Digest of the limits that the shares are of: other limits begin anew.
    taken, refused : float
        Largest share of the limits that was taken, with no release charged since, and
        the smallest share that was refused.
    asked : dict of str to str
        Day on which a promise was first asked about, by its share, while no release has
        been charged for one like it.
    """

    limits: str = ""
    taken: float = 0.0
    refused: float = math.inf
    asked: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, ledger: SpendingLedger, owner: int) -> Questions:
        """Return the book of an owner's data in a ledger; at first an empty one."""
        values = _books(ledger).get(str(owner))
        return cls() if values is None else cls(**values)

    def keep(self, ledger: SpendingLedger, owner: int) -> None:
        """Put the book into a ledger; it is on disk when this returns."""
        books = {**_books(ledger), str(owner): asdict(self)}
        ledger.journal.put({QUESTIONS: to_json_array(books)})

    def under(self, limits: Iterable[Limits]) -> Questions:
        """Return the book, without shares of other limits than these."""
        known = hashlib.sha256(json.dumps(to_json([*limits])).encode()).hexdigest()
        if known == self.limits:
            return self
        return replace(self, limits=known, taken=0.0, refused=math.inf)

    def settle(self, share: float) -> Questions:
        """Return the book once a release of a promise of that share was charged."""
        asked = {k: day for k, day in self.asked.items() if k != _name(share)}
        is_largest = share >= self.taken * (1 - _ROUNDING)
        return replace(self, asked=asked, taken=0.0 if is_largest else self.taken)

    def ask(
        self,
        share: float,
        most_a_day: int,
        refusal: RefusedError | None,
    ) -> tuple[Questions, RefusedError | None]:
        """Return the book with one more question, and the refusal if there is one.

        Parameters
        ----------
        share : float
            The share of the site's limits that a promise spends alone: `share_of`.
        most_a_day : int
            Number of questions that are answered in 24 hours, >= 1.
        refusal : RefusedError, optional
            Refusal by what is left: none if so much is.
        """
        if refusal is not None and share > 1 + _ROUNDING:  # whatever is left
            return self, refusal
        if math.isclose(share, self.taken, rel_tol=_ROUNDING):
            share = self.taken
        is_near = self.taken < share < self.taken * _COARSE
        if is_near or share * _COARSE > self.refused:  # whatever is left
            return self, refusal or refused(
                "it was asked about a study that spends nearly as much, which was not "
                f"played; {_FORGET}",
                public=LIMITS_REACHED,
            )
        name, today = _name(share), time.strftime("%Y-%m-%d", time.gmtime())
        asked = self.asked
        if name not in asked:
            num_today = sum(day == today for day in asked.values())
            if num_today >= most_a_day or len(asked) >= _DAYS_IN_ALL * most_a_day:
                return self, refused(
                    f"it was asked about {num_today} studies today and {len(asked)} in "
                    f"all that were not played, and max_questions={most_a_day} a day; "
                    f"{_FORGET}",
                    public=LIMITS_REACHED,
                )
            asked = {**asked, name: today}
        book = replace(self, asked=asked)
        if refusal is not None:  # with less left than before, if that share was taken
            taken = self.taken if share > self.taken else 0.0
            return replace(book, taken=taken, refused=share), refusal
        return replace(book, taken=max(share, self.taken)), None


def num_questions(ledger: SpendingLedger) -> int:
    """Return how many promises a site was asked about, and has not been charged for."""
    return sum(len(values["asked"]) for values in _books(ledger).values())


def forget_questions(ledger: SpendingLedger) -> None:
    """Forget what a site was asked about, and what it has answered."""
    ledger.journal.put({QUESTIONS: to_json_array({})})


def _books(ledger: SpendingLedger) -> dict[str, Any]:
    array = ledger.journal.load_array(QUESTIONS)
    return {} if array is None else from_json_array(array)


def share_of(
    promise: Promise, limits: Iterable[Limits], num_releases: int | None = None
) -> float:
    """Return the largest share of a limit that a promise spends alone; maybe above 1.

    Infinite where that is plain, and to add its releases up could take minutes.

    Parameters
    ----------
    promise : Promise
        The promise.
    limits : iterable of Limits
        The site's limits.
    num_releases : int, optional
        Number of releases that leave; as many as promised by default.
    """
    shares, count = [0.0], num_releases or promise.num_releases
    for limit in limits:
        if limit.max_releases is not None:
            shares.append(count / limit.max_releases)
        for unit, most in limit.epsilons.items():
            assert limit.max_delta is not None
            counted = counted_in(unit, promise.unit, promise.charges)
            alone = Spent((counted,), total=unit)
            if alone.least_epsilon(limit.max_delta) > 2 * most:
                return math.inf
            shares.append(alone.epsilon(limit.max_delta) / most)
    return max(shares)


def _name(share: float) -> str:
    """Return what a promise is called in the book: alike are those that spend alike."""
    return f"{share:.4g}"
