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

from flwr_fbo import (
    FedGOUCB,
    InProcessGrid,
    Limits,
    Network,
    NeuralBanditClient,
    NeuralPrivacy,
    NeuralUCBSettings,
    neural_bandit_app,
)
from flwr_fbo._arrays import FloatArray
from flwr_fbo._random import Purpose, generator
from flwr_fbo.agents.bandits.private_fed_go_ucb import (
    PrivateNeuralUCBAgent,
    seeded_entropy,
)
from flwr_fbo.agents.durable.fed_go_ucb import KIND
from flwr_fbo.agents.durable.fed_ucb import BanditEnvironment
from flwr_fbo.cli import app as cli
from flwr_fbo.clients.site_journal import record_name
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.models.langevin import LangevinSettings
from flwr_fbo.models.network import LinearModel
from flwr_fbo.models.reference_features import ReferenceFeatures
from flwr_fbo.privacy.gaussian import gaussian_delta
from flwr_fbo.privacy.gradients import GradientRelease, GradientSettings, clipped
from flwr_fbo.privacy.noise import OsEntropy, SeededEntropy
from flwr_fbo.protocol.codec import PROTOCOL_VERSION
from flwr_fbo.protocol.neural_ucb_settings import Sums
from flwr_fbo.servers.fed_go_ucb_phases import NeuralBanditServer
from flwr_fbo.simulation.neural_bandits import NeuralBanditSimulation
from flwr_fbo.tasks.nonlinear_bandit import (
    FunctionBanditTask,
    NonlinearBanditEnvironment,
)
from tests.federation import Unheard
from tests.grouped import waiting

TASK = FunctionBanditTask(num_actions=12)
N, T0, STEPS, T, SEED = 3, 2, 4, 11, 5
MODEL = Network(6, width=3)
D_W = MODEL.num_parameters
K = 5
PRIVACY = NeuralPrivacy(epsilon=4.0, delta=1e-3, num_synchronisations=2, num_features=K)
SETTINGS = NeuralUCBSettings(
    num_exploration=T0,
    regression=LangevinSettings(num_iterations=STEPS),
    beta=50.0,
    privacy=PRIVACY,
)


def make_environment(context: Context) -> BanditEnvironment:
    slot = int(context.node_config["partition-id"])
    return NonlinearBanditEnvironment(TASK, SEED, slot)


APP = neural_bandit_app(make_environment)


def strategy_of(settings: NeuralUCBSettings = SETTINGS, **options: Any) -> FedGOUCB:
    defaults = {"num_evaluations": T, "seed": SEED, "patience": 0.0, "model": MODEL}
    return FedGOUCB(
        settings, num_agents=N, **waiting({**defaults, "noise_seed": SEED, **options})
    )


def agent_of(slot: int = 0, **fields: Any) -> PrivateNeuralUCBAgent:
    settings = replace(SETTINGS, **fields)
    return PrivateNeuralUCBAgent(
        settings, MODEL, SEED, slot, N, seeded_entropy(SEED, slot)
    )


def features_at(w0: FloatArray) -> ReferenceFeatures:
    return ReferenceFeatures(MODEL, w0, K, generator(SEED, Purpose.REFERENCE_POINTS))


def journal_of(context: Context) -> Journal:
    content = context.state.config_records[record_name(KIND)]["journal"]
    assert isinstance(content, bytes)
    return Journal(None, content=content)


def releases_of(grid: InProcessGrid) -> list[list[FloatArray]]:
    found = []
    for context in grid.contexts.values():
        with journal_of(context) as journal:
            found.append([row.vectors for row in journal.ledger()])
    return found


# The gradients of phase I


def test_rows_are_clipped_whatever_they_are() -> None:
    rows = [[3.0, 4.0], [0.3, 0.4], [0.0, 0.0], [math.nan, 1.0], [1e300, -1e300]]
    out = clipped(rows, 1.0)
    expected = [[0.6, 0.8], [0.3, 0.4], [0.0, 0.0], [0.0, 0.0]]
    np.testing.assert_allclose(out[:4], np.array(expected))
    np.testing.assert_allclose(np.linalg.norm(out[4]), 1.0)


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_noise_is_what_all_steps_together_need(epsilon: float) -> None:
    settings = GradientSettings(200, 25, epsilon, 1e-4, clip_norm=0.7)
    mu = math.sqrt(200) * 2 * 0.7 / settings.noise_std
    assert gaussian_delta(epsilon, mu) <= 1e-4
    assert gaussian_delta(epsilon, mu * 1.001) > 1e-4  # and not more of it


