"""FedUCB without a centre: who hears what and when, and that nobody reads the mail."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from numpy.typing import NDArray
from typer.testing import CliRunner

from flwr_fbo import InProcessGrid, LinearBanditPolicy, linear_bandit_app
from flwr_fbo._compat import to_array_record
from flwr_fbo.bandits import (
    EllipsoidSampling,
    InverseGapWeighting,
    LinearBanditClient,
    LinearUCBSettings,
    PeerGraph,
)
from flwr_fbo.bandits.decentralized_fed_ucb.server import (
    DecentralizedFedUCBServer,
    PeerMessage,
)
from flwr_fbo.bandits.kind import LINEAR_SITE
from flwr_fbo.bandits.linear.agent import LinearUCBAgent
from flwr_fbo.bandits.linear.confidence import Confidence
from flwr_fbo.bandits.linear.settings import DeterminantTrigger
from flwr_fbo.bandits.linear.study import LinearBanditStudy
from flwr_fbo.bandits.site.decision import action_of
from flwr_fbo.bandits.site.peer_mail import PeerMail
from flwr_fbo.bandits.site.recorded_bandit import RecordedBandit
from flwr_fbo.cli import app as cli
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.tables import Trial
from flwr_fbo.lab.simulation.linear_bandits import BanditSimulation
from flwr_fbo.lab.tasks.linear_bandit import LinearBanditEnvironment
from flwr_fbo.privacy.continual import ContinualRelease
from flwr_fbo.privacy.noise import SeededEntropy
from flwr_fbo.site.site_journal import record_name
from flwr_fbo.study.server import Step
from tests.support.federation import shuffled
from tests.support.peer_studies import (
    APP,
    COMPLETE,
    LINE,
    NOISE_SEED,
    OPEN,
    RAW,
    RELEASES,
    RING,
    SCHEDULE,
    SEED,
    SETTINGS,
    TASK,
    M,
    T,
    folders_of,
    make_environment,
    sites,
    strategy_of,
)


def journal_of(context: Context) -> Journal:
    content = context.state.config_records[record_name(LINEAR_SITE.name)]["journal"]
    assert isinstance(content, bytes)
    return Journal(None, content=content)


def trials_of(context: Context) -> list[Trial]:
    with journal_of(context) as journal:
        return journal.trials()


def heard_by(context: Context) -> list[int]:
    """Return the newest synchronisation that an agent has heard of, by slot."""
    with journal_of(context) as journal:
        return [int(n) for n in journal.load_state().get("heard", np.zeros(M))]


def played(grid: InProcessGrid) -> list[NDArray[np.float64]]:
    return [
        np.array([action_of(trial) for trial in trials_of(context)])
        for context in grid.contexts.values()
    ]


# The algorithm.


def centre_with_a_delay(settings: LinearUCBSettings) -> list[NDArray[np.float64]]:
    """Play the central algorithm with raw data; a total arrives one trial later."""
    agents = [LinearUCBAgent(Confidence.of(settings, M)) for _ in range(M)]
    bandits = [LinearBanditEnvironment(TASK, SEED, slot) for slot in range(M)]
    releases = [
        ContinualRelease(settings.releases, SeededEntropy(NOISE_SEED, slot))
        for slot in range(M)
    ]
    actions: list[list[Any]] = [[] for _ in range(M)]
    total: NDArray[np.float64] | None = None
    for t in range(T):
        for slot, (agent, bandit) in enumerate(zip(agents, bandits, strict=True)):
            contexts = bandit.contexts(t)
            action = contexts[agent.choose(contexts)[0]]
            reward = bandit.reward(action)
            agent.tell(action, reward)
            actions[slot].append(action)
            if total is not None:  # of trials before this one
                agent.receive(total)
                agent._ellipsoid.observe(action, reward)
        total = None
        if t + 1 in SCHEDULE:
            k = SCHEDULE.index(t + 1) + 1
            sums = [agent.running_sum for agent in agents]
            pairs = zip(releases, sums, strict=True)
            total = np.sum([one.release(k, own) for one, own in pairs], axis=0)
    return [np.array(one) for one in actions]


def test_the_complete_graph_is_the_centre_a_trial_later() -> None:
    grid = InProcessGrid(APP, M)
    strategy_of(COMPLETE, RAW).start(grid)
    for mine, expected in zip(played(grid), centre_with_a_delay(RAW), strict=True):
        np.testing.assert_array_equal(mine, expected)


SINGLE = replace(RING, num_estimators=1, pooling="neighbourhood")


@pytest.mark.parametrize(
    ("graph", "settings"),
    [
        (LINE, OPEN),
        (SINGLE, SETTINGS),
        # Each estimator of an agent draws from the stream of its trial,
        (RING, replace(SETTINGS, exploration=EllipsoidSampling())),
        (RING, replace(RAW, exploration=InverseGapWeighting())),
        # and has the agent's own part of its stream.
        (RING, replace(SETTINGS, local_data="own")),
        (SINGLE, replace(SETTINGS, local_data="own")),
    ],
)
def test_plays_as_the_simulator_does(
    graph: PeerGraph, settings: LinearUCBSettings
) -> None:
    grid = InProcessGrid(APP, M)
    result = strategy_of(graph, settings).start(grid)
    centre = BanditSimulation(settings, M, TASK, T, SCHEDULE)
    expected = centre.among_peers(graph).run(SEED, NOISE_SEED)
    for slot, context in enumerate(grid.contexts.values()):
        bandit = LinearBanditEnvironment(TASK, SEED, slot)
        trials = trials_of(context)
        assert [trial.state for trial in trials] == ["complete"] * T
        for t, trial in enumerate(trials):
            action = bandit.contexts(t)[expected.actions[t, slot]]
            np.testing.assert_array_equal(action_of(trial), action)
    assert result.privacy_spent is not None
    assert result.privacy_spent.epsilon == settings.releases.epsilon
    assert result.privacy_spent.num_releases == 3


def numpy_app() -> ClientApp:
    def client_fn(context: Context) -> Any:
        return LinearBanditClient(
            context, make_environment=make_environment
        ).to_client()

    return ClientApp(client_fn=client_fn)


@pytest.mark.parametrize(
    ("app", "client_api"), [(numpy_app(), "numpy"), (APP, "message")]
)
def test_every_client_gives_the_same(app: ClientApp, client_api: str) -> None:
    grid = shuffled(InProcessGrid(app, M), 3)
    strategy_of(RING, client_api=client_api).start(grid)
    for one, other in zip(_uninterrupted().actions, played(grid), strict=True):
        np.testing.assert_array_equal(one, other)


class Watched(InProcessGrid):
    """Notes after each round what agents have heard; some are dead in some rounds."""

    def __init__(
        self, app: ClientApp = APP, dead: dict[int, set[int]] | None = None
    ) -> None:
        super().__init__(app, M)
        self.dead = dead or {}
        self.heard: dict[int, list[list[int]]] = {}

    def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
        asked = list(messages)
        number = int(asked[0].metadata.group_id or 0) if asked else 0
        dead = self.dead.get(number, set())
        nodes = list(self.contexts)
        alive = [m for m in asked if nodes.index(m.metadata.dst_node_id) not in dead]
        replies = list(super().send_and_receive(alive, timeout=timeout))
        if number:
            self.heard[number] = [heard_by(c) for c in self.contexts.values()]
        return replies


@pytest.mark.parametrize("graph", [RING, PeerGraph.named("star", M)])
def test_messages_arrive_after_their_distance_and_no_farther(graph: PeerGraph) -> None:
    """Round r of a synchronisation's is r - 1 trials after it."""
    grid = Watched()
    strategy_of(graph).start(grid)
    for number in range(1, 4):
        first = 1 + (number - 1) * (graph.hops + 1)
        for hop in range(graph.hops + 1):
            heard = np.array(grid.heard[first + hop])
            expected = np.where(graph.distances <= hop, number, number - 1)
            # Who is too far away is never heard of.
            expected[graph.distances > graph.hops] = 0
            np.testing.assert_array_equal(heard, expected)


