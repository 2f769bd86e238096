"""What a lying server may send: one dialogue a lie, each to an honest site's client.

`lying_server` measures what they cost; `tests/site/test_hostile_messages` shows that
each is refused before anything is built. Besides, dialogues of studies that are as
large as the limits allow: these are answered.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.clientapp import ClientApp
from numpy.typing import NDArray
from optuna.distributions import CategoricalDistribution, FloatDistribution

from flwr_fbo import Limits, linear_bandit_app, tuning_app
from flwr_fbo._compat import to_array_record
from flwr_fbo.bandits import (
    ContinualSettings,
    FedGOUCBSettings,
    LinearBanditClient,
    LinearUCBSettings,
    Network,
    NeuralBanditClient,
    NeuralPrivacy,
    PeerGraph,
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
from flwr_fbo.study.codec import STUDY_ENTRY, Config, Instruction, Study
from flwr_fbo.tuning import (
    DPFTSDESettings,
    FedVoteSettings,
    FTSSettings,
    SearchSpace,
    TuningClient,
)
from flwr_fbo.tuning.fed_vote.settings import VoteCount
from flwr_fbo.tuning.search.study import TuningInstruction, TuningStudy

Lie = Callable[[dict[str, Any]], None]
Arrays = list[NDArray[Any]]
HUGE = 2 * 10**8
ANY = Limits(max_epsilon_per_client=np.inf)


class _Environment:
    def contexts(self, t: int) -> NDArray[np.float64]:
        return np.eye(3)

    def reward(self, x: NDArray[np.float64]) -> float:
        return 0.5


def _make_environment(context: Context) -> _Environment:
    return _Environment()


def _objective(trial: Mapping[str, Any]) -> float:
    return math.sin(7 * sum(trial.values()))


def _app_of(client: Callable[[Context], Any]) -> ClientApp:
    return ClientApp(client_fn=lambda context: client(context).to_client())


# By the kind of study, and the API: "message", or "numpy".
APPS: dict[tuple[str, str], Callable[[], ClientApp]] = {
    ("tuning", "message"): lambda: tuning_app(lambda context: _objective),
    ("tuning", "numpy"): lambda: _app_of(
        lambda c: TuningClient(lambda _: _objective, c)
    ),
    ("linear-bandit", "message"): lambda: linear_bandit_app(
        make_environment=_make_environment, limits=ANY
    ),
    ("linear-bandit", "numpy"): lambda: _app_of(
        lambda c: LinearBanditClient(c, make_environment=_make_environment, limits=ANY)
    ),
    ("neural-bandit", "message"): lambda: neural_bandit_app(_make_environment),
    ("neural-bandit", "numpy"): lambda: _app_of(
        lambda c: NeuralBanditClient(c, _make_environment)
    ),
}


@dataclass(frozen=True)
class Dialogue:
    """Messages to one client, until one is refused.

    Attributes
    ----------
    name : str
    kind : str
        Of the study.
    make : callable
        Returns the messages: a config and arrays each. The journal that a client names
        as it enrols is put into the configs.
    refused : str
        A pattern of the error's text; empty where all are answered.
    """

    name: str
    kind: str
    make: Callable[[], Iterator[tuple[Config, ArrayRecord]]]
    refused: str = ""


def space(*, parameters: int = 2, choices: int = 0) -> SearchSpace:
    """Return a space of so many numbers, and one category more."""
    axes: dict[str, Any] = {f"x{i}": FloatDistribution(0, 1) for i in range(parameters)}
    if choices:
        axes["c"] = CategoricalDistribution([*range(choices)])
    return SearchSpace(axes)


def tuning(agent: Any = None, over: SearchSpace | None = None) -> TuningStudy:
    """Return an honest study."""
    agent = FedVoteSettings() if agent is None else agent
    facts = VoteCount(20) if isinstance(agent, FedVoteSettings) else None
    return TuningStudy(over or space(), "maximize", agent, 1, 2, facts=facts)


def linear(graph: PeerGraph | None = None, **settings: Any) -> LinearBanditStudy:
    """Return an honest study; settings are those of the releases."""
    given = {"num_releases": 10, "dimension": 3, "epsilon": 1.0, "delta": 1e-5}
    if graph is not None:
        given["num_streams"] = graph.streams
    releases = ContinualSettings(**{**given, **settings})
    num_agents = 4 if graph is None else graph.num_agents
    return LinearBanditStudy(
        LinearUCBSettings(releases, local_data="released"), num_agents, graph=graph
    )


def neural(network: Network | None = None, **settings: Any) -> FedGOUCBStudy:
    """Return an honest study that begins with phase II."""
    network = network or Network(3, width=4)
    own = FedGOUCBSettings(**{"num_exploration": 0, **settings})
    return FedGOUCBStudy(own, 4, network.num_parameters, network, seed=1)


HONEST: dict[str, Callable[[], Study]] = {
    "tuning": tuning,
    "linear-bandit": linear,
    "neural-bandit": neural,
}
_ASKED: dict[str, Callable[[Any], list[Instruction]]] = {
    "tuning": lambda study: [
        TuningInstruction("round", study, 0, t, release=t + 1) for t in range(4)
    ],
    "linear-bandit": lambda study: [
        LinearBanditInstruction(
            "round",
            study,
            0,
            0,
            0,
            study.graph is None,
            synchronisation=1,
            num_trials=int(study.settings.releases.dimension == 3),
        )
    ],
    "neural-bandit": lambda study: [
        FedGOUCBInstruction("round", study, 0, send_sums=True, release=1)
    ],
}


def _arrays_of(study: Any) -> Arrays:
    """Return what an honest server sends with a round, after the first."""
    if not isinstance(study, TuningStudy):
        return []
    settings: Any = study.agent
    relayed = isinstance(settings, FTSSettings)
    rows: int = 100 if relayed else settings.num_sub_regions
    shape = rows, int(settings.num_features)
    return [np.random.default_rng(0).standard_normal(shape)]


def answered(study: Callable[[], Study]) -> Iterator[tuple[Config, ArrayRecord]]:
    """Yield the messages of a study's first rounds."""
    made = study()
    yield made.enrolment(), to_array_record([])
    for number, instruction in enumerate(_ASKED[_kind_of(made)](made)):
        arrays = _arrays_of(made) if number else []
        yield instruction.to_config(), to_array_record(arrays)


