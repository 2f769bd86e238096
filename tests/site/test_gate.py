"""What leaves a site is what it allows, whatever a server writes."""

from __future__ import annotations

import ast
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
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
)
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from optuna.distributions import FloatDistribution

import flwr_fbo
from flwr_fbo import (
    FedVote,
    InProcessGrid,
    Limits,
    LinearBanditPolicy,
    Seeds,
    add_tuning,
    linear_bandit_app,
    tuner_mod,
    tuning_app,
    with_tuning,
)
from flwr_fbo._common.errors import RefusedError
from flwr_fbo._common.fields import to_json
from flwr_fbo.bandits import ContinualSettings, LinearUCBSettings, Network
from flwr_fbo.bandits.fed_go_ucb.settings import FedGOUCBSettings
from flwr_fbo.bandits.fed_go_ucb.study import (
    FedGOUCBStudy,
)
from flwr_fbo.bandits.linear.study import (
    LinearBanditStudy,
)
from flwr_fbo.bandits.site.neural_bandit_site import NeuralBanditSite
from flwr_fbo.privacy.release import ReleaseSettings
from flwr_fbo.privacy.spending_ledger import (
    Charge,
    Promise,
    SpendingLedger,
    composed_epsilon,
)
from flwr_fbo.privacy.weights import WeightSchedule
from flwr_fbo.secure.graph import MAX_COMPLETE
from flwr_fbo.secure.sum_settings import SecureSums, SumGroup
from flwr_fbo.site.gate import Gate
from flwr_fbo.tuner.message_headers import (
    BALLOT,
    HEADER,
    SUM,
    BallotHeader,
    Header,
    SumHeader,
    TrialsHeader,
    header_record,
    pack,
)
from tests.support.federation import charges_in
from tests.support.gate import (
    NODE,
    PROMISE,
    Site,
    ballot_of,
    gate_app,
    private_bandit_study,
    simple_objective,
)
from tests.support.ledgers import ledger_charges
from tests.support.site_budget import Environment, Node

[CHARGE] = PROMISE["charges"]


NO_RELEASES: list[Any] = [
    0,
    0.0,
    False,
    None,
    "",
    [],
    {},
    -1,
    0.5,
    True,
    1.0,
    "1",
    2**70,
]


@pytest.mark.parametrize("release", NO_RELEASES, ids=repr)
def test_there_is_no_ballot_without_a_charge(release: Any, tmp_path: Path) -> None:
    site = Site(gate_app(), **NODE, **{"fbo-folder": str(tmp_path)})
    site.run_trials()
    for _ in range(2):
        reply = site.ask_ballot(release=release)
        assert reply.has_error(), release
    assert charges_in(tmp_path) == []
    assert BALLOT in site.ask_ballot().content
    with SpendingLedger.held(tmp_path) as ledger:
        assert len(ledger.rows) == 1


def _sums() -> SecureSums:
    weights = WeightSchedule(peak=0.0)
    settings = ReleaseSettings(
        num_agents=3,
        clip_norm=1.0,
        noise_multiplier=20.0,
        sampling_probability=1.0,
        weights=weights,
    )
    return SecureSums(settings, 2, (SumGroup(0, 3, 2, 0, 2),))


@pytest.mark.parametrize("release", NO_RELEASES, ids=repr)
def test_there_is_no_sum_without_a_charge(release: Any, tmp_path: Path) -> None:
    site = Site(gate_app(), **NODE, **{"fbo-folder": str(tmp_path)})
    site.run_trials()

    def ask(asked: BallotHeader) -> Message:
        header = SumHeader(asked, _sums(), 0, 1, 1)
        request = ArrayRecord({"request": Array(np.zeros(0, np.uint8))})
        return site.ask(RecordDict({HEADER: header_record(header), SUM: request}))

    assert ask(ballot_of(release=release)).has_error()
    assert charges_in(tmp_path) == []
    assert SUM in ask(ballot_of()).content


WRONG = [
    ("attempt", ""),
    ("attempt", "x" * 65),
    ("attempt", 1),
    ("rung", -1),
    ("rung", 1.0),
    ("trials", []),
    ("trials", [0, 0]),
    ("trials", [True]),
    ("trials", ["0"]),
    ("trials", {"0": 1}),
    ("failed", [7]),
    ("failed", None),
    ("is_exact", "raw"),
    ("is_exact", 1),
    ("maximize", 1),
    ("promise", None),
    ("promise", {**PROMISE, "private": 1}),
    ("promise", {**PROMISE, "charges": [{**CHARGE, "noise_multiplier": "20"}]}),
    ("promise", {**PROMISE, "charges": 5}),
    ("promise", {**PROMISE, "charges": [{**CHARGE, "num_releases": -1}]}),
]


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_each_field_of_a_ballot_is_checked(
    field: str, value: Any, tmp_path: Path
) -> None:
    """Before anything is asked of ledger or scores."""
    site = Site(gate_app(), **{"fbo-folder": str(tmp_path)})
    site.run_trials()
    reply = site.ask_ballot(**{field: value})
    assert "StudyMismatchError" in str(reply.error.reason)
    assert charges_in(tmp_path) == []


