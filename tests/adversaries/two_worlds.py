"""Two worlds that differ in one datum of one site, and one server that writes to both.

    python -m tests.adversaries.two_worlds [KIND ...] [--messages 100000] [--seed 1]

A server of the kind is honest at first: it enrols the site, has it play, and asks for
releases. Then any field of any of its messages is changed. It also looks for the number
at which a site begins to answer otherwise, by bisection: there it would show what
depends on the site's data. The same messages then go to the other world, in which one
score, one reward, one context or one metric is another. A finding is, in any reply,

- an error here and none there, or another text of it;
- other records, keys, their order, types, shapes or sizes;
- another value, unless the site's ledger has the charge for it as the reply leaves, by
  the table of `flwr_fbo.site.gate`;
- another row of the ledger, or another file in the site's folder.

Chance, keys and the clock are the same in both worlds, so all else is data. How long a
site takes is not looked at. What an app trains is not covered by a tuner's guarantee:
these arrays are the same in both worlds, and so are the types of an app's errors. The
metrics of an app's own messages may differ at a site without limits.

Printed is a line a kind, and of each finding the fewest messages that still show it,
with what was changed in each. All follow from the kind, the seed and the number of the
dialogue; ``--dialogue N`` plays one again. The exit status is 1 if there is a finding.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import re
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)

from flwr_fbo._compat import ensure_task_identity
from flwr_fbo.privacy.spending_ledger import FILE_NAME, UNPROTECTED
from flwr_fbo.site.kept_ledger import KeptLedger
from tests.adversaries.honest_servers import (
    JSON,
    NO_ROW,
    RUN_CONFIG,
    SIZES,
    Kind,
    Linear,
    Members,
    Neural,
    Place,
    Script,
    SecureTuner,
    SecureTuning,
    Seen,
    Setting,
    Tree,
    Tuner,
    Tuning,
    closed,
    is_row,
)
from tests.adversaries.same_chance import Chance, same_chance

MESSAGES, SEED = 100_000, 1
# Share of the dialogues that look for a number by bisection, and their messages.
BISECTING, WHILE_BISECTING = 0.35, 40
# Different findings of a kind that are told.
MOST_FINDINGS = 10

Way = tuple[Any, ...]
Edit = tuple[Way, Any]
# In place of a value that is taken away.
AWAY = object()

TYPES = ("train", "evaluate", "query", "train.tune", "evaluate.other")
JUNK: list[Any] = [
    *(None, False, True, "", "a", "../x", "x" * 2000, [], {}, [0], [[]], {"a": 1}),
    *(0, 1, -1, 0.0, 0.5, math.nan, math.inf, 10**30, b"", b"x", [0.5], ["a"]),
]
INTEGERS = [0, 1, 2, 3, -1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, 10**38]
FLOATS = [0.0, -0.0, 5e-324, 1e-308, 1e-16, 1.0, 1e16, 1.7e308, math.inf, math.nan]


# Messages


@dataclass(frozen=True)
class Letter:
    """A message of an honest server, and what was changed in it.

    Attributes
    ----------
    number : int
        What its receiver draws from; kept where other messages are left out.
    honest : dict
        What an honest server has written.
    edits : tuple
        What was changed, in order: where, and to which value.
    restarts : bool
        Whether the site's SuperNode has lost its state before.
    """

    number: int
    honest: Tree
    edits: tuple[Edit, ...] = ()
    restarts: bool = False

    @property
    def tree(self) -> Tree:
        """What is sent."""
        tree: Tree = copied(self.honest)
        for way, value in self.edits:
            put(tree, way, value)
        return tree

    def __str__(self) -> str:
        lines = [f"{self.honest['type']} {_shown(self.honest['records'])}"]
        lines += ["the site's SuperNode has restarted"] * self.restarts
        for way, value in self.edits:
            names = (str(key) for key in way if key not in (JSON, "records", "of"))
            lines.append(f"{'.'.join(names)} := {_shown(value)}")
        return "\n       ".join(lines)


@dataclass(frozen=True)
class Times:
    """An array by a factor, as the value of a change."""

    factor: float


def copied(value: Any) -> Any:
    """Return a copy of a tree; its leaves are never changed."""
    if isinstance(value, dict):
        return {name: copied(one) for name, one in value.items()}
    return [copied(one) for one in value] if isinstance(value, list) else value


def put(tree: Tree, way: Way, value: Any) -> None:
    """Change one place of a tree, if it has it."""
    holder: Any = tree
    with suppress(KeyError, IndexError, TypeError):
        for key in way[:-1]:
            holder = holder[key]
        if value is AWAY:
            del holder[way[-1]]
        elif isinstance(value, Times):
            with np.errstate(all="ignore"):
                holder[way[-1]] = holder[way[-1]] * value.factor
        elif isinstance(holder, dict | list):
            holder[way[-1]] = copied(value)


def places(value: Any, way: Way = ()) -> Iterator[tuple[Way, Any]]:
    """Yield the way to each place of a tree, and what is there."""
    pairs: Any = value.items() if isinstance(value, dict) else ()
    for key, below in enumerate(value) if isinstance(value, list) else pairs:
        yield (*way, key), below
        yield from places(below, (*way, key))


def _shown(value: Any) -> str:
    text = json.dumps(_plain(value))
    return text if len(text) < 4000 else f"{text[:3900]} ..."


def _plain(value: Any) -> Any:
    """Return a tree as JSON values, for whoever reads it."""
    if isinstance(value, dict):
        value = value["of"] if value.keys() == {"is", "of"} else value.get(JSON, value)
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{[*value.shape]} {value.ravel()[:40].tolist()}"
    is_json = isinstance(value, str | int | float | None)
    return value if is_json else "(taken away)" if value is AWAY else repr(value)


def content_of(tree: Tree) -> RecordDict:
    """Return a message's content: as much of it as Flower can send."""
    content, found = RecordDict(), tree.get("records")
    for name, one in found.items() if isinstance(found, dict) else ():
        kind = one.get("is") if isinstance(one, dict) else None
        if isinstance(kind, str) and kind in _RECORDS:
            content[name] = _record(kind, one.get("of"))
    return content