def test_two_neighbours_are_as_far_apart_as_promised() -> None:
    """The worst pair, all steps, by the best test that there is: means mu apart."""
    settings = GradientSettings(9, 3, 2.0, 1e-2)
    runs, shift = 4000, np.array([[1.0, 0.0, 0.0]])
    mu = math.sqrt(9) * 2 / settings.noise_std

    def statistic(seed: int, gradients: FloatArray) -> float:
        release = GradientRelease(settings, SeededEntropy(seed, 0))
        own = settings.clipped_sum(gradients)
        total = sum(release.release(k, own)[0] for k in range(1, 10))
        return float(total / (math.sqrt(9) * settings.noise_std))

    one = [statistic(seed, 5 * shift) for seed in range(runs)]
    other = [statistic(runs + seed, -5 * shift) for seed in range(runs)]
    assert np.mean(one) - np.mean(other) == pytest.approx(mu, abs=0.1)
    assert np.std(one) == pytest.approx(1.0, abs=0.05)


def test_what_is_released_lies_on_the_grid() -> None:
    settings = GradientSettings(2, 5, 1.0, 1e-3)
    own = settings.clipped_sum(np.random.default_rng(0).standard_normal((7, 5)))
    released = GradientRelease(settings, OsEntropy()).release(1, own)
    steps = released / settings.grid
    assert np.array_equal(steps, np.rint(steps))
    with pytest.raises(ValueError, match="clipped_sum"):
        GradientRelease(settings, OsEntropy()).release(1, own + settings.grid / 2)


def test_a_gradient_is_drawn_once(tmp_path: Path) -> None:
    settings, path = GradientSettings(3, 2, 1.0, 1e-3), tmp_path / "a.sqlite"
    own = settings.clipped_sum([[0.3, 0.1]])
    with Journal({"kind": "test"}, path) as journal:
        release = GradientRelease(settings, OsEntropy(), journal)
        first, third = release.release(1, own), release.release(3, own)  # 2 was missed
        assert release.private
    with Journal(None, path) as journal:
        again = GradientRelease(settings, OsEntropy(), journal)
        assert again.num_released == 2
        np.testing.assert_array_equal(again.release(1, 0 * own), first)
        np.testing.assert_array_equal(again.release(3, 0 * own), third)
        with pytest.raises(ValueError, match="k=4 is not allowed: at most 3"):
            again.release(4, own)
        with pytest.raises(JournalError, match="Release 2 comes too late: 3 is on"):
            again.release(2, own)  # and the journal is none the worse for it
        assert len(journal.ledger()) == 2
        other = replace(settings, clip_norm=2.0)
        with pytest.raises(JournalError, match="other settings"):
            GradientRelease(other, OsEntropy(), journal)
    with pytest.raises(ValueError, match="needs entropy"):
        GradientRelease(settings, None)


# The features of phase II


def test_features_are_white_over_the_cube() -> None:
    w0 = MODEL.initial(np.random.default_rng(0))
    features = features_at(w0)
    points = np.random.default_rng(1).uniform(size=(4000, 6))
    phi = features(MODEL.values_and_gradients(w0, points)[1])
    second = 2 * phi.T @ phi / len(phi)
    expected = np.diag([1.0] + [1 / (K - 1)] * (K - 1))
    np.testing.assert_allclose(second, expected, atol=0.1)  # of other points
    # And gradients themselves are not: nearly one direction.
    gradients = MODEL.values_and_gradients(w0, points)[1]
    values = np.linalg.eigvalsh(gradients.T @ gradients)
    assert values[-1] > 0.99 * values.sum()


def test_a_model_that_is_the_same_everywhere_has_no_features() -> None:
    with pytest.raises(FloatingPointError, match="tell no two points"):
        features_at(np.zeros(D_W))


