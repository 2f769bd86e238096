"""Privacy spent by the releases of a study, or of all studies on the same data.

A study says in its `Promise` what it will release at most. A `SpendingLedger` has what
was released of all studies, so that a limit on epsilon can outlive a study.

Each journal of a site notes a charge before the ledger does. So the journals beside a
ledger prove what it must have: see `flwr_fbo.site.proofs`.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field, replace
from functools import lru_cache
from importlib import import_module
from itertools import chain, groupby, repeat
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.fields import (
    FREE,
    check_fields,
    flag,
    fraction,
    instance,
    integer,
    number,
    several,
)
from flwr_fbo._common.validation import require
from flwr_fbo.journal.file_formats import LEDGER_KIND
from flwr_fbo.journal.journal import Journal, open_patiently
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.journal.npy import from_json_array, to_json_array
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy.conditions import FINISHED_TABLE
from flwr_fbo.privacy.gaussian import (
    LEAST_NOISE,
    check_delta,
    gaussian_epsilon,
    poisson_epsilon,
)
from flwr_fbo.privacy.guarantee import (
    CLIENT,
    EXAMPLE,
    ONE_EXAMPLE_LESS,
    PrivacyUnit,
)
from flwr_fbo.privacy.sampling import PROBABILITY

FILE_NAME, KIND = "spending.sqlite", LEDGER_KIND
# The array of a journal that has notes of charges.
NOTES = "charged"
# Seconds to wait for a file: another process has it for the time of one row.
PATIENCE = 30.0
# In the facts of a charge: the site's own mark of it, and the server's key. Only where
# the site has a folder of its own, whose charges are all about the same data.
MARK, SERVER = "mark", "server"
# Kind of a training's charges, and in their facts: which plan of the run, from 1, and
# that they are more of the round that the charge before them is of.
TRAINING, PLAN, MORE = "training", "plan", "more"

# What may be promised at most: composing more would take a site too long. A training
# has more steps than a study has releases; they are the app's own, and mostly equal.
MOST_NOISE, MOST_STEPS, _MOST_RELEASES, _MOST_CHARGES = 1e6, 100_000, 10_000, 100
# In place of a release's number: what no noise covers, charged once a study.
UNPROTECTED = 0
# What tells a release from all others.
_KEY = ("study_kind", "study_id", "release", "owner")
# What a charge costs: a note of it must not stand for another one.
_COST = ("charge", "promised", PLAN, "unit")

StudyKey = tuple[str, str]
Facts = dict[str, Any]
Group = tuple["Charge", ...]

# Arrays of a ledger: what its rows add up to, and the facts of the studies that share
# a number. So many numbers, 64 of them in one part of the journal.
# An earlier version called it "total", and told no units apart there.
_TOTAL, _OF_STUDIES, _NUM_PLACES = "totals", "studies-{}", 4096
_OF_EARLIER_VERSIONS: tuple[str, ...] = ("total",)
# Of what they add up to: an earlier version told the plans of a study apart by less.
_VERSION = 2


def _place(study: StudyKey) -> int:
    digest = hashlib.sha256(repr(study).encode()).digest()
    return int.from_bytes(digest[:4], "big") % _NUM_PLACES


@dataclass(frozen=True)
class Charge:
    """Cost of one or several equal releases.

    Attributes
    ----------
    noise_multiplier : float
        z from 0 to 1e6: the noise's standard deviation over the L2 sensitivity.
    sampling_probability : float
        q in (0, 1], of Poisson sampling.
    num_releases : int
        From 1 to 100,000.

    Raises
    ------
    ValueError
        If an argument is not allowed; the message names it.
    """

    noise_multiplier: float = field(metadata=number(0, MOST_NOISE))
    sampling_probability: float = field(default=1.0, metadata=PROBABILITY)
    # Free: equal releases cost no more time than one of them.
    num_releases: int = field(default=1, metadata=integer(1, MOST_STEPS, cap=FREE))

    def __post_init__(self) -> None:
        check_fields(self)

    def covers(self, other: Charge) -> bool:
        """Return whether a release costs at least what one of another charge does.

        More noise and rarer sampling never cost more: both laws are mixed with others,
        in the same way.
        """
        return (
            other.noise_multiplier >= self.noise_multiplier
            and other.sampling_probability <= self.sampling_probability
        )


def cover(plan: Iterable[Charge], charges: Iterable[Charge]) -> bool:
    """Return whether planned releases are at least as many as these, and as dear."""
    parts = [*plan]
    left = [part.num_releases for part in parts]
    for charge in charges:
        count = charge.num_releases
        for at, part in enumerate(parts):
            if part.covers(charge):
                taken = min(left[at], count)
                left[at], count = left[at] - taken, count - taken
        if count:
            return False
    return True


def composed_epsilon(charges: Iterable[Charge], delta: float) -> float:
    """Return epsilon at ``delta`` of all charges together.

    Exact where everybody is in every release (one Gaussian mechanism; Dong, Roth & Su,
    2022, corollary 2); else the upper bound of `ReleaseAccountant`. Infinite where a
    release had noise of less than 1e-3 times its sensitivity.

    Parameters
    ----------
    charges : iterable of Charge
        Charges of any mechanisms and sampling probabilities, in any order.
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
    return poisson_epsilon(entries, delta)


