"""What releases spend together: those of a study, or of all studies on the same data.

A study says in its `Promise` what it will release at most. A `SpendingLedger` has what
was released of all studies, so that a limit on epsilon can outlive a study.
"""

from __future__ import annotations

import math
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from flwr_fbo._common.validation import is_number, require, require_bool, require_int
from flwr_fbo.journal.journal import Journal, open_patiently
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.journal.ledger_table import LedgerRow
from flwr_fbo.privacy.budget import LEAST_NOISE, check_delta
from flwr_fbo.privacy.gaussian import gaussian_epsilon
from flwr_fbo.privacy.sampling import check_sampling_probability

FILE_NAME, KIND = "spending.sqlite", "spending"

# Seconds to wait for the ledger: another process has it for the time of one row.
_PATIENCE = 30.0


# What may be promised at most: composing more would take a site too long.
MOST_NOISE, _MOST_RELEASES, _MOST_CHARGES = 1e6, 10_000, 100
# In place of a release's number: what no noise covers, charged once a study.
UNPROTECTED = 0
# What tells a release from all others.
_KEY = ("study_kind", "study_id", "release", "owner")

StudyKey = tuple[str, str]


@dataclass(frozen=True)
class Charge:
    """What one or several equal releases cost.

    Attributes
    ----------
    noise_multiplier : float
        z from 0 to 1e6: the noise's standard deviation over the L2 sensitivity.
    sampling_probability : float
        q in (0, 1], of Poisson sampling.
    num_releases : int
        From 1 to 10,000.

    Raises
    ------
    ValueError
        If an argument is not allowed; the message names it.
    """

    noise_multiplier: float
    sampling_probability: float = 1.0
    num_releases: int = 1

    def __post_init__(self) -> None:
        z = self.noise_multiplier
        ok = is_number(z) and 0 <= z <= MOST_NOISE
        require(ok, "noise_multiplier", z, "a number from 0 to 1e6")
        check_sampling_probability(self.sampling_probability)
        require_int("num_releases", self.num_releases, 1, _MOST_RELEASES)


def composed_epsilon(charges: Iterable[Charge], delta: float) -> float:
    """Return epsilon at ``delta`` of all charges together.

    Exact where everybody is in every release (one Gaussian mechanism; Dong, Roth & Su,
    2022, corollary 2); else the upper bound of `PldAccountant`. Infinite where a
    release had noise of less than 1e-3 times its sensitivity.

    Parameters
    ----------
    charges : iterable of Charge
        Of any mechanisms and sampling probabilities, in any order.
    delta : float
        In (0, 1).
    """
    check_delta(delta)
    counts: Counter[tuple[float, float]] = Counter()
    for charge in charges:
        key = charge.sampling_probability, charge.noise_multiplier
        counts[key] += charge.num_releases
    if any(z < LEAST_NOISE for _, z in counts):
        return math.inf
    entries = tuple((q, z, count) for (q, z), count in sorted(counts.items()))
    if not entries:
        return 0.0
    if all(q == 1.0 for q, _, _ in entries):
        mu = math.sqrt(sum(count / z**2 for _, z, count in entries))
        return gaussian_epsilon(delta, mu)
    from flwr_fbo.privacy.pld_accountant import sampled_epsilon

    return sampled_epsilon(entries, delta)


def least_epsilon(charges: Iterable[Charge], delta: float) -> float:
    """Return what `composed_epsilon` is at least, at once: that of one release.

    Of the one that costs most, if its agent is left out: exact for that one, by the
    hockey-stick divergence of a Poisson-sampled Gaussian mechanism, which is q times
    that of the Gaussian one at log(1 + (e^epsilon - 1) / q).
    """
    return max((_of_one_release(charge, delta) for charge in charges), default=0.0)


def _of_one_release(charge: Charge, delta: float) -> float:
    q, z = charge.sampling_probability, charge.noise_multiplier
    if z < LEAST_NOISE:
        return math.inf
    if delta >= q:
        return 0.0
    whole = gaussian_epsilon(delta / q, 1 / z)
    return whole if q == 1 else float(np.logaddexp(np.log1p(-q), np.log(q) + whole))


@dataclass(frozen=True)
class Promise:
    """What a study will release of a site at most, and under which noise.

    Attributes
    ----------
    charges : tuple of Charge
        Of the releases that a site is asked for, in order, equal ones together; or one
        for all of them, where a site's releases are one mechanism.
    private : bool
        Whether the noise is known to nobody, and the times of releases are public.
    caveat : str
        Why the study promises less than its charges say; empty unless it does.
    delta : float, optional
        In (0, 1): where the study reports its epsilon.
    """

    charges: tuple[Charge, ...] = ()
    private: bool = False
    caveat: str = ""
    delta: float | None = None

    def __post_init__(self) -> None:
        ok = isinstance(self.charges, tuple)
        ok = ok and all(isinstance(charge, Charge) for charge in self.charges)
        require(ok, "charges", self.charges, "a tuple of Charge")
        require_bool("private", self.private)
        require(isinstance(self.caveat, str), "caveat", self.caveat, "a text")
        if self.delta is not None:
            check_delta(self.delta)
        allowed = f"at most {_MOST_CHARGES} different ones in a row"
        count = len(self.charges)
        require(count <= _MOST_CHARGES, "len(charges)", count, allowed)
        releases = self.num_releases
        allowed = f"at most {_MOST_RELEASES} in all"
        require(releases <= _MOST_RELEASES, "num_releases", releases, allowed)

    @classmethod
    def of(cls, charges: Iterable[Charge], private: bool, delta: float) -> Promise:
        """Return the promise of single releases, in order."""
        at = delta if private else None
        runs = [(charge, len(list(run))) for charge, run in groupby(charges)]
        together = tuple(replace(c, num_releases=n) for c, n in runs)
        return cls(together, private, delta=at)

    @property
    def num_releases(self) -> int:
        """How many releases are promised."""
        return sum(charge.num_releases for charge in self.charges)

    def charge_of(self, release: int) -> Charge:
        """Return what a release, from 1, costs: everything, unless it is promised."""
        if self.private and not self.caveat:
            for charge in self.charges:
                if release <= charge.num_releases:
                    return replace(charge, num_releases=1)
                release -= charge.num_releases
        return Charge(0.0)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {**asdict(self), "charges": [astuple(c) for c in self.charges]}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Promise:
        """Return the promise that ``to_dict`` gave."""
        charges = tuple(Charge(*entry) for entry in fields["charges"])
        return cls(charges, fields["private"], fields["caveat"], fields["delta"])


