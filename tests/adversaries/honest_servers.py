"""Five kinds of honest servers, and the sites that they write to, for `two_worlds`.

A message is a tree of dicts and lists, so that any field of it can be changed. A server
is a generator: it yields one message after the other, and is sent what the site has
answered, with the message as it was sent.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
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
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from optuna.distributions import CategoricalDistribution, FloatDistribution

from flwr_fbo import linear_bandit_app, tuner_mod, tuning_app
from flwr_fbo._compat import reply_arrays, reply_metrics
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
from flwr_fbo.bandits.decentralized_fed_ucb.server import PeerMessage
from flwr_fbo.bandits.fed_go_ucb.study import FedGOUCBInstruction, FedGOUCBStudy
from flwr_fbo.bandits.linear.exploration import (
    EllipsoidSampling,
    InverseGapWeighting,
)
from flwr_fbo.bandits.linear.feature_encoder import FeatureEncoder
from flwr_fbo.bandits.linear.settings import (
    DeterminantTrigger,
    RewardTimeout,
)
from flwr_fbo.bandits.linear.study import (
    LinearBanditInstruction,
    LinearBanditStudy,
)
from flwr_fbo.privacy.release import ReleaseSettings
from flwr_fbo.privacy.spending_ledger import UNPROTECTED, Charge, Promise
from flwr_fbo.privacy.weights import WeightSchedule
from flwr_fbo.secure.aggregator import Aggregator
from flwr_fbo.secure.member import Member
from flwr_fbo.secure.roster import Roster, SigningKey
from flwr_fbo.secure.sum_settings import SecureSums, SumGroup
from flwr_fbo.secure.terms import Exchange, SumTerms
from flwr_fbo.study.codec import Instruction
from flwr_fbo.tuner.message_headers import (
    BALLOT,
    HEADER,
    KIND,
    SUM,
    BallotHeader,
    Header,
    SettingsHeader,
    SumHeader,
    TrialsHeader,
    header_record,
)
from flwr_fbo.tuning import (
    DPFTSDESettings,
    FedVoteSettings,
    FedWarmStartSettings,
    FTSSettings,
    SearchSpace,
    TuningClient,
    current_trial,
)
from flwr_fbo.tuning.fed_vote.settings import VoteCount
from flwr_fbo.tuning.fed_warm_start.settings import Cohorts, WarmStartFacts
from flwr_fbo.tuning.search.study import TuningInstruction, TuningStudy

Tree = dict[str, Any]
Place = tuple[str, str]
# Of a row of the ledger: kind and id of the study, and the release.
Row = tuple[Any, Any, Any]
# What stands in a tree for JSON in a text, with the value that the text has.
JSON = "in JSON"

NO_ROW: Row = None, None, None
DELTA = 1e-3
RUN_CONFIG: dict[str, Any] = {"x": 0.0, "rate": 0.1}
# So that no message takes long; the limits themselves are not what is tried.
SIZES: UserConfig = {
    "fbo-max-agents": 64,
    "fbo-max-peers": 8,
    "fbo-max-features": 64,
    "fbo-max-points": 64,
    "fbo-max-choices": 16,
    "fbo-max-dimension": 8,
    "fbo-max-synchronisations": 32,
    "fbo-max-steps": 1_000_000,
    "fbo-max-characters": 20_000,
    "fbo-max-numbers": 4096,
    "fbo-max-trials": 12,
}
EPSILON: UserConfig = {
    "fbo-max-epsilon-per-client": 3.0,
    "fbo-max-epsilon-per-example": 3.0,
    "fbo-max-delta": DELTA,
}
LIMITS: tuple[UserConfig, ...] = (
    {},
    {**EPSILON, "fbo-allow-fixed-rows": True},
    {**EPSILON, "fbo-max-epsilon-per-example": 1.0},
    {"fbo-max-epsilon-per-example": math.inf},
    {"fbo-max-releases": 9},
)
SHARE: UserConfig = {"fbo-max-uniform-share": 0.5}
SUMS: UserConfig = {"fbo-min-agents": 3, "fbo-min-noise-multiplier": 1.0}

# One datum, as it is in either world.
Pair = tuple[Any, Any]
NUMBERS: tuple[Pair, ...] = (
    (0.0, 1.0),
    (0.2, 0.9),
    (0.5, 0.5 + 1e-12),
    (0.0, 5e-324),
    (-1e6, 1e6),
    (-1e300, 1e300),
    (0.3, math.nan),
    (0.3, math.inf),
    (math.nan, -math.inf),
)
FAILURES: tuple[Pair, ...] = (
    (0.3, KeyError("patient 17")),
    (math.nan, ValueError("7")),
)
CONTEXTS: tuple[Pair, ...] = (
    (np.eye(4), np.zeros((4, 4))),
    (np.eye(4) / 2, np.eye(4)[::-1] / 2),
    (np.eye(4) / 2, 1e6 * np.eye(4)),
    (np.eye(4) / 2, np.full((4, 4), np.nan)),
    (np.eye(4) / 2, np.zeros((0, 4))),
    (np.eye(4) / 2, [[1.0], [1.0, 2.0]]),
    (np.eye(4) / 2, ValueError("7")),
)


def given(pair: Pair, which: int) -> Any:
    """Return a datum of one of two worlds, or raise it."""
    if isinstance(pair[which], Exception):
        raise pair[which]
    return pair[which]


@dataclass(frozen=True)
class Setting:
    """A site: what is the same in both worlds, and the one datum that is not.

    Attributes
    ----------
    api : {"message", "numpy"}
    node : dict
        Its node config, without a folder.
    has_folder : bool
    seed : int
        Of all its other data.
    where : int
        The trial that has the datum.
    datum : tuple of two
        As it is in each world.
    is_context : bool
        Whether it is a bandit's context; else a score or a reward.
    """

    api: str
    node: UserConfig
    has_folder: bool
    seed: int
    where: int
    datum: Pair
    is_context: bool = False

    @property
    def has_ledger(self) -> bool:
        """Whether the site keeps what it has spent."""
        return self.has_folder or self._bounds_spending

    @property
    def is_limited(self) -> bool:
        """Whether nothing may leave but what is private, or summed."""
        of_sums = "fbo-min-agents" in self.node or "fbo-roster" in self.node
        return of_sums or self._bounds_spending

    @property
    def _bounds_spending(self) -> bool:
        bounds_epsilon = "fbo-max-delta" in self.node
        return bounds_epsilon or "fbo-max-releases" in self.node

    def name(self, record: str) -> str:
        """Return how a record of a train message is named."""
        if self.api == "message":
            return record
        return {"arrays": "fitins.parameters", "config": "fitins.config"}[record]


@dataclass
class Seen:
    """What a server has of a site after one message, and what it cannot see.

    Attributes
    ----------
    tree : dict
        The message, as it was sent.
    content : RecordDict, optional
        Of the reply, unless that is an error.
    error : str
    shape : tuple
        Of each place of the reply, in order: where it is, and all but its value.
    values : dict
        By place.
    rows : tuple of str
        The site's ledger, which is on disk as the reply leaves.
    charged : dict of tuple to float
        The noise multiplier of each row, by kind and id of the study and the release.
    files : tuple of str
        In the site's folder.
    """

    tree: Tree
    content: RecordDict | None = None
    error: str = ""
    shape: tuple[Any, ...] = ()
    values: dict[Place, Any] = field(default_factory=dict)
    rows: tuple[str, ...] = ()
    charged: dict[Row, float] = field(default_factory=dict)
    files: tuple[str, ...] = ()

    def metric(self, name: str, default: int) -> int:
        """Return a metric of the reply."""
        metrics = {} if self.content is None else reply_metrics(self.content)
        return int(metrics.get(name, default))

    @property
    def arrays(self) -> list[Any]:
        """The arrays of the reply."""
        return [] if self.content is None else reply_arrays(self.content)


Script = Generator[Tree, Seen, None]


def opened(value: Any) -> Any:
    """Return a value with dicts and lists in place of JSON."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        return {JSON: opened(json.loads(value))}
    if isinstance(value, Mapping):
        return {name: opened(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [opened(one) for one in value]
    return value


def closed(value: Any) -> Any:
    """Return what `opened` was given: JSON is text again."""
    if isinstance(value, dict):
        if JSON in value:
            text = closed(value[JSON])
            return json.dumps(text, separators=(",", ":"), default=repr)
        return {name: closed(one) for name, one in value.items()}
    return [closed(one) for one in value] if isinstance(value, list) else value


def at(tree: Any, *keys: Any) -> Any:
    """Return what is at a place of a tree; None if it has no such place."""
    for key in keys:
        try:
            tree = tree[key]
        except (KeyError, IndexError, TypeError):
            return None
    return tree


def config_at(tree: Tree, name: str) -> Tree:
    """Return a config record of a message, empty if it sends none of the name."""
    found = at(tree, "records", name)
    config = at(found, "of") if at(found, "is") == "config" else None
    return config if isinstance(config, dict) else {}


def record(kind: str, entries: Mapping[str, Any]) -> Tree:
    """Return a record of a message; ``kind`` is config, metrics or arrays."""
    return {"is": kind, "of": dict(entries)}


def arrays(values: Sequence[Any]) -> Tree:
    """Return a record of arrays."""
    return record("arrays", {str(i): array for i, array in enumerate(values)})


def is_row(row: Row) -> bool:
    """Return whether a ledger can have such a row: a server writes anything."""
    return all(isinstance(part, str | int) for part in row)


class Kind(ABC):
    """One kind of server, and of sites.

    Attributes
    ----------
    limits : list of dict
        What sites may have in their node configs.
    data : list of pairs
        What a datum may be in the two worlds.
    in_a_row : int
        Messages of a dialogue, in which a site keeps folder and state.
    first_messages : tuple of int
        How far studies go that differ in one number only.
    mischief : float
        How often a message is sent with changes of its own before it is sent without.
    """

    in_a_row = 12
    first_messages: tuple[int, ...] = (2, 2, 3)
    mischief = 0.35
    limits: Sequence[UserConfig] = LIMITS
    data: Sequence[Pair] = (*NUMBERS, *FAILURES)

    def setting(self, rng: Random) -> Setting:
        """Return a site."""
        return Setting(
            api=rng.choice(["message", "message", "numpy"]),
            node={"agent-id": 0, **SIZES, **rng.choice(self.limits)},
            has_folder=rng.random() < 0.4,
            seed=rng.randrange(2**32),
            where=rng.choice([0, 0, 0, 0, 1, 2, 3]),
            datum=rng.choice(self.data),
        )

    @staticmethod
    def open_node(setting: Setting) -> UserConfig:
        """Return the node config of a site that takes part in any study."""
        kept = {*SIZES, "agent-id", "fbo-roster", "fbo-key"}
        return {k: v for k, v in setting.node.items() if k in kept}

    @abstractmethod
    def app(self, setting: Setting, which: int) -> ClientApp:
        """Return a site's app in one of the two worlds."""

    @abstractmethod
    def script(self, rng: Random, setting: Setting, name: str) -> Script:
        """Return an honest server of one study of a name."""

    @abstractmethod
    def row_of(self, setting: Setting, tree: Tree, place: Place) -> Row | None:
        """Return which row of the ledger lets a place of a reply differ.

        None where anything may differ there, and `NO_ROW` where nothing may.
        """

    def is_open(self, setting: Setting, seen: Seen) -> bool:
        """Return whether all that a study answers may differ, errors too.

        As where it is charged without noise for telling when it synchronises.
        """
        return False

    @cached_property
    def vocabulary(self) -> dict[str, list[Any]]:
        """What fields have in honest messages, by the fields' names."""
        found: dict[str, list[Any]] = {}

        def take(name: str, value: Any) -> None:
            known = found.setdefault(name, [])
            if not any(type(one) is type(value) and one == value for one in known):
                known.append(value)
            if isinstance(value, dict):
                for key, one in value.items():
                    take(str(key), one)
            for one in value if isinstance(value, list) else []:
                take(name, one)

        for tree in self.examples():
            take("", opened(tree))
        return found

    @abstractmethod
    def examples(self) -> list[Any]:
        """Return what the vocabulary is taken from, as JSON values."""


class Studies(Kind):
    """Servers of studies, whose instructions are in a config."""

    instruction: type[Instruction]
    studies: Sequence[Any]

    def examples(self) -> list[Any]:
        """Return all studies, and an instruction."""
        example = self.instruction("round", self.studies[0]).to_config()
        return [example, *(study.to_dict() for study in self.studies)]

    def asked(
        self,
        setting: Setting,
        study: Any,
        phase: Any,
        arrays_sent: Sequence[Any] = (),
        **fields: Any,
    ) -> Tree:
        """Return an instruction as a message."""
        config = opened(self.instruction(phase, study, **fields).to_config())
        content = {"arrays": arrays(arrays_sent), "config": record("config", config)}
        return {
            "type": "train",
            "records": {setting.name(name): one for name, one in content.items()},
        }

    def config_of(self, setting: Setting, tree: Tree) -> Mapping[str, Any]:
        """Return the config of a message, empty if it has none."""
        return config_at(tree, setting.name("config"))

    def row_of(self, setting: Setting, tree: Tree, place: Place) -> Row | None:
        """Return the row of what is charged."""
        config = self.config_of(setting, tree)
        release = self.release_of(config, place)
        study_id = at(config, "fbo-study", JSON, "study_id")
        return NO_ROW if release is None else (self.instruction.kind, study_id, release)

    @abstractmethod
    def release_of(self, config: Mapping[str, Any], place: Place) -> Any:
        """Return which release a place of a reply is about; None if of none."""


ARRAYS = ("arrays", "fitres.parameters")
METRICS = ("metrics", "fitres.metrics")


# Tuning

SPACE = SearchSpace(
    {
        "x": FloatDistribution(-1.0, 1.0),
        "C": FloatDistribution(1e-3, 1e3, log=True),
        "kind": CategoricalDistribution(["a", "b"]),
    }
)
SMALL: dict[str, Any] = {"num_candidates": 4, "num_starts": 1, "refit_every": 2}
LEAN: dict[str, Any] = {"num_candidates": 4, "num_surrogate_features": 8}
PROMISE = Promise((Charge(8.0, num_releases=6),), private=True, delta=DELTA)


def objective_of(setting: Setting, which: int) -> Callable[[Any], float]:
    """Return the objective of a site in one of two worlds."""

    def objective(trial: Any) -> float:
        if trial.number == setting.where:
            return given(setting.datum, which)  # type: ignore[no-any-return]
        numbers = [v for v in trial.params.values() if isinstance(v, float)]
        return math.sin(setting.seed % 100 + 3 * sum(numbers))

    return objective


class Tuning(Studies):
    """Servers of tuning studies that read each message."""

    limits = (*LIMITS, SUMS)
    instruction = TuningInstruction
    studies = tuple(
        TuningStudy(SPACE, "maximize", agent, 1, 2, "s", promise, facts)
        for agent, promise, facts in (
            (DPFTSDESettings(10, 2, 2, 8, **SMALL), PROMISE, None),
            (DPFTSDESettings(10, 1, 2, 8, **SMALL), Promise((Charge(0.0),)), None),
            (FedVoteSettings(8, **LEAN), PROMISE, VoteCount(20, 8.0)),
            (FTSSettings(8, 1, 2, 8, **SMALL), Promise(), None),
            (FTSSettings(8, 1, 2, 8, weighting="similarity", **SMALL), PROMISE, None),
            (
                FedWarmStartSettings(8, share_after=2, **LEAN),
                PROMISE,
                WarmStartFacts(Cohorts(20, (4, 6), 8.0)),
            ),
        )
    )

    def app(self, setting: Setting, which: int) -> ClientApp:
        """Return an app of one objective."""

        def make(context: Context) -> Any:
            return objective_of(setting, which)

        if setting.api == "message":
            return tuning_app(make)
        return ClientApp(lambda context: TuningClient(make, context).to_client())

    def script(self, rng: Random, setting: Setting, name: str) -> Script:
        """Enrol, and play some rounds; now and then a release is asked for."""
        study = replace(rng.choice(self.studies), study_id=name)
        seen = yield self.asked(setting, study, "enrol")
        released = made_after = 0
        for t in range(rng.randint(2, 6)):
            release = released + 1 if rng.random() < 0.6 else 0
            given: Any = []
            if released:
                rows = study.agent.num_sub_regions
                scale = np.random.default_rng(rng.randrange(99))
                given = [scale.standard_normal((rows, study.agent.message_length))]
            seen = yield self.asked(
                setting,
                study,
                "round",
                given,
                slot=0,
                iteration=t,
                release=release,
                num_released=released,
                num_iterations=9,
                made_after=made_after,
                report_best_value=rng.random() < 0.1,
            )
            if seen.error:
                return
            if release:
                released, made_after = release, t

    def release_of(self, config: Mapping[str, Any], place: Place) -> Any:
        """Return the release of a message, or that of the best value."""
        if place[0] in ARRAYS:
            is_sum = config.get("fbo-phase") == "sum"
            # Only masked numbers are about the site; keys and signatures are not.
            about_site = not is_sum or config.get("fbo-exchange") == Exchange.MASK
            return config.get("fbo-release") if about_site else None
        is_best = place[0] in METRICS and place[1] == "best-value"
        return UNPROTECTED if is_best else None


# Bandits


class Clinic:
    """The environment of a site in one of two worlds."""

    def __init__(self, setting: Setting, which: int, dimension: int) -> None:
        self._setting, self._which, self._dimension = setting, which, dimension
        self._t = 0

    def contexts(self, t: int) -> Any:
        """Return four actions."""
        self._t = t
        if self._setting.is_context and t == self._setting.where:
            found = given(self._setting.datum, self._which)
            is_square = np.shape(found)[1:] == (4,)
            return found[:, : self._dimension] if is_square else found
        rng = np.random.default_rng([self._setting.seed, t])
        actions = rng.standard_normal((4, self._dimension))
        return actions / (np.linalg.norm(actions, axis=1, keepdims=True) * 1.0000001)

    def reward(self, x: Any) -> Any:
        """Return 0 or 1, but once."""
        is_there = self._t == self._setting.where
        if is_there and not self._setting.is_context:
            return given(self._setting.datum, self._which)
        rng = np.random.default_rng([self._setting.seed, self._t, int(x[0] > 0)])
        return float(rng.integers(2))


class Bandits(Studies):
    """Servers of bandits."""

    limits = (*LIMITS, SHARE, SUMS)

    def setting(self, rng: Random) -> Setting:
        """Return a site whose datum is a reward, or a context."""
        setting = super().setting(rng)
        if rng.random() < 0.3:
            setting = replace(setting, datum=rng.choice(CONTEXTS), is_context=True)
        return setting

    def is_open(self, setting: Setting, seen: Seen) -> bool:
        """Return whether the study has a trigger, and the ledger knows of it."""
        study = at(self.config_of(setting, seen.tree), "fbo-study", JSON)
        row = self.instruction.kind, at(study, "study_id"), 1
        if setting.has_ledger and (not is_row(row) or seen.charged.get(row) != 0):
            return False
        return at(study, "trigger") is not None or (
            self.instruction is FedGOUCBInstruction
            and at(study, "settings", "privacy") is None
        )

    def release_of(self, config: Mapping[str, Any], place: Place) -> Any:
        """Return 1: all releases are one charge."""
        wants = place[0] in METRICS and place[1] == "wants-synchronisation"
        return 1 if wants or place[0] in ARRAYS else None


def _releases(dimension: int = 4, epsilon: float = 0.4, **more: Any) -> Any:
    given = {"num_releases": 4, "reward_range": (0.0, 1.0), **more}
    return ContinualSettings(dimension=dimension, epsilon=epsilon, delta=DELTA, **given)


def _linear(releases: Any, local_data: Any, graph: Any = None, **more: Any) -> Any:
    about = {key: more.pop(key) for key in ("trigger", "noise_seed") if key in more}
    settings = LinearUCBSettings(releases, local_data=local_data, **more)
    num_agents = 2 if graph is None else graph.num_agents
    return LinearBanditStudy(settings, num_agents, graph=graph, study_id="s", **about)


class Linear(Bandits):
    """Servers of linear bandits, with a centre or among peers."""

    instruction = LinearBanditInstruction
    # With fewer a site's matrix is of full rank before its data decide on an action.
    dimension = 4
    studies = (
        _linear(_releases(), "own"),
        _linear(_releases(), "own", noise_scale=0.1, width=0.2, ridge=0.5),
        _linear(_releases(num_releases=None), "own", exploration=EllipsoidSampling(8)),
        _linear(_releases(), "released"),
        _linear(
            _releases(mechanism="tree"),
            "released",
            width="exact",
            exploration=InverseGapWeighting(30.0),
        ),
        _linear(_releases(sliding_window=2), "released", parameter_norm=2.0),
        _linear(_releases(mechanism="tree", calibration="paper"), "raw", width="paper"),
        _linear(_releases(), "raw", reward_timeout=RewardTimeout(60.0, 0.5)),
        _linear(_releases(epsilon=math.inf), "own"),
        _linear(_releases(epsilon=math.inf), "raw", trigger=DeterminantTrigger(0.5)),
        _linear(_releases(), "own", noise_seed=3),
        _linear(
            _releases(),
            "own",
            encoder=FeatureEncoder(context={}, blocks=("a", "b", "c", "d")),
        ),
        _linear(_releases(), "released", PeerGraph.named("ring", 4)),
        _linear(_releases(num_streams=2), "own", PeerGraph.named("ring", 4, hops=2)),
        _linear(
            _releases(mechanism="tree"),
            "raw",
            PeerGraph.named("line", 3),
            trigger=DeterminantTrigger(0.5),
        ),
    )

    def app(self, setting: Setting, which: int) -> ClientApp:
        """Return an app of one environment."""

        def make(context: Context) -> Any:
            return Clinic(setting, which, self.dimension)

        if setting.api == "message":
            return linear_bandit_app(make_environment=make)
        return ClientApp(
            lambda context: LinearBanditClient(
                context, make_environment=make
            ).to_client()
        )

    def script(self, rng: Random, setting: Setting, name: str) -> Script:
        """Enrol, and synchronise now and then."""
        study = replace(rng.choice(self.studies), study_id=name)
        seen = yield self.asked(setting, study, "enrol")
        if seen.error:
            return
        about = {"slot": 0, "journal": seen.metric("journal", 0)}
        turns = self._peers if study.graph is not None else self._centre
        yield from turns(rng, setting, study, about)

    def _centre(
        self, rng: Random, setting: Setting, study: Any, about: dict[str, Any]
    ) -> Script:
        trials = included = 0
        totals: list[Any] = []
        for t in range(rng.randint(1, 5)):
            trials += rng.randint(1, 4)
            wants = rng.random() < 0.6
            seen = yield self.asked(
                setting,
                study,
                "round",
                totals,
                **about,
                included=included,
                send_release=wants,
                num_trials=trials,
                iteration=t,
                agents_in_total=2 * bool(included),
                num_synchronisations=included,
            )
            if seen.error:
                return
            totals = []
            if wants and seen.arrays:
                included += 1
                other = np.random.default_rng(t).standard_normal(seen.arrays[0].shape)
                other = 5 * (other @ np.swapaxes(other, -1, -2))
                totals = [seen.arrays[0] + other] if rng.random() < 0.8 else []

    def _peers(
        self, rng: Random, setting: Setting, study: Any, about: dict[str, Any]
    ) -> Script:
        shape, made = study.settings.releases.sum_shape, 0
        for t in range(rng.randint(1, 5)):
            number = made + 1 if rng.random() < 0.6 else 0
            mail = [
                PeerMessage(origin, max(1, made), 0, np.zeros(shape)).to_bytes()
                for origin in (1, study.num_agents - 1)
                if rng.random() < 0.6
            ]
            seen = yield self.asked(
                setting,
                study,
                "round",
                mail,
                **about,
                included=made,
                num_trials=2 * t + 1,
                iteration=t,
                synchronisation=number,
                believed=max(0, made - 1),
            )
            if seen.error:
                return
            made = max(made, number)


NETWORK = Network(2, width=2)


def _neural(noise_seed: int | None = None, **settings: Any) -> FedGOUCBStudy:
    about = NETWORK.num_parameters, NETWORK, 1, noise_seed, "s"
    return FedGOUCBStudy(FedGOUCBSettings(**settings), 2, *about)


def _privacy(**more: Any) -> NeuralPrivacy:
    given = {"epsilon": 0.4, "delta": DELTA, "num_synchronisations": 4, **more}
    return NeuralPrivacy(**{"num_features": 3, "reward_range": (0.0, 1.0), **given})


class Neural(Bandits):
    """Servers of non-linear bandits."""

    instruction = FedGOUCBInstruction
    studies = (
        _neural(beta=1.0, privacy=_privacy()),
        _neural(beta=0.1, privacy=_privacy(num_features=2, mechanism="tree")),
        _neural(privacy=_privacy(epsilon=math.inf)),
        _neural(noise_seed=3, privacy=_privacy()),
        _neural(num_exploration=0),
        _neural(num_exploration=2),
        _neural(num_exploration=0, exploration="optimism", num_refinements=2),
    )

    def app(self, setting: Setting, which: int) -> ClientApp:
        """Return an app of one environment."""

        def make(context: Context) -> Any:
            return Clinic(setting, which, 2)

        if setting.api == "message":
            return neural_bandit_app(make)
        return ClientApp(lambda context: NeuralBanditClient(context, make).to_client())

    def script(self, rng: Random, setting: Setting, name: str) -> Script:
        """Enrol; explore, where there is a phase I; then act and synchronise."""
        study = replace(rng.choice(self.studies), study_id=name)
        seen = yield self.asked(setting, study, "enrol")
        if seen.error:
            return
        about = {"slot": 0, "journal": seen.metric("journal", 0)}
        settings, size = study.settings, NETWORK.num_parameters
        weights = np.random.default_rng(rng.randrange(99)).standard_normal(size)
        trials, made = settings.num_random_actions, 0
        totals: list[Any] = []
        for _ in range(2 if trials else 0):
            seen = yield self.asked(
                setting,
                study,
                "round",
                [weights],
                **about,
                num_evaluations=trials,
                regresses=True,
            )
        for t in range(rng.randint(1, 5)):
            starts = t == 0 and settings.num_random_actions > 0
            wants, trials = rng.random() < 0.7, trials + rng.randint(1, 2)
            seen = yield self.asked(
                setting,
                study,
                "round",
                [*([weights] if starts else []), *totals],
                **about,
                num_evaluations=trials,
                starts=starts,
                totals=bool(totals),
                included=trials if totals and settings.privacy is None else 0,
                send_sums=wants,
                release=made + 1 if wants and settings.privacy is not None else 0,
                heard=made if settings.privacy is not None else 0,
            )
            if seen.error:
                return
            made += wants
            totals = [2 * seen.arrays[0]] if wants and seen.arrays else []


# Tuner


def settings_of(trial: int) -> dict[str, Any]:
    """Return the settings of a trial."""
    return {"x": trial / 10, "rate": 0.1 * 2.0**trial}


def header_of(tree: Tree) -> Any:
    """Return kind and fields of a tuner's header."""
    entries = config_at(tree, HEADER)
    fields = at(entries, "fields", JSON)
    return at(entries, "kind"), fields if isinstance(fields, dict) else {}


class Tuner(Kind):
    """Servers of a `FederationTuner` that reads each ballot."""

    limits = (*LIMITS, SUMS)
    data = NUMBERS

    def app(self, setting: Setting, which: int) -> ClientApp:
        """Return an app whose arrays are public, and whose metrics are not."""

        def score(context: Context) -> Any:
            x, trial = float(context.run_config["x"]), current_trial(context)
            number = round(10 * x) if trial is None else trial.number
            if number == setting.where:
                return given(setting.datum, which)
            return math.sin(setting.seed % 100 + 3 * x)

        if setting.api == "numpy":

            def client_fn(context: Context) -> Any:
                return _Trainer(score(context)).to_client()

            return ClientApp(client_fn, mods=[tuner_mod])
        app = ClientApp(mods=[tuner_mod])

        def answered(message: Message, context: Context, *records: Any) -> Message:
            value = score(context)
            metrics = {"acc": value, "num-examples": 10, "all": [value] * 3}
            content = RecordDict({"metrics": MetricRecord(metrics)})
            content["about"] = ConfigRecord({"is-good": value > 0, "text": f"{value}"})
            return Message(RecordDict({**content, **dict(records)}), reply_to=message)

        @app.train()
        def train(message: Message, context: Context) -> Message:
            half = [0.5 * a.numpy() for a in _arrays_of(message.content)]
            sent = {str(i): Array(array) for i, array in enumerate(half)}
            return answered(message, context, ("arrays", ArrayRecord(sent)))

        @app.evaluate()
        def evaluate(message: Message, context: Context) -> Message:
            return answered(message, context)

        return app

    def examples(self) -> list[Any]:
        """Return a header of each kind."""
        ballot = BallotHeader("s", 0, (0, 1), (1,), False, True, PROMISE, 1)
        sums = _sums(2)
        trials = self._trials("s", (0, 1), PROMISE, True)
        headers = trials, replace(trials, sums=sums), ballot, SettingsHeader(RUN_CONFIG)
        return [
            {"kind": one.kind, "fields": json.loads(json.dumps(asdict(one)))}
            for one in (*headers, SumHeader(ballot, sums, 0, 1, 1))
        ]

    @staticmethod
    def _trials(
        attempt: str, trials: tuple[int, ...], promise: Promise, is_hidden: bool
    ) -> TrialsHeader:
        settings = tuple(settings_of(trial) for trial in trials)
        about = attempt, trials, settings, trials, {"acc": 1.0}, is_hidden
        return TrialsHeader(*about, promise)

    @staticmethod
    def asked(kind: str, header: Header | None, *records: tuple[str, Tree]) -> Tree:
        """Return a message with a header."""
        given = dict(records)
        if header is not None:
            entries = opened({**header_record(header)})
            given = {HEADER: record("config", entries), **given}
        return {"type": kind, "records": given}

    def body(self, setting: Setting, kind: str, place: str = "") -> Any:
        """Return the records of the app's own message, by their names."""
        config = record("config", {"server-round": 1})
        sent = arrays([np.arange(3.0)])
        if setting.api == "message":
            return (f"{place}arrays", sent), (f"{place}config", config)
        name = {"train": "fitins", "evaluate": "evaluateins"}[kind]
        return (f"{place}{name}.parameters", sent), (f"{place}{name}.config", config)

    def trials(self, setting: Setting, kind: str, header: TrialsHeader) -> Tree:
        """Return a message that carries trials."""
        bodies = [self.body(setting, kind, f"{i}:") for i in range(len(header.trials))]
        return self.asked(kind, header, *(one for body in bodies for one in body))

    def script(self, rng: Random, setting: Setting, name: str) -> Script:
        """Train and score trials, ask for ballots, and train with what was chosen."""
        promise = rng.choice([PROMISE, PROMISE, Promise()])
        is_hidden, num_alive = rng.random() < 0.8, 4
        for rung in range(rng.randint(1, 2)):
            alive = tuple(range(num_alive))
            header = self._trials(name, alive, promise, is_hidden)
            header = replace(header, rung=rung + 1)
            for kind in rng.choice([("train", "evaluate"), ("evaluate",)]):
                yield self.trials(setting, kind, header)
            is_exact = rng.random() < 0.1
            about = name, rung, alive, (), is_exact, True, promise, rung + 1
            yield self.asked("evaluate", BallotHeader(*about))
            num_alive //= 2
        if rng.random() < 0.5:
            yield from self._training(rng, setting)

    def _training(self, rng: Random, setting: Setting) -> Script:
        """Train and evaluate with what was chosen, and without a tuner."""
        chosen = SettingsHeader(settings_of(0), rng.random() < 0.5)
        for kind in rng.choice([("train", "evaluate"), ("evaluate",)]):
            header = rng.choice([chosen, chosen, None])
            yield self.asked(kind, header, *self.body(setting, kind))

    def row_of(self, setting: Setting, tree: Tree, place: Place) -> Row | None:
        """Return the row of what is charged; the app's own replies may have any."""
        kind, fields = header_of(tree)
        if kind == "ballot" and place[0] == BALLOT:
            return KIND, fields.get("attempt"), fields.get("release")
        if kind == "sum" and place[0] == SUM:
            ballot, is_masked = fields.get("ballot"), fields.get("exchange") == 3
            row = KIND, at(ballot, "attempt"), at(ballot, "release")
            return row if is_masked else NO_ROW
        if kind == "trials":
            is_metric = place[0].partition(":")[2] not in ("", *ARRAYS)
            row = KIND, fields.get("attempt"), UNPROTECTED
            return row if is_metric else NO_ROW
        return NO_ROW if setting.is_limited else None


class _Trainer(NumPyClient):
    """A client of the older API, whose arrays are public."""

    def __init__(self, score: Any) -> None:
        self._score = score

    def fit(self, parameters: Any, config: Any) -> Any:
        return [0.5 * array for array in parameters], 10, {"loss": self._score}

    def evaluate(self, parameters: Any, config: Any) -> Any:
        return self._score, 10, {"acc": self._score, "text": f"{self._score}"}


def _arrays_of(content: RecordDict) -> list[Array]:
    return [a for record in content.array_records.values() for a in record.values()]


# Secure sums


def _sums(num_features: int, roster: str = "", num_sub_regions: int = 1) -> SecureSums:
    settings = ReleaseSettings(
        num_agents=3,
        clip_norm=1.0,
        noise_multiplier=8.0,
        sampling_probability=1.0,
        num_sub_regions=num_sub_regions,
        weights=WeightSchedule(peak=0.0),
    )
    return SecureSums(settings, num_features, (SumGroup(0, 3, 2, 0, 2),), roster)


class Peers:
    """The server's half of a sum, and its other members.

    Parameters
    ----------
    terms : SumTerms
    roster : Roster, optional
    keys : dict of int to SigningKey
    """

    def __init__(
        self, terms: SumTerms, roster: Roster | None, keys: dict[int, SigningKey]
    ) -> None:
        self._aggregator = Aggregator(terms, roster)
        own = {} if roster is None else keys
        self._members = {
            slot: Member(terms, slot, own.get(slot), roster)
            for slot in terms.slots
            if slot != 0
        }
        self._numbers = np.arange(terms.length, dtype=np.int64)

    def request(self) -> Any:
        """Return what the site is asked now."""
        return self._aggregator.requests().get(0)

    def go_on(self, reply: Any) -> None:
        """Take the site's reply, and those of the others."""
        exchange, replies = self._aggregator.exchange, {0: reply}
        for slot, request in self._aggregator.requests().items():
            if slot:
                numbers = lambda: self._numbers  # noqa: E731
                answer = self._members[slot].answer(int(exchange), request, numbers)
                replies[slot] = answer
        self._aggregator.receive(replies)


# Of members, and where their files are. Both worlds have the same.
@dataclass(frozen=True)
class Members:
    """Keys and roster of three members, in files.

    Attributes
    ----------
    keys : dict of int to SigningKey
    roster : Roster
    node : dict
        What the site's node config says of them.
    """

    keys: dict[int, SigningKey]
    roster: Roster
    node: UserConfig

    @classmethod
    def in_folder(cls, folder: Path) -> Members:
        """Write them there; they are always the same."""
        private = Ed25519PrivateKey.from_private_bytes
        keys = {slot: SigningKey(private(bytes([slot]) * 32)) for slot in range(3)}
        public = {slot: key.public for slot, key in keys.items()}
        roster = Roster(public, bytes(32).hex())
        roster.save(folder / "roster.json")
        keys[0].save(folder / "key.pem")
        names = {"fbo-roster": "roster.json", "fbo-key": "key.pem"}
        return cls(keys, roster, {k: str(folder / name) for k, name in names.items()})


class SecureTuning(Tuning):
    """Servers of tuning studies that learn sums of messages only."""

    limits = (*LIMITS, SUMS, SUMS)
    in_a_row = 20
    first_messages = (2, 4, 7)
    mischief = 0.15

    def __init__(self, members: Members) -> None:
        self._members = members
        agent = DPFTSDESettings(8, 2, 2, 8, **SMALL)
        votes = FedVoteSettings(8, **LEAN)
        digest = members.roster.digest()
        self.studies = tuple(
            TuningStudy(SPACE, "maximize", agent, 1, 2, "s", PROMISE, facts, sums)
            for agent, facts, sums in (
                (agent, None, _sums(8, "", 2)),
                (agent, None, _sums(8, digest, 2)),
                (votes, VoteCount(3, 8.0), _sums(8)),
                (votes, VoteCount(3, 8.0), _sums(8, digest)),
            )
        )

    def setting(self, rng: Random) -> Setting:
        """Return a site, perhaps with a roster."""
        setting = super().setting(rng)
        more = self._members.node if rng.random() < 0.5 else {}
        return replace(setting, node={**setting.node, **more})

    def script(self, rng: Random, setting: Setting, name: str) -> Script:
        """Enrol, and sum a release after each round."""
        has_roster = "fbo-roster" in setting.node
        fitting = [s for s in self.studies if bool(s.secure.roster) == has_roster]
        study = replace(rng.choice(fitting), study_id=name)
        seen = yield self.asked(setting, study, "enrol")
        if seen.error:
            return
        about: dict[str, Any] = {"slot": 0}
        for t in range(rng.randint(1, 3)):
            about |= {"release": t + 1, "num_released": t}
            seen = yield self.asked(setting, study, "round", iteration=t, **about)
            if seen.error:
                return
            for attempt in range(rng.choice([1, 1, 2])):
                about |= {"attempt": 10 * t + attempt + 1, "planned": t}
                yield from self._attempt(setting, study, about)

    def _attempt(self, setting: Setting, study: Any, about: dict[str, Any]) -> Script:
        peers, request = None, np.zeros(0, np.uint8)
        for exchange in range(1, 6):
            seen = yield self.asked(
                setting, study, "sum", [request], exchange=exchange, **about
            )
            if seen.error or not seen.arrays:
                return
            peers = self._peers(setting, seen.tree, about) if peers is None else peers
            if peers is None:
                return
            peers.go_on(seen.arrays[0])
            request = peers.request()

    def _peers(
        self, setting: Setting, tree: Tree, about: dict[str, Any]
    ) -> Peers | None:
        """Return the others, who were told the same."""
        try:
            config = closed(self.config_of(setting, tree))
            study = TuningStudy.from_dict(json.loads(config["fbo-study"]))
            assert study.secure is not None
            release, attempt = config["fbo-release"], config["fbo-attempt"]
            terms = study.secure.terms(study.text, release, 0, attempt)
            roster = self._members.roster if terms.roster else None
            return Peers(terms, roster, self._members.keys)
        except Exception:  # a site should have refused that
            return None


class SecureTuner(Tuner):
    """Servers of a `FederationTuner` that learns sums of ballots only."""

    limits = (*LIMITS, SUMS, SUMS)
    in_a_row = 20
    first_messages = (2, 4, 7)
    mischief = 0.15

    def __init__(self, members: Members) -> None:
        self._members = members

    def setting(self, rng: Random) -> Setting:
        """Return a site, perhaps with a roster."""
        setting = super().setting(rng)
        more = self._members.node if rng.random() < 0.5 else {}
        return replace(setting, node={**setting.node, **more})

    def script(self, rng: Random, setting: Setting, name: str) -> Script:
        """Score trials, and sum the ballots of each rung."""
        if rng.random() < 0.2:
            yield from self._training(rng, setting)
        roster = self._members.roster.digest() if "fbo-roster" in setting.node else ""
        sums, alive = _sums(4, roster), (0, 1, 2, 3)
        for rung in range(rng.randint(1, 2)):
            header = self._trials(name, alive, PROMISE, True)
            yield self.trials(setting, "evaluate", replace(header, sums=sums))
            about = name, rung, alive, (), False, True, PROMISE, rung + 1
            for attempt in range(rng.choice([1, 1, 2])):
                asked = SumHeader(BallotHeader(*about), sums, 0, 1, attempt + 1)
                yield from self._attempt(asked)

    def _attempt(self, header: SumHeader) -> Script:
        peers, request = None, np.zeros(0, np.uint8)
        for exchange in range(1, 6):
            asked = replace(header, exchange=exchange)
            body = SUM, record("arrays", {"request": request})
            seen = yield self.asked("evaluate", asked, body)
            reply = None if seen.content is None else seen.content.get(SUM)
            if not isinstance(reply, ArrayRecord):
                return
            peers = self._peers(seen.tree) if peers is None else peers
            if peers is None:
                return
            peers.go_on(reply["reply"].numpy())
            request = peers.request()

    def _peers(self, tree: Tree) -> Peers | None:
        """Return the others, who were told the same."""
        from flwr_fbo._common.fields import from_json

        try:
            header = from_json(SumHeader, closed(header_of(tree)[1]))
            release, attempt = header.ballot.release, header.attempt
            terms = header.sums.terms(header.about, release, 0, attempt)
            roster = self._members.roster if terms.roster else None
            return Peers(terms, roster, self._members.keys)
        except Exception:  # a site should have refused that
            return None