def test_a_dead_relay_loses_only_what_crossed_it() -> None:
    """On a line agent 2 is away in the round after the second synchronisation."""
    line = PeerGraph.named("line", M, hops=2)
    grid = Watched(dead={5: {2}})
    strategy_of(line).start(grid)
    heard = np.array(grid.heard[6])
    expected = np.where(line.distances <= 2, 2, 0)
    # Its neighbours' messages were to be taken in that round, and passed on in the
    # next one. What it had sent itself reaches all, and so does what came a hop later.
    for listener, origin in ((2, 1), (2, 3), (3, 1), (1, 3)):
        expected[listener, origin] = 1
    np.testing.assert_array_equal(heard, expected)
    later = np.array(grid.heard[9])
    np.testing.assert_array_equal(later, np.where(line.distances <= 2, 3, 0))


def test_a_cut_edge_loses_only_what_crossed_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grid, strategy = Watched(), strategy_of(RING)
    whole = strategy.server.mail_for

    def cut(slot: int) -> list[NDArray[np.uint8]]:
        gone = {0: 1, 1: 0}.get(slot)
        mail = strategy.server._mail
        kept = {} if gone is None else {gone: mail.pop(gone, [])}
        try:
            return whole(slot)
        finally:
            mail.update(kept)

    monkeypatch.setattr(strategy.server, "mail_for", cut)
    strategy.start(grid)
    # What is left is a line from 1 over 2, .., 5 to 0.
    order = [1, 2, 3, 4, 5, 0]
    line = PeerGraph(M, tuple(pairwise(order)), hops=2)
    expected = np.where(line.distances <= 2, 3, 0)
    np.testing.assert_array_equal(np.array(grid.heard[9]), expected)


