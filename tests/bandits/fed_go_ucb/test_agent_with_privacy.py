"""Fed-GO-UCB with privacy: what is released, what it hides, and that it stays so."""

import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.exception import AggregationError
from typer.testing import CliRunner

from flwr_fbo import FedGOUCB, InProcessGrid, Limits
from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo.bandits import (
    FedGOUCBSettings,
    Network,
    NeuralBanditClient,
    neural_bandit_app,
)
from flwr_fbo.bandits.fed_go_ucb.agent import FedGOUCBAgent
from flwr_fbo.bandits.fed_go_ucb.settings import AgentReply
from flwr_fbo.bandits.kind import NEURAL_SITE
from flwr_fbo.bandits.site.decision import action_of
from flwr_fbo.cli import app as cli
from flwr_fbo.journal.journal import Journal
from flwr_fbo.lab.simulation.neural_bandits import NeuralBanditSimulation
from flwr_fbo.lab.tasks.nonlinear_bandit import (
    NonlinearBanditEnvironment,
)
from flwr_fbo.models.network import CONSTANT_SHARE, reference_features
from flwr_fbo.privacy.noise import SeededEntropy
from flwr_fbo.site.site_journal import record_name
from flwr_fbo.study.codec import PROTOCOL_VERSION
from tests.support.federation import Unheard, shuffled
from tests.support.grouped import hosted
from tests.support.private_agent import (
    MODEL,
    PRIVACY,
    SEED,
    SETTINGS,
    TASK,
    K,
    N,
    T,
    make_environment,
)
from tests.support.servers import server_of

D_W = MODEL.num_parameters


APP = neural_bandit_app(make_environment)


def strategy_of(settings: FedGOUCBSettings = SETTINGS, **options: Any) -> FedGOUCB:
    defaults = {"num_evaluations": T, "seed": SEED, "patience": 0.0, "model": MODEL}
    options = {**defaults, "noise_seed": SEED, **options}
    return hosted(FedGOUCB, settings, num_agents=N, **options)


def agent_of(slot: int = 0, **fields: Any) -> FedGOUCBAgent:
    settings = replace(SETTINGS, **fields)
    return FedGOUCBAgent(
        settings, MODEL, SEED, slot, num_agents=N, entropy=SeededEntropy(SEED, slot)
    )


def features_at(w0: FloatArray) -> Callable[[FloatArray], FloatArray]:
    return reference_features(MODEL, w0, K, generator(SEED, Purpose.REFERENCE_POINTS))


def journal_of(context: Context) -> Journal:
    content = context.state.config_records[record_name(NEURAL_SITE.name)]["journal"]
    assert isinstance(content, bytes)
    return Journal(None, content=content)


def releases_of(grid: InProcessGrid) -> list[list[FloatArray]]:
    found = []
    for context in grid.contexts.values():
        with journal_of(context) as journal:
            found.append([row.vectors for row in journal.ledger()])
    return found


# The features


def test_features_have_norm_one_and_are_alike_in_all_directions() -> None:
    w0 = MODEL.initial(np.random.default_rng(0))
    features = features_at(w0)
    points = np.random.default_rng(1).uniform(size=(4000, 6))
    gradients = MODEL.values_and_gradients(w0, points)[1]
    phi = features(gradients)
    np.testing.assert_allclose(np.linalg.norm(phi, axis=1), 1.0)
    second = phi.T @ phi / len(phi)
    assert second[0, 0] == pytest.approx(CONSTANT_SHARE)
    values = np.linalg.eigvalsh(second[1:, 1:])
    assert values[-1] < 3 * values[0]
    # And gradients themselves are not: nearly one direction.
    values = np.linalg.eigvalsh(gradients.T @ gradients)
    assert values[-1] > 0.99 * values.sum()


@pytest.mark.parametrize("value", [math.nan, -1e308])
def test_features_of_what_is_not_finite_are_no_longer_than_one(value: float) -> None:
    features = features_at(MODEL.initial(np.random.default_rng(0)))
    gradients = np.ones((2, D_W))
    gradients[1, 3:5] = value, -value
    [honest, other] = features(gradients)
    assert np.linalg.norm(honest) == pytest.approx(1.0)
    assert np.linalg.norm(other) <= 1 + 1e-12