def _kind_of(study: Study) -> str:
    kinds = {TuningStudy: "tuning", LinearBanditStudy: "linear-bandit"}
    return kinds.get(type(study), "neural-bandit")


def _lied(study: Study, lie: Lie) -> Iterator[tuple[Config, ArrayRecord]]:
    fields = json.loads(study.text)
    lie(fields)
    yield from _said(study, json.dumps(fields))


def _said(study: Study, text: str) -> Iterator[tuple[Config, ArrayRecord]]:
    yield {**study.enrolment(), STUDY_ENTRY: text}, to_array_record([])


def _with(
    study: Study, entries: dict[str, Any]
) -> Iterator[tuple[Config, ArrayRecord]]:
    """Yield an honest enrolment, and a round with other entries in its config."""
    yield study.enrolment(), to_array_record([])
    asked = _ASKED[_kind_of(study)](study)[0].to_config()
    lies = {f"fbo-{name.replace('_', '-')}": value for name, value in entries.items()}
    yield {**asked, **lies}, to_array_record([])


def _bringing(
    study: Study, arrays: Callable[[], ArrayRecord]
) -> Iterator[tuple[Config, ArrayRecord]]:
    """Yield an honest enrolment, and a round with these arrays."""
    yield study.enrolment(), to_array_record([])
    yield _ASKED[_kind_of(study)](study)[0].to_config(), arrays()


def _at(*path: str, value: Any) -> Lie:
    def lie(fields: dict[str, Any]) -> None:
        for name in path[:-1]:
            fields = fields[name]
        fields[path[-1]] = value

    return lie


def _ring(num_agents: int) -> Lie:
    """Put a graph of so many agents into a study."""
    edges = [[i, (i + 1) % num_agents] for i in range(num_agents)]
    graph = {"num_agents": num_agents, "edges": edges, "hops": 1}

    def lie(fields: dict[str, Any]) -> None:
        fields |= {"graph": graph, "num_agents": num_agents}

    return lie


def _categories(num: int, parameters: int = 1) -> Lie:
    one = {"name": "CategoricalDistribution", "attributes": {"choices": [*range(num)]}}
    pairs = [[f"c{i}", json.dumps(one)] for i in range(parameters)]
    return _at("space", value=json.dumps(pairs))


def _number(value: int) -> Lie:
    return _at("agent", "num_features", value=value)


def _lying_header() -> ArrayRecord:
    """Return an array whose header promises eight terabytes."""
    array = Array(np.zeros(4))
    data = array.data.replace(b"(4,), }" + b" " * 12, b"(1000000000000,), }")
    assert len(data) == len(array.data)
    return ArrayRecord({"0": Array("float64", (4,), array.stype, data)})