# The server never reads.


def encrypting_app(key: int) -> ClientApp:
    """Return an app whose messages only those who have the key can read."""
    app = linear_bandit_app(make_environment=make_environment)

    def scramble(record: ArrayRecord) -> ArrayRecord:
        arrays = [array.numpy() for array in record.values()]
        if any(array.dtype != np.uint8 for array in arrays):
            return record  # no mail: what the server sends as it enrols
        return to_array_record([a ^ _stream(key, len(a)) for a in arrays])

    outer = ClientApp()

    @outer.train()
    def train(message: Message, context: Context) -> Message:
        for name in ("arrays", "fitins.parameters"):
            if name in message.content.array_records:
                opened = scramble(message.content.array_records[name])
                message.content[name] = opened
        reply = app(message, context)
        for name in ("arrays", "fitres.parameters"):
            if reply.has_content() and name in reply.content.array_records:
                reply.content[name] = scramble(reply.content.array_records[name])
        return reply

    return outer


def _stream(key: int, length: int) -> NDArray[np.uint8]:
    return np.random.default_rng(key).integers(0, 256, length, dtype=np.uint8)


def test_the_server_never_reads_a_message() -> None:
    """Agents play the same where it could not read one: all are encrypted."""
    grid, strategy = InProcessGrid(encrypting_app(99), M), strategy_of(RING)
    strategy.start(grid)
    for one, other in zip(_uninterrupted().actions, played(grid), strict=True):
        np.testing.assert_array_equal(one, other)
    plain, cipher = _uninterrupted().facts, strategy.server.ledger[0].facts
    assert plain["senders"] == cipher["senders"]
    assert not set(plain["digests"]) & set(cipher["digests"])