_RECORDS: dict[str, Any] = {
    "config": ConfigRecord,
    "metrics": MetricRecord,
    "arrays": ArrayRecord,
}


def _record(kind: str, entries: Any) -> Any:
    record = _RECORDS[kind]()
    for key, value in entries.items() if isinstance(entries, dict) else ():
        sent = closed(value)
        if isinstance(sent, dict) or sent is None:
            sent = json.dumps(sent, default=repr)
        if type(sent) is int and not -(2**63) <= sent < 2**63:
            continue
        with suppress(TypeError, ValueError):  # what Flower does not take
            record[key] = Array(np.asarray(sent)) if kind == "arrays" else sent
    return record


# Changes


def new_edit(tree: Tree, rng: Random, vocabulary: dict[str, list[Any]]) -> Edit:
    """Return a change of one place: of a number in most cases."""
    found = [*places(tree)]
    numbers = [pair for pair in found if _is_number(pair[1])]
    if numbers and rng.random() < 0.6:
        way, value = rng.choice(numbers)
        return way, other_number(value, rng)
    way, value = rng.choice(found)
    names = [key for key in way if isinstance(key, str) and key not in (JSON, "of")]
    known = vocabulary.get(names[-1], [])
    if known and rng.random() < 0.5:
        return way, rng.choice(known)
    return way, _other(way, value, rng)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.ndarray)