@dataclass
class _Lies:
    """Collects dialogues."""

    found: list[Dialogue] = field(default_factory=list)

    def study(self, name: str, kind: str, lie: Lie, refused: str) -> None:
        self.found.append(
            Dialogue(name, kind, lambda: _lied(HONEST[kind](), lie), refused)
        )

    def text(self, name: str, text: Callable[[], str], refused: str) -> None:
        self.found.append(
            Dialogue(name, "tuning", lambda: _said(tuning(), text()), refused)
        )

    def entry(self, name: str, kind: str, refused: str, **entries: Any) -> None:
        self.found.append(
            Dialogue(name, kind, lambda: _with(HONEST[kind](), entries), refused)
        )

    def arrays(
        self, name: str, study: Callable[[], Study], make: Any, refused: str
    ) -> None:
        kind = _kind_of(study())
        self.found.append(
            Dialogue(name, kind, lambda: _bringing(study(), make), refused)
        )


def _hostile() -> list[Dialogue]:
    lies = _Lies()
    for field_, value, limit in (
        ("num_features", HUGE, "max_features"),
        ("num_surrogate_features", HUGE, "max_features"),
        ("num_initial", HUGE, "max_points"),
        ("num_candidates", HUGE, "max_points"),
        ("num_starts", HUGE, "max_points"),
        ("num_sub_regions", 10**9 + 7, "max_dimension"),
        ("num_initial", 9_000, "max_steps"),
        ("num_starts", 10_000, "max_steps"),
        ("num_unheard_of", HUGE, "max_points"),
    ):
        lies.study(
            f"{field_}={value:,}",
            "tuning",
            _at("agent", field_, value=value),
            f"{field_}={value}[ ,].*{limit}=",
        )
    lies.study(
        "10,000 candidates of 2,048 features",
        "tuning",
        lambda fields: fields["agent"].update(num_candidates=10_000, num_features=2048),
        "num_candidates=10000.*max_steps",
    )
    lies.study(
        "20,000 categories", "tuning", _categories(20_000), "choices.*max_choices"
    )
    old = {"type": "categorical", "choices": [*range(20_000)]}
    lies.study(
        "20,000 categories in Optuna's old format",
        "tuning",
        _at("space", value=json.dumps([["c", json.dumps(old)]])),
        "choices.*max_choices",
    )
    pair = {"c": 0, json.dumps(old): 0}
    lies.study(
        "20,000 categories in a dict",
        "tuning",
        _at("space", value=json.dumps([pair])),
        "not JSON that a strategy",
    )
    lies.entry(
        "a study that is no text", "tuning", "not JSON that a", study=b"1" * 10**5
    )
    lies.study(
        "200 times 100 categories",
        "tuning",
        _categories(100, 200),
        "choices.*max_choices",
    )
    lies.study(
        "2,000 parameters", "tuning", _categories(2, 2000), r"len\(space\).*max_dim"
    )
    lies.study(
        "2**62 voters",
        "tuning",
        _at("facts", "num_agents", value=2**62),
        "num_agents=.*max_agents",
    )
    lies.study(
        "100,000 charges",
        "tuning",
        _at("promise", "charges", value=[{"noise_multiplier": 1.0}] * 100_000),
        "len.charges.|len.study.",
    )
    lies.text("a study of 50 MB", lambda: "1" * 50_000_000, r"len\(study\)")
    lies.text("100,000 lists within lists", lambda: "[" * 100_000, "not JSON")
    lies.text(
        "50 lists within lists",
        lambda: '{"a":' + "[" * 50 + "]" * 50 + "}",
        "lists within lists: 9 ",
    )
    lies.text("an integer of 500,000 digits", lambda: "1" * 500_000, "not JSON")
    lies.text("NaN", lambda: '{"study_seed":NaN}', "not JSON")
    lies.entry("an entry of 10 MB", "tuning", "entry of the config", x="x" * 10**7)
    for kind, entry in (
        ("linear-bandit", "num_trials"),
        ("neural-bandit", "num_evaluations"),
    ):
        lies.entry(
            f"{entry}=2**62", kind, "trials of a message.*max_trials", **{entry: 2**62}
        )
    lies.study(
        "a graph of 15,000", "linear-bandit", _ring(15_000), "num_agents=15000.*max_pe"
    )
    for name, size, refused in (
        ("dimension", 1_000, "dimension=1000.*max_dimension"),
        ("num_releases", 2**17, "num_releases=131072.*max_synchronisations"),
        ("num_releases", 2**62, "num_releases=.*max_synchronisations"),
        ("num_streams", 1_000, "num_streams=1000.*max_dimension"),
    ):
        lies.study(
            f"{name}={size:,}",
            "linear-bandit",
            _at("settings", "releases", name, value=size),
            refused,
        )
    costly = asdict(ContinualSettings(200, 256, epsilon=1.0, delta=1e-5))
    lies.study(
        "dimension=256, 200 releases",
        "linear-bandit",
        _at("settings", "releases", value=costly),
        "steps, .*num_releases=200 of dimension=256.*max_steps",
    )
    for path, lie, refused in (
        (("num_parameters",), HUGE, "num_parameters=.*max_features"),
        (("network", "width"), HUGE, "width=.*max_features"),
        (("network", "width"), 2_000, "num_parameters=.*max_steps"),
        (("network", "dimension"), HUGE, "dimension=.*max_dimension"),
        (("settings", "num_refinements"), HUGE, "num_refinements=.*max_points"),
        (("settings", "num_exploration"), 2**62, "num_exploration=.*max_trials"),
        (
            ("settings", "privacy"),
            asdict(NeuralPrivacy(1.0, 1e-5, num_features=1000)),
            "takes about.*max_steps",
        ),
    ):
        shown = f"{lie:,}" if isinstance(lie, int) else lie
        lies.study(
            f"{path[-1]}={shown}", "neural-bandit", _at(*path, value=lie), refused
        )
    similar = partial(tuning, FTSSettings(num_features=4, weighting="similarity"))
    lies.arrays(
        "messages of 20,000 agents to compare",
        similar,
        lambda: to_array_record([np.zeros((20_000, 4))]),
        "20000 agents' messages.*max_steps",
    )
    lies.arrays(
        "an array of 100 MB",
        tuning,
        lambda: to_array_record([np.zeros(12_500_000)]),
        "numbers in arrays=.*max_numbers",
    )
    lies.arrays(
        "20,000 arrays",
        partial(linear, PeerGraph.named("ring", 4)),
        lambda: to_array_record([np.zeros(1)] * 20_000),
        "arrays: 20000",
    )
    lies.arrays(
        "a header of eight terabytes", tuning, _lying_header, "allocate|EOF|read all"
    )
    lies.arrays(
        "an array of texts",
        tuning,
        lambda: to_array_record([np.full((1, 512), "x")]),
        "not of numbers",
    )
    return lies.found