def least_epsilon(charges: Iterable[Charge], delta: float) -> float:
    """Return what `composed_epsilon` is at least, at once: that of one release.

    Of the one that costs most, if its agent is left out: exact for that one, by the
    hockey-stick divergence of a Poisson-sampled Gaussian mechanism, which is q times
    that of the Gaussian one at log(1 + (e^epsilon - 1) / q).
    """
    least = 0.0
    for charge in charges:
        q, z = charge.sampling_probability, charge.noise_multiplier
        if z < LEAST_NOISE:
            return math.inf
        if delta >= q:  # only with probability q is there anything to be seen
            continue
        epsilon = gaussian_epsilon(delta / q, 1 / z)
        if q < 1:
            # The divergence's argument, solved for epsilon.
            epsilon = float(np.logaddexp(np.log1p(-q), np.log(q) + epsilon))
        least = max(least, epsilon)
    return least


# Where epsilon is told of a site without limits, in studies that report none.
DEFAULT_DELTA = 1e-5


@dataclass(frozen=True)
class Promise:
    """Largest set of releases that a study makes of a site, with their noise.

    Attributes
    ----------
    charges : tuple of Charge
        Charges of the releases that a site is asked for, in order, equal ones together;
        or one for all of them, where a site's releases are one mechanism.
    private : bool
        Whether the noise is known to nobody, and the times of releases are public.
    delta : float, optional
        In (0, 1): where the study reports its epsilon.
    fixed_rows : bool
        Whether it is for one trial while all other rows are as they were, and not for
        what that trial changes in later ones: see `LinearUCBSettings`.
    unit : PrivacyUnit
        Whom the charges protect. A site takes no study whose kind protects another.
    """

    charges: tuple[Charge, ...] = field(
        default=(),
        metadata=several(instance(Charge, part=Charge), allowed="a tuple of Charge"),
    )
    private: bool = field(default=False, metadata=flag())
    delta: float | None = field(default=None, metadata=fraction(optional=True))
    fixed_rows: bool = field(default=False, metadata=flag())
    unit: PrivacyUnit = field(
        default=CLIENT, metadata=instance(PrivacyUnit, part=PrivacyUnit)
    )

    def __post_init__(self) -> None:
        check_fields(self)
        count, releases = len(self.charges), self.num_releases
        expected = f"at most {_MOST_CHARGES} different ones in a row"
        require(count <= _MOST_CHARGES, "len(charges)", count, expected)
        most = MOST_STEPS if self.unit == ONE_EXAMPLE_LESS else _MOST_RELEASES
        expected = f"at most {most} in all"
        require(releases <= most, "num_releases", releases, expected)

    @classmethod
    def of(cls, charges: Iterable[Charge], private: bool, delta: float) -> Promise:
        """Return the promise of single releases, in order."""
        at = delta if private else None
        runs = [(charge, len(list(run))) for charge, run in groupby(charges)]
        together = tuple(replace(c, num_releases=n) for c, n in runs)
        return cls(together, private, delta=at)

    @classmethod
    def of_one_mechanism(
        cls, mu: float, *, private: bool, delta: float, fixed_rows: bool
    ) -> Promise:
        """Return the promise of one mechanism, charged once for all of its releases.

        It protects one example that is replaced by another.

        Parameters
        ----------
        mu : float
            Of Gaussian differential privacy, for all releases together.
        private : bool
            See `Promise`; False where there is no noise, or it is seeded.
        delta : float
            See `Promise`.
        fixed_rows : bool
            See `Promise`; True where an agent acts on its own trials, other than
            through its releases. It has no default: no code can tell.
        """
        charges = (Charge(1 / mu),)
        return cls(charges, private, delta=delta, fixed_rows=fixed_rows, unit=EXAMPLE)

    @property
    def condition(self) -> str:
        """Under which epsilon holds, whatever the kind of study."""
        return FINISHED_TABLE if self.fixed_rows else ""

    @property
    def num_releases(self) -> int:
        """Number of promised releases."""
        return sum(charge.num_releases for charge in self.charges)

    def charge_of(self, release: int) -> Charge:
        """Return what a release, from 1, costs: everything, unless it is promised."""
        # What is not promised is charged as without noise: infinite, so refused.
        if self.private:
            for charge in self.charges:
                if release <= charge.num_releases:
                    return replace(charge, num_releases=1)
                release -= charge.num_releases
        return Charge(0.0)


