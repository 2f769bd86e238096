"""A generated server that knows the messages, and changes any field of any of them.

Two sites with different data are asked the same. What they answer may differ only in a
released number; no release is missing in a ledger; no limit is exceeded; and no message
costs a second. The fast suite tries few messages. ``FLWR_FBO_MESSAGES=10000 pytest
tests/adversaries`` tries so many of each kind.
"""

from __future__ import annotations

import copy
import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
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
from hypothesis import HealthCheck, given, settings
from hypothesis import Phase as Stage
from hypothesis import strategies as st

from flwr_fbo import (
    ContinualSettings,
    InProcessGrid,
    Limits,
    LinearUCBSettings,
    Network,
    add_tuning,
    linear_bandit_app,
    neural_bandit_app,
    tuner_mod,
    tuning_app,
)
from flwr_fbo.clients.site_rules import SiteRules
from flwr_fbo.privacy.spending import Charge, Promise
from flwr_fbo.protocol.codec import Instruction, Phase
from flwr_fbo.protocol.linear_bandit_study import (
    LinearBanditInstruction,
    LinearBanditStudy,
)
from flwr_fbo.protocol.neural_bandit_study import (
    NeuralBanditInstruction,
    NeuralBanditStudy,
)
from flwr_fbo.protocol.tuning_study import TuningInstruction
from flwr_fbo.tuner.envelope import (
    BALLOT,
    HEADER,
    SUM,
    Header,
    SumHeader,
    TrialsHeader,
)
from tests.agents.bandits.test_private_fed_go_ucb import SETTINGS as NEURAL
from tests.clients.test_site_budget import _study
from tests.clients.test_site_rules import _ballot, _sums

MESSAGES = int(os.environ.get("FLWR_FBO_MESSAGES", "12"))
IN_A_ROW = 4
LIMITS = Limits(max_epsilon=0.5, max_delta=1e-5, max_uniform_share=0.0)
PROMISE = Promise((Charge(20.0),), private=True)

# What a field is replaced by: what is falsy, of another type, huge, or nearly right.
VALUES: list[Any] = [
    *(None, False, True, "", "a", "b", "../x", [], {}, [0], [[]], {"a": 1}, [0, 0]),
    *(0, 1, 2, 3, -1, 10**4, 2**31, 2**63, 10**30, 0.0, 0.5, -0.5, 1e300, 1e-300),
    *("exact", "ranks", "votes", "enrol", "round", "sum", [1, 0], ["0"], "x" * 10**5),
    [*range(20_000)],
]


class Ward:
    """A bandit whose rewards and contexts are a site's data."""

    def __init__(self, scale: float) -> None:
        self._scale = scale

    def contexts(self, t: int) -> Any:
        return self._scale * np.eye(2)

    def reward(self, x: Any) -> float:
        return self._scale if self._scale < 2 else float("nan")


def _tuner_app(scale: float) -> ClientApp:
    app = ClientApp(mods=[tuner_mod])

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"acc": scale, "num-examples": round(10 * scale)})
        return Message(RecordDict({"m": metrics}), reply_to=message)

    return add_tuning(app, lambda context: lambda trial: scale, limits=LIMITS)


def _header(header: Header) -> Any:
    return {"kind": header.kind, "fields": asdict(header)}


def _instruction(asked: Instruction) -> Any:
    config: dict[str, Any] = asked.to_config()
    return {**config, "fbo-study": json.loads(str(config["fbo-study"]))}


def _linear(phase: Phase) -> Any:
    releases = ContinualSettings(2, 2, epsilon=0.4, delta=1e-5)
    study = LinearBanditStudy(LinearUCBSettings(releases), 1, study_id="a")
    about = phase, study, -1 if phase is Phase.ENROL else 0, 0
    return _instruction(LinearBanditInstruction(*about, 0, True, num_trials=3))


def _neural(phase: Phase) -> Any:
    network = Network(2, width=3)
    about = network.num_parameters, network, 1
    privacy = NEURAL.privacy
    assert privacy is not None
    privacy = replace(privacy, epsilon=0.4, delta=1e-5)
    given = replace(NEURAL, privacy=privacy)
    study = NeuralBanditStudy(given, 2, *about, study_id="a")
    slot = -1 if phase is Phase.ENROL else 0
    asked = NeuralBanditInstruction(phase, study, slot, 0, 3, send_sums=True, release=1)
    return _instruction(asked)


def _tuning(phase: Phase) -> Any:
    study = _study((Charge(20.0),), study_id="a")
    slot = -1 if phase is Phase.ENROL else 0
    return _instruction(TuningInstruction(phase, study, slot, 0, release=1))


def _tuner(phase: Phase) -> Any:
    if phase is Phase.ENROL:
        about = [0, 1], [{"x": 0.0}, {"x": 1.0}], [0, 1]
        return _header(TrialsHeader("a", *about, "acc", True, PROMISE.to_dict()))
    return _header(_ballot(promise=PROMISE.to_dict()))


def _secure_tuner(phase: Phase) -> Any:
    if phase is Phase.ENROL:
        asked = _tuner(phase)
        asked["fields"]["sums"] = _sums().to_dict()
        return asked
    ballot = asdict(_ballot(promise=PROMISE.to_dict()))
    return _header(SumHeader(ballot, _sums().to_dict(), 0, 1, 1))


