"""A generated server that knows the messages, and changes any field of any of them.

    python -m tests.adversaries.mutated_messages [--messages 10000] [KIND ...]

Two sites with different data are asked the same, in rows of a few messages; what is
changed in one message may be changed in those that follow. A violation is

- an answer that differs for the two, but for a released number;
- a ballot, a sum, arrays or a metric of which the ledger has no row of its own;
- spending above a limit, whichever of app and node config says it;
- a study that is admitted with a larger share of random decisions than is allowed;
- a message that costs a second of CPU time; by command also 100 MB of memory.

Of a secure sum only the first exchange can be answered: the others need its replies.
The messages are the same with each run. Printed is a line a kind of study or of tuner.
The exit status is 1 if there is a violation.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
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
    UserConfig,
)
from flwr.clientapp import ClientApp
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import Phase as Stage
from hypothesis import strategies as st

from flwr_fbo import (
    InProcessGrid,
    Limits,
    add_tuning,
    linear_bandit_app,
    tuner_mod,
    tuning_app,
)
from flwr_fbo._common.fields import to_json
from flwr_fbo.bandits import (
    ContinualSettings,
    FedGOUCBSettings,
    LinearUCBSettings,
    Network,
    neural_bandit_app,
)
from flwr_fbo.bandits.fed_go_ucb.study import (
    FedGOUCBInstruction,
    FedGOUCBStudy,
)
from flwr_fbo.bandits.linear.study import (
    LinearBanditInstruction,
    LinearBanditStudy,
)
from flwr_fbo.privacy.filters import Spent
from flwr_fbo.privacy.release import ReleaseSettings
from flwr_fbo.privacy.spending_ledger import FILE_NAME, UNPROTECTED, Charge, Promise
from flwr_fbo.privacy.weights import WeightSchedule
from flwr_fbo.secure.sum_settings import SecureSums, SumGroup
from flwr_fbo.site.kept_ledger import KeptLedger
from flwr_fbo.space.search_space import SearchSpace
from flwr_fbo.study.codec import Instruction, Phase
from flwr_fbo.tuner.message_headers import (
    BALLOT,
    HEADER,
    KIND,
    SUM,
    BallotHeader,
    Header,
    SumHeader,
    TrialsHeader,
)
from flwr_fbo.tuning.dp_fts_de.settings import DPFTSDESettings
from flwr_fbo.tuning.search.study import TuningInstruction, TuningStudy
from tests.support.federation import SPACE
from tests.support.ledgers import ledger_charges
from tests.support.private_agent import PRIVACY

IN_A_ROW = 4
SECONDS, MEMORY = 1.0, 100e6
SEED = 57

# Of the app; the node config has another one, so that both must hold.
EPSILON, DELTA, RELEASES = 0.5, 1e-5, 3
# A client's message that is replaced is twice as far as zeros.
PER_EXAMPLE = 1.2
PRIVATE = Limits(
    max_epsilon_per_client=EPSILON,
    max_epsilon_per_example=PER_EXAMPLE,
    max_delta=DELTA,
    max_uniform_share=0.0,
)
OPEN = Limits(max_uniform_share=0.0)
NODE: UserConfig = {"agent-id": 0, "fbo-max-releases": RELEASES}
PROMISE = Promise((Charge(20.0),), private=True)

# Two of them are less than the characters that a site reads.
LONG = [*range(30_000)]
# What a field is replaced by: what is falsy, of another type, huge, or nearly right.
VALUES: list[Any] = [
    *(None, False, True, "", "a", "b", "../x", [], {}, [0], [[]], {"a": 1}, [0, 0]),
    *(0, 1, 2, 3, -1, 10**4, 2**31, 2**63, 10**30, 0.0, 0.5, -0.5, 1e300, 1e-300),
    *("exact", "ranks", "enrol", "round", "sum", [1, 0], ["0"], "x" * 10**5),
    LONG,
]
FALSY: list[Any] = [0, 0.0, False, None, "", [], {}]
LOUD = [0.0, 0.5, 1.0, 3.0, 8.0]


def _charge(z: float, q: float = 1.0, num_releases: int = 1) -> Any:
    return to_json(Charge(z, q, num_releases))


# What a field of a name is replaced by as often: what could get it past a check.
NEARLY: dict[str, list[Any]] = {
    "release": [*FALSY, -1, 0.5, True, 1.0, 2],
    "study_id": ["b", "c", "d", "e"],
    "attempt": ["b", "c", "d", "e", 1, 2],
    "charges": [[], *([_charge(z)] for z in LOUD), [_charge(20.0, 0.01, 3)]],
    "epsilon": LOUD,
    "num_exploration": [1, 2, 50, None],
    "exploration": [
        {"kind": "ellipsoid-sampling", "num_draws": 4, "uniform_share": 0.5},
        {"kind": "inverse-gap-weighting", "scale": 30.0},
    ],
    "is_exact": [True, False],
    "is_hidden": [False],
    "report_best_value": [True],
    "send_release": [False],
    "exchange": [1, 2, 3, 4, 5],
}
AWAY = object()
Choose = Callable[[Any], Any]
Change = tuple[tuple[Any, ...], Any]


class Ward:
    """A bandit whose rewards and contexts are a site's data."""

    def __init__(self, scale: float) -> None:
        self._scale = scale

    def contexts(self, t: int) -> Any:
        return self._scale * np.eye(2)

    def reward(self, x: Any) -> float:
        return self._scale if self._scale < 2 else float("nan")