@lru_cache(maxsize=1024)  # each message brings the charges of all studies again
def _charges(values: tuple[tuple[float, float, int], ...]) -> Group:
    return tuple(Charge(*value) for value in values)


# The units that a ledger is added up for.
TOTALS = (CLIENT, ONE_EXAMPLE_LESS, EXAMPLE)


def counted_in(total: PrivacyUnit, unit: PrivacyUnit | None, group: Group) -> Group:
    """Return what charges cost in the total of a unit; empty if nothing.

    What protects an example says nothing of the client. In the totals of an example:

    - what protects a client protects each of its examples, if its message is replaced:
      with half the noise multiplier, and without amplification by sampling;
    - what protects an example that is replaced protects one that is taken out, as a row
      of zeros could be in its place; without amplification, too;
    - what protects an example that is taken out protects one that is replaced with half
      the noise multiplier, or by the pair of `flwr_fbo.privacy.guarantee` where it is
      sampled: see `Spent.is_replaced`.

    What has no noise protects nobody.

    Parameters
    ----------
    total : PrivacyUnit
        One of `TOTALS`.
    unit : PrivacyUnit, optional
        Whom the charges protect; None where it is not known: then they count in every
        total, as if they protected a client.
    group : tuple of Charge
        The charges.
    """
    unit = CLIENT if unit is None else unit
    if total.protects == "client":
        return group if unit.protects == "client" else ()
    if any(charge.noise_multiplier < LEAST_NOISE for charge in group):
        return group
    of_training = unit == ONE_EXAMPLE_LESS
    if of_training and total == unit:
        return group
    counted = []
    for charge in group:
        z, q, count = astuple(charge)
        if not (of_training and q < 1):
            z, q = z / 2 if unit.adjacency == "zeroed" else z, 1.0
        counted.append((z, q, count))
    return _charges(tuple(counted))