def other_number(value: Any, rng: Random) -> Any:
    """Return another number, flag or array; often one that is nearly right."""
    if isinstance(value, np.ndarray):
        return other_array(value, rng)
    if isinstance(value, bool):
        return rng.choice([not value, not value, not value, int(value), None])
    near: list[Any]
    if isinstance(value, int):
        near = [value + 1, value - 1, 2 * value, -value, rng.randrange(9)]
        return rng.choice([*near, *near, *INTEGERS, float(value), value + 0.5])
    way = rng.random()
    if way < 0.3:
        return value * 10.0 ** rng.uniform(-2, 2)
    if way < 0.5:
        return rng.choice([1, 1, -1]) * 10.0 ** rng.uniform(-20, 20)
    if way < 0.6:
        return 10.0 ** rng.uniform(-308, 308)
    near = [value * (1 + 1e-12), math.nextafter(value, 0.0), -value]
    return rng.choice([*near, *near, *FLOATS, *INTEGERS])


def other_array(array: Any, rng: Random) -> Any:
    """Return an array of other numbers, of another shape or type, or bytes."""
    if array.dtype == np.uint8:
        return rng.choice(_other_bytes(array, rng))
    size = 10.0 ** rng.uniform(-20, 20) if rng.random() < 0.7 else 1e300
    odd = rng.choice([math.nan, math.inf, size, -size])
    one = array if array.ndim else array[None]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        changed: list[Any] = [
            *(array * size, array * size, array * rng.uniform(-2, 2), -array),
            *(np.zeros_like(array), np.full_like(array, size), _with(array, rng, odd)),
            *(array.swapaxes(0, -1) if array.ndim else array, array.ravel(), one[None]),
            *(one[:-1], np.concatenate([one, one]), np.zeros(0), np.float64(size)),
            *(array.astype(t) for t in (np.float32, np.int64, np.complex128, "U8")),
            np.frombuffer(rng.randbytes(array.nbytes), np.uint8),
        ]
    return np.asarray(rng.choice(changed))


def _other_bytes(array: Any, rng: Random) -> list[Any]:
    random = np.frombuffer(rng.randbytes(max(1, array.size)), np.uint8)
    changed = [_with(array, rng, rng.randrange(256)) for _ in range(4)]
    parts = [array[:-1], array[1:], np.concatenate([array, random[:1]]), array[::-1]]
    return [*changed, *parts, random, array.astype(float), np.zeros(0, np.uint8)]


def _with(array: Any, rng: Random, value: Any) -> Any:
    changed = np.array(array)
    if changed.size:
        changed.flat[rng.randrange(changed.size)] = value
    return changed


def _other(way: Way, value: Any, rng: Random) -> Any:
    """Return something else for a place, whatever it has."""
    if way == ("type",):
        return rng.choice(TYPES)
    ways: list[Callable[[], Any]] = [lambda: AWAY, lambda: rng.choice(JUNK)]
    if isinstance(value, list) and value:
        ways += [lambda: value[:-1], lambda: [*value, value[0]], lambda: value[::-1]]
    if isinstance(value, dict) and value:
        keys = [*value]
        ways += [
            lambda: {**value, rng.choice(["more", "0", "metrics"]): rng.choice(JUNK)},
            lambda: {key: value[key] for key in keys[:-1]},
            lambda: {key: value[key] for key in keys[::-1]},
        ]
    if isinstance(value, str):
        ways += [lambda: f"{value}x", lambda: value[:-1], value.upper]
    return rng.choice(ways)()


# Worlds


