"""A server that attacks live sites of a bandit with secure sums, message by message.

    python -m tests.adversaries.secure_bandit [--messages 10000] [--seed 0]

Five sites have a folder, a ledger, limits, a roster and a key each. An honest server
plays studies with them, one after another, and among its messages are lies: fields and
studies that are changed, arrays of other bytes, types and shapes, messages that were
sent to another site or before, and sums over other sites. Some take the place of an
honest message. Each goes the whole way, as in a deployment: client app, gate, ledger,
journal, sum. At the end of a study the server asks for two sums of the same blocks,
over two sets of sites: in two attempts, or in one.

After each message must hold: what left is charged, and the ledger is within the limits;
a site has given one answer to one exchange of an attempt, and drawn one share of the
noise a release. In the end: all sites together have unmasked one set of sites of a
release, under one attempt, and a trial is in one block.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import random
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from numpy.typing import NDArray

from flwr_fbo import FedUCB, InProcessGrid, Limits, linear_bandit_app
from flwr_fbo._compat import reply_arrays, to_array_record
from flwr_fbo.bandits import ContinualSettings, LinearUCBSettings
from flwr_fbo.bandits.kind import LINEAR_SITE
from flwr_fbo.bandits.linear.study import LinearBanditStudy
from flwr_fbo.journal.journal import Journal
from flwr_fbo.privacy.filters import Spent
from flwr_fbo.privacy.spending_ledger import FILE_NAME, Charge, SpendingLedger
from flwr_fbo.secure import SecureAggregation, SumRequest
from flwr_fbo.secure.block_noise import BlockNoise
from flwr_fbo.secure.terms import Exchange
from flwr_fbo.secure.wire import PayloadError, set_bytes, to_payload
from flwr_fbo.study.codec import STUDY_ENTRY
from tests.adversaries.summed_blocks import another_set, fewer_sites, flipped
from tests.support.grouped import hosted
from tests.support.ledgers import ledger_charges
from tests.support.secure_studies import Keys, arrays_of, configs_of, make_keys

NUM_SITES, NUM_RELEASES = 5, 6
RELEASES = ContinualSettings(NUM_RELEASES, 3, 4.0, 1e-5, mechanism="blocks")
SETTINGS = LinearUCBSettings(RELEASES, local_data="released")
# Two studies fit, and a third one does not.
EPSILON, DELTA = 6.5, 1e-5
MIN_SUMMED = 4
# How likely a lie comes before an honest message, and takes its place.
_LIES, _IN_PLACE = 0.5, 0.1
# How likely an honest message does not reach its site.
_LOST = 0.02
# Studies of a server before it finds new sites.
_STUDIES = 4
# Errors by which a site may refuse: all of messages, none of data. The last one is of
# arrays that do not fit, where the study is charged: it has one text.
_REFUSALS = (
    "RefusedError",
    "StudyMismatchError",
    "JournalError",
    "ValueError",
    "AppFailedError",
)


class _EnoughError(Exception):
    """As many messages as there should be."""


class Ward:
    """An environment of three arms."""

    def contexts(self, t: int) -> NDArray[np.float64]:
        return np.eye(3)

    def reward(self, x: NDArray[np.float64]) -> float:
        return float(x @ [0.2, 0.3, 0.8])


@dataclass
class Tally:
    """What was asked, and what went wrong.

    Attributes
    ----------
    asked, answered, masked, unmasked : int
        Messages, replies with data, masked blocks, and answers to a last exchange.
    releases : int
        Releases that honest servers made.
    only_once : int
        Releases of which one sum was made, and a second one over other sites refused.
    refused : Counter
        Errors, by type.
    violations : list of str
        What must not happen.
    """

    asked: int = 0
    answered: int = 0
    masked: int = 0
    unmasked: int = 0
    releases: int = 0
    only_once: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)


class About(NamedTuple):
    """What an answer of a site in a sum is about."""

    study: str
    release: int
    attempt: int
    exchange: int


class Site:
    """A site, and what it has let go."""

    def __init__(self, slot: int, folder: Path) -> None:
        self.slot, self.folder = slot, folder
        # Charges that its answers cost, by study.
        self.costs: set[tuple[str, Charge]] = set()
        self.replies: dict[About, bytes] = {}
        self.told: dict[About, bytes] = {}
        self.shares: Counter[tuple[str, int]] = Counter()
        self.now = "", 0

    def charges(self) -> list[Charge]:
        """Return what its ledger has."""
        if not (self.folder / FILE_NAME).is_file():
            return []
        with SpendingLedger.held(self.folder) as ledger:
            return ledger_charges(ledger)

    def check(self, asked: Message, reply: Message, tally: Tally) -> None:
        """Note what is wrong with an answer, if anything is."""
        config, wrong = dict(configs_of(asked)[0]), tally.violations
        if reply.has_error():
            reason = str(reply.error.reason)
            kind = next((name for name in _REFUSALS if name in reason), reason)
            tally.refused[kind] += 1
            if kind not in _REFUSALS:
                wrong.append(f"site {self.slot} fails: {reason[:300]}")
        arrays = [] if reply.has_error() else reply_arrays(reply.content)
        if arrays:
            tally.answered += 1
            self._note(config, asked, arrays, tally)
        charges = self.charges()
        missing = Counter(charge for _, charge in self.costs) - Counter(charges)
        if missing:
            wrong.append(f"site {self.slot}: {missing} not charged for {self.now}")
        if charges and Spent(tuple((c,) for c in charges)).exceeds(EPSILON, DELTA):
            wrong.append(f"site {self.slot} is beyond its limit: {charges}")
        again = [about for about, count in self.shares.items() if count > 1]
        if again:
            wrong.append(f"site {self.slot} draws shares again: {again}")

    def _note(
        self,
        config: dict[str, Any],
        asked: Message,
        arrays: list[NDArray[Any]],
        tally: Tally,
    ) -> None:
        """Take note of what an answer with arrays is about, and costs."""
        study = LinearBanditStudy.from_dict(json.loads(str(config[STUDY_ENTRY])))
        [charge] = study.promise.charges
        self.costs.add((study.study_id, charge))
        entries = (int(config[f"fbo-{e}"]) for e in ("release", "attempt", "exchange"))
        about = About(study.study_id, *entries)
        if study.secure is None and study.private:
            return  # it has the site's own noise, and is charged: it needs no mask
        if config["fbo-phase"] != "sum" or study.secure is None or len(arrays) != 1:
            tally.violations.append(f"site {self.slot} answers {config} unmasked")
            return
        reply = arrays[0].tobytes()
        if self.replies.setdefault(about, reply) != reply:
            tally.violations.append(f"two answers of site {self.slot} to {about}")
        tally.masked += about.exchange == Exchange.MASK
        tally.unmasked += about.exchange == Exchange.UNMASK
        if about.exchange == Exchange.CONFIRM:
            size = set_bytes(tuple(range(NUM_SITES)))
            payload = next(iter(arrays_of(asked)[0].values())).numpy()
            self.told[about] = payload.tobytes()[:size]


class LyingGrid(InProcessGrid):
    """A grid that lies to the sites, among what an honest server sends.

    Parameters
    ----------
    folder : Path
        Where sites have their folders, keys and roster.
    rng : random.Random
    tally : Tally
    messages : int
        Number of messages after which it ends.
    """

    def __init__(
        self, folder: Path, rng: random.Random, tally: Tally, messages: int
    ) -> None:
        self.keys: Keys = make_keys(folder, NUM_SITES)
        self.sites = [Site(slot, folder / f"site-{slot}") for slot in range(NUM_SITES)]
        configs = self.keys.node_configs()
        for site, config in zip(self.sites, configs, strict=True):
            site.folder.mkdir()
            config["fbo-folder"] = str(site.folder)
            config["fbo-min-threshold"] = 3
        limits = Limits(
            max_epsilon_per_example=EPSILON, max_delta=DELTA, max_uniform_share=0.0
        )
        app = linear_bandit_app(make_environment=lambda _: Ward(), limits=limits)
        super().__init__(app, NUM_SITES, node_configs=configs)
        self.rng, self._tally, self._most = rng, tally, messages
        self.is_lying = True
        self._of_node = dict(zip(self.contexts, self.sites, strict=True))
        self._sent: list[Message] = []

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        replies = []
        for honest in messages:
            rng, lied = self.rng, None
            if not self.is_lying:
                replies.append(self._ask(honest))
                continue
            self._sent.append(honest)
            if rng.random() < _LIES:
                lied = self._ask(self._lie(honest))
                if rng.random() < 0.2:  # and once more, as it was
                    self._ask(self._again(rng.choice(self._sent), honest))
            in_place = lied is not None and rng.random() < _IN_PLACE
            if rng.random() < _LOST:
                continue
            reply = lied if in_place and lied is not None else self._ask(honest)
            content: RecordDict | Error = (
                reply.error if reply.has_error() else reply.content
            )
            replies.append(Message(content, reply_to=honest))
        return replies

    def _ask(self, message: Message) -> Message:
        """Ask a site, and check what it does."""
        if self._tally.asked >= self._most:
            raise _EnoughError
        self._tally.asked += 1
        site = self._of_node[message.metadata.dst_node_id]
        config = dict(configs_of(message)[0])
        study = str(config.get(STUDY_ENTRY))
        name = study.partition('"study_id":"')[2].partition('"')[0]
        release = config.get("fbo-release")
        site.now = name, release if isinstance(release, int) else -1
        with _drawing(site):
            [reply] = super().send_and_receive([message])
        site.check(message, reply, self._tally)
        return reply

    def _again(self, message: Message, honest: Message) -> Message:
        """Return a message once more, to the site of another one."""
        content = copy.deepcopy(message.content)
        metadata = honest.metadata
        return Message(content, metadata.dst_node_id, metadata.message_type)

    def _lie(self, honest: Message) -> Message:
        """Return another message than an honest one."""
        rng = self.rng
        other = rng.choice(self._sent[-40:])
        message = self._again(rng.choice([honest, honest, honest, other]), honest)
        config, *others = configs_of(message)
        if rng.random() < 0.4 and self._with_other_sites(message, config):
            return message
        for _ in range(rng.choice([1, 1, 2])):
            rng.choice([_entry, _entry, _study, self._array])(rng, message, config)
        for record in others:  # where it is for clients of either API
            record.update(config)
        return message

    def _with_other_sites(self, message: Message, config: ConfigRecord) -> bool:
        """Change who is summed, in a payload that is whole but for that."""
        payload = _payload_of(message)
        if payload is None or config["fbo-phase"] != "sum" or not len(payload):
            return False
        entries = ("release", "slot", "attempt", "exchange")
        release, slot, attempt, exchange = (
            int(str(config[f"fbo-{e}"])) for e in entries
        )
        request = SumRequest("", release, slot, attempt, exchange, payload)
        changed = another_set(self.rng, payload)
        if request.exchange == Exchange.CONFIRM and self.rng.random() < 0.7:
            try:
                changed = fewer_sites(self.rng, request)
            except PayloadError:  # a message that was changed already
                return False
        _take(message, [changed])
        return True

    def _array(
        self, rng: random.Random, message: Message, config: ConfigRecord
    ) -> None:
        """Change what comes along: bytes, numbers, types, shapes, and how many."""
        payload = _payload_of(message)
        if payload is None:
            payload = to_payload(b"")
        theirs = _payload_of(rng.choice(self._sent))
        totals = rng.choice([np.nan, np.inf, -1e300, 1e9]) * np.ones((1, 4, 4))
        kinds: list[list[NDArray[Any]]] = [
            [flipped(rng, payload)],
            [payload[: rng.randint(0, len(payload))]],
            [to_payload(rng.randbytes(rng.randint(0, 200)))],
            [payload if theirs is None else theirs],
            [payload.astype(np.float64) * np.nan],
            [payload.astype(rng.choice([np.int64, np.float32, np.bool_]))],
            [payload[None]],
            [payload, payload],
            [totals, np.ones((1, NUM_SITES), np.uint8)],
            [np.zeros((NUM_RELEASES, 4, 4)), np.ones((NUM_RELEASES, 9), np.uint8)],
            [],
        ]
        _take(message, rng.choice(kinds))


def _payload_of(message: Message) -> NDArray[Any] | None:
    """Return what comes along, if it is one vector."""
    arrays = [a.numpy() for record in arrays_of(message) for a in record.values()]
    return arrays[0] if len(arrays) == 1 and arrays[0].ndim == 1 else None


def _take(message: Message, arrays: list[NDArray[Any]]) -> None:
    for name in list(message.content.array_records):
        message.content[name] = to_array_record(arrays)


def _entry(rng: random.Random, message: Message, config: ConfigRecord) -> None:
    """Change an entry of the instruction: nearly right, or of another type."""
    name = rng.choice([name for name in config if name != STUDY_ENTRY])
    often = rng.choice(["release", "attempt", "exchange", "slot", "phase", "journal"])
    name = rng.choice([name, f"fbo-{often}"])
    old = config.get(name)
    kinds: list[Any] = [0, 1, -1, 2, 3, 4, 5, 7, 2**62, 2**63 - 1, True, "", 0.5]
    if name == "fbo-phase":
        kinds = ["enrol", "round", "sum", "SUM", ""]
    elif isinstance(old, int) and not isinstance(old, bool):
        near = min(old + 1, 2**63 - 1), max(old - 1, -1), old ^ 1
        kinds += [*near, near[0]]
    elif isinstance(old, bool):
        kinds += [not old] * 5
    config[name] = rng.choice([kind for kind in kinds if kind != old])


_Path = tuple[str | int, ...]
_FIELDS: list[tuple[_Path, list[Any]]] = [
    (("study_id",), ["another", "a" * 64, ""]),
    (("num_agents",), [1, 4, 6]),
    (("noise_seed",), [1]),
    (("trigger",), [{"threshold": 1.0}]),
    (("secure",), [None]),
    (("secure", "roster"), ["", "00" * 32]),
    (("secure", "groups", 0, "threshold"), [1, 2, 3, 5]),
    (("secure", "groups", 0, "honest"), [1, 2, 5]),
    (("secure", "groups", 0, "colluding"), [0, 1, 3]),
    (("secure", "groups", 0, "num_slots"), [1, 2, 4, 6]),
    (("secure", "groups", 0, "first_slot"), [1, 3]),
    (("secure", "most_trials"), [1, 10, 2**21]),
    (("secure", "releases", "epsilon"), [1e3, 4.0, 1e-3]),
    (("secure", "releases", "reward_range"), [[0, 1e-3], [0, 1e6]]),
    (("settings", "local_data"), ["own", "raw"]),
    (("settings", "width"), [1e6, 0.0]),
    (("settings", "ridge"), [1e15, -1.0]),
    (("settings", "releases", "epsilon"), [8.0, 1e3, 1e-3]),
    (("settings", "releases", "delta"), [0.5, 1e-9]),
    (("settings", "releases", "num_releases"), [1, 5, 10**4, None]),
    (("settings", "releases", "mechanism"), ["toeplitz", "tree"]),
    (("settings", "releases", "dimension"), [1, 2, 50]),
    (("settings", "releases", "max_action_norm"), [1e-3, 1e6]),
]


def _study(rng: random.Random, message: Message, config: ConfigRecord) -> None:
    """Change the study that comes along; often two fields that must agree."""
    try:
        study = json.loads(str(config[STUDY_ENTRY]))
    except ValueError:  # it is changed already
        return
    chosen = rng.sample(_FIELDS, rng.choice([1, 1, 2]))
    if rng.random() < 0.3:  # a whole study besides, which may be admitted
        chosen = [(("study_id",), [f"other-{rng.randint(1, 3)}"])]
    if rng.random() < 0.2:  # of more epsilon, in both places
        factor = rng.choice([0.5, 1.5])
        for releases in (study["settings"]["releases"], (study["secure"] or {})):
            part = releases.get("releases", releases)
            if isinstance(part.get("epsilon"), float):
                part["epsilon"] *= factor
    for path, values in chosen:
        at: Any = study
        try:
            for step in path[:-1]:
                at = at[step]
            at[path[-1]] = rng.choice(values)
        except (KeyError, IndexError, TypeError):  # a part that is no longer there
            continue
    config[STUDY_ENTRY] = json.dumps(study, separators=(",", ":"))


@contextmanager
def _drawing(site: Site) -> Iterator[None]:
    """Count the shares that a site draws for a release."""
    draw, patch = BlockNoise.draw_share, pytest.MonkeyPatch()

    def noted(noise: BlockNoise) -> NDArray[np.int64]:
        site.shares[site.now] += 1
        return draw(noise)

    patch.setattr(BlockNoise, "draw_share", noted)
    try:
        yield
    finally:
        patch.undo()


def attack(messages: int = 10_000, seed: int = 0, folder: Path | None = None) -> Tally:
    """Return what so many messages of an attacker came to."""
    rng, tally = random.Random(seed), Tally()
    with tempfile.TemporaryDirectory(dir=folder) as made:
        for number in range(messages):
            if tally.asked >= messages:
                break
            place = Path(made) / f"{number}"
            place.mkdir()
            grid = LyingGrid(place, rng, tally, messages)
            for _ in range(_STUDIES):
                if not _play(grid, tally):
                    break
            tally.violations += _unmasked_twice(grid.sites)
            for site in grid.sites:
                tally.violations += _in_two_blocks(site)
    return tally


def _play(grid: LyingGrid, tally: Tally) -> bool:
    """Play a study; return whether there is time for another one."""
    aggregation = SecureAggregation(
        threshold=3, honest=MIN_SUMMED, roster=grid.keys.roster_path
    )
    strategy: FedUCB = hosted(
        FedUCB,
        SETTINGS,
        NUM_SITES,
        schedule=[*range(2, 2 * NUM_RELEASES, 2)],  # but for one
        aggregation=aggregation,
        patience=0.0,
        max_empty_rounds=100,
        min_agents=1,
    )
    try:
        strategy.start(grid)
    except _EnoughError:
        return False
    except Exception as error:
        # Sites that refuse all: the study does not fit any more.
        if "AggregationError" not in type(error).__name__:
            raise
    finally:
        ledger = strategy.server.ledger
        tally.releases += len(ledger)
        few = [row for row in ledger if len(row.facts["summed"]) < MIN_SUMMED]
        if few:
            tally.violations.append(f"sums of too few sites: {few}")
    grid.is_lying = False
    try:
        _sum_twice(grid, strategy, aggregation, tally)
    except _EnoughError:
        return False
    grid.is_lying = True
    return True


def _sum_twice(
    grid: LyingGrid, strategy: FedUCB, aggregation: SecureAggregation, tally: Tally
) -> None:
    """Ask for two sums of the last release, which has not been asked for."""
    study, run = strategy.study, strategy._sums._run
    assert run is not None
    post, sums = run[0], study.secure
    assert sums is not None
    first, second = grid.rng.sample(range(NUM_SITES), 2)
    # To some sites, if any, another set than to others.
    misled: set[int] = set()
    if grid.rng.random() < 0.3:
        misled = {first, second, (first + 1) % NUM_SITES}
    made = []
    for away in (first, second):

        def ask(requests: Sequence[SumRequest], away: int = away) -> dict[int, Any]:
            asked = []
            for request in requests:
                if request.slot == away and request.exchange >= Exchange.MASK:
                    continue
                if request.slot in misled and request.exchange == Exchange.CONFIRM:
                    payload = fewer_sites(grid.rng, request)
                    request = replace(request, payload=payload)
                asked.append(request)
            return post.ask(strategy._in_sums, "a sum", asked)

        collector = aggregation.collector([range(NUM_SITES)])
        about = sums, study.text, NUM_RELEASES
        made.append(collector.collect(*about, ask=ask, keep=lambda: None))
    if made[1] is not None and made[0] is not None:
        tally.violations.append(f"two sums, of {made[0].slots} and {made[1].slots}")
    tally.only_once += made[0] is not None and made[1] is None


def _unmasked_twice(sites: list[Site]) -> list[str]:
    """Return the releases of which sites have unmasked two different sums."""
    # By release: of which attempts and sets sites have unmasked sums.
    unmasked: dict[tuple[str, int], set[tuple[int, bytes]]] = defaultdict(set)
    holders: dict[tuple[str, int, int, bytes], int] = Counter()
    violations = []
    for site in sites:
        of_site: dict[tuple[str, int], set[int]] = defaultdict(set)
        for about in site.replies:
            if about.exchange != Exchange.UNMASK:
                continue
            told = site.told[about._replace(exchange=int(Exchange.CONFIRM))]
            unmasked[about.study, about.release].add((about.attempt, told))
            holders[about.study, about.release, about.attempt, told] += 1
            of_site[about.study, about.release].add(about.attempt)
        twice = [key for key, attempts in of_site.items() if len(attempts) > 1]
        if twice:
            violations.append(f"site {site.slot} unmasks two sums of {twice}")
    for key, sums in unmasked.items():
        known = [one for one in sums if holders[(*key, *one)] >= MIN_SUMMED - 1]
        # Sites that unmask one attempt have confirmed one set.
        several = len({attempt for attempt, _ in sums}) < len(sums)
        if len(known) > 1 or several:
            violations.append(f"{key} was unmasked over {len(sums)} sets")
    return violations


def _in_two_blocks(site: Site) -> list[str]:
    """Return the studies of which a trial of a site is in two blocks."""
    violations = []
    for path in site.folder.glob(f"{LINEAR_SITE.name}-*.sqlite"):
        with Journal.snapshot(path) as journal:
            if journal.identity["secure"] is None:
                continue  # its releases have the site's own noise
            windows = [row.facts["window"] for row in journal.ledger()]
        if windows != [*range(len(windows))]:
            violations.append(f"{path.name} of site {site.slot}: windows {windows}")
    return violations


def main() -> None:
    """Attack, and say what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.disable(logging.ERROR)
    tally = attack(options.messages, options.seed)
    counts = ("asked", "answered", "masked", "unmasked", "releases", "only_once")
    print(", ".join(f"{name}: {getattr(tally, name)}" for name in counts))
    print(f"refused: {dict(tally.refused)}")
    for violation in tally.violations:
        print(f"VIOLATION: {violation}")
    sys.exit(bool(tally.violations))


if __name__ == "__main__":
    main()