def _tuner_app(scale: float, limits: Limits = PRIVATE) -> ClientApp:
    app = ClientApp(mods=[tuner_mod])

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"acc": scale, "num-examples": round(10 * scale)})
        return Message(RecordDict({"m": metrics}), reply_to=message)

    return add_tuning(app, lambda context: lambda trial: scale, None, limits=limits)


@dataclass(frozen=True)
class Asked:
    """A message before it is written.

    Attributes
    ----------
    header : dict
        As JSON values: a config with its study, or kind and fields of a tuner's header.
    arrays : list of ndarray
    """

    header: Any
    arrays: list[Any] = field(default_factory=list)

    @property
    def content(self) -> RecordDict:
        """What is sent."""
        if self.is_tuners:
            text = json.dumps(self.header.get("fields"))
            header = {"kind": self.header.get("kind", "none"), "fields": text}
            header = {k: v for k, v in header.items() if isinstance(v, str | int)}
            content = RecordDict({HEADER: ConfigRecord(_sendable(header))})
            content[SUM] = ArrayRecord({"request": Array(np.zeros(0, np.uint8))})
            return content
        config = {
            name: json.dumps(v) if isinstance(v, dict) or v is None else v
            for name, v in self.header.items()
            if not isinstance(v, list)
        }
        given = {str(i): Array(array) for i, array in enumerate(self.arrays)}
        return RecordDict(
            {"config": ConfigRecord(_sendable(config)), "arrays": ArrayRecord(given)}
        )

    @property
    def is_tuners(self) -> bool:
        """Whether it has a header of a tuner's."""
        return "fields" in self.header or "kind" in self.header

    @property
    def study(self) -> tuple[Any, Any]:
        """Kind and id, as a ledger has them."""
        try:
            if not self.is_tuners:
                return self.header["fbo-kind"], self.header["fbo-study"]["study_id"]
            return KIND, self._ballot["attempt"]
        except (KeyError, TypeError):
            return None, None

    @property
    def release(self) -> Any:
        """Which release of the study it asks for."""
        if self.is_tuners:
            return self._ballot.get("release")
        is_tuning = self.header.get("fbo-kind") == "tuning"
        return self.header.get("fbo-release") if is_tuning else 1

    @property
    def uniform_share(self) -> float:
        """The largest share of decisions at random, by what the pages say."""
        study = self.header.get("fbo-study")
        of_study = study.get("settings", {}) if isinstance(study, dict) else {}
        if "num_exploration" in of_study:
            explored = of_study["num_exploration"]
            by_default = explored is None and of_study["privacy"] is None
            return float(by_default or bool(explored))
        exploration = of_study.get("exploration", {"kind": "optimism"})
        if exploration["kind"] == "optimism":
            return 0.0
        return float(exploration.get("uniform_share", 1.0))

    @property
    def _ballot(self) -> Any:
        fields = self.header.get("fields")
        fields = fields if isinstance(fields, dict) else {}
        return fields.get("ballot", fields)


