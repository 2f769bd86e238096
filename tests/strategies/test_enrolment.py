"""Enrolment: who takes part, under which slot, and who is waited for."""

import logging
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import (
    load_ssh_public_key,
)
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp.exception import AggregationError

from flwr_fbo import Host, InProcessGrid, add_tuning, tuning_app
from flwr_fbo._compat import fingerprint_of
from flwr_fbo.strategies.enrolment import Enrolment, first_line
from flwr_fbo.strategies.round_progress import ToldGrid
from tests.support.enrolment import KEYS, EndedError, KeyGrid, pem_of
from tests.support.federation import (
    NUM_AGENTS,
    counting,
    make_objective,
    numpy_app,
    run,
    strategy,
)


@pytest.fixture
def no_naps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flwr_fbo.strategies.enrolment.time.sleep", lambda _: None)


def test_too_few_voices_reach_none_of_them() -> None:
    app, asked = counting()
    with pytest.raises(AggregationError, match=r"4 agents must enrol, .* 3 nodes"):
        strategy().start(InProcessGrid(app, 3), num_rounds=3)
    assert not asked


def test_waiting_for_clients_is_bounded_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "flwr.fbo")
    grid = InProcessGrid(numpy_app(), 3)
    grid.is_complete = False  # as where nodes may connect later
    with pytest.raises(AggregationError, match=r"patience=0\.1 s, "):
        strategy(patience=0.1).start(grid, num_rounds=3)
    assert "Waiting for agents: 3 nodes connected, 0 enrolled, 4 wanted." in caplog.text


def test_nobody_waits_for_more_nodes_than_a_grid_in_this_process_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("flwr_fbo.strategies.enrolment.time.sleep", pauses.append)
    with pytest.raises(AggregationError, match=r"3 nodes .*this grid has too few"):
        strategy(patience=3600.0).start(InProcessGrid(numpy_app(), 3), num_rounds=3)
    assert not pauses


APPS_BY_API = {
    "message": tuning_app(make_objective),
    "numpy": numpy_app(),
    "action": ClientApp(),
}
add_tuning(APPS_BY_API["action"], make_objective, None)


@pytest.mark.usefixtures("no_naps")
@pytest.mark.parametrize(
    ("app", "client_api"),
    [
        ("numpy", "message"),
        ("numpy", "action"),
        ("message", "numpy"),
        ("action", "both"),
    ],
)
def test_a_wrong_client_api_is_named(app: str, client_api: str) -> None:
    grid = InProcessGrid(APPS_BY_API[app], NUM_AGENTS)
    named = rf"client_api='{client_api}' may not be what it answers"
    with pytest.raises(AggregationError, match=named):
        strategy(client_api=client_api, patience=3600.0).start(grid, num_rounds=3)


def test_a_study_can_begin_with_fewer_than_its_slots() -> None:
    study = strategy(min_agents=2)
    grid = InProcessGrid(numpy_app(), 3)
    study.start(grid, num_rounds=3)
    assert [agent.slot for agent in grid.agents(study.study)] == [0, 1, 2]


@pytest.mark.usefixtures("no_naps")
def test_a_client_that_fails_to_enrol_is_asked_again() -> None:
    """Patience covers enrolment: a hiccup does not end the study."""
    honest, app = tuning_app(make_objective), ClientApp()
    failures = [1]

    @app.train()
    def train(message: Message, context: Context) -> Message:
        if context.node_config["partition-id"] == 1 and failures:
            failures.pop()
            raise ConnectionError("hiccup")
        return honest(message, context)

    _, agents = run(app, num_rounds=2, patience=5.0)
    assert len(agents) == NUM_AGENTS


def test_a_message_for_numpy_clients_is_named_by_others() -> None:
    with pytest.raises(AggregationError, match="not written for this app"):
        run(tuning_app(make_objective), client_api="numpy")


def _node_configs(*ids: Any) -> list[dict[str, Any]]:
    return [{"partition-id": n, "agent-id": i} for n, i in enumerate(ids)]