class Charged:
    """Charges of a ledger, added up as far as a privacy filter tells them apart.

    Releases without sampling of equal noise for one unit are one entry, with their
    number; each study with sampling is one, as it counts whole. Entries are in the
    order of their first charge.

    Parameters
    ----------
    facts : iterable of mapping
        Facts of each charge, in order: see `charge_facts`.

    Attributes
    ----------
    num_releases : int
        Number of releases that were charged.
    is_marked : bool
        Whether a charge has a mark: then all are about the same data.
    head : int
        Number of the last charge's mark; 0 without one.
    """

    def __init__(self, facts: Iterable[Mapping[str, Any]] = ()) -> None:
        # By what tells entries apart: whom they protect, the charges, how often.
        self._entries: dict[Any, tuple[PrivacyUnit | None, Group, int]] = {}
        self.num_releases, self.is_marked, self.head = 0, False, 0
        for about in facts:
            self.add(about)

    def add(self, facts: Mapping[str, Any]) -> None:
        """Add one more charge."""
        z, q, count = facts["charge"]
        whole = tuple(map(tuple, facts.get("promised", ())))
        group, unit = _charges(((z, q, count),)), unit_of(facts)
        # The steps of a round leave together, as one model.
        if MORE not in facts:
            self.num_releases += 1 if PLAN in facts else count
        self.is_marked = self.is_marked or MARK in facts
        self.head = facts[MARK][1] if MARK in facts else 0
        if q >= 1 and not whole:
            _, _, times = self._entries.get((unit, group), (unit, group, 0))
            self._entries[unit, group] = unit, group, times + 1
            return
        # With sampling a study counts whole: the server decides when it stops, and
        # may decide so by what it has read. A training has several plans.
        key = *study_of(facts), facts["owner"], facts.get(PLAN, 0), whole
        promised = _charges(whole)
        _, known, _ = self._entries.get(key, (unit, promised, 1))
        # A charge that the study has not promised counts besides its promise.
        is_promised = any(part.covers(group[0]) for part in promised)
        self._entries[key] = unit, known if is_promised else known + group, 1

    def plans(self, kind: str, owner: int, whole: Group) -> list[tuple[StudyKey, int]]:
        """Return the plans of a kind with these charges, in order: study and number."""
        entries = (key for key, (_, group, _) in self._entries.items() if len(key) > 2)
        values = tuple(astuple(charge) for charge in whole)
        return [
            ((key[0], key[1]), key[3])
            for key in entries
            if (key[0], key[2], key[4]) == (kind, owner, values)
        ]

    def groups(self, total: PrivacyUnit) -> tuple[Group, ...]:
        """Return the charges of each entry in a total, as often as charged."""
        counted = [
            (counted_in(total, unit, group), times)
            for unit, group, times in self._entries.values()
        ]
        return tuple(
            chain.from_iterable(
                repeat(group, times) for group, times in counted if group
            )
        )

    def copy(self) -> Charged:
        """Return a copy that more can be added to."""
        copied = Charged()
        copied.__dict__ |= vars(self)
        copied._entries = dict(self._entries)
        return copied

    def to_json(self) -> dict[str, Any]:
        """Return all that is known, as JSON values."""
        entries = [
            [
                [] if key == (unit, group) else key,
                None if unit is None else [*astuple(unit)],
                [[*astuple(c)] for c in group],
                times,
            ]
            for key, (unit, group, times) in self._entries.items()
        ]
        return {**vars(self), "_entries": entries}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Charged:
        """Return what `to_json` was called of."""
        charged = cls()
        charged.__dict__ |= values
        charged._entries = {}
        for key, protects, charges, times in values["_entries"]:
            unit = None if protects is None else PrivacyUnit(*protects)
            group = _charges(tuple(map(tuple, charges)))
            about = (*key[:4], tuple(map(tuple, key[4]))) if key else (unit, group)
            charged._entries[about] = unit, group, times
        return charged