# The agent


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"epsilon": 0.0}, "epsilon=0.0"),
        ({"delta": 1.0}, "delta=1.0"),
        ({"num_synchronisations": 0}, "num_synchronisations=0"),
        ({"regression_clip": 0.0}, "clip_norm=0.0"),
        ({"num_features": 1}, "num_features=1"),
        ({"num_features": 1001}, "dimension=1001"),
        ({"feature_clip": math.inf}, "max_action_norm=inf"),
        ({"residual_clip": -1.0}, "max_reward=-1.0"),
        ({"mechanism": "sum"}, "mechanism='sum'"),
    ],
)
def test_bad_privacy_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(PRIVACY, **fields)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: replace(SETTINGS, num_refinements=2), "num_refinements=2"),
        (lambda: replace(SETTINGS, privacy="yes"), "privacy='yes'"),  # type: ignore[arg-type]
        (lambda: replace(SETTINGS, regression=5), "regression=5"),  # type: ignore[arg-type]
        (
            lambda: replace(SETTINGS, regression=LangevinSettings(keep="best")),
            "losses are not released",
        ),
        (
            lambda: replace(SETTINGS, regression=LangevinSettings(patience=3)),
            "losses are not released",
        ),
        (lambda: strategy_of(num_evaluations=4), "num_synchronisations=2"),
        (lambda: strategy_of(noise_seed=-1), "noise_seed=-1"),
        (lambda: neural_bandit_app(make_environment, None, -1), "limits=-1"),  # type: ignore[arg-type]
        (
            lambda: NeuralBanditSimulation(SETTINGS, TASK, N, T, "always", model=MODEL),
            "sharing='always'",
        ),
    ],
)
def test_what_does_not_go_with_privacy(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_the_schedule_is_even_and_leaves_time_to_act() -> None:
    privacy = replace(PRIVACY, num_synchronisations=4)
    assert privacy.schedule(100) == (20, 40, 60, 80)
    assert privacy.schedule(5) == (1, 2, 3, 4)
    with pytest.raises(ValueError, match="num_synchronisations=4"):
        privacy.schedule(4)


def test_sums_are_of_what_was_clipped() -> None:
    privacy = replace(PRIVACY, epsilon=math.inf, feature_clip=0.5, residual_clip=0.2)
    agent = agent_of(privacy=privacy)
    w0 = MODEL.initial(np.random.default_rng(0))
    agent.start(w0)
    rng = np.random.default_rng(1)
    features = features_at(w0)
    expected = np.zeros((K + 1, K + 1))
    for x, y in zip(rng.uniform(size=(6, 6)), 3 * rng.standard_normal(6), strict=True):
        agent.tell(x, y)
        values, [g] = MODEL.values_and_gradients(w0, x[None])
        [phi] = features(g[None])
        phi = phi * min(1, 0.5 / np.linalg.norm(phi))
        z = np.append(phi, np.clip(y - values[0], -0.2, 0.2))
        expected += np.outer(z, z)
    np.testing.assert_allclose(agent.message().values, expected, atol=1e-12)


def test_an_agent_s_actions_look_at_none_of_its_own_trials() -> None:
    """Whatever it plays and is paid between two totals, it goes on as if nothing."""
    actions = np.random.default_rng(2).uniform(size=(12, 6))
    w0 = MODEL.initial(np.random.default_rng(0))
    total = agent_of(1).settings.sums_shape(D_W)
    played = []
    for rewards, forced in ((np.zeros(6), None), (np.full(6, 9.0), 3)):
        agent = agent_of()
        agent.start(w0)
        agent.receive(np.eye(total[0]) * 40)
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
        agent = PrivateNeuralUCBAgent(
            SETTINGS, MODEL, SEED, slot, 8, seeded_entropy(1, slot)
        )
        agent.start(MODEL.initial(np.random.default_rng(0)))
        chosen.append(agent.choose(actions))
    assert len(set(chosen)) > 1


def test_a_server_has_no_trial_counted_many_times() -> None:
    """One w for each of many points would be as many gradients of one trial."""
    model = LinearModel(6)
    settings = replace(SETTINGS, num_exploration=1)
    agent = PrivateNeuralUCBAgent(settings, model, SEED, 0, N, seeded_entropy(SEED, 0))
    agent.tell(np.full(6, 0.5), 0.3)
    with pytest.raises(ValueError, match=r"w=\(1000, 7\) is not allowed"):
        agent.regression_message(np.zeros((1000, 7)))
    assert agent.regression_message(np.zeros(7)).shape == (7,)


def test_infinite_gradients_count_as_zero() -> None:
    agent = agent_of()
    for x in np.random.default_rng(0).uniform(size=(2, 6)):
        agent.tell(x, 1e308)
    released = agent.regression_message(np.full(D_W, 1e200))
    assert np.isfinite(released).all()


def test_a_lie_that_is_longer_than_any_release_is_refused() -> None:
    server = NeuralBanditServer(SETTINGS, MODEL, SEED)
    shape = SETTINGS.sums_shape(D_W)
    assert server.receive({0: Sums(1, np.full(shape, 1e300))}) == []
    assert server.receive({0: Sums(1, np.ones(shape))}) == [0]


def test_a_gradient_that_is_longer_than_any_release_is_left_out() -> None:
    """Two of them would add up to infinity, and the study would end."""
    server = NeuralBanditServer(SETTINGS, MODEL, SEED)
    lie = np.full(D_W, 1.7e308)
    assert server.receive_gradients({0: lie, 1: lie, 2: np.ones(D_W)}) == [2]
    deviations = PRIVACY.gradients(STEPS, D_W).noise_std
    assert server.receive_gradients({0: np.full(D_W, 20 * deviations)}) == [0]


# Over Flower


def numpy_client(context: Context) -> Any:
    return NeuralBanditClient(context, make_environment).to_client()


@pytest.mark.parametrize("explored", [0, T0])
def test_plays_as_the_simulator_does(explored: int) -> None:
    settings = replace(SETTINGS, num_exploration=explored)
    grid = InProcessGrid(APP, N)
    result = strategy_of(settings).start(grid)
    simulated = NeuralBanditSimulation(settings, TASK, N, T, model=MODEL).run(SEED)
    assert result.num_synchronisations == simulated.num_synchronisations == 2
    steps = STEPS if explored else 0
    for slot, context in enumerate(grid.contexts.values()):
        bandit = NonlinearBanditEnvironment(TASK, SEED, slot)
        with journal_of(context) as journal:
            state = journal.load_state()
            assert [row.iteration for row in journal.ledger()] == [
                *range(1, steps + 1),
                STEPS + 1,
                STEPS + 2,
            ]
        actions = bandit.contexts(0)
        w0 = state["w0"]
        gradients = MODEL.values_and_gradients(w0, actions)[1]
        features = clipped(features_at(w0)(gradients), 1.0)
        played = features[simulated.actions[explored:, slot]]
        np.testing.assert_allclose(state["inputs"], played, rtol=1e-9, atol=1e-12)


def test_every_client_gives_the_same() -> None:
    apps = APP, ClientApp(client_fn=numpy_client)
    grids = [InProcessGrid(app, N, shuffle_seed=i) for i, app in enumerate(apps)]
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
    assert all(r.epsilon == 4.0 for r in result.rounds)
    for folder, rows in ((server, STEPS + 2), (tmp_path / "site-0", STEPS + 2)):
        shown = CliRunner().invoke(cli, ["ledger", "show", str(folder)])
        assert shown.exit_code == 0, shown.output
        assert "NOT PRIVATE" not in shown.output
        assert f"{rows} releases" in shown.output
        assert "epsilon = 4.0000 at delta = 0.001" in shown.output


@pytest.mark.parametrize(
    ("settings", "noise_seed"),
    [(SETTINGS, 1), (replace(SETTINGS, privacy=replace(PRIVACY, epsilon=1e3)), None)],
)
def test_a_site_refuses_what_promises_less(
    settings: NeuralUCBSettings, noise_seed: int | None
) -> None:
    app = neural_bandit_app(make_environment, limits=Limits(4.0, 1e-3))
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


@pytest.mark.parametrize("last", [2, STEPS, STEPS + 3, STEPS + 4, STEPS + 6])
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
        assert len(new) == STEPS + 2
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
    # It misses two steps of phase I, w0, and the first synchronisation.
    grid.rounds = (2, 3, STEPS + 1, STEPS + 3)
    strategy = strategy_of()
    strategy.start(grid)
    assert strategy.server.heard == [2, 1, 2]
    assert [len(rows) for rows in releases_of(grid)] == [6, 3, 6]


@pytest.mark.parametrize("last", [1, STEPS, STEPS + 1, STEPS + 3])
@pytest.mark.parametrize("case", ["lost", "older", "older, and the context lost"])
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
    failed = [r.server_round for r in result.rounds if r.failures]
    assert failed == list(range(last + 1, STEPS + T - T0 + 1))


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
            if number == 2:
                shutil.copytree(path, backup)
            replies = super().send_and_receive(asked, timeout=timeout)
            if number == 2:
                shutil.rmtree(path)
                shutil.copytree(backup, path)
                first = next(iter(self.contexts))
                return [r for r in replies if r.metadata.src_node_id != first]
            return replies

    result = strategy_of().start(Deaf(APP, N, node_configs=configs))
    failed = [r.server_round for r in result.rounds if r.failures]
    assert failed == list(range(3, STEPS + T - T0 + 1))


def test_a_model_that_fails_is_not_quoted() -> None:
    def broken(context: Context) -> Network:
        raise ValueError("patient 7")

    app = neural_bandit_app(make_environment, broken)
    with pytest.raises(Exception, match="failed: ValueError") as caught:
        strategy_of().start(InProcessGrid(app, N))
    assert "patient" not in str(caught.value)


def test_it_counts_what_is_sent() -> None:
    run = NeuralBanditSimulation(SETTINGS, TASK, N, T, model=MODEL).run(SEED)
    phase_one = 2 * STEPS * N * D_W + N * D_W
    assert run.num_scalars[T0 - 1] == phase_one
    assert run.num_scalars[-1] == phase_one + 2 * 2 * N * (K + 1) ** 2


def test_a_stranger_s_record_is_refused() -> None:
    """A server of the version before is told so."""
    app = neural_bandit_app(make_environment)
    config: Any = {**strategy_of().study.enrolment(), "fbo-protocol": 1}
    grid = InProcessGrid(app, N)
    content = RecordDict({"arrays": ArrayRecord(), "config": ConfigRecord(config)})
    message = Message(content, next(iter(grid.contexts)), "train")
    [reply] = grid.send_and_receive([message])
    assert f"version {PROTOCOL_VERSION}" in str(reply.error.reason)