def require_own(path: Path) -> None:
    """Raise JournalError if somebody else owns a file, or may write it."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise JournalError(f"{path} cannot be used: {error.strerror}.") from None
    is_own = found.st_uid == os.geteuid()
    if not is_own or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        why = "others may write it" if is_own else f"user {found.st_uid} owns it"
        raise JournalError(
            f"{path} is not used, as {why}: a ledger that others can change limits "
            "nothing. Find out who made it; if it is right, chown and chmod 600 it.",
            public="This site's ledger may be written by others.",
        )


class SpendingLedger:
    """What was released of all studies on the same data, in one journal.

    Formal guarantees
    -----------------
    Adjacency is that of each mechanism: all messages of an agent zeroed for `Release`,
    one trial replaced for `ContinualRelease`. Charges of both
    kinds are composed as if they were of one kind, which bounds each kind by itself.
    A release is recorded before it leaves, and counted if it never does.

    Not covered: a ledger that is deleted, or replaced by an older copy of itself, has
    forgotten what is not in it, unless the journals of its folder prove it: see
    `flwr_fbo.privacy.charge_notes`.

    Parameters
    ----------
    journal : Journal
        Of kind ``"spending"``.
    """

    def __init__(self, journal: Journal) -> None:
        journal.require_kind(KIND)
        self._journal = journal
        self.rows = journal.ledger()

    @classmethod
    @contextmanager
    def held(cls, folder: Path) -> Iterator[SpendingLedger]:
        """Hold the ledger of a folder; it is begun where there is none.

        Raises
        ------
        JournalError
            If it cannot be used, another process holds it for half a minute, or
            somebody else could have written it.
        """
        require_own(folder / FILE_NAME)
        with open_patiently({"kind": KIND}, folder / FILE_NAME, _PATIENCE) as journal:
            yield cls(journal)

    def charges(self, owner: int = -1, without: StudyKey | None = None) -> list[Charge]:
        """Return what was charged to an owner's data in all studies.

        Parameters
        ----------
        owner : int
            Whose data; -1 is whoever has the ledger, and counts everything.
        without : tuple of str, optional
            Kind and id of a study that is left out.
        """
        return [
            Charge(*row.facts["charge"])
            for row in self.rows
            if (owner == -1 or row.facts["owner"] in (owner, -1))
            and (row.facts["study_kind"], row.facts["study_id"]) != without
        ]

    def epsilon(self, delta: float, more: Iterable[Charge] = ()) -> float:
        """Return epsilon at ``delta`` of all studies and ``more`` charges together."""
        return composed_epsilon([*self.charges(), *more], delta)

    def has(self, study: StudyKey, release: int, owner: int = -1) -> bool:
        """Return whether a release of a study, by kind and id, is on record."""
        return self.has_charge(charge_facts(study, release, Charge(0.0), owner))

    def record(
        self, study: StudyKey, release: int, charge: Charge, owner: int = -1
    ) -> None:
        """Charge a release of a study, once; on disk when this returns.

        Parameters
        ----------
        study : tuple of str
            Its kind and its id.
        release : int
            Which release of the study it is, from 1, or `UNPROTECTED`.
        charge : Charge
        owner : int
            Whose data it is about. Agents that share a ledger have data of their own.
        """
        self.add(charge_facts(study, release, charge, owner))

    def has_charge(self, facts: Mapping[str, Any]) -> bool:
        """Return whether a charge is on record, as `charge_facts` describes it."""
        return any(same_charge(row.facts, facts) for row in self.rows)

    def add(self, facts: Mapping[str, Any]) -> None:
        """Record what `charge_facts` gave, once; on disk when this returns."""
        if self.has_charge(facts):
            return
        row = LedgerRow(len(self.rows), dict(facts), np.zeros(0))
        self._journal.add_release(row, {})
        self.rows.append(row)


def charge_facts(
    study: StudyKey,
    release: int,
    charge: Charge,
    owner: int = -1,
    delta: float | None = None,
) -> dict[str, Any]:
    """Return what a ledger has of a charge, as JSON values; see `record`.

    ``delta`` is where the study reports its epsilon, for whoever reads the ledger.
    """
    key = dict(zip(_KEY, (*study, release, owner), strict=True))
    return {**key, "charge": list(astuple(charge)), "delta": delta}


def same_charge(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two charges are of one release of one owner."""
    return all(one[name] == other[name] for name in _KEY)