class SpendingLedger:
    """Journal of the releases of all studies on the same data.

    Formal guarantees
    -----------------
    Each charge says whom it protects, and charges of different units do not add up: a
    client whose messages are zeroed for `Release`, one example that is replaced for
    `ContinualRelease`, one example that is left out for a training (`DPSGD`). The total
    of a client has the charges of studies that protect a client. The totals of an
    example, with or without it and replaced by another, have all charges, as
    `counted_in` converts them: whatever protects a client protects its examples. A
    release is recorded before it leaves, and counted if it never does. `Spent` adds
    charges up, of studies that were chosen one after another.

    A training is in it if the app has charged it: see `flwr_fbo.charge_training`.

    Not covered by itself: a ledger that is deleted, or replaced by an older copy of
    itself, has forgotten what is not in it. The journals of its folder, and receipts of
    servers, prove that: see `flwr_fbo.site.proofs`.

    Beside its rows the journal has what they add up to, and the facts of each study
    together. A message reads these, in a time that hardly depends on the number of
    rows. Both are made again from all rows where they do not have as many: an earlier
    version of the package has not written them, or not by unit.

    Parameters
    ----------
    journal : Journal
        Journal of kind ``"spending"``.
    """

    def __init__(self, journal: Journal) -> None:
        journal.require_kind(KIND)
        self.journal = journal
        stored = journal.load_array(_TOTAL)
        values = None if stored is None else from_json_array(stored)
        # By the number of an array, the facts of its studies, as far as they were read.
        self._of_studies: dict[int, list[Facts]] = {}
        about = {"num_rows": len(self), "version": _VERSION}
        self._is_stored = values is not None and about.items() <= values.items()
        if self._is_stored:
            assert values is not None
            self._charged = Charged.from_json(values["charged"])
            return
        every = [row.facts for row in self.rows]
        self._charged = Charged(every)
        for facts in every:
            self._of_studies.setdefault(_place(study_of(facts)), []).append(facts)

    def __len__(self) -> int:
        return self.journal.num_releases

    @property
    def rows(self) -> list[LedgerRow]:
        """A row for each charge, in order: all of them are read."""
        return self.journal.ledger()

    @property
    def head(self) -> int:
        """Number of the mark of the last charge; 0 without one."""
        return self._charged.head

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
        with open_patiently({"kind": KIND}, folder / FILE_NAME, PATIENCE) as journal:
            yield cls(journal)

    def facts(self, owner: int = -1, without: StudyKey | None = None) -> list[Facts]:
        """Return the charges to an owner's data in all studies, in order.

        As `charge_facts` describes them; `Spent` adds them up.

        Parameters
        ----------
        owner : int
            Owner of the data; -1 counts everything. So does any owner of a site's own
            folder: its data is the same, whatever its slot.
        without : tuple of str, optional
            Kind and id of a study that is left out.
        """
        every = (row.facts for row in self.rows)
        return [
            facts
            for facts in every
            if self._counts(facts, owner) and study_of(facts) != without
        ]

    def _counts(self, facts: Facts, owner: int) -> bool:
        """Return whether a charge is about an owner's data."""
        is_shared = owner != -1 and not self._charged.is_marked
        return not is_shared or facts["owner"] in (owner, -1)

    def charged(self, owner: int = -1) -> Charged:
        """Return what the charges of `facts` add up to."""
        if owner == -1 or self._charged.is_marked:
            return self._charged.copy()
        return Charged(self.facts(owner))

    def counted_of(self, study: StudyKey, owner: int = -1) -> list[Facts]:
        """Return those charges of `facts` that are of a study, in order."""
        return [f for f in self.all_of(study) if self._counts(f, owner)]

    def all_of(self, study: StudyKey) -> list[Facts]:
        """Return the charges of a study to anybody's data, in order."""
        place = _place(study)
        if place not in self._of_studies:
            array = None
            if self._is_stored:  # else all of them were read
                array = self.journal.load_array(_OF_STUDIES.format(place))
            self._of_studies[place] = notes_of(array)
        return [f for f in self._of_studies[place] if study_of(f) == study]

    def of_study(self, study: StudyKey, owner: int = -1) -> list[Facts]:
        """Return the charges to an owner in a study, in order.

        Charges without an owner, such as recovered ones, count for every owner.
        """
        return [f for f in self.all_of(study) if f["owner"] in (owner, -1)]

    def has(self, study: StudyKey, release: int, owner: int = -1) -> bool:
        """Return whether a release of a study, by kind and id, is on record."""
        return self.has_charge(charge_facts(study, release, Charge(0.0), owner))

    def record(
        self,
        study: StudyKey,
        release: int,
        charge: Charge,
        owner: int = -1,
        promised: Iterable[Charge] = (),
        unit: PrivacyUnit | None = None,
    ) -> None:
        """Charge a release of a study, once; on disk when this returns.

        Parameters
        ----------
        study : tuple of str
            Its kind and its id.
        release : int
            Number of the release in its study, from 1, or `UNPROTECTED`.
        charge : Charge
            Cost of the release.
        owner : int
            Owner of the data that it is about. Agents that share a ledger have data of
            their own.
        promised : iterable of Charge
            Charges of all releases of the study.
        unit : PrivacyUnit, optional
            Whom it protects; see `unit_of` for one that is not given.
        """
        facts = charge_facts(
            study, release, charge, owner, promised=promised, unit=unit
        )
        self.add(facts)

    def has_charge(self, facts: Mapping[str, Any]) -> bool:
        """Return whether a charge is on record, as `charge_facts` describes it."""
        return any(same_charge(f, facts) for f in self.all_of(study_of(facts)))

    def add(self, facts: Mapping[str, Any]) -> None:
        """Record what `charge_facts` gave, once; on disk when this returns."""
        # The same release is sent again after a crash: one noise, so one charge.
        if self.has_charge(facts):
            return
        row, place = (
            LedgerRow(len(self), dict(facts), np.zeros(0)),
            _place(study_of(facts)),
        )
        charged, known = self._charged.copy(), self._of_studies[place]
        charged.add(facts)
        changed = {**({} if self._is_stored else self._of_studies)}
        changed[place] = [*known, row.facts]
        total = {
            "num_rows": len(self) + 1,
            "version": _VERSION,
            "charged": charged.to_json(),
        }
        arrays = {_OF_STUDIES.format(at): to_json_array(f) for at, f in changed.items()}
        arrays[_TOTAL] = to_json_array(total)
        has = self.journal.load_array
        gone = () if self._is_stored else _OF_EARLIER_VERSIONS
        gone = tuple(name for name in gone if has(name) is not None)
        # In one transaction: they add up to the rows whenever the process ends.
        self.journal.change_state(arrays, gone, [row])
        self._charged, self._is_stored = charged, True
        self._of_studies |= changed