def test_the_server_never_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it hands out is, byte for byte, what was sent."""
    sent: list[NDArray[Any]] = []
    strategy = strategy_of(RING)
    assert strategy.server.vectors is None
    whole = strategy.server.receive

    def watched(step: Step, messages: Any) -> None:
        whole(step, messages)
        if step.iteration == 0:
            sent.extend(one for mail, _ in messages.values() for one in mail)
            for slot in range(M):
                for mine in strategy.server.mail_for(slot):
                    assert any(mine is one for one in sent)

    monkeypatch.setattr(strategy.server, "receive", watched)
    strategy.start(InProcessGrid(APP, M))
    settings = strategy.study.settings.releases
    messages = [PeerMessage.from_bytes(one, settings, RING) for one in sent]
    assert [message.origin for message in messages] == list(range(M))


def _zipped(arrays: Sequence[NDArray[Any]]) -> ArrayRecord:
    buffer = BytesIO()
    np.savez(buffer, a=np.zeros(3))
    return ArrayRecord({"0": Array("uint8", (3,), "numpy.ndarray", buffer.getvalue())})


SPOILS: list[Callable[[Sequence[NDArray[Any]]], ArrayRecord]] = [
    lambda arrays: to_array_record([np.zeros(3)]),
    lambda arrays: to_array_record([]),
    lambda arrays: to_array_record([a[:-1] for a in arrays]),
    lambda arrays: to_array_record([np.full_like(a, 255) for a in arrays]),
    lambda arrays: to_array_record([*arrays, *arrays]),
    lambda arrays: to_array_record(
        [np.concatenate([_header(5, 2), a[24:]]) for a in arrays]
    ),
    lambda arrays: to_array_record([a for a in arrays for _ in range(1000)]),
    _zipped,
]


def test_a_lying_agent_stops_nobody() -> None:
    """Agent 0 lies otherwise in each round."""
    told = iter(SPOILS)

    def lie(reply: Message) -> None:
        arrays = reply.content.array_records.items()
        sent = {name: [a.numpy() for a in record.values()] for name, record in arrays}
        if any(sent.values()) and (spoil := next(told, None)):
            for name, mine in sent.items():
                reply.content[name] = spoil(mine)

    grid = InProcessGrid(_lying(lie), M)
    result = strategy_of(LINE).start(grid)
    assert next(told, None) is None
    assert [r.answered for r in result.rounds] == [M] * len(result.rounds)
    assert all(len(trials_of(c)) == T for c in grid.contexts.values())


def _lying(lie: Callable[[Message], None]) -> ClientApp:
    """Return an app in which agent 0 changes its answers."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        reply = APP(message, context)
        if context.node_config["partition-id"] == 0 and reply.has_content():
            lie(reply)
        return reply

    return app


def test_a_forged_message_silences_nobody_for_ever() -> None:
    """In the first round agent 0 says for others what they will say in the third."""
    releases = replace(RELEASES, num_streams=2)
    zeros = np.zeros(releases.sum_shape)
    forged = [PeerMessage(slot, 3, 1, zeros).to_bytes() for slot in range(1, M)]
    done: list[str] = []

    def lie(reply: Message) -> None:
        for name, record in list(reply.content.array_records.items()):
            arrays = [array.numpy() for array in record.values()]
            if arrays and name not in done:
                done.append(name)
                reply.content[name] = to_array_record([*arrays, *forged])

    grid = Watched(_lying(lie))
    strategy_of(RING).start(grid)
    assert done
    assert grid.heard == _uninterrupted().heard


def test_a_slot_outside_the_graph_is_refused_and_the_site_goes_on() -> None:
    settings = replace(SETTINGS, releases=replace(RELEASES, num_streams=2))
    study = LinearBanditStudy(settings, M, noise_seed=1, graph=RING)
    with Journal(RecordedBandit.identity_of(study)) as journal:
        peer = RecordedBandit(journal)
        for slot in (6, -1, -2):
            with pytest.raises(ValueError, match=f"slot={slot} is not allowed: 0 to 5"):
                peer.join(slot, peer.number)
        peer.join(3, peer.number)
        mail = PeerMail(peer)
        for number in (4, 2**62, -1):
            with pytest.raises(ValueError, match="0 to 3, those planned"):
                mail.synchronise(number, 0)
            with pytest.raises(ValueError, match="0 to 3, those planned"):
                mail.believe(number)
        assert len(mail.synchronise(1, 0)) > 0


def test_the_server_counts_what_it_is_told_without_mail() -> None:
    """An agent whose answer came too late says so in the next round."""
    server = DecentralizedFedUCBServer(
        LinearBanditStudy(SETTINGS, M, noise_seed=1, graph=COMPLETE)
    )
    server.receive(server.step(0), {0: ([], 2)})
    assert server.num_releases == [2, 0, 0, 0, 0, 0]
    server.receive(server.step(1), {0: ([], 1), 1: ([], 0)})
    assert server.num_releases == [2, 0, 0, 0, 0, 0]
    assert len(server.ledger) == 1