@pytest.mark.parametrize(
    "record",
    [
        {"kind": "ballot"},
        {"kind": 3, "fields": "{}"},
        {"kind": "ballot", "fields": "[1]"},
        {"kind": "ballot", "fields": "{" * 100_000},
        {"kind": "ballot", "fields": '{"attempt": 1}'},
        {"kind": "ballot", "fields": '{"release": 1' + 5000 * "0" + "}"},
        {"kind": "settings", "fields": '{"settings": {"x": [1]}}'},
        {"kind": "nothing", "fields": "{}"},
    ],
)
def test_what_is_no_header_is_refused_in_few_words(record: dict[str, Any]) -> None:
    reply = Site(gate_app()).ask(RecordDict({HEADER: ConfigRecord(record)}))
    assert "StudyMismatchError" in str(reply.error.reason)
    assert len(str(reply.error.reason)) < 2000


def _seconds(site: Site, header: Header) -> tuple[float, Message]:
    began = time.process_time()
    reply = site.ask(RecordDict({HEADER: header_record(header)}))
    return time.process_time() - began, reply


def test_a_tuners_message_is_bounded_before_it_is_parsed() -> None:
    many: Any = list(range(24_000))
    site = Site(gate_app())
    for header in (
        ballot_of(trials=many, failed=many),
        TrialsHeader("a", (), (), many, {"acc": 1.0}, True, PROMISE),
        TrialsHeader(
            "a",
            (0,),
            (dict.fromkeys(map(str, many), 1),),
            (0,),
            {"x": 1.0},
            True,
            PROMISE,
        ),
        ballot_of(attempt="x" * 10**7),
        ballot_of(promise={**PROMISE, "charges": [CHARGE] * 20_000}),
    ):
        seconds, reply = _seconds(site, header)
        assert reply.has_error()
        assert seconds < 0.5, header.kind


def test_trials_of_a_message_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock) * 10.0)
    reply = Site(gate_app(), **{"fbo-max-seconds": 5}).run_trials()
    assert "OutOfTimeError" in str(reply.content.config_records[HEADER]["fields"])
    assert "0:m" in reply.content
    assert "1:m" not in reply.content


LIMITS = Limits(max_epsilon_per_client=0.5, max_epsilon_per_example=1.5, max_delta=1e-5)
LOUD = to_json(Promise((Charge(0.6),), private=True))


def _beside_add_tuning() -> ClientApp:
    app = gate_app()
    return add_tuning(app, simple_objective, None, limits=LIMITS)


def _before_its_functions() -> ClientApp:
    app = ClientApp(mods=[tuner_mod])
    add_tuning(app, simple_objective, None, limits=LIMITS)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"acc": 1.0, "num-examples": 1})
        return Message(RecordDict({"m": metrics}), reply_to=message)

    return app


class Trainer(NumPyClient):
    def evaluate(self, parameters: Any, config: Any) -> Any:
        return 0.0, 1, {"acc": float(config["x"])}


def _of_clients() -> ClientApp:
    client_fn = with_tuning(
        lambda _: Trainer().to_client(), simple_objective, None, limits=LIMITS
    )
    return ClientApp(client_fn=client_fn, mods=[tuner_mod])


def _for_numpy() -> RecordDict:
    config = ConfigRecord({})
    return RecordDict(
        {"evaluateins.parameters": ArrayRecord({}), "evaluateins.config": config}
    )


@pytest.mark.parametrize(
    "make",
    [_beside_add_tuning, _before_its_functions, _of_clients],
)
def test_limits_of_the_app_bind_a_tuner(
    make: Callable[[], ClientApp], tmp_path: Path
) -> None:
    folder = {"fbo-folder": str(tmp_path)}
    for promise, is_hidden in ((LOUD, True), (PROMISE, False)):
        site = Site(make(), **folder)
        header = TrialsHeader(
            "a", (0,), ({"x": 0.0},), (0,), {"acc": 1.0}, is_hidden, promise
        )
        reply = site.ask(pack(header, {0: _for_numpy()}))
        assert "RefusedError" in str(reply.error.reason)
        reply = site.ask_ballot(promise=promise, trials=[0])
        assert reply.has_error() == (promise == LOUD)
    site = Site(make(), **folder)
    header = TrialsHeader("b", (0,), ({"x": 0.0},), (0,), {"acc": 1.0}, True, PROMISE)
    assert not site.ask(pack(header, {0: _for_numpy()})).has_error()
    reply = site.ask_ballot(attempt="b", is_exact=True, trials=[0])
    assert "exact scores" in str(reply.error.reason)