class World:
    """One site in one of the two worlds, with a folder of its own, at first empty."""

    def __init__(
        self, kind: Kind, setting: Setting, which: int, folder: Path, chance: Chance
    ) -> None:
        self._app, self._chance = kind.app(setting, which), chance
        shutil.rmtree(folder, ignore_errors=True)
        self._folder = folder if setting.has_folder else None
        named = {"fbo-folder": str(folder)} if setting.has_folder else {}
        node, run_config = {**setting.node, **named}, {**RUN_CONFIG}
        self._context = Context(1, 1, node, RecordDict(), run_config)
        self._stamp: Any = None
        self._rows: tuple[tuple[str, ...], dict[Any, float]] = (), {}

    def ask(self, letter: Letter) -> Seen:
        """Return what the site answers."""
        seen = Seen(letter.tree)
        if letter.restarts:
            self._context.state = RecordDict()
        kind = seen.tree.get("type")
        kind = kind if kind in TYPES else TYPES[0]
        message = Message(content_of(seen.tree), 1, kind)
        self._chance.begin(letter.number)
        try:
            reply = self._app(message, self._context)
        except Exception as error:  # Flower sends type and text of any
            seen.error = f"{type(error).__name__}: {error}"
        else:
            if reply.has_error():
                seen.error = f"{reply.error.code}: {reply.error.reason}"
            else:
                seen.content = reply.content
                seen.shape, seen.values = _looked_at(reply.content)
        if self._folder is not None:
            seen.files = tuple(sorted(one.name for one in self._folder.glob("*")))
        seen.rows, seen.charged = self._ledger()
        return seen

    def _ledger(self) -> tuple[tuple[str, ...], dict[Any, float]]:
        """Read the ledger as it is on disk, unless it is as it was."""
        stamp: Any = None
        if self._folder is None:
            records = self._context.state.config_records
            stamp = [(n, r) for n, r in records.items() if n.endswith("spending")]
        else:
            with suppress(FileNotFoundError):
                status = (self._folder / FILE_NAME).stat()
                stamp = status.st_mtime_ns, status.st_size
        if stamp != self._stamp:
            with KeptLedger(self._context, self._folder).held() as ledger:
                facts = [row.facts for row in ledger.rows]
            names = "study_kind", "study_id", "release"
            rows = tuple(json.dumps(one, sort_keys=True) for one in facts)
            noise = {tuple(one[n] for n in names): one["charge"][0] for one in facts}
            self._rows = rows, noise
            self._stamp = stamp
        return self._rows


def _looked_at(content: RecordDict) -> tuple[tuple[Any, ...], dict[Place, Any]]:
    """Return names and types of a reply, in order, and sizes and values."""
    shape: list[Any] = []
    facts: tuple[Any, ...]
    values: dict[Place, Any] = {}
    for name, record in content.items():
        shape.append((name, type(record).__name__))
        for key, value in record.items():
            place, facts = (name, str(key)), (type(value).__name__,)
            if isinstance(value, Array):
                facts = value.dtype, *value.shape, value.stype
                values[place] = len(value.data), value.data
            else:
                values[place] = _size(value), repr(value)
            shape.append((place, facts))
    return tuple(shape), values


def _size(value: Any) -> Any:
    """Return how long a value is on its way; floats and flags are as long as any."""
    if isinstance(value, list):
        return [_size(one) for one in value]
    if isinstance(value, str | bytes):
        return len(value)
    # Groups of seven bits; a negative number has all ten.
    return (max(0, value) or 2**63).bit_length() // 7 if type(value) is int else 0


def difference(kind: Kind, setting: Setting, one: Seen, other: Seen) -> str:
    """Return what tells two worlds apart by one reply; empty if nothing may."""
    if one.rows != other.rows:
        return f"ledgers differ: {one.rows} | {other.rows}"
    if one.files != other.files:
        return f"files differ: {one.files} | {other.files}"
    if kind.is_open(setting, one):
        return ""
    if one.error != other.error:
        texts = [seen.error or "an answer" for seen in (one, other)]
        return f"errors differ: {texts[0]} | {texts[1]}"
    if one.shape != other.shape:
        pairs = zip(one.shape, other.shape, strict=False)
        first = next((p for p in pairs if p[0] != p[1]), (one.shape, other.shape))
        return f"shapes differ: {first[0]} | {first[1]}"
    for place in differing(one, other):
        row, name = kind.row_of(setting, one.tree, place), ".".join(place)
        if row is None:  # the app's own
            continue
        known = one.charged if setting.has_ledger else {row}
        if row == NO_ROW or not is_row(row) or row not in known:
            return f"{name} differs, and no row of the ledger is {row}"
        is_ours = row[2] != UNPROTECTED
        if is_ours and one.values[place][0] != other.values[place][0]:
            return f"the size of {name} differs"
    return ""


def differing(one: Seen, other: Seen) -> list[Place]:
    """Return where the values of two replies differ."""
    return [p for p, value in one.values.items() if value != other.values.get(p)]