def charge_facts(
    study: StudyKey,
    release: int,
    charge: Charge,
    owner: int = -1,
    delta: float | None = None,
    promised: Iterable[Charge] = (),
    *,
    fixed_rows: bool = False,
    unit: PrivacyUnit | None = None,
    plan: int = 0,
    is_more: bool = False,
) -> Facts:
    """Return what a ledger has of a charge, as JSON values; see `record`.

    ``delta`` is where the study reports its epsilon, and ``fixed_rows`` the condition
    of that, for whoever reads the ledger. ``promised`` are all charges of the study,
    noted where it samples: it counts whole. ``unit`` is whom it protects. ``plan`` is
    the number of a training's plan, which counts whole too, and ``is_more`` that the
    charge is of the same round as the one before it.
    """
    key = dict(zip(_KEY, (*study, release, owner), strict=True))
    facts = {**key, "charge": list(astuple(charge)), "delta": delta}
    whole = [list(astuple(charge)) for charge in promised]
    if plan or any(probability < 1 for _, probability, _ in whole):
        facts["promised"] = whole
    if plan:
        facts[PLAN] = plan
    if is_more:
        facts[MORE] = True
    if unit is not None:
        facts["unit"] = [*astuple(unit)]
    return {**facts, "fixed_rows": True} if fixed_rows else facts


def study_of(facts: Mapping[str, Any]) -> StudyKey:
    """Return kind and id of the study that a charge is of."""
    return facts["study_kind"], facts["study_id"]


def unit_of(facts: Mapping[str, Any]) -> PrivacyUnit | None:
    """Return whom a charge protects; None where that is not known.

    Charges of earlier versions do not say it: their kind of study does, whose first
    unit it is, where its package is installed.
    """
    if "unit" in facts:
        return PrivacyUnit(*facts["unit"])
    # By name, as the registry loads its parts: nothing below it knows a kind.
    kind = import_module("flwr_fbo.study.kinds").kind_named(facts["study_kind"])
    return kind.units[0] if kind is not None else None


def same_charge(facts: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    """Return whether two charges are of one release of one owner."""
    return all(facts[name] == others[name] for name in _KEY)


def notes_of(array: NDArray[Any] | None) -> list[Facts]:
    """Return the charges that a journal's array has, in order."""
    return [] if array is None else from_json_array(array)


def with_note(
    notes: list[Facts], facts: Facts
) -> tuple[Facts, dict[str, NDArray[Any]]]:
    """Return the note of a charge, and the array that has it, if that is to be stored.

    One that is there stays: a process may have ended before the ledger had it.

    Raises
    ------
    JournalError
        If that is of another charge: neither can stand for the other.
    """
    for note in notes:
        if same_charge(note, facts):
            if any(note.get(name) != facts.get(name) for name in _COST):
                raise JournalError(
                    f"A journal notes release {facts['release']} of study "
                    f"{facts['study_id']} with charge {note['charge']}, and now it is "
                    f"charged with {facts['charge']}: a process ended before the "
                    "ledger had the first. `flwr-fbo ledger recover` counts it.",
                    public="This site's ledger lacks a release that its journals have: "
                    "`flwr-fbo ledger recover` counts it.",
                )
            return note, {}
    return facts, {NOTES: to_json_array([*notes, facts])}