def test_limits_of_one_app_do_not_bind_another() -> None:
    _beside_add_tuning()
    assert not Site(gate_app()).run_trials(LOUD, is_hidden=False).has_error()


def test_two_kinds_at_one_app_have_the_limits_of_both() -> None:
    app = linear_bandit_app(make_environment=lambda _: Environment())
    add_tuning(app, simple_objective, None, limits=LIMITS)
    releases = ContinualSettings(num_releases=1, dimension=3, epsilon=8.0, delta=1e-5)
    study = LinearBanditStudy(LinearUCBSettings(releases, local_data="released"), 1)
    content = RecordDict({"config": ConfigRecord({**study.enrolment()})})
    content["arrays"] = ArrayRecord({})
    grid = Site(app).grid
    [node] = grid.get_node_ids()
    [reply] = grid.send_and_receive([Message(content, node, "train")])
    assert "its limits" in str(reply.error.reason)


def _neural(**settings: Any) -> FedGOUCBStudy:
    network = Network(2, width=3)
    given = FedGOUCBSettings(**settings)
    return FedGOUCBStudy(given, 2, network.num_parameters, network, seed=1)


@pytest.mark.parametrize(
    ("num_exploration", "refuses"), [(50, True), (1, True), (0, False)]
)
def test_a_share_at_random_binds_neural_bandits(
    num_exploration: int, refuses: bool
) -> None:
    site = NeuralBanditSite(lambda _: Environment())
    study = _neural(num_exploration=num_exploration)
    node = Node(None, **{"fbo-max-uniform-share": 0.0})
    if refuses:
        with pytest.raises(RefusedError, match="max_uniform_share=0"):
            node.ask(site, study.enrolment())
    else:
        node.ask(site, study.enrolment())


def test_a_site_that_wants_sums_takes_part_in_no_bandit_without_noise() -> None:
    site = NeuralBanditSite(lambda _: Environment())
    node = Node(None, **{"fbo-min-agents": 5})
    with pytest.raises(RefusedError, match="not private"):
        node.ask(site, _neural(num_exploration=0).enrolment())


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_exact_metrics_are_in_the_ledger(kind: str, tmp_path: Path) -> None:
    site = Site(gate_app(), **{"fbo-folder": str(tmp_path)})
    for _ in range(2):
        site.run_trials(Promise(), is_hidden=False, kind=kind)
    with SpendingLedger.held(tmp_path) as ledger:
        assert ledger_charges(ledger) == [Charge(0.0)]


def test_exact_scores_cost_all_whatever_is_promised(tmp_path: Path) -> None:
    site = Site(gate_app(), **{"fbo-folder": str(tmp_path)})
    assert not site.run_trials().has_error()
    assert not site.ask_ballot(is_exact=True).has_error()
    with SpendingLedger.held(tmp_path) as ledger:
        assert ledger_charges(ledger) == [Charge(0.0)]


def test_no_reply_about_a_site_is_let_go_without_a_charge() -> None:
    context = Context(1, 1, {}, RecordDict(), {})
    charges = Gate(context)
    charges.let_go([])
    with pytest.raises(RuntimeError, match="uncharged"):
        charges.let_go([np.zeros(1)])
    charges.charge(("tuning", "a"), Promise((Charge(1.0),), True), 1)
    charges.let_go([np.zeros(1)])
    with pytest.raises(ValueError, match="release"):
        charges.charge(("tuning", "a"), Promise(), 0)


def test_replies_of_a_site_are_made_at_the_gate_alone() -> None:
    """Nothing else could answer without the question whether it is charged."""
    package = Path(flwr_fbo.__file__).parent
    wings = ("site", "clients", "tuning", "bandits", "tuner/site")
    files = [path for wing in wings for path in (package / wing).rglob("*.py")]
    makers = {
        path.relative_to(package).as_posix()
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.keyword) and node.arg == "reply_to"
    }
    assert len(files) > 20
    assert makers == {"site/gate.py"}


def test_sums_of_too_many_are_refused_before_they_are_made() -> None:
    sums = replace(_sums(), groups=(SumGroup(0, 10**8, 2, 0, 10**8),))
    assert sums.groups[0].num_slots > MAX_COMPLETE
    header = TrialsHeader("a", (), (), (), {"x": 1.0}, True, PROMISE, to_json(sums))
    seconds, reply = _seconds(Site(gate_app()), header)
    assert "max_agents" in str(reply.error.reason)
    assert seconds < 0.5


