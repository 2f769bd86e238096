"""What tuner and client mod write into Flower's messages.

A message of the tuner has a record ``fbo-tuner`` that says what it is for. One that
carries trials has the records of each of them under ``"0:arrays"``, ``"1:arrays"`` and
so on, and so has its reply.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from math import inf
from typing import Any, ClassVar, get_args

from flwr.app import ConfigRecord, RecordDict

from flwr_fbo._common.validation import require, require_bool, require_int, require_seed
from flwr_fbo.privacy.spending import Promise
from flwr_fbo.study.codec import from_json, read_json
from flwr_fbo.study.secure_sums import SecureSums
from flwr_fbo.tuner.ballots import Ballot, MessageForm

# Of its record, and in a site's ledger.
KIND = "federation-tuner"

HEADER = "fbo-tuner"
BALLOT = "fbo-ballot"
# What members of a secure sum are asked, and what they reply.
SUM = "fbo-sum"

# Rungs of a tuner: no study releases more often.
_MOST_RELEASES = 10_000


@dataclass(frozen=True)
class TrialsHeader:
    """Of a message that carries one or several trials' messages to a node.

    Attributes
    ----------
    attempt : str
        Names this run of the tuner: what clients have of others is forgotten.
    trials : list of int
        Whose messages they are, in order.
    settings : list of dict
        What each overlays the run config with.
    alive : list of int
        All trials that may still come; what clients have of others is forgotten.
    metric : str
        The key of the score in a reply to ``evaluate``.
    is_hidden : bool
        Whether scores stay at the client.
    promise : dict
        Of a `Promise`: what the rungs that are left release.
    sums : dict, optional
        Of `SecureSums`: how ballots are summed. None: the server reads each.
    """

    kind: ClassVar[str] = "trials"
    attempt: str
    trials: list[int]
    settings: list[dict[str, Any]]
    alive: list[int]
    metric: str
    is_hidden: bool
    promise: dict[str, Any]
    sums: dict[str, Any] | None = None

    def check(self) -> None:
        """Raise ValueError unless each field is one that a server may write."""
        _require_attempt(self.attempt)
        for name in ("trials", "alive"):
            _require_trials(name, getattr(self, name))
        ok = set(self.trials) <= set(self.alive)
        require(ok, "trials", self.trials, "some of those that are alive")
        _require_settings(self.settings, len(self.trials))
        require(isinstance(self.metric, str), "metric", self.metric, "a key")
        require_bool("is_hidden", self.is_hidden)
        _ = self.promised, self.summed

    @cached_property
    def promised(self) -> Promise:
        """The promise."""
        return Promise.from_dict(self.promise)

    @cached_property
    def summed(self) -> SecureSums | None:
        """How ballots are summed, if they are."""
        found: SecureSums | None = from_json(SecureSums, self.sums)
        return found


@dataclass(frozen=True)
class BallotHeader:
    """Of a message that asks for a client's ballot at the end of a rung.

    Attributes
    ----------
    attempt : str
    rung : int
        From 0.
    trials : list of int
        The candidates, in the order of the ballot's entries.
    failed : list of int
        Those of them whose `main` has failed: worse than all others.
    form : {"ranks", "votes", "exact"}
        Of the ballot; ``"exact"``: scores and their weights, which is not private.
    maximize : bool
    tie_seed : int or None
        Breaks ties, in an experiment that is to repeat.
    promise : dict
        As in `TrialsHeader`.
    release : int
        Which of the releases that are promised this is, from 1.
    """

    kind: ClassVar[str] = "ballot"
    attempt: str
    rung: int
    trials: list[int]
    failed: list[int]
    form: MessageForm
    maximize: bool
    tie_seed: int | None
    promise: dict[str, Any]
    release: int

    def check(self) -> None:
        """Raise ValueError unless each field is one that a server may write."""
        _require_attempt(self.attempt)
        require_int("rung", self.rung, 0, _MOST_RELEASES)
        _require_trials("trials", self.trials)
        require(len(self.trials) > 0, "trials", self.trials, "one at least")
        _require_trials("failed", self.failed)
        ok = set(self.failed) <= set(self.trials)
        require(ok, "failed", self.failed, "some of the trials")
        forms = (*get_args(Ballot), "exact")
        require(self.form in forms, "form", self.form, f"one of {forms}")
        require_bool("maximize", self.maximize)
        require_seed("tie_seed", self.tie_seed)
        _ = self.promised
        # A ballot is always about the client: there is none without a number.
        require_int("release", self.release, 1, _MOST_RELEASES)

    @cached_property
    def promised(self) -> Promise:
        """The promise."""
        return Promise.from_dict(self.promise)


@dataclass(frozen=True)
class SumHeader:
    """Of a message that is one exchange of the secure sum of a rung's ballots.

    Attributes
    ----------
    ballot : dict
        Of the `BallotHeader` of the rung.
    sums : dict
        Of `SecureSums`.
    slot : int
        The client's.
    exchange : int
        From 1 to 5.
    attempt : int
        At the sum; the server draws it.
    """

    kind: ClassVar[str] = "sum"
    ballot: dict[str, Any]
    sums: dict[str, Any]
    slot: int
    exchange: int
    attempt: int

    def check(self) -> None:
        """Raise ValueError unless each field is one that a server may write."""
        self.asked.check()
        _ = self.summed
        require_int("slot", self.slot, 0)
        require_int("exchange", self.exchange, 1, 5)
        require_int("attempt", self.attempt, 0, 2**63 - 1)

    @cached_property
    def asked(self) -> BallotHeader:
        """What the ballots are about."""
        return BallotHeader(**self.ballot)

    @cached_property
    def summed(self) -> SecureSums:
        """How they are summed."""
        found: SecureSums = from_json(SecureSums, self.sums)
        return found

    @property
    def about(self) -> str:
        """What is summed, as JSON: the same for all clients, in all exchanges."""
        return json.dumps({"ballot": self.ballot, "sums": self.sums}, sort_keys=True)


@dataclass(frozen=True)
class SettingsHeader:
    """Of a message of the real training: the settings that were chosen."""

    kind: ClassVar[str] = "settings"
    settings: dict[str, Any]

    def check(self) -> None:
        """Raise ValueError unless each field is one that a server may write."""
        _require_settings([self.settings], 1)


@dataclass(frozen=True)
class ReplyHeader:
    """Of a client's reply.

    Attributes
    ----------
    errors : dict of str to str
        Why a trial's message has no reply, by its place in the send.
    read : list of str
        Which of the tuned keys the client has read.
    slot : int
        The client's in secure sums, where it knows it; else -1.

    """

    kind: ClassVar[str] = "reply"
    errors: dict[str, str] = field(default_factory=dict)
    read: list[str] = field(default_factory=list)
    slot: int = -1

    def check(self) -> None:
        """Raise ValueError unless each field is one that a client may write."""
        ok = isinstance(self.errors, dict)
        ok = ok and all(isinstance(text, str) for text in self.errors.values())
        require(ok, "errors", self.errors, "texts by place")
        ok = isinstance(self.read, list)
        ok = ok and all(isinstance(key, str) for key in self.read)
        require(ok, "read", self.read, "a list of keys")
        require_int("slot", self.slot, -1)


Header = TrialsHeader | BallotHeader | SumHeader | SettingsHeader | ReplyHeader
_KINDS: dict[str, type[Header]] = {
    header.kind: header
    for header in (TrialsHeader, BallotHeader, SumHeader, SettingsHeader, ReplyHeader)
}


def header_record(header: Header) -> ConfigRecord:
    """Return the record of a header."""
    return ConfigRecord({"kind": header.kind, "fields": json.dumps(asdict(header))})


def read_header(content: RecordDict, most_characters: float = inf) -> Header | None:
    """Return the header of a message; None where it is not the tuner's.

    Parameters
    ----------
    content : RecordDict
    most_characters : float
        A longer header is not parsed.

    Raises
    ------
    ValueError
        If it is not one that this version writes: each field is checked.
    """
    record = content.get(HEADER)
    if not isinstance(record, ConfigRecord):
        return None
    kind, text = record.get("kind"), record.get("fields")
    require(isinstance(kind, str) and kind in _KINDS, "kind", kind, f"{[*_KINDS]}")
    require(isinstance(text, str), "fields", type(text), "JSON")
    length = len(str(text))
    require(length <= most_characters, "length", length, f"to {most_characters:g}")
    try:
        header = _KINDS[str(kind)](**read_json(str(text)))
        header.check()
    except (AttributeError, KeyError, RecursionError, TypeError) as error:
        raise ValueError(f"The header is not one of {kind!r}: {error!r}.") from None
    return header


def _require_attempt(attempt: Any) -> None:
    ok = isinstance(attempt, str) and 1 <= len(attempt) <= 64 and attempt.isprintable()
    require(ok, "attempt", attempt, "1 to 64 printable characters")


def _require_trials(field: str, trials: Any) -> None:
    ok = isinstance(trials, list) and all(
        type(t) is int and 0 <= t < 2**63 for t in trials
    )
    ok = ok and len(set(trials)) == len(trials)
    require(ok, field, trials, "numbers of trials, each once")


def _require_settings(settings: Any, count: int) -> None:
    ok = isinstance(settings, list) and len(settings) == count
    ok = ok and all(
        isinstance(one, dict)
        and all(isinstance(value, bool | int | float | str) for value in one.values())
        for one in settings
    )
    require(ok, "settings", settings, "one for each trial, as in a run config")


def pack(header: Header, contents: Mapping[int, RecordDict]) -> RecordDict:
    """Return one content of a header and several contents, by their place."""
    records = {
        f"{place}:{name}": record
        for place, content in contents.items()
        for name, record in content.items()
    }
    return RecordDict({HEADER: header_record(header), **records})


def unpack(content: RecordDict, places: Sequence[int]) -> dict[int, RecordDict]:
    """Return the contents at some places."""
    contents = {place: RecordDict() for place in places}
    for name, record in content.items():
        place, _, inner = name.partition(":")
        if place.isdecimal() and int(place) in contents:
            contents[int(place)][inner] = record
    return contents
