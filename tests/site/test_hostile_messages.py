"""Messages that would cost a site hours or gigabytes: refused before they are built."""

import json
import logging
import re
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest

from flwr_fbo import Limits
from flwr_fbo._common.errors import OutOfTimeError, RefusedError
from flwr_fbo._common.fields import FREE, cap_of, fields_by_name, part_of
from flwr_fbo._compat import to_array_record
from flwr_fbo.bandits import (
    Category,
    ContinualSettings,
    EllipsoidSampling,
    FeatureEncoder,
    InverseGapWeighting,
    LinearUCBSettings,
    Network,
    NeuralPrivacy,
    Number,
    PeerGraph,
    RewardTimeout,
)
from flwr_fbo.bandits.fed_go_ucb.study import FedGOUCBInstruction, FedGOUCBStudy
from flwr_fbo.bandits.linear.settings import DeterminantTrigger
from flwr_fbo.bandits.linear.study import (
    LinearBanditInstruction,
    LinearBanditStudy,
)
from flwr_fbo.bandits.site.linear_bandit_site import LinearBanditSite
from flwr_fbo.bandits.site.neural_bandit_site import NeuralBanditSite
from flwr_fbo.lab.baselines.random_search import RandomSearchSettings
from flwr_fbo.privacy.release import ReleaseSettings
from flwr_fbo.privacy.spending_ledger import Charge, Promise
from flwr_fbo.secure.sum_settings import SecureSums, SumGroup
from flwr_fbo.site.limits import NO_LIMITS
from flwr_fbo.site.site import SiteError
from flwr_fbo.site.size_limits import (
    DEFAULT_SIZES,
    check_config,
    check_steps,
    size_limits,
)
from flwr_fbo.study.codec import STUDY_ENTRY, Study
from flwr_fbo.tuning import (
    DPFTSDESettings,
    FedVoteSettings,
    FedWarmStartSettings,
    FTSSettings,
    Knowledge,
)
from flwr_fbo.tuning.fed_vote.settings import VoteCount
from flwr_fbo.tuning.fed_warm_start.knowledge import KnownRelease
from flwr_fbo.tuning.fed_warm_start.settings import Cohorts, WarmStartFacts
from flwr_fbo.tuning.search.study import TuningInstruction, TuningStudy
from flwr_fbo.tuning.site.tuning_site import TuningSite
from tests.adversaries.hostile_messages import (
    APPS,
    HONEST,
    HOSTILE,
    LARGEST,
    Dialogue,
    answered,
    linear,
    neural,
    tuning,
)
from tests.adversaries.lying_server import Client
from tests.support.site_budget import Environment, Node

# Lists of one megabyte's JSON; the message itself is not counted.
MOST_MEMORY = 60e6
INSTRUCTIONS: dict[str, Any] = {
    "tuning": TuningInstruction,
    "linear-bandit": LinearBanditInstruction,
    "neural-bandit": FedGOUCBInstruction,
}
KINDS = (TuningStudy, LinearBanditStudy, FedGOUCBStudy)
# Both client APIs end in the same site: one lie of each kind tries the other.
OF_KINDS = {dialogue.kind: dialogue for dialogue in reversed(HOSTILE)}.values()
HOSTILES = pytest.mark.parametrize(
    ("dialogue", "api"),
    [
        pytest.param(dialogue, api, id=f"{dialogue.name}, {api}")
        for api, dialogues in (("message", HOSTILE), ("numpy", OF_KINDS))
        for dialogue in dialogues
    ],
)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The studies that were built from a message's text."""
    found: list[dict[str, Any]] = []
    for kind in KINDS:
        original: Any = kind.from_dict

        def recorded(values: dict[str, Any], original: Any = original) -> Any:
            found.append(values)
            return original(values)

        monkeypatch.setattr(kind, "from_dict", recorded)
    return found