@pytest.mark.parametrize("kind", ["linear", "neural"])
def test_bandits_share_a_folder_and_its_ledger(kind: str, tmp_path: Path) -> None:
    """The third study is refused by what all of them spend, and none begins anew."""
    # Two of epsilon 1, and not three.
    limits = Limits(max_epsilon_per_example=1.5, max_delta=1e-5)
    node, (site, make) = Node(tmp_path), private_bandit_study(kind, limits)
    journals = []
    for name in ("one", "two", "three"):
        study, asked = make(name)
        if name == "three":
            with pytest.raises(RefusedError, match=r"max_epsilon_per_example=1\.5"):
                node.ask(site, study.enrolment())
            break
        number = node.ask(site, study.enrolment()).metrics["journal"]
        assert node.ask(site, asked(number)).arrays
        journals.append((asked, number))
    first, number = journals[0]  # goes on where it was
    again = node.ask(site, first(number)).arrays[0]
    assert np.isfinite(again).all()
    with SpendingLedger.held(tmp_path) as ledger:
        assert len(ledger.rows) == 2
    assert len(list(tmp_path.glob(f"{kind}-bandit-*.sqlite"))) == 2


@pytest.mark.parametrize("study_id", ["", "../x", "a/b", "x" * 65, "a\n", 7])
def test_a_bandit_is_named_like_a_file(study_id: Any) -> None:
    releases = ContinualSettings(num_releases=1, dimension=3, epsilon=1.0, delta=1e-5)
    with pytest.raises(ValueError, match="study_id"):
        LinearBanditStudy(
            LinearUCBSettings(releases, local_data="released"), 1, study_id=study_id
        )
    with pytest.raises(ValueError, match="study_id"):
        replace(_neural(), study_id=study_id)


def test_a_policy_is_of_the_study_that_enrolled_last(tmp_path: Path) -> None:
    node = Node(tmp_path)
    site, make = private_bandit_study(
        "linear", Limits(max_epsilon_per_example=9, max_delta=1e-5)
    )
    for name in ("b", "a"):
        study, asked = make(name)
        number = node.ask(site, study.enrolment()).metrics["journal"]
        node.ask(site, asked(number))
        policy = LinearBanditPolicy.open(tmp_path, patience=0)
        assert policy.num_trials == 2
        choice = policy.choose(np.eye(3))
        policy.reward(choice.ticket, 0.5)
    assert LinearBanditPolicy.open(tmp_path, patience=0).num_trials == 3


def test_a_site_says_once_what_it_has_joined(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flwr.fbo")
    with SpendingLedger.held(tmp_path) as ledger:
        ledger.record(("tuning", "before"), 1, Charge(40.0), owner=0)
    site = Site(gate_app(), **NODE, **{"fbo-folder": str(tmp_path)})
    site.grid.contexts[1001].node_config["fbo-max-releases"] = 2
    site.run_trials()
    site.run_trials()
    site.ask_ballot()
    said = [m for m in caplog.messages if m.startswith("joined study")]
    assert said == [
        "joined study a of strategy FederationTuner: promises 1 release, no epsilon: "
        f"it is not private; spent before in 1 release: epsilon "
        f"{composed_epsilon([Charge(40.0)], 1e-5):.4g} per client (message or zeros, "
        "delta 1e-05); limits: max_epsilon_per_client=0.5, "
        "max_delta=1e-05, max_releases=2"
    ]


@pytest.mark.parametrize("is_private", [True, False])
def test_a_tuning_site_says_what_is_promised(
    is_private: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flwr.fbo")
    noise = {} if is_private else {"noise_seed": 1}
    node_configs: list[Any] = [{"agent-id": slot} for slot in range(4)]
    study = FedVote(
        {"x": FloatDistribution(0, 1)},
        "maximize",
        4,
        epsilon=8,
        delta=1e-3,
        seeds=Seeds(noise=1 if noise else None),
    )
    app = tuning_app(lambda context: lambda trial: -abs(trial["x"] - 0.3))
    study.start(InProcessGrid(app, 4, node_configs=node_configs), num_rounds=3)
    said = [m for m in caplog.messages if m.startswith("joined study")]
    promised = "epsilon 8 per client (" if is_private else "no epsilon: it is not p"
    name = study.study.study_id
    assert len(said) == 4
    for line in said:
        assert f"joined study {name} of strategy FedVote: promises 2 releases" in line
        assert promised in line
        assert line.endswith("; spent before in 0 releases: nothing; limits: none")
    caplog.clear()
    InProcessGrid(app, 4)  # nodes that nobody configured say nothing
    again = FedVote(
        {"x": FloatDistribution(0, 1)}, "maximize", 4, epsilon=8, delta=1e-3
    )
    again.start(InProcessGrid(app, 4), num_rounds=2)
    assert not [m for m in caplog.messages if m.startswith("joined study")]