def test_agent_id_goes_before_partition_id() -> None:
    grid = InProcessGrid(numpy_app(), 4, node_configs=_node_configs(3, "2", 1, 0))
    study = strategy()
    study.start(grid, num_rounds=2)
    slots = [
        int(str(c.state.config_records["flwr-fbo-agent"]["slot"]))
        for c in grid.contexts.values()
    ]
    assert slots == [3, 2, 1, 0]


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ((0, 1, 2, 2), "agent-id=2 is held by another node"),
        ((0, 1, 2, 4), "agent-id=4 (else partition-id) is not allowed: 0 to 3"),
        ((0, 1, 2, -1), "node config agent-id is not allowed: an integer"),
        ((0, 1, 2, 1.5), "node config agent-id is not allowed: an integer"),
    ],
)
def test_bad_agent_ids_are_named(ids: tuple[Any, ...], words: str) -> None:
    grid = InProcessGrid(numpy_app(), 4, node_configs=_node_configs(*ids))
    with pytest.raises(AggregationError) as error:
        strategy().start(grid, num_rounds=2)
    assert words in str(error.value)
    states = [c.state.config_records for c in grid.contexts.values()]
    assert not any("flwr-fbo-agent" in state for state in states)


def _issued(num_nodes: int) -> InProcessGrid:
    app = numpy_app(lambda context: lambda params: params["x"])
    return InProcessGrid(app, num_nodes, node_configs=[{}] * num_nodes)


def test_agents_without_an_id_are_issued_a_slot_and_keep_it() -> None:
    grid, first = _issued(4), strategy()
    first.start(grid, num_rounds=2)
    assert [a.slot for a in grid.agents(first.study)] == [0, 1, 2, 3]
    # A second study in the same run begins afresh.
    second = strategy(study_seed=3)
    second.start(grid, num_rounds=2)
    agents = grid.agents(second.study)
    assert [a.slot for a in agents] == [0, 1, 2, 3]
    assert [len(a.values) for a in agents] == [5] * 4


def test_more_nodes_than_slots_leave_some_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "flwr.fbo"):
        study, grid = strategy(), _issued(5)
        study.start(grid, num_rounds=2)
    assert len(grid.agents(study.study)) == 4
    assert "all 4 slots are taken" in caplog.text


def _open(study: Any, grid: InProcessGrid, host: Host) -> None:
    """Begin a study whose rounds the test asks for itself."""
    study._open(5, None, host)
    study._grid = ToldGrid(grid, lambda: study._enrolment.slots)


def test_an_agent_that_comes_back_keeps_its_slot() -> None:
    """A SuperNode restarts under another node id; nobody counts twice."""
    grid, study = InProcessGrid(numpy_app(), 4), strategy()
    _open(study, grid, Host())
    for server_round in (1, 2, 3):
        if server_round == 2:
            context = grid.contexts.pop(1003)
            context.node_id = 77
            grid.contexts[77] = context
        config = ConfigRecord()
        messages = list(
            study.configure_train(server_round, ArrayRecord(), config, grid)
        )
        assert len(messages) == 4
        study.aggregate_train(server_round, grid.send_and_receive(messages))
    assert sorted(study._enrolment.slots.values()) == [0, 1, 2, 3]
    assert study._enrolment.slots[77] == 2
    assert [len(a.values) for a in grid.agents(study.study)] == [6] * 4