KINDS: dict[str, tuple[Callable[[float], ClientApp], Callable[[Phase], Any]]] = {
    "tuning": (
        lambda scale: tuning_app(lambda _: lambda trial: scale, limits=LIMITS),
        _tuning,
    ),
    "linear": (
        lambda s: linear_bandit_app(make_environment=lambda _: Ward(s), limits=LIMITS),
        _linear,
    ),
    "neural": (lambda s: neural_bandit_app(lambda _: Ward(s), limits=LIMITS), _neural),
    "tuner": (_tuner_app, _tuner),
    "secure tuner": (_tuner_app, _secure_tuner),
}


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the way to each field of a message, whatever is in what."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, below in pairs:
        found.append((*path, key))
        if isinstance(below, dict | list):
            found += _places(below, (*path, key))
    return found


def _changed(message: Any, choose: Callable[[Any], Any]) -> Any:
    """Return a message of which one to three fields are others, or away."""
    message = copy.deepcopy(message)
    for _ in range(choose([0, 1, 1, 2, 3])):
        places = _places(message)
        shallow = [place for place in places if len(place) <= 2]
        *above, last = choose(choose([places, shallow]))
        holder = message
        for key in above:
            holder = holder[key]
        value = choose([*VALUES, ...])
        if value is ...:
            del holder[last]
        else:
            holder[last] = copy.deepcopy(value)
        if not isinstance(message.get("fields", {}), dict):
            break
    return message


class Twins:
    """Two sites that differ in their data alone."""

    def __init__(self, make: Callable[[float], ClientApp]) -> None:
        config: UserConfig = {"agent-id": 0}
        self._grids = [
            InProcessGrid(make(s), 1, run_config={"x": 0.0}, node_configs=[config])
            for s in (0.3, 7.0)
        ]
        self._numbers: dict[int, int] = {}
        self._ballots = [0, 0]

    def ask(self, message: Any, seconds: float = 1.0) -> list[Any]:
        """Return what both answer, as far as it may not differ."""
        seen = []
        for twin, grid in enumerate(self._grids):
            own = dict(message)
            if own.get("fbo-journal") == 0 and type(own["fbo-journal"]) is int:
                own["fbo-journal"] = self._numbers.get(twin, 0)
            content, kind = _content(own)
            [node] = grid.get_node_ids()
            began = time.process_time()
            [reply] = grid.send_and_receive([Message(content, node, kind)])
            assert time.process_time() - began < seconds
            if not reply.has_error() and "metrics" in reply.content:
                number = reply.content.metric_records["metrics"].get("journal", 0)
                assert isinstance(number, int)
                self._numbers[twin] = number or self._numbers.get(twin, 0)
            seen.append(self._look(twin, grid, reply))
        return seen

    def _look(self, twin: int, grid: InProcessGrid, reply: Message) -> Any:
        [context] = grid.contexts.values()
        with SiteRules(context)._ledger() as ledger:
            assert ledger.epsilon(1e-5) <= 0.5 * (1 + 1e-6)
            rows = len(ledger.rows)
        if reply.has_error():
            return str(reply.error.reason).strip().splitlines()[-1], rows
        released = [
            name
            for name, record in reply.content.array_records.items()
            if name in ("arrays", BALLOT, SUM) and len(record) > 0
        ]
        assert not released or rows > 0
        self._ballots[twin] += BALLOT in released  # none is given twice
        assert self._ballots[twin] <= rows
        numbers = {
            f"{name}:{key}": repr(value)
            for record in (reply.content.metric_records, reply.content.config_records)
            for name, values in record.items()
            for key, value in values.items()
            if key not in ("journal", "num-examples")
        }
        shapes = [
            (name, array.shape, array.dtype)
            for name, record in reply.content.array_records.items()
            for array in record.values()
        ]
        return numbers, [] if SUM in reply.content else shapes, rows


def _content(message: Any) -> tuple[RecordDict, str]:
    if "fields" in message or "kind" in message:
        text = json.dumps(message.get("fields"))
        header = {"kind": message.get("kind", "none"), "fields": text}
        header = {k: v for k, v in header.items() if isinstance(v, str | int | float)}
        request = ArrayRecord({"request": Array(np.zeros(0, np.uint8))})
        return RecordDict({HEADER: ConfigRecord(header), SUM: request}), "evaluate"
    config = {
        name: json.dumps(value) if isinstance(value, dict) or value is None else value
        for name, value in message.items()
    }
    config = {n: v for n, v in config.items() if not isinstance(v, list)}
    config = {n: v for n, v in config.items() if type(v) is not int or abs(v) < 2**63}
    content = RecordDict({"config": ConfigRecord(config)})
    content["arrays"] = ArrayRecord({})
    return content, "train"


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_leaves_that_is_not_allowed(kind: str) -> None:
    make, message_of = KINDS[kind]
    for phase in (Phase.ENROL, Phase.ROUND):  # which loads what is loaded once
        Twins(make).ask(message_of(phase), seconds=math.inf)

    @settings(
        max_examples=max(1, MESSAGES // IN_A_ROW),
        deadline=None,
        database=None,
        phases=(Stage.generate,),  # to make it smaller would take minutes
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def attack(data: st.DataObject) -> None:
        def choose(options: Any) -> Any:
            return options[data.draw(st.integers(0, len(options) - 1))]

        twins = Twins(make)
        for _ in range(IN_A_ROW):
            phase = choose([Phase.ENROL, Phase.ROUND])
            one, other = twins.ask(_changed(message_of(phase), choose))
            assert one == other

    attack()


def test_the_messages_that_are_changed_are_answered() -> None:
    """Else nothing would be tried but refusals."""
    for kind, (make, message_of) in KINDS.items():
        twins = Twins(make)
        for phase in (Phase.ENROL, Phase.ROUND):
            one, other = twins.ask(message_of(phase), seconds=math.inf)
            assert isinstance(one[0], dict), (kind, phase, one)
            assert one == other