def _sendable(values: dict[str, Any]) -> dict[str, Any]:
    """Return what Flower can send: its integers have 64 bits."""
    return {k: v for k, v in values.items() if type(v) is not int or abs(v) < 2**63}


def _tuners(header: Header) -> Asked:
    # As on its way: with lists, which are changed from within, in place of tuples.
    fields = json.loads(json.dumps(asdict(header)))
    return Asked({"kind": header.kind, "fields": fields})


def _instruction(asked: Instruction, *arrays: Any) -> Asked:
    config: dict[str, Any] = asked.to_config()
    study = json.loads(str(config["fbo-study"]))
    return Asked({**config, "fbo-study": study}, [*arrays])


def _linear(phase: Phase) -> Asked:
    releases = ContinualSettings(2, 2, epsilon=0.4, delta=DELTA)
    study = LinearBanditStudy(
        LinearUCBSettings(releases, local_data="released"), 1, study_id="a"
    )
    about = phase, study, _slot(phase), 0
    return _instruction(LinearBanditInstruction(*about, 0, True, num_trials=3))


def _neural(phase: Phase, is_private: bool = True) -> Asked:
    network = Network(2, width=3)
    about = network.num_parameters, network, 1
    privacy = replace(PRIVACY, epsilon=0.4, delta=DELTA)
    chosen = FedGOUCBSettings(num_exploration=0)
    if is_private:
        chosen = FedGOUCBSettings(beta=1.0, privacy=privacy)
    study = FedGOUCBStudy(chosen, 2, *about, study_id="a")
    asked = FedGOUCBInstruction(
        phase, study, _slot(phase), 0, 3, send_sums=True, release=int(is_private)
    )
    if is_private or phase == "enrol":
        return _instruction(asked)
    starts = np.full(network.num_parameters, 0.1)
    return _instruction(replace(asked, starts=True), starts)


def _tuning(phase: Phase, sums: SecureSums | None = None) -> Asked:
    agent = DPFTSDESettings(num_initial=2, num_features=10, num_candidates=20)
    space = SearchSpace(SPACE)
    study = TuningStudy(space, "maximize", agent, 1, 2, "a", PROMISE, secure=sums)
    asked = TuningInstruction(phase, study, _slot(phase), 0, release=1)
    if phase == "sum":
        asked = replace(asked, exchange=1, attempt=1)
        return _instruction(asked, np.zeros(0, np.uint8))
    return _instruction(asked)


def _slot(phase: Phase) -> int:
    return -1 if phase == "enrol" else 0


def _sums(num_features: int, num_sub_regions: int = 1) -> SecureSums:
    about = ReleaseSettings(
        num_agents=3,
        clip_norm=1.0,
        noise_multiplier=20.0,
        sampling_probability=1.0,
        num_sub_regions=num_sub_regions,
        weights=WeightSchedule(peak=0.0),
    )
    return SecureSums(about, num_features, (SumGroup(0, 3, 2, 0, 2),))


def _tuner(phase: Phase, sums: SecureSums | None = None) -> Asked:
    ballot = BallotHeader("a", 0, (0, 1), (), False, True, PROMISE, 1)
    if phase == "sum" and sums is not None:
        return _tuners(SumHeader(ballot, sums, 0, 1, 1))
    if phase == "round":
        return _tuners(ballot)
    about = (0, 1), ({"x": 0.0}, {"x": 1.0}), (0, 1)
    return _tuners(TrialsHeader("a", *about, {"acc": 1.0}, True, PROMISE, sums))


@dataclass(frozen=True)
class Kind:
    """A kind of study, or of tuner.

    Attributes
    ----------
    make : callable
        Returns a site's app, for its data.
    message : callable
        Returns the honest message of a phase.
    phases : tuple of Phase
        In the order of an honest server.
    data : tuple of float
        Of two sites.
    is_open : bool
        Whether the site allows what is not private: once anything is charged, all that
        it answers may tell of its data. It has a folder, without which there is no
        ledger where nothing is limited.
    """

    make: Callable[[float], ClientApp]
    message: Callable[[Phase], Asked]
    phases: tuple[Phase, ...] = ("enrol", "round")
    data: tuple[float, float] = (0.3, 7.0)
    is_open: bool = False


ALL_PHASES: tuple[Phase, ...] = ("enrol", "round", "sum")


