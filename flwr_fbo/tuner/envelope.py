"""What tuner and client mod write into Flower's messages.

A message of the tuner has a record ``fbo-tuner`` that says what it is for. One that
carries trials has the records of each of them under ``"0:arrays"``, ``"1:arrays"`` and
so on, and so has its reply.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from flwr.app import ConfigRecord, RecordDict

from flwr_fbo._validation import require, require_int
from flwr_fbo.tuner.ballots import MessageForm

# Of its record, and in a site's ledger.
KIND = "federation-tuner"

HEADER = "fbo-tuner"
BALLOT = "fbo-ballot"
# What members of a secure sum are asked, and what they reply.
SUM = "fbo-sum"


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

    @property
    def asked(self) -> BallotHeader:
        """What the ballots are about."""
        return BallotHeader(**self.ballot)

    @property
    def about(self) -> str:
        """What is summed, as JSON: the same for all clients, in all exchanges."""
        return json.dumps({"ballot": self.ballot, "sums": self.sums}, sort_keys=True)


@dataclass(frozen=True)
class SettingsHeader:
    """Of a message of the real training: the settings that were chosen."""

    kind: ClassVar[str] = "settings"
    settings: dict[str, Any]


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

    Raises
    ------
    ValueError
        If a client has sent something else; the message names the field.
    """

    kind: ClassVar[str] = "reply"
    errors: dict[str, str] = field(default_factory=dict)
    read: list[str] = field(default_factory=list)
    slot: int = -1

    def __post_init__(self) -> None:
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


def read_header(content: RecordDict) -> Header | None:
    """Return the header of a message; None where it is not the tuner's."""
    record = content.get(HEADER)
    if not isinstance(record, ConfigRecord):
        return None
    return _KINDS[str(record["kind"])](**json.loads(str(record["fields"])))


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