HOSTILE = _hostile()


def _large(name: str, study: Callable[[], Study]) -> Dialogue:
    return Dialogue(name, _kind_of(study()), lambda: answered(study))


# As large as the limits allow, in one way each.
LARGEST = [
    Dialogue(
        "125,000 empty lists",
        "tuning",
        lambda: _lied(tuning(), _at("more", value=[[]] * 125_000)),
    ),
    _large("M = 2,048, FedVote", partial(tuning, FedVoteSettings(num_features=2_048))),
    _large(
        "M = 2,048, Thompson",
        partial(tuning, DPFTSDESettings(num_features=2_048, num_sub_regions=1)),
    ),
    _large(
        "own features = 2,048",
        partial(tuning, DPFTSDESettings(num_surrogate_features=2_048)),
    ),
    _large("170 initial points", partial(tuning, DPFTSDESettings(num_initial=170))),
    _large(
        "600 candidates of 2,048",
        partial(tuning, FedVoteSettings(num_features=2_048, num_candidates=600)),
    ),
    _large(
        "2,200 candidates of 900",
        partial(tuning, FedVoteSettings(num_features=900, num_candidates=2_200)),
    ),
    _large("1,000 categories", partial(tuning, None, space(choices=1_000))),
    _large("256 parameters", partial(tuning, None, space(parameters=256))),
    _large(
        "256 parameters, improvement",
        partial(
            tuning,
            FedVoteSettings(),
            space(parameters=256),
        ),
    ),
    _large(
        "256 sub-regions",
        partial(tuning, DPFTSDESettings(num_features=512, num_sub_regions=256)),
    ),
    _large(
        "100 starts in 30 parameters",
        partial(
            tuning,
            DPFTSDESettings(
                num_sub_regions=1, num_surrogate_features=900, num_starts=100
            ),
            space(parameters=30),
        ),
    ),
    _large(
        "100 agents' messages of 2,048",
        partial(tuning, FTSSettings(num_features=2_048, weighting="similarity")),
    ),
    _large(
        "a ring of 1,000 peers",
        partial(linear, PeerGraph.named("ring", 1_000, hops=3)),
    ),
    _large(
        "a star of 1,000 peers",
        partial(
            linear, PeerGraph.named("star", 1_000, hops=1, pooling="neighbourhood")
        ),
    ),
    _large("dimension 256", partial(linear, dimension=256, num_releases=20)),
    _large("20,000 synchronisations", partial(linear, num_releases=20_000)),
    _large(
        "dimension 256, not private",
        partial(linear, dimension=256, epsilon=np.inf, num_releases=130),
    ),
    _large("a network of 1,025 weights", partial(neural, Network(14, width=64))),
    _large(
        "96 private features",
        partial(
            neural,
            Network(6, width=64),
            privacy=NeuralPrivacy(1.0, 1e-5, num_features=96),
        ),
    ),
]