# Dialogues


class Dialogue:
    """What one site of one kind is asked in a row, and answers in the first world."""

    def __init__(self, kind: Kind, rng: Random, folder: Path, chance: Chance) -> None:
        self._kind, self._rng, self._chance, self._folder = kind, rng, chance, folder
        self._bisects = rng.random() < BISECTING
        self.setting = kind.setting(rng)
        if self._bisects:  # with many studies, which would soon cost too much
            node = kind.open_node(self.setting)
            self.setting = replace(self.setting, node=node, has_folder=False)
        self.letters: list[Letter] = []
        self.seen: list[Seen] = []
        self._num_studies = 0
        self._world = self.world(0)

    def world(self, which: int) -> World:
        """Return the site in one of the two worlds, before the first message."""
        about = self.setting, which, self._folder, self._chance
        return World(self._kind, *about)

    def play(self) -> None:
        """Write the messages, as a server would that sees the first world."""
        if self._bisects:
            self._bisect()
        while not self._bisects and len(self.letters) < self._kind.in_a_row:
            self._walk()

    def replayed(self, letters: Sequence[Letter], which: int) -> Iterator[Seen]:
        """Yield what the site answers to messages, from the beginning."""
        world = self.world(which)
        for letter in letters:
            yield world.ask(letter)

    def told_by(self, letters: Sequence[Letter]) -> tuple[int, str]:
        """Return which of the messages tells the worlds apart, and how; or none."""
        # One world after the other, as they have one folder.
        first = [*self.replayed(letters, 0)]
        for i, other in enumerate(self.replayed(letters, 1)):
            if text := difference(self._kind, self.setting, first[i], other):
                return i, text
        return -1, ""

    def _script(self, rng: Random) -> Script:
        """Return a new study's server."""
        self._num_studies += 1
        return self._kind.script(rng, self.setting, f"s{self._num_studies}")

    def _send(self, honest: Tree, edits: Sequence[Edit]) -> Seen:
        restarts = not self._bisects and self._rng.random() < 0.02
        letter = Letter(len(self.letters) + 1, honest, tuple(edits), restarts)
        self.letters.append(letter)
        self.seen.append(self._world.ask(letter))
        # Peers draw, too: not what the site has drawn.
        self._chance.begin(letter.number, 1)
        return self.seen[-1]

    def _walk(self) -> None:
        """Play one study, with some changes from the first message on; add others."""
        rng, script = self._rng, self._script(self._rng)
        asked: Tree | None = next(script)
        kept = self._edits(asked, [0, 0, 1, 1, 2, 3])
        while asked is not None and len(self.letters) < self._kind.in_a_row:
            way = rng.random()
            if way < self._kind.mischief:
                self._send(asked, [*kept, *self._edits(asked, [1, 1, 2])])
            elif way < self._kind.mischief + 0.1 and self.letters:
                old = rng.choice(self.letters)
                self._send(old.honest, [*old.edits, *self._edits(old.honest, [0, 1])])
            elif way < self._kind.mischief + 0.15:
                return
            asked = _next(script, self._send(asked, kept))

    def _edits(self, asked: Tree | None, numbers: Sequence[int]) -> list[Edit]:
        count = self._rng.choice(numbers)
        about = asked or {}, self._rng, self._kind.vocabulary
        return [new_edit(*about) for _ in range(count)]

    def _bisect(self) -> None:
        """Look for the number at which a site begins to answer otherwise.

        It is the same study each time, but for its name and for that number.
        """
        rng, about = (
            self._rng,
            (self._rng.randrange(2**32), self._rng.choice([2, 2, 3])),
        )
        usual = self._outcome(*about, [])
        found = {
            way: value
            for letter in self.letters
            for way, value in places(letter.honest)
            if _is_number(value) and not isinstance(value, bool)
        }
        # Whole numbers mostly count something.
        weights = [1 if isinstance(value, int) else 6 for value in found.values()]
        [(way, value)] = rng.choices([*found.items()], weights)
        is_array, is_whole = isinstance(value, np.ndarray), isinstance(value, int)
        near = 1.0 if is_array else float(value)

        def is_usual(number: float) -> bool:
            sent: Any = Times(number) if is_array else number
            sent = int(number) if is_whole and math.isfinite(number) else sent
            return bool(self._outcome(*about, [(way, sent)]) == usual)

        far = next((n for n in _far_from(near, rng) if not is_usual(n)), near)
        while far != near and len(self.letters) < WHILE_BISECTING:
            middle = _between(near, far)
            if abs(far - near) > abs(middle) and not (is_whole and abs(middle) < 1):
                near, far = (middle, far) if is_usual(middle) else (near, middle)
            else:  # it may be another number there, for other data
                is_usual(middle * 10.0 ** rng.uniform(-1.5, 1.5))

    def _outcome(self, seed: int, messages: int, edits: Sequence[Edit]) -> Any:
        """Return what a study's first messages give, but for values and numbers."""
        script, outcome = self._script(Random(seed)), []
        asked: Tree | None = next(script)
        for _ in range(messages):
            if asked is None:
                break
            seen = self._send(asked, edits)
            outcome.append((_without_numbers(seen.error), seen.shape))
            if seen.error:
                break
            asked = _next(script, seen)
        return outcome