def _tuning_app(scale: float) -> ClientApp:
    return tuning_app(lambda _: lambda trial: scale, limits=PRIVATE)


KINDS: dict[str, Kind] = {
    "tuning": Kind(_tuning_app, _tuning),
    "secure-tuning": Kind(
        _tuning_app, lambda phase: _tuning(phase, _sums(10, 4)), ALL_PHASES
    ),
    "linear": Kind(
        lambda s: linear_bandit_app(make_environment=lambda _: Ward(s), limits=PRIVATE),
        _linear,
    ),
    "neural": Kind(
        lambda s: neural_bandit_app(lambda _: Ward(s), limits=PRIVATE), _neural
    ),
    "open-tuning": Kind(
        lambda s: tuning_app(lambda _: lambda trial: s, limits=OPEN),
        _tuning,
        is_open=True,
    ),
    "open-neural": Kind(
        lambda s: neural_bandit_app(lambda _: Ward(s), limits=OPEN),
        lambda phase: _neural(phase, is_private=False),
        data=(0.3, 0.7),
        is_open=True,
    ),
    "tuner": Kind(_tuner_app, _tuner),
    "open-tuner": Kind(lambda s: _tuner_app(s, OPEN), _tuner, is_open=True),
    "secure-tuner": Kind(
        _tuner_app, lambda phase: _tuner(phase, _sums(2)), ("enrol", "sum")
    ),
}


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to each field of a message, whatever is in what."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, below in pairs:
        yield (*path, key)
        if isinstance(below, dict | list):
            yield from _places(below, (*path, key))


def _name(place: tuple[Any, ...]) -> str:
    return str(place[-1]).removeprefix("fbo-").replace("-", "_")


def _new_changes(header: Any, choose: Choose) -> list[Change]:
    """Return one to three changes.

    Or, in one of eight messages each, another release, or long lists everywhere.
    """
    places = [*_places(header)]
    releases = [place for place in places if _name(place) == "release"]
    way = choose(range(8))
    if way == 0:
        return [(place, LONG) for place in places if _is_numbers(_at(header, place))]
    if way == 1 and releases:
        return [(choose(releases), choose(NEARLY["release"]))]
    known = [place for place in places if _name(place) in NEARLY]
    shallow = [place for place in places if len(place) <= 2]
    changes = []
    for _ in range(choose([1, 1, 2, 3])):
        place = choose(choose([places, shallow, known, known]))
        nearly = NEARLY.get(_name(place), VALUES)
        changes.append((place, choose(choose([nearly, [*VALUES, AWAY]]))))
    return changes


def _is_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int for item in value)