class Flat:
    """A reward model whose gradients are the same everywhere."""

    dimension, num_parameters = 6, 1

    def initial(self, rng: np.random.Generator) -> FloatArray:
        return np.zeros(1)

    def values(self, w: FloatArray, x: FloatArray) -> FloatArray:
        return np.full(len(x), w[0])

    def values_and_gradients(
        self, w: FloatArray, x: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        return self.values(w, x), np.ones((len(x), 1))


def test_an_agent_does_not_begin_without_features() -> None:
    """Else its site would pay for releases of nothing but noise."""
    with pytest.raises(FloatingPointError, match="tell no two points"):
        FedGOUCBAgent(SETTINGS, Flat(), 1, 0, num_agents=4, entropy=SeededEntropy(1, 0))


def test_a_model_that_is_the_same_everywhere_has_no_features() -> None:
    with pytest.raises(FloatingPointError, match="tell no two points"):
        features_at(np.zeros(D_W))


# The agent


def test_sums_are_of_what_was_clipped() -> None:
    privacy = replace(PRIVACY, epsilon=math.inf, reward_range=(-1.0, 2.0))
    agent = agent_of(privacy=privacy)
    w0 = MODEL.initial(generator(SEED, Purpose.LANGEVIN))
    features = features_at(w0)
    rng = np.random.default_rng(1)
    expected = np.zeros((K + 1, K + 1))
    for x, y in zip(rng.uniform(size=(6, 6)), rng.standard_normal(6), strict=True):
        agent.tell(x, y)
        _, gradients = MODEL.values_and_gradients(w0, x[None])
        z = np.append(features(gradients)[0], (np.clip(y, -1, 2) - 0.5) / 1.5)
        expected += np.outer(z, z)
    np.testing.assert_allclose(agent.message().values, expected, atol=1e-12)


def test_a_trial_replaced_moves_the_sum_no_farther_than_promised() -> None:
    """Of any length: also where the model or the reward is beyond all bounds."""
    sensitivity = PRIVACY.releases.sensitivity
    points = np.random.default_rng(0).uniform(size=(20, 6))
    sums = []
    for x, y in [(x, y) for x in (*points, 1e200 * points[0]) for y in (-1e300, 9.0)]:
        agent = agent_of(privacy=replace(PRIVACY, epsilon=math.inf))
        agent.tell(x, y)
        sums.append(agent.message().values)
    moved = [np.linalg.norm(one - other) for one in sums for other in sums]
    assert 0.9 * sensitivity < max(moved) <= sensitivity


def test_an_agent_s_actions_look_at_none_of_its_own_trials() -> None:
    """Whatever it plays and is paid between two totals, it goes on as if nothing."""
    actions = np.random.default_rng(2).uniform(size=(12, 6))
    played = []
    for rewards, forced in ((np.zeros(6), None), (np.full(6, 9.0), 3)):
        agent = agent_of()
        agent.receive(np.eye(K + 1) * 40)
        chosen = []
        for reward in rewards:
            chosen.append(agent.choose(actions))
            agent.tell(actions[chosen[-1] if forced is None else forced], reward)
        played.append(chosen)
        assert not agent.wants_synchronisation()
    assert played[0] == played[1]
    assert len(set(played[0])) > 1  # and it does not play one action all the time


def test_agents_draw_differently() -> None:
    actions = np.random.default_rng(2).uniform(size=(12, 6))
    chosen = []
    for slot in range(8):
        agent = FedGOUCBAgent(
            SETTINGS, MODEL, SEED, slot, num_agents=8, entropy=SeededEntropy(1, slot)
        )
        chosen.append(agent.choose(actions))
    assert len(set(chosen)) > 1


def test_no_gradient_leaves_a_private_agent() -> None:
    """Whatever the server asks for."""
    agent = agent_of()
    agent.tell(np.full(6, 0.5), 0.3)
    with pytest.raises(RuntimeError, match="in phase I only"):
        agent.regression_message(np.zeros(D_W))


def test_a_lie_that_is_longer_than_any_release_is_refused() -> None:
    server = server_of(SETTINGS, MODEL, SEED)
    shape = SETTINGS.sums_shape(D_W)
    assert server.receive_sums({0: AgentReply(1, np.full(shape, 1e300))}) == []
    assert server.receive_sums({0: AgentReply(1, np.ones(shape))}) == [0]


# Over Flower


def numpy_client(context: Context) -> Any:
    return NeuralBanditClient(context, make_environment).to_client()


def test_plays_as_the_simulator_does() -> None:
    grid = InProcessGrid(APP, N)
    result = strategy_of().start(grid)
    simulated = NeuralBanditSimulation(SETTINGS, TASK, N, T, model=MODEL).run(SEED)
    assert result.num_synchronisations == simulated.num_synchronisations == 2
    for slot, context in enumerate(grid.contexts.values()):
        bandit = NonlinearBanditEnvironment(TASK, SEED, slot)
        with journal_of(context) as journal:
            assert [row.iteration for row in journal.ledger()] == [1, 2]
            played = [action_of(trial) for trial in journal.trials()]
        actions = bandit.contexts(0)[simulated.actions[:, slot]]
        np.testing.assert_array_equal(played, actions)


def test_every_client_gives_the_same() -> None:
    apps = APP, ClientApp(client_fn=numpy_client)
    grids = [shuffled(InProcessGrid(app, N), i) for i, app in enumerate(apps)]
    for grid, api in zip(grids, ("message", "numpy"), strict=True):
        strategy_of(client_api=api).start(grid)
    for one, other in zip(*map(releases_of, grids), strict=True):
        np.testing.assert_equal(one, other)


def test_real_noise_is_private_and_epsilon_reported(tmp_path: Path) -> None:
    configs: list[Any] = [
        {"partition-id": i, "fbo-folder": str(tmp_path / f"site-{i}")} for i in range(N)
    ]
    grid = InProcessGrid(APP, N, node_configs=configs)
    server = tmp_path / "server"
    result = strategy_of(noise_seed=None, folder=server).start(grid)
    assert result.privacy_spent is not None
    assert (result.privacy_spent.epsilon, result.privacy_spent.delta) == (4.0, 1e-3)
    assert [r.epsilon for r in result.rounds] == [None] * 2 + [4.0] * (T - 2)
    for folder in (server, tmp_path / "site-0"):
        shown = CliRunner().invoke(cli, ["ledger", "show", str(folder)])
        assert shown.exit_code == 0, shown.output
        assert "NOT PRIVATE" not in shown.output
        assert "2 releases" in shown.output
        terms = "epsilon 4.0000 per example (replaced by another, delta 0.001)"
        assert terms in " ".join(shown.output.split())


@pytest.mark.parametrize(
    ("settings", "noise_seed"),
    [(SETTINGS, 1), (replace(SETTINGS, privacy=replace(PRIVACY, epsilon=1e3)), None)],
)
def test_a_site_refuses_what_promises_less(
    settings: FedGOUCBSettings, noise_seed: int | None
) -> None:
    app = neural_bandit_app(
        make_environment, limits=Limits(max_epsilon_per_example=4.0, max_delta=1e-3)
    )
    with pytest.raises(Exception, match="takes no part"):
        strategy_of(settings, noise_seed=noise_seed).start(InProcessGrid(app, N))
    with pytest.raises(Exception, match="is not private"):
        strategy_of(replace(SETTINGS, privacy=None), noise_seed=None).start(
            InProcessGrid(app, N)
        )


def test_a_release_that_was_asked_for_is_spent() -> None:
    strategy = strategy_of(noise_seed=None)
    with pytest.raises(AggregationError):
        strategy.start(Unheard(APP, N))
    assert not strategy.server.ledger
    assert strategy.privacy_spent is not None
    assert strategy.privacy_spent.epsilon == 4.0


class Ending(InProcessGrid):
    """Loses the answers of one round, and the server with them."""

    last: int | None = None

    def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
        asked = list(messages)
        replies = super().send_and_receive(asked, timeout=timeout)
        number = int(asked[0].metadata.group_id or 0) if asked else 0
        if number == self.last:
            raise RuntimeError("agents have answered, and nobody has heard")
        return replies


@pytest.mark.parametrize("last", [3, 6])
def test_nothing_is_drawn_twice_after_a_crash(tmp_path: Path, last: int) -> None:
    """With real noise: what went out and was not heard of goes out again, the same."""
    grid = Ending(APP, N)
    grid.last = last
    with pytest.raises(RuntimeError, match="nobody has heard"):
        strategy_of(noise_seed=None, folder=tmp_path).start(grid)
    before = releases_of(grid)
    grid.last = None
    result = strategy_of(noise_seed=None, folder=tmp_path).start(grid)
    assert result.num_synchronisations == 2
    for old, new in zip(before, releases_of(grid), strict=True):
        assert len(new) == 2
        np.testing.assert_equal(new[: len(old)], old)


class Absent(InProcessGrid):
    """Agent 1 is away in some rounds."""

    rounds: tuple[int, ...] = ()

    def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
        asked = list(messages)
        number = int(asked[0].metadata.group_id or 0) if asked else 0
        away = list(self.contexts)[1] if number in self.rounds else None
        here = [m for m in asked if m.metadata.dst_node_id != away]
        return super().send_and_receive(here, timeout=timeout)


def test_who_was_away_goes_on_with_its_own_next_release() -> None:
    grid = Absent(APP, N)
    grid.rounds = (1, 3)  # w0, and the first synchronisation
    strategy = strategy_of()
    strategy.start(grid)
    assert strategy.server.heard == [2, 1, 2]
    assert [len(rows) for rows in releases_of(grid)] == [2, 1, 2]


@pytest.mark.parametrize(
    ("last", "case"),
    [(6, "lost"), (3, "older"), (6, "older, and the context lost")],
)
def test_an_agent_without_its_journal_stops(
    tmp_path: Path, last: int, case: str
) -> None:
    """It would draw other noise for sums that it has released, or play them again."""
    configs: list[Any] = [
        {"partition-id": i, "fbo-folder": str(tmp_path / f"{i}")} for i in range(N)
    ]

    class Losing(InProcessGrid):
        def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
            asked = list(messages)
            number = int(asked[0].metadata.group_id or 0) if asked else 0
            path, backup = tmp_path / "0", tmp_path / "backup"
            if number == last:
                shutil.copytree(path, backup)
            if number == last + 1:
                shutil.rmtree(path)
                if case != "lost":
                    shutil.copytree(backup, path)
                if "context" in case:
                    next(iter(self.contexts.values())).state.config_records.clear()
            return super().send_and_receive(asked, timeout=timeout)

    result = strategy_of().start(Losing(APP, N, node_configs=configs))
    failed = [r.server_round for r in result.rounds if r.failed]
    assert failed == list(range(last + 1, T + 1))


def test_an_older_journal_is_noticed_if_no_answer_was_heard(tmp_path: Path) -> None:
    """The server knows of no release then, but the agent does."""
    configs: list[Any] = [
        {"partition-id": i, "fbo-folder": str(tmp_path / f"{i}")} for i in range(N)
    ]

    class Deaf(InProcessGrid):
        def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
            asked = list(messages)
            number = int(asked[0].metadata.group_id or 0) if asked else 0
            path, backup = tmp_path / "0", tmp_path / "backup"
            if number == 3:
                shutil.copytree(path, backup)
            replies = super().send_and_receive(asked, timeout=timeout)
            if number == 3:
                shutil.rmtree(path)
                shutil.copytree(backup, path)
                first = next(iter(self.contexts))
                return [r for r in replies if r.metadata.src_node_id != first]
            return replies

    result = strategy_of().start(Deaf(APP, N, node_configs=configs))
    failed = [r.server_round for r in result.rounds if r.failed]
    assert failed == list(range(4, T + 1))


def test_a_model_that_fails_is_not_quoted() -> None:
    def broken(context: Context) -> Network:
        raise ValueError("patient 7")

    app = neural_bandit_app(make_environment, broken)
    with pytest.raises(Exception, match="failed: ValueError") as caught:
        strategy_of().start(InProcessGrid(app, N))
    assert "patient" not in str(caught.value)


def test_a_stranger_s_record_is_refused() -> None:
    """A server of the version before is told so."""
    app = neural_bandit_app(make_environment)
    config: Any = {**strategy_of().study.enrolment(), "fbo-protocol": 1}
    grid = InProcessGrid(app, N)
    content = RecordDict({"arrays": ArrayRecord(), "config": ConfigRecord(config)})
    message = Message(content, next(iter(grid.contexts)), "train")
    [reply] = grid.send_and_receive([message])
    assert f"version {PROTOCOL_VERSION}" in str(reply.error.reason)