def _next(script: Script, seen: Seen) -> Tree | None:
    """Return a server's next message, if it has one."""
    try:
        return script.send(seen)
    except StopIteration:
        return None


def _far_from(number: float, rng: Random) -> list[float]:
    """Return some numbers of quite another size."""
    exponents = [rng.uniform(*ends) for ends in ((-20, -8), (8, 20), (-6, 0), (0, 6))]
    exponents[rng.choice([2, 3])] = rng.choice([-math.inf, -300, 300])
    rng.shuffle(exponents)
    return [(number or 1.0) * 10.0**exponent for exponent in exponents]


def _between(one: float, other: float) -> float:
    """Return the middle of two numbers, by their sizes."""
    if one * other <= 0:
        return (one + other) / 2
    return math.copysign(math.sqrt(abs(one)) * math.sqrt(abs(other)), one)


def _without_numbers(text: str) -> str:
    return re.sub(r"[-+]?\d+\.?\d*(e[-+]?\d+)?|[-+]?(inf|nan)\b", "#", text)


# Findings


@dataclass
class Finding:
    """What tells two worlds apart, and the messages that show it.

    Attributes
    ----------
    text : str
        What differs in the reply to the last message.
    dialogue, message : int
        In which dialogue of the kind it was, and after how many messages in all.
    setting : Setting
    letters : list of Letter
    """

    text: str
    dialogue: int
    message: int
    setting: Setting
    letters: list[Letter] = field(default_factory=list)

    @property
    def sign(self) -> str:
        """What another finding has, too, if it is of the same fault."""
        return re.sub(r"\W+", " ", re.sub(r"'[^']*'", "", _without_numbers(self.text)))

    def __str__(self) -> str:
        node = {k: v for k, v in self.setting.node.items() if k not in SIZES}
        about = f"    {replace(self.setting, node=node)}"
        letters = [f"    {i}. {one}" for i, one in enumerate(self.letters, 1)]
        return "\n".join([f"dialogue {self.dialogue}: {self.text}", about, *letters])


def shortest(dialogue: Dialogue, letters: Sequence[Letter]) -> tuple[list[Letter], str]:
    """Return as few messages, with as few changes, as still tell the worlds apart.

    All of them, where they do not when they are sent anew: something outlives a site.
    """
    end, text = dialogue.told_by(letters)
    left = list(letters[: end + 1] if text else letters)

    def is_told(fewer: list[Letter]) -> bool:
        nonlocal left, text
        end, said = dialogue.told_by(fewer)
        if said:
            left, text = fewer[: end + 1], said
        return bool(said)

    for i in reversed(range(len(left))):
        if i < len(left):
            is_told([*left[:i], *left[i + 1 :]])
    for i in range(len(left)):
        for j in reversed(range(len(left[i].edits) if i < len(left) else 0)):
            edits = left[i].edits
            fewer = replace(left[i], edits=(*edits[:j], *edits[j + 1 :]))
            is_told([*left[:i], fewer, *left[i + 1 :]])
            if i >= len(left):
                break
    return left, text