def _at(header: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        header = header[key]
    return header


def _changed(asked: Asked, changes: list[Change]) -> Asked:
    """Return a message with other fields, as far as it has them."""
    header = copy.deepcopy(asked.header)
    for (*above, last), value in changes:
        try:
            holder = _at(header, tuple(above))
            _ = holder[last]
        except (IndexError, KeyError, TypeError):
            continue  # an earlier change took it away, or another message has none
        if isinstance(holder, str):
            continue
        if value is AWAY:
            del holder[last]
        else:
            holder[last] = copy.deepcopy(value)
    return replace(asked, header=header)


@dataclass
class Tally:
    """What came of the messages of a kind.

    Attributes
    ----------
    asked, answered, releases, rows : int
        Messages; of them those without an error, and those that carried something
        about a site; rows of all ledgers. All of one of the two sites.
    seconds : float
        CPU time of the longest message.
    memory : float
        Bytes above those before the first message.
    violations : list of str
        What a site did, and on which message.
    """

    asked: int = 0
    answered: int = 0
    releases: int = 0
    rows: int = 0
    seconds: float = 0.0
    memory: float = 0.0
    violations: list[str] = field(default_factory=list)


class ViolationError(Exception):
    """A site has done what it may not: see the tally."""


class Site:
    """A site that is asked, and its ledger.

    Parameters
    ----------
    app : ClientApp
    folder : str
        Of a site that allows what is not private; else empty.
    """

    def __init__(self, app: ClientApp, folder: str) -> None:
        node: UserConfig = {"agent-id": 0, "fbo-folder": folder} if folder else NODE
        self._grid = InProcessGrid(app, 1, run_config={"x": 0.0}, node_configs=[node])
        self._folder = Path(folder) if folder else None
        self._number = 0
        self.seconds = 0.0
        self.rows: list[tuple[Any, ...]] = []
        self.answered, self.error = False, ""
        self.carried: list[Any] = []
        self.wrong: list[str] = []

    def ask(self, asked: Asked) -> Any:
        """Return what it answers, as far as data may not change that."""
        header = asked.header
        if type(header.get("fbo-journal")) is int and header["fbo-journal"] == 0:
            asked = replace(asked, header={**header, "fbo-journal": self._number})
        [node] = self._grid.get_node_ids()
        kind = "evaluate" if asked.is_tuners else "train"
        message = Message(asked.content, node, kind)
        began = time.process_time()
        [reply] = self._grid.send_and_receive([message])
        self.seconds = time.process_time() - began
        self.wrong = [f"{self.seconds:.1f} s of CPU"] * (self.seconds >= SECONDS)
        before, self.rows = self.rows, self._ledger()
        self.answered, self.carried = not reply.has_error(), []
        text = "" if self.answered else str(reply.error.reason)
        self.error = text.strip().rpartition("\n")[2]
        if self.answered:
            self._check(asked, reply.content, before)
        if self._folder is not None and self.rows:
            return len(self.rows)
        if not self.answered:
            return self.error, len(self.rows)
        return self._visible(asked, reply.content), len(self.rows)

    def _ledger(self) -> list[tuple[Any, ...]]:
        [context] = self._grid.contexts.values()
        if self._folder is not None and not (self._folder / FILE_NAME).exists():
            return []
        with KeptLedger(context, self._folder).held() as ledger:
            charges, facts = ledger_charges(ledger), [row.facts for row in ledger.rows]
        spent = sum(charge.num_releases for charge in charges)
        for unit, most in PRIVATE.epsilons.items():
            epsilon = Spent.of(unit, facts).epsilon(DELTA)
            if self._folder is None and epsilon > most * (1 + 1e-6):
                limit = f"max_epsilon_per_{unit.protects}={most}"
                self.wrong.append(f"epsilon={epsilon:.3g}, and {limit}")
        if self._folder is None and spent > RELEASES:
            self.wrong.append(f"{spent} releases, and max_releases={RELEASES}")
        return [(f["study_kind"], f["study_id"], f["release"]) for f in facts]

    def _check(self, asked: Asked, reply: RecordDict, before: list[Any]) -> None:
        """Look for what is carried, charged, and admitted."""
        if asked.uniform_share > 0:
            self.wrong.append(f"admitted a random share of {asked.uniform_share}")
        arrays, metrics = reply.array_records, _metrics(reply)
        self._number = int(metrics.get("journal", self._number))
        if any(len(arrays.get(name, ())) for name in ("arrays", BALLOT, SUM)):
            self.carried.append(asked.release)
        if "wants-synchronisation" in metrics:
            self.carried.append(1)
        # A hidden metric is NaN.
        if "best-value" in metrics or not np.isnan(metrics.get("acc", np.nan)):
            self.carried.append(UNPROTECTED)
        for release in self.carried:
            row = (*asked.study, release)
            if type(release) is not int or row not in self.rows:
                self.wrong.append(f"no row of the ledger for release {release!r}")
            elif BALLOT in arrays and row in before:
                self.wrong.append(f"a second ballot for release {release!r}")

    def _visible(self, asked: Asked, reply: RecordDict) -> Any:
        """Return all of a reply but the numbers that it releases."""
        metrics = _metrics(reply)
        if "fields" in metrics:  # of a tuner's reply
            metrics |= {"fields": None, **json.loads(metrics["fields"])}
        numbers = {
            name: repr(value)
            for name, value in metrics.items()
            if name not in ("head", "journal", "num-examples")  # chance, and exact
        }
        is_sum = SUM in reply or asked.header.get("fbo-phase") == "sum"
        shapes = [
            (name, array.shape, array.dtype)
            for name, record in reply.array_records.items()
            for array in record.values()
        ]
        return numbers, sorted(reply), [] if is_sum else shapes


def _metrics(reply: RecordDict) -> dict[str, Any]:
    return {
        key: value
        for records in (reply.metric_records, reply.config_records)
        for record in records.values()
        for key, value in record.items()
    }


def attack(name: str, messages: int, measures_memory: bool = False) -> Tally:
    """Send so many messages, or a few more, to sites of a kind; to the first violation.

    Parameters
    ----------
    name : str
        Of `KINDS`.
    messages : int
    measures_memory : bool
        Where the kernel says how much a process had at most.
    """
    kind, tally = KINDS[name], Tally()
    with _silent():
        be_honest(kind)  # which loads what is loaded once
    before = _most_memory(begin=True) if measures_memory else 0

    @seed(SEED)
    @settings(
        max_examples=-(-messages // IN_A_ROW),
        deadline=None,
        database=None,
        phases=(Stage.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def play(data: st.DataObject) -> None:
        def choose(options: Any) -> Any:
            return options[data.draw(st.integers(0, len(options) - 1))]

        row: list[Asked] = []
        kept: list[Change] = []
        for _ in range(IN_A_ROW):
            honest = kind.message(choose(kind.phases))
            news = _new_changes(honest.header, choose)
            kept = choose([[], kept, news, [*kept, *news]])
            row.append(_changed(honest, kept))
        if not tally.violations:  # hypothesis repeats a row that raised
            _ask_all(kind, row, tally)
        if tally.violations:
            raise ViolationError

    with _silent(), suppress(ViolationError):
        play()
    if measures_memory:
        tally.memory = _most_memory() - before
        if tally.memory > MEMORY:
            tally.violations.append(f"{tally.memory / 1e6:.0f} MB")
    return tally


@contextmanager
def _sites(kind: Kind) -> Iterator[list[Site]]:
    """Have two sites of a kind, which differ in their data alone."""
    with tempfile.TemporaryDirectory() as folder:
        yield [
            Site(kind.make(scale), f"{folder}/{scale}" if kind.is_open else "")
            for scale in kind.data
        ]


def be_honest(kind: Kind) -> list[Site]:
    """Return two sites that have answered each message of an honest server."""
    with _sites(kind) as sites:
        for phase in kind.phases:
            for site in sites:
                site.ask(kind.message(phase))
                assert site.answered, (phase, site.error)
        return sites


@contextmanager
def _silent() -> Iterator[None]:
    """Log nothing: sites have a line and more on each message."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _ask_all(kind: Kind, row: list[Asked], tally: Tally) -> None:
    with _sites(kind) as sites:
        for asked in row:
            _ask(sites, asked, tally)
        tally.rows += len(sites[0].rows)


def _ask(sites: list[Site], asked: Asked, tally: Tally) -> None:
    one, other = (site.ask(asked) for site in sites)
    tally.asked += 1
    tally.answered += sites[0].answered
    tally.releases += bool(sites[0].carried)
    tally.seconds = max(tally.seconds, *(site.seconds for site in sites))
    wrong = [text for site in sites for text in site.wrong]
    if one != other:
        wrong.append(f"answers differ: {one} and {other}")
    header = json.dumps(asked.header)
    header = header if len(header) < 2000 else f"{header[:1900]} ..."
    tally.violations += [f"{text}, on {header}" for text in dict.fromkeys(wrong)]


def _most_memory(begin: bool = False) -> int:
    """Return the bytes that this process had at most, since that was last begun."""
    if begin:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    [line] = [row for row in status.splitlines() if row.startswith("VmHWM:")]
    return 1024 * int(line.split()[1])


def main() -> None:
    """Attack all kinds, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--messages", type=int, default=10_000, help="to each kind")
    options = parser.parse_args()
    names = ("messages", "answered", "refused", "releases", "rows")
    print(f"{'kind':14}", *(f"{name:>8}" for name in names), "longest s   MB")
    missed = 0
    for kind in options.kinds or KINDS:
        tally = attack(kind, options.messages, measures_memory=True)
        refused = tally.asked - tally.answered
        counts = tally.asked, tally.answered, refused, tally.releases, tally.rows
        costs = f"{tally.seconds:9.2f} {tally.memory / 1e6:4.0f}"
        print(f"{kind:14}", *(f"{n:8}" for n in counts), costs, flush=True)
        for violation in tally.violations:
            print(f"VIOLATION: {violation}", flush=True)
        missed += bool(tally.violations)
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