def _header(origin: int, number: int) -> NDArray[np.uint8]:
    return np.frombuffer(np.array([origin, number, 1], "<i8").tobytes(), np.uint8)


# Triggers, the clock, and runs that end early.


def test_the_papers_trigger_synchronises() -> None:
    study = _uninterrupted(triggered=True)
    assert [len(actions) for actions in study.actions] == [TRIGGERED_ROUNDS] * M
    assert min(study.num_releases) >= 1
    assert study.epsilon == math.inf


def test_sites_synchronise_by_the_clock(tmp_path: Path) -> None:
    """Enrolment, and then for each synchronisation one round and two hops."""
    strategy = strategy_of(RING, interval=0.0, noise_seed=NOISE_SEED)
    result = strategy.start(sites(tmp_path))
    assert len(result.rounds) == 1 + 3 * 3
    assert strategy.server.num_releases == [3] * M
    policy = LinearBanditPolicy.open(folders_of(tmp_path)[2])
    choices = [policy.choose(np.eye(3)) for _ in range(3)]
    for choice, value in zip(choices, (0.1, 0.9, 0.5), strict=True):
        assert 0 <= choice.index < 3
        policy.reward(choice.ticket, value)
    shown = CliRunner().invoke(cli, ["ledger", "show", str(folders_of(tmp_path)[2])])
    assert shown.exit_code == 0, shown.output
    assert "3 releases of this agent" in shown.output


class Ended(RuntimeError):  # noqa: N818
    pass


TRIGGERED: dict[str, Any] = {"schedule": DeterminantTrigger(20.0), "num_trials": None}
TRIGGERED_ROUNDS = 17


@dataclass(frozen=True)
class Played:
    """What came of a study that nobody disturbed."""

    actions: list[NDArray[np.float64]]
    heard: dict[int, list[list[int]]]
    facts: dict[str, Any]
    num_releases: list[int]
    epsilon: float


@cache
def _uninterrupted(triggered: bool = False) -> Played:
    grid = Watched()
    if triggered:
        strategy = strategy_of(RING, RAW, **TRIGGERED)
        result = strategy.start(grid, num_rounds=TRIGGERED_ROUNDS)
    else:
        strategy = strategy_of(RING)
        result = strategy.start(grid)
    assert result.privacy_spent is not None
    server = strategy.server
    return Played(
        played(grid),
        grid.heard,
        server.ledger[0].facts,
        server.num_releases,
        result.privacy_spent.epsilon,
    )


@pytest.mark.parametrize(
    ("last", "triggered"),
    [
        (5, False),
        (7, True),
        pytest.param(2, False, marks=pytest.mark.slow),
        *(pytest.param(i, True, marks=pytest.mark.slow) for i in (6, 13)),
    ],
)
def test_goes_on_after_its_server_was_ended(
    tmp_path: Path, last: int, triggered: bool
) -> None:
    settings, options = (RAW, TRIGGERED) if triggered else (SETTINGS, {})
    rounds = TRIGGERED_ROUNDS if triggered else 10

    class Ending(InProcessGrid):
        ends = True

        def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
            asked = list(messages)
            number = int(asked[0].metadata.group_id or 0) if asked else 0
            replies = super().send_and_receive(asked, timeout=timeout)
            if self.ends and number == last + 1:
                raise Ended  # agents have answered, and the server has not heard
            return replies

    grid, folder = Ending(APP, M), tmp_path / "server"
    with pytest.raises(Ended):
        strategy_of(RING, settings, folder=folder, **options).start(
            grid, num_rounds=rounds
        )
    grid.ends = False
    strategy = strategy_of(RING, settings, folder=folder, **options)
    result = strategy.start(grid, num_rounds=rounds)
    assert len(result.rounds) == rounds
    for one, other in zip(_uninterrupted(triggered).actions, played(grid), strict=True):
        np.testing.assert_array_equal(one, other)
    shown = CliRunner().invoke(cli, ["ledger", "show", str(folder)])
    assert shown.exit_code == 0, shown.output
    assert re.search(r"releases? of each agent", shown.output)
    assert "NOT PRIVATE" in shown.output