def test_with_keys_every_site_names_its_slot(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Or one that does not would take another's; and it is asked once, not for ever."""
    app, asked = counting()
    grid = InProcessGrid(app, 4)
    del grid.contexts[1004].node_config["partition-id"]
    study = strategy(authenticated=True, min_agents=3, folder=tmp_path / "record")
    study.start(grid, num_rounds=4)
    assert "no agent-id in the node config" in caplog.text
    assert len(asked) == 4 + 3 * 4


@pytest.mark.parametrize("authenticated", [True, False])
def test_a_slot_is_bound_to_a_key(
    authenticated: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Another node that claims it, while its node is away, may be anybody."""
    grid = InProcessGrid(numpy_app(), 4)
    study = strategy()
    _open(study, grid, Host(authenticated=authenticated, patience=0.0))
    nobody = ConfigRecord()
    list(study.configure_train(1, ArrayRecord(), nobody, grid))
    context = grid.contexts.pop(1003)
    context.node_id = 77
    grid.contexts[77] = context
    asked = list(study.configure_train(2, ArrayRecord(), nobody, grid))
    assert len(asked) == (3 if authenticated else 4)
    refused = "agent-id=2 belongs to another node id" in caplog.text
    assert refused == authenticated
    # Its own node may come back.
    del grid.contexts[77]
    context.node_id = 1003
    grid.contexts[1003] = context
    assert len(list(study.configure_train(3, ArrayRecord(), nobody, grid))) == 4


PRINTS = [fingerprint_of(key) for key in KEYS]
LISTED = dict(enumerate(PRINTS[:NUM_AGENTS]))


def test_a_fingerprint_is_what_ssh_keygen_prints() -> None:
    """For this key, with ``-lf``."""
    line = (
        "ecdsa-sha2-nistp384 "
        "AAAAE2VjZHNhLXNoYTItbmlzdHAzODQAAAAIbmlzdHAzODQAAABhBLkpgDHkV0WugcCp"
        "Nug2c0R7OCtt3bbW0+EvHpmLPlweToc0YKpUt9UCTFcA03oyIjyq/ZJUZk22Y5+6+8zU"
        "YupKRTMY3rSICywGvk/lpAcXOy+ipjFfIWs6q7E8jGB8ag=="
    )
    said = "SHA256:EGmOzE2PfJhmiZZ46M7xnRyzvbLDpX8E0AjTSjKPXUQ"
    assert fingerprint_of(pem_of(load_ssh_public_key(line.encode()))) == said


def test_a_slot_is_given_to_the_key_that_is_listed_for_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A stranger that is first to claim it is refused, and its agent takes part."""
    ids = _node_configs(3, 0, 1, 2, 3)
    grid = KeyGrid(NUM_AGENTS + 1, node_configs=ids)
    first, *rest = grid.contexts
    grid.keys = dict(zip([*rest, first], KEYS, strict=True))
    late = grid.contexts.pop(rest[-1])  # of slot 3: the stranger is before it
    study = strategy()
    host = Host(authenticated=True, keys=LISTED, min_agents=3, patience=0.0)
    _open(study, grid, host)
    nobody = ConfigRecord()
    assert len(list(study.configure_train(1, ArrayRecord(), nobody, grid))) == 3
    assert f"agent-id=3 came with {PRINTS[-1]}, not with its key" in caplog.text
    grid.contexts[rest[-1]] = late
    assert len(list(study.configure_train(2, ArrayRecord(), nobody, grid))) == 4
    assert study._enrolment.slots == dict(zip(rest, range(4), strict=True))


def test_who_is_missing_is_told_by_the_listed_keys(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Before anybody is asked: nobody else knows whom to phone."""
    caplog.set_level(logging.INFO, "flwr.fbo")
    grid = KeyGrid(NUM_AGENTS)
    grid.is_complete = False
    del grid.contexts[next(iter(grid.contexts))]
    study = strategy()
    host = Host(authenticated=True, keys=LISTED, patience=0.1)
    _open(study, grid, host)
    with pytest.raises(AggregationError, match="too few nodes; missing: agent 0"):
        list(study.configure_train(1, ArrayRecord(), ConfigRecord(), grid))
    assert not grid.asked
    assert "0 enrolled, 4 wanted; missing: agent 0." in caplog.text


def test_a_listed_key_keeps_its_slot_under_another_node_id() -> None:
    """Such as after the SuperLink's database was lost."""
    grid = KeyGrid(NUM_AGENTS)
    study = strategy()
    _open(study, grid, Host(authenticated=True, keys=LISTED, patience=0.0))
    nobody = ConfigRecord()
    list(study.configure_train(1, ArrayRecord(), nobody, grid))
    context = grid.contexts.pop(1003)
    context.node_id, grid.contexts[77] = 77, context
    grid.keys[77] = grid.keys.pop(1003)
    assert len(list(study.configure_train(2, ArrayRecord(), nobody, grid))) == 4
    assert study._enrolment.slots[77] == 2


def test_a_squatter_loses_its_slot_when_keys_are_listed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In the run that goes on: what an earlier one issued is not taken over."""
    grid = KeyGrid(NUM_AGENTS)
    grid.keys[1002], grid.ends_in = KEYS[-1], "2"
    options: dict[str, Any] = {"folder": tmp_path / "record", "authenticated": True}
    with pytest.raises(EndedError):
        strategy(**options).start(grid, num_rounds=3)
    grid.ends_in = ""
    study = strategy(**options, keys=LISTED)
    study.start(grid, num_rounds=3)
    assert study._enrolment.slots == {1001: 0, 1003: 2, 1004: 3}
    assert "agent-id=1 came with SHA256:" in caplog.text


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ([1], "a mapping of slots"),
        ({0: LISTED[0]}, r"one for each slot, 0 to 3"),
        ({**LISTED, 3: "SHA256:short"}, r"keys\[3\]='SHA256:short' is not allowed"),
        ({**LISTED, 3: LISTED[0]}, "another key for every slot"),
        ({"x": LISTED[0]}, "slot='x'"),
    ],
)
def test_wrong_keys_are_named(keys: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Enrolment(NUM_AGENTS, Host(authenticated=True, keys=keys))


def test_keys_that_nobody_proves_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"keys=.* with authenticated=True"):
        strategy(keys=LISTED)
    with pytest.raises(AggregationError, match="agent-id=0 came with no key"):
        strategy(authenticated=True, keys=LISTED, folder=tmp_path / "record").start(
            InProcessGrid(numpy_app(), NUM_AGENTS), num_rounds=2
        )


@pytest.mark.usefixtures("no_naps")
def test_all_who_refuse_are_named_with_slot_and_key(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also those with equal reasons: an operator must know whom to phone."""
    limits: dict[str, Any] = {"fbo-max-epsilon-per-client": 0.1, "fbo-max-delta": 1e-3}
    configs = _node_configs(*range(NUM_AGENTS))
    configs[1] |= limits
    configs[2] |= limits
    grid = KeyGrid(NUM_AGENTS, tuning_app(make_objective), node_configs=configs)
    options: dict[str, Any] = {"patience": 300.0, "folder": tmp_path / "record"}
    study = strategy(authenticated=True, keys=LISTED, **options)
    with pytest.raises(AggregationError) as error:
        study.start(grid, num_rounds=3)
    first, second = (
        f"node {node} (slot {slot}, key {PRINTS[slot]})"
        for node, slot in ((1002, 1), (1003, 2))
    )
    why = "client failed: SiteError: RefusedError: This site takes no part: "
    assert f"{first}, {second}: {why}" in str(error.value)
    told = [m for m in caplog.messages if m.startswith("Not enrolled: ")]
    assert len(told) == 1
    assert told[0].startswith(f"Not enrolled: {first}, {second}: {why}")
    assert sorted(grid.asked) == [1001, 1002, 1003, 1004]  # none of them twice
    refusals = [m for m in caplog.messages if "could not answer" in m]
    assert len(refusals) == 1
    assert not any(record.exc_info for record in caplog.records)


def test_of_many_equal_reasons_the_first_nodes_are_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(context: Context) -> Any:
        raise OSError("no data here")

    grid = InProcessGrid(ClientApp(client_fn=broken), 30)
    with pytest.raises(AggregationError) as error:
        strategy(num_agents=30, patience=0.0).start(grid, num_rounds=3)
    assert "node 1001, node 1002, " in str(error.value)
    assert "node 1020, 10 more nodes: client failed: " in str(error.value)
    assert "node 1021" not in str(error.value)


def test_nobody_who_enrols_is_named() -> None:
    stranger = ClientApp()

    @stranger.train()
    def train(message: Message, context: Context) -> Message:
        return Message(RecordDict(), reply_to=message)

    with pytest.raises(AggregationError, match="not a flwr_fbo client"):
        strategy().start(InProcessGrid(stranger, 4), num_rounds=3)


def test_the_last_line_of_a_traceback() -> None:
    assert first_line("Traceback\n  File x\nValueError: no\n\n") == "ValueError: no"
    assert first_line(None) == "no reason given"


@pytest.mark.usefixtures("no_naps")
def test_clients_that_always_raise_are_not_asked_for_ever() -> None:
    asked = []

    def broken(context: Context) -> Any:
        asked.append(context.node_id)
        raise OSError("no data here")

    grid = InProcessGrid(ClientApp(client_fn=broken), NUM_AGENTS)
    with pytest.raises(AggregationError, match="client failed: OSError: no data here"):
        strategy(patience=300.0).start(grid, num_rounds=2)
    assert len(asked) == 3 * NUM_AGENTS
