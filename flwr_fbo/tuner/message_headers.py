"""Headers that tuner and client mod write into Flower's messages.

A message of the tuner has a record ``fbo-tuner`` that says what it is for. One that
carries trials has the records of each of them under ``"0:arrays"``, ``"1:arrays"`` and
so on, and so has its reply.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, ClassVar

from flwr.app import ConfigRecord, RecordDict

from flwr_fbo._common.fields import (
    check_fields,
    flag,
    from_json,
    instance,
    integer,
    ruled,
    several,
    to_json,
)
from flwr_fbo._common.validation import is_number, require
from flwr_fbo.privacy.spending_ledger import Promise
from flwr_fbo.secure import SecureSums
from flwr_fbo.study.codec import read_json
from flwr_fbo.tuner.ballots.example_ballots import MOST_EXAMPLES, ExampleBallots
from flwr_fbo.tuner.kind import TUNER

# Of its record, and in a site's ledger.
KIND = TUNER.name

HEADER = "fbo-tuner"
BALLOT = "fbo-ballot"
# What members of a secure sum are asked, and what they reply.
SUM = "fbo-sum"
# The receipts for the site, beside the header.
RECEIPTS = "fbo-receipts"

# Rungs of a tuner: no study releases more often.
_MOST_RELEASES = 10_000


def _check_attempt(name: str, attempt: Any) -> None:
    is_valid = (
        isinstance(attempt, str) and 1 <= len(attempt) <= 64 and attempt.isprintable()
    )
    require(is_valid, name, attempt, "1 to 64 printable characters")


def _check_no_attempt(name: str, attempt: Any) -> None:
    if attempt != "":
        _check_attempt(name, attempt)


def _check_trials(name: str, trials: Any) -> None:
    is_valid = isinstance(trials, tuple) and all(
        type(t) is int and 0 <= t < 2**63 for t in trials
    )
    is_valid = is_valid and len(set(trials)) == len(trials)
    require(is_valid, name, trials, "numbers of trials, each once")


def _check_settings(name: str, settings: Any) -> None:
    is_valid = isinstance(settings, dict) and all(
        isinstance(value, bool | int | float | str) for value in settings.values()
    )
    # A site's ledger would be in another folder with each message.
    is_valid = is_valid and "fbo-folder" not in settings
    require(is_valid, name, settings, "values as in a run config, and no fbo-folder")


def check_weights(name: str, weights: Any) -> None:
    """Raise ValueError unless it is weights of at least one metric."""
    is_valid = isinstance(weights, dict) and len(weights) > 0
    is_valid = is_valid and all(
        isinstance(key, str) and key != "" and is_number(w) and 1e-9 <= abs(w) <= 1e9
        for key, w in weights.items()
    )
    allowed = "names of metrics, each with a weight of size 1e-9 to 1e9"
    require(is_valid, name, weights, allowed)


def _check_metric(name: str, weights: Any) -> None:
    if weights != {}:
        check_weights(name, weights)


def _check_errors(name: str, errors: Any) -> None:
    is_valid = isinstance(errors, dict) and all(
        isinstance(e, str) for e in errors.values()
    )
    require(is_valid, name, errors, "texts by place")


def _check_keys(name: str, keys: Any) -> None:
    is_valid = isinstance(keys, tuple) and all(isinstance(key, str) for key in keys)
    require(is_valid, name, keys, "a list of keys")


_ATTEMPT = ruled(_check_attempt)
_TRIALS = ruled(_check_trials)
_PROMISE = instance(Promise, part=Promise)
_EXAMPLES = instance(ExampleBallots, optional=True, part=ExampleBallots)


@dataclass(frozen=True)
class TrialsHeader:
    """Header of a message that carries one or several trials' messages to a node.

    Attributes
    ----------
    attempt : str
        Names this run of the tuner: what clients have of others is forgotten.
    trials : tuple of int
        Whose messages they are, in order.
    settings : tuple of dict
        Values of each that replace those of the run config.
    alive : tuple of int
        All trials that may still come; what clients have of others is forgotten.
    metric : dict of str to float
        Weight in the score, of size 1e-9 to 1e9, of each of some metrics in a reply to
        ``evaluate``. Empty: the server scores the trials.
    is_hidden : bool
        Whether scores stay at the client.
    promise : Promise
        All releases of the rungs that are left.
    sums : SecureSums, optional
        How ballots are summed. None: the server reads each.
    rung, rounds : int
        Which rung it is, from 1, and its rounds of training, for the app's loggers.
    examples : ExampleBallots, optional
        How a ballot sums over the client's examples. None: it has ranks. Then the
        metric is one, as it is: a weight would move it out of its range.
    """

    kind: ClassVar[str] = "trials"
    attempt: str = field(metadata=_ATTEMPT)
    trials: tuple[int, ...] = field(metadata=_TRIALS)
    settings: tuple[dict[str, Any], ...] = field(
        metadata=several(ruled(_check_settings), allowed="one for each trial")
    )
    alive: tuple[int, ...] = field(metadata=_TRIALS)
    metric: dict[str, float] = field(metadata=ruled(_check_metric))
    is_hidden: bool = field(metadata=flag())
    promise: Promise = field(metadata=_PROMISE)
    sums: SecureSums | None = field(
        default=None, metadata=instance(SecureSums, optional=True, part=SecureSums)
    )
    rung: int = field(default=1, metadata=integer(1, _MOST_RELEASES))
    rounds: int = field(default=1, metadata=integer(1))
    examples: ExampleBallots | None = field(default=None, metadata=_EXAMPLES)


@dataclass(frozen=True)
class BallotHeader:
    """Header of a message that asks for a client's ballot at the end of a rung.

    Attributes
    ----------
    attempt : str
        Name of this run of the tuner.
    rung : int
        Number of the rung, from 0.
    trials : tuple of int
        The candidates, in the order of the ballot's entries.
    failed : tuple of int
        Those of them whose `main` has failed: worse than all others.
    is_exact : bool
        Whether scores and their weights are asked for, which is not private.
    maximize : bool
        Whether larger scores are better.
    promise : Promise
        As in `TrialsHeader`.
    release : int
        Number among the releases that are promised, from 1. A ballot is always
        about the client: there is none without a number.
    examples : ExampleBallots, optional
        As in `TrialsHeader`.
    """

    kind: ClassVar[str] = "ballot"
    attempt: str = field(metadata=_ATTEMPT)
    rung: int = field(metadata=integer(0, _MOST_RELEASES))
    trials: tuple[int, ...] = field(metadata=_TRIALS)
    failed: tuple[int, ...] = field(metadata=_TRIALS)
    is_exact: bool = field(metadata=flag())
    maximize: bool = field(metadata=flag())
    promise: Promise = field(metadata=_PROMISE)
    release: int = field(metadata=integer(1, _MOST_RELEASES))
    examples: ExampleBallots | None = field(default=None, metadata=_EXAMPLES)


@dataclass(frozen=True)
class SumHeader:
    """Header of one exchange of the secure sum of a rung's ballots.

    Attributes
    ----------
    ballot : BallotHeader
        Header that asks for the ballots of the rung.
    sums : SecureSums
        How ballots are summed, and the noise that clients add.
    slot : int
        The client's.
    exchange : int
        Number of the exchange, from 1 to 5.
    attempt : int
        At the sum; the server draws it.
    """

    kind: ClassVar[str] = "sum"
    ballot: BallotHeader = field(metadata=instance(BallotHeader, part=BallotHeader))
    sums: SecureSums = field(metadata=instance(SecureSums, part=SecureSums))
    slot: int = field(metadata=integer(0))
    exchange: int = field(metadata=integer(1, 5))
    attempt: int = field(metadata=integer(0, 2**63 - 1))

    @property
    def about(self) -> str:
        """Subject of the sum, as JSON: the same for all clients, in all exchanges."""
        subject = {"ballot": to_json(self.ballot), "sums": to_json(self.sums)}
        return json.dumps(subject, sort_keys=True)


@dataclass(frozen=True)
class SettingsHeader:
    """Header of a message of the real training: the settings that were chosen.

    Attributes
    ----------
    settings : dict
        Values that replace those of the run config.
    is_hidden : bool
        Whether metrics stay at the client, as they did while settings were compared.
    attempt : str
        Names the run of the tuner whose trial goes on in this training: the app finds
        the state that it had in the trial. Empty: a training of its own.
    trial : int
        Number of the trial that goes on.
    """

    kind: ClassVar[str] = "settings"
    settings: dict[str, Any] = field(metadata=ruled(_check_settings))
    is_hidden: bool = field(default=True, metadata=flag())
    attempt: str = field(default="", metadata=ruled(_check_no_attempt))
    trial: int = field(default=0, metadata=integer(0, 2**63 - 1))


@dataclass(frozen=True)
class ReplyHeader:
    """Header of a client's reply.

    Attributes
    ----------
    errors : dict of str to str
        Why a trial's message has no reply, by its place in the send.
    read : tuple of str
        Which of the tuned keys the client has read.
    keeps_state : bool
        Whether the app has anything in its ``context.state`` of a trial.
    slot : int
        The client's in secure sums, where it knows it; else -1.
    charges, head : int
        The newest mark of this run in the site's ledger (`Mark`); -1 and 0 where the
        site keeps none.
    agent : int
        The agent-id of the node config, or -1.
    num_examples : int
        Examples with which the client counts, where a ballot protects one; else 0.
    """

    kind: ClassVar[str] = "reply"
    errors: dict[str, str] = field(default_factory=dict, metadata=ruled(_check_errors))
    read: tuple[str, ...] = field(default=(), metadata=ruled(_check_keys))
    keeps_state: bool = field(default=False, metadata=flag())
    slot: int = field(default=-1, metadata=integer(-1))
    charges: int = field(default=-1, metadata=integer(-1, 2**31 - 1))
    head: int = field(default=0, metadata=integer(0, 2**62 - 1))
    agent: int = field(default=-1, metadata=integer(-1, 2**31 - 1))
    num_examples: int = field(default=0, metadata=integer(0, MOST_EXAMPLES))


Header = TrialsHeader | BallotHeader | SumHeader | SettingsHeader | ReplyHeader
_KINDS: dict[str, type[Header]] = {
    header.kind: header
    for header in (TrialsHeader, BallotHeader, SumHeader, SettingsHeader, ReplyHeader)
}


def _check(header: Header) -> None:
    """Raise ValueError unless each field is one that the other side may write."""
    check_fields(header)
    if isinstance(header, TrialsHeader):
        trials, settings = header.trials, header.settings
        # A site forgets what is not alive: a trial that is sent must be.
        is_alive = set(trials) <= set(header.alive)
        require(is_alive, "trials", trials, "some of those that are alive")
        is_paired = len(settings) == len(trials)
        require(is_paired, "settings", settings, "one for each trial")
        # A weight could make any range of a metric that of an accuracy.
        is_mean = header.examples is None or [*header.metric.values()] == [1]
        allowed = "one with the weight 1, with examples"
        require(is_mean, "metric", header.metric, allowed)
    elif isinstance(header, BallotHeader):
        trials, failed = header.trials, header.failed
        require(len(trials) > 0, "trials", trials, "one at least")
        require(set(failed) <= set(trials), "failed", failed, "some of the trials")
    elif isinstance(header, SumHeader):
        _check(header.ballot)


def header_record(header: Header) -> ConfigRecord:
    """Return the record of a header."""
    return ConfigRecord({"kind": header.kind, "fields": json.dumps(to_json(header))})


def read_header(content: RecordDict, most_characters: float = inf) -> Header | None:
    """Return the header of a message; None where it is not the tuner's.

    Parameters
    ----------
    content : RecordDict
        Content of the message.
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
    # Before it is parsed: parsing takes time that grows with it.
    length = len(str(text))
    require(length <= most_characters, "length", length, f"to {most_characters:g}")
    try:
        header: Header = from_json(_KINDS[str(kind)], read_json(str(text)))
        # Each field by itself, and then fields that must fit together.
        _check(header)
    except (AttributeError, KeyError, RecursionError, TypeError) as error:
        raise ValueError(f"The header is not one of {kind!r}: {error!r}.") from None
    return header


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