@dataclass
class Tally:
    """What came of the messages to a kind.

    Attributes
    ----------
    asked, answered, differing, rows : int
        Messages to each world; of them those without an error, and those whose values
        differed, as they may; rows of all ledgers.
    seconds : float
    findings : list of Finding
        One of each sign.
    """

    asked: int = 0
    answered: int = 0
    differing: int = 0
    rows: int = 0
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)


# Of each name the kinds of servers, one of which each dialogue has.
KINDS: dict[str, Callable[[Members], list[Kind]]] = {
    "tuning": lambda _: [Tuning()],
    "linear": lambda _: [Linear()],
    "neural": lambda _: [Neural()],
    "tuner": lambda _: [Tuner()],
    "secure": lambda members: [SecureTuning(members), SecureTuner(members)],
}


def prove(
    name: str,
    messages: int = MESSAGES,
    seed: int = SEED,
    dialogue: int | None = None,
    most_findings: int = 1,
) -> Tally:
    """Send so many messages, or a few more, to two worlds of a kind.

    Parameters
    ----------
    name : str
        Of `KINDS`.
    messages : int
    seed : int
    dialogue : int, optional
        Only this one.
    most_findings : int
        After so many different ones it ends.
    """
    ensure_task_identity()
    tally, began, number = Tally(), time.perf_counter(), 0
    with _silent(), _folder() as folder, same_chance() as chance:
        kinds = KINDS[name](Members.in_folder(folder))
        while tally.asked < messages and len(tally.findings) < most_findings:
            number = number + 1 if dialogue is None else dialogue
            rng = Random(f"{name} {seed} {number}")
            played = Dialogue(rng.choice(kinds), rng, folder / "site", chance)
            _compare(played, number, tally)
            if dialogue is not None:
                break
    tally.seconds = time.perf_counter() - began
    return tally


def _compare(played: Dialogue, number: int, tally: Tally) -> None:
    played.play()
    letters, before = played.letters, tally.asked
    text, count = "", 0
    for other in played.replayed(letters, 1):
        one = played.seen[count]
        count += 1
        tally.answered += not one.error
        tally.differing += one.error == other.error and bool(differing(one, other))
        if text := difference(played._kind, played.setting, one, other):
            break
    tally.asked += len(letters)
    tally.rows += len(played.seen[-1].rows)
    if not text:
        return
    finding = Finding(text, number, before + count, played.setting)
    if finding.sign not in [known.sign for known in tally.findings]:
        finding.letters, text = shortest(played, letters[:count])
        finding.text = text or f"{finding.text} (not when it is played again)"
        tally.findings.append(finding)


@contextmanager
def _silent() -> Iterator[None]:
    """Log nothing: sites have a line and more on each message."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logging.disable(before)


@contextmanager
def _folder() -> Iterator[Path]:
    """Have a folder, in memory where there is one: files are not what takes long."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


def main() -> None:
    """Look at all kinds, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--messages", type=int, default=MESSAGES, help="to each world")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--dialogue", type=int, help="play only this one")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    names = "messages", "answered", "differing", "rows", "findings", "seconds"
    print(f"{'kind':8}", *(f"{name:>9}" for name in names), flush=True)
    missed = 0
    for kind in options.kinds or KINDS:
        about = options.messages, options.seed, options.dialogue, MOST_FINDINGS
        tally = prove(kind, *about)
        counts = tally.asked, tally.answered, tally.differing, tally.rows
        figures = (*counts, len(tally.findings), round(tally.seconds))
        print(f"{kind:8}", *(f"{n:9}" for n in figures), flush=True)
        for finding in tally.findings:
            print(f"FINDING after {finding.message} messages, {finding}", flush=True)
        missed += len(tally.findings)
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