@HOSTILES
def test_a_hostile_message_is_refused_before_anything_is_built(
    dialogue: Dialogue,
    api: Any,
    built: list[dict[str, Any]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """By a text that names what is too large, and is short."""
    client = Client(APPS[dialogue.kind, api](), api)
    *before, (config, arrays) = dialogue.make()
    for known in before:
        client.ask(*known)
    built.clear()
    tracemalloc.start()
    try:
        with pytest.raises(Exception) as caught:  # noqa: PT011
            client.ask(config, arrays)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    if "header" in dialogue.name:  # Flower itself may read it, before the site does
        return
    assert isinstance(caught.value, SiteError)
    assert len(str(caught.value)) < 1_500
    [at_site] = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert "RefusedError: " in at_site
    assert re.search(dialogue.refused, str(at_site))
    brought = np.sum([len(array.data) for array in arrays.values()])
    assert peak < MOST_MEMORY + 2 * brought
    # What is costly only together shows once the settings are there.
    assert not built or before or "max_steps" in dialogue.refused


@pytest.mark.parametrize("kind", [*HONEST])
@pytest.mark.parametrize("api", ["message", "numpy"])
def test_the_honest_study_is_answered(kind: str, api: Any) -> None:
    client = Client(APPS[kind, api](), api)
    for config, arrays in answered(HONEST[kind]):
        client.ask(config, arrays)


def test_the_largest_studies_are_within_the_limits() -> None:
    """`tests.adversaries.lying_server` has them answered, and measures it."""
    limits = size_limits((NO_LIMITS,))
    for dialogue in LARGEST:
        for config, arrays in dialogue.make():
            kind = INSTRUCTIONS[dialogue.kind]
            check_config(limits, config, kind.study_type)
            study = INSTRUCTIONS[dialogue.kind].from_config(config).study
            check_steps(limits, study, [array.numpy() for array in arrays.values()])


def test_an_honest_large_federation_is_within_the_limits() -> None:
    limits = size_limits((NO_LIMITS,))
    count = VoteCount(100_000, 30.0, 0.1)
    promise = Promise((Charge(1.0, 0.1, 10_000),), True)
    many = TuningStudy(
        tuning().space, "maximize", FedVoteSettings(), promise=promise, facts=count
    )
    releases = ContinualSettings(10_000, 20, 1.0, 1e-5)
    a_month = RewardTimeout(30 * 24 * 3600)
    slow = LinearUCBSettings(releases, local_data="released", reward_timeout=a_month)
    bandit = LinearBanditStudy(slow, 100_000)
    peers = linear(PeerGraph.named("complete", 300))
    network = neural(Network(20, width=25), num_exploration=100)
    for study in (many, bandit, peers, network, tuning(DPFTSDESettings())):
        check_config(limits, study.enrolment(), type(study))
        check_steps(limits, study)


def _studies() -> Iterator[Study]:
    """Yield studies that have, together, all dataclasses that a study can hold."""
    over = tuning().space
    points = tuple((i / 16, i / 16) for i in range(16))
    release = KnownRelease("a", 4, 1.0, 2.0, 1e-3, True, 16, (0.1,) * 16)
    known = Knowledge(over, "maximize", points, (release,))
    facts = WarmStartFacts(Cohorts(20, (4, 3), 1.0), known)
    for agent in (DPFTSDESettings(), FTSSettings(), RandomSearchSettings()):
        yield tuning(agent)
    yield replace(tuning(FedWarmStartSettings(num_features=16)), facts=facts)
    summed = SecureSums(ReleaseSettings(20), 4, (SumGroup(0, 20, 15, 2, 15),))
    charge = Charge(1.0, 1.0, 3)
    yield replace(tuning(), secure=summed, promise=Promise((charge,), True, delta=1e-3))
    encoder = FeatureEncoder({"age": Number(0, 99)}, {"arm": Category(("a", "b"))})
    releases = ContinualSettings(10, encoder.dimension, 1.0, 1e-5)
    for exploration in (EllipsoidSampling(), InverseGapWeighting()):
        settings = LinearUCBSettings(
            releases,
            local_data="released",
            exploration=exploration,
            encoder=encoder,
            reward_timeout=RewardTimeout(60),
        )
        yield LinearBanditStudy(settings, 4)
    raw = replace(linear().settings, local_data="raw")
    yield replace(linear(), settings=raw, trigger=DeterminantTrigger(2))
    yield linear(PeerGraph.named("ring", 5))
    yield neural(privacy=NeuralPrivacy(1.0, 1e-3, num_features=4))


def test_every_number_of_a_study_has_a_limit_or_needs_none() -> None:
    """A new field must say which: one that says nothing is below ``max_points``."""
    looked_at = set()

    def look(part: Any, values: Any) -> None:
        if isinstance(values, list):
            for one in values:
                look(part, one)
        if not isinstance(values, dict):
            return
        kind = part if isinstance(part, type) else part(values)
        looked_at.add(kind.__name__)
        known = fields_by_name(kind)
        for name, value in values.items():
            if name == "kind":  # which of several dataclasses it is
                continue
            has_numbers = re.search(r"\b(int|float)\b", str(known[name].type))
            assert "cap" in known[name].metadata or not has_numbers, (kind, name)
            assert cap_of(known[name]) in {*DEFAULT_SIZES, FREE}
            if part_of(known[name]) is not None:
                look(part_of(known[name]), value)
            else:
                assert not _has_objects(value), (kind, name)

    for study in _studies():
        look(type(study), study.fields)
    assert looked_at == {
        *("TuningStudy", "DPFTSDESettings", "FTSSettings", "RandomSearchSettings"),
        *("FedVoteSettings", "VoteCount", "FedWarmStartSettings", "WarmStartFacts"),
        *("Cohorts", "Knowledge", "KnownRelease", "SecureSums", "ReleaseSettings"),
        *("WeightSchedule", "SumGroup", "Promise", "Charge", "PrivacyUnit"),
        "LinearBanditStudy",
        *("LinearUCBSettings", "ContinualSettings", "Optimism", "EllipsoidSampling"),
        *("InverseGapWeighting", "FeatureEncoder", "Number", "Category"),
        *("RewardTimeout", "DeterminantTrigger", "PeerGraph"),
        *("FedGOUCBStudy", "FedGOUCBSettings", "LangevinSettings", "NeuralPrivacy"),
        "Network",
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"settings": 11_000}, "settings=11000 exceeds max_points"),
        ({"study_id": None}, "has no study_id"),
        ({"graph": 3}, "graph=3 is not allowed"),
    ],
)
def test_a_malformed_study_is_refused_by_the_field(
    changes: dict[str, Any], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = linear().enrolment()
    values = {**json.loads(str(config[STUDY_ENTRY])), **changes}
    values = {name: value for name, value in values.items() if name != "study_id"} | (
        {} if "study_id" in changes else {"study_id": "a"}
    )
    config[STUDY_ENTRY] = json.dumps(values)
    site = Client(APPS["linear-bandit", "message"](), "message")
    with pytest.raises(SiteError):
        site.ask(config, to_array_record([]))
    [at_site] = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert re.search(f"(StudyMismatchError|RefusedError): .*{message}", at_site)


@pytest.mark.parametrize("secure", [7, [{}], {"settings": None}])
def test_a_malformed_secure_sum_is_refused(secure: Any) -> None:
    summed = SecureSums(ReleaseSettings(20), 4, (SumGroup(0, 20, 15, 2, 15),))
    values: Any = replace(tuning(), secure=summed).to_dict()
    if isinstance(secure, dict):
        secure = {**values["secure"], **secure}
    with pytest.raises(
        ValueError, match=r"(secure|settings)=.* is not allowed|has no "
    ):
        TuningStudy.from_dict({**values, "secure": secure})


def _has_objects(values: Any) -> bool:
    if isinstance(values, list):
        return any(map(_has_objects, values))
    return isinstance(values, dict)


def test_a_site_may_allow_more_or_less() -> None:
    study = tuning(DPFTSDESettings(num_initial=6, num_candidates=20))
    asked = TuningInstruction("round", study, 0).to_config()
    site = TuningSite(lambda _: lambda trial: 0.5)
    with pytest.raises(RefusedError, match=r"trials of a message=6 .*max_trials=5"):
        Node(None, **{"fbo-max-trials": "5"}).ask(site, asked)
    with pytest.raises(RefusedError, match="num_initial=6 exceeds max_points=5"):
        Node(None, **{"fbo-max-points": "5"}).ask(site, asked)
    large = linear(dimension=300, epsilon=np.inf)
    config = large.enrolment()
    open_site = LinearBanditSite(
        make_environment=lambda _: Environment(), limits=Limits(max_dimension=300)
    )
    Node(None).ask(open_site, config)


class _Clock:
    """Time passes while a trial is played, and only then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.trials = 0.0, 0
        monkeypatch.setattr("flwr_fbo.site.time_limit.time.monotonic", self.time)

    def time(self) -> float:
        return self.now

    def trial(self) -> float:
        self.now, self.trials = self.now + 10.0, self.trials + 1
        return 0.5


class _SlowEnvironment(Environment):
    def __init__(self, clock: _Clock) -> None:
        self._clock = clock

    def reward(self, x: Any) -> float:
        return self._clock.trial()


def _cut_off_and_asked_again(
    clock: _Clock, site: Any, config: dict[str, Any], folder: Path
) -> None:
    """Five trials of 10 s in messages of at most 15 s: two, two, one."""
    node = Node(folder, **{"fbo-max-seconds": "15"})
    enrolled = node.ask(site, {**config, "fbo-phase": "enrol", "fbo-slot": -1})
    config = {**config, "fbo-journal": enrolled.metrics.get("journal", 0)}
    for played in (2, 4):
        with pytest.raises(OutOfTimeError, match="max_seconds=15"):
            node.ask(site, config)
        assert clock.trials == played
    assert node.ask(site, config).arrays
    assert clock.trials == 5


def test_a_message_of_too_many_seconds_goes_on_with_the_next(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock = _Clock(monkeypatch)
    tuner = TuningSite(lambda _: lambda trial: clock.trial())
    study = tuning(DPFTSDESettings(num_initial=5, num_candidates=20))
    asked = TuningInstruction("round", study, 0, release=1).to_config()
    _cut_off_and_asked_again(clock, tuner, asked, tmp_path / "tuning")

    clock = _Clock(monkeypatch)
    bandit = LinearBanditSite(make_environment=lambda _: _SlowEnvironment(clock))
    wanted = LinearBanditInstruction(
        "round", linear(), 0, send_release=True, num_trials=5
    )
    _cut_off_and_asked_again(clock, bandit, wanted.to_config(), tmp_path / "linear")

    clock = _Clock(monkeypatch)
    site = NeuralBanditSite(lambda _: _SlowEnvironment(clock))
    played = FedGOUCBInstruction(
        "round", neural(), 0, num_evaluations=5, send_sums=True
    )
    _cut_off_and_asked_again(clock, site, played.to_config(), tmp_path / "neural")


@pytest.mark.parametrize("name", ["complete", "star", "random"])
def test_cliques_are_those_of_networkx(name: Any) -> None:
    for hops in range(1, min(3, PeerGraph.named(name, 17).diameter) + 1):
        graph = PeerGraph.named(name, 17, hops=hops)
        apart = nx.complement(nx.from_numpy_array(graph.distances <= hops))
        colors = nx.greedy_color(apart, strategy="DSATUR")
        for clique in graph.cliques:
            assert len({colors[slot] for slot in clique}) == 1
        assert len(graph.cliques) == len({*colors.values()})
