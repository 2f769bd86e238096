"""Fed-GO-UCB over Flower: both phases, what is sent, and who is away."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from numpy.typing import NDArray
from typer.testing import CliRunner

from flwr_fbo import InProcessGrid
from flwr_fbo._compat import to_array_record
from flwr_fbo.bandits import FedGOUCBSettings, NeuralBanditClient, neural_bandit_app
from flwr_fbo.bandits.fed_go_ucb.agent import FedGOUCBAgent
from flwr_fbo.bandits.kind import NEURAL_SITE
from flwr_fbo.bandits.site.environment import BanditEnvironment
from flwr_fbo.bandits.site.recorded_neural_agent import RecordedNeuralAgent
from flwr_fbo.cli import app as cli
from flwr_fbo.journal.journal import Journal
from flwr_fbo.lab.simulation.neural_bandits import LinearModel
from flwr_fbo.lab.tasks.nonlinear_bandit import (
    NonlinearBanditEnvironment,
)
from flwr_fbo.models.langevin_regression import LangevinSettings
from flwr_fbo.site.site_journal import record_name
from flwr_fbo.site.study_journals import last_journal
from tests.support.fed_go_ucb import (
    APP,
    D_W,
    MODEL,
    REGRESSION,
    SEED,
    SETTINGS,
    STEPS,
    T0,
    TASK,
    N,
    T,
    make_environment,
    strategy_of,
)
from tests.support.federation import shuffled
from tests.support.servers import server_of


def numpy_app() -> ClientApp:
    def client_fn(context: Context) -> Any:
        return NeuralBanditClient(context, make_environment).to_client()

    return ClientApp(client_fn=client_fn)


def kept_in(journal: Journal) -> dict[str, NDArray[Any]]:
    """Return what an agent knows by its journal, as its own `state_dict` has it."""
    recorded = RecordedNeuralAgent(journal)
    rewards = [trial.value for trial in journal.trials() if trial.state == "complete"]
    agent = recorded.belief.agent.state_dict()
    return {**agent, "own": recorded.belief.own, "rewards": np.array(rewards)}


def state_of(context: Context) -> dict[str, NDArray[Any]]:
    content = context.state.config_records[record_name(NEURAL_SITE.name)]["journal"]
    assert isinstance(content, bytes)
    with Journal(None, content=content) as journal:
        return kept_in(journal)


def seen_by(grid: InProcessGrid) -> list[dict[str, NDArray[Any]]]:
    return [state_of(context) for context in grid.contexts.values()]


@cache
def undisturbed() -> tuple[list[dict[str, NDArray[Any]]], NDArray[np.float64]]:
    """Return what agents keep of the default study, and w0."""
    grid = InProcessGrid(APP, N)
    result = strategy_of().start(grid)
    assert result.estimate is not None
    return seen_by(grid), result.estimate


def assert_undisturbed(grid: InProcessGrid) -> None:
    for one, other in zip(undisturbed()[0], seen_by(grid), strict=True):
        for name in ("rewards", "outputs", "own", "total"):
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)


class Counting(InProcessGrid):
    """Counts the scalars of all messages, both ways; some agents are away."""

    def __init__(self, app: ClientApp = APP, **options: Any) -> None:
        super().__init__(app, N, **options)
        self.scalars = 0
        self.away: dict[int, set[int]] = {}

    def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
        asked = list(messages)
        number = int(asked[0].metadata.group_id or 0) if asked else 0
        nodes, away = list(self.contexts), self.away.get(number, set())
        here = [m for m in asked if nodes.index(m.metadata.dst_node_id) not in away]
        replies = list(super().send_and_receive(here, timeout=timeout))
        for message in [*asked, *replies] if number else ():  # 0: enrolment
            if not message.has_content():
                continue
            for record in message.content.array_records.values():
                self.scalars += sum(array.numpy().size for array in record.values())
        return replies


def played_without_flower(
    settings: FedGOUCBSettings,
) -> tuple[list[FedGOUCBAgent], int]:
    """Play the same by the halves alone, all agents in turn in each round."""
    agents = [FedGOUCBAgent(settings, MODEL, SEED, slot) for slot in range(N)]
    bandits = [NonlinearBanditEnvironment(TASK, SEED, slot) for slot in range(N)]
    server, synchronised, wanted = server_of(settings, MODEL, SEED), 0, False

    def play(t: int) -> None:
        for agent, bandit in zip(agents, bandits, strict=True):
            actions = bandit.contexts(t)
            chosen = actions[agent.choose(actions)]
            agent.tell(chosen, bandit.reward(chosen))

    explored = settings.num_random_actions
    for t in range(explored):
        play(t)
    while explored and not server.regression.is_done:
        w = server.regression.w
        server.receive_gradients(
            {i: agent.regression_message(w) for i, agent in enumerate(agents)}
        )
    if explored:
        for agent in agents:
            agent.start(server.w0)
    fresh = False
    for t in range(explored, T):
        if fresh:
            for i, agent in enumerate(agents):
                agent.receive(server.total, server.num_included(i))
        play(t)
        fresh = wanted
        if wanted:
            messages = ((i, agent.message()) for i, agent in enumerate(agents))
            server.receive_sums(dict(messages))
            synchronised, wanted = synchronised + 1, False
        else:
            wanted = any(agent.wants_synchronisation() for agent in agents)
    return agents, synchronised


@pytest.mark.parametrize(
    "settings",
    [
        SETTINGS,
        replace(SETTINGS, num_exploration=0),
        replace(SETTINGS, regression=replace(REGRESSION, keep="best")),
    ],
)
def test_plays_as_its_halves_do(settings: FedGOUCBSettings) -> None:
    grid = InProcessGrid(APP, N)
    result = strategy_of(settings).start(grid)
    agents, synchronised = played_without_flower(settings)
    assert synchronised >= 1
    assert result.num_synchronisations == synchronised
    for state, agent in zip(seen_by(grid), agents, strict=True):
        expected = agent.state_dict()
        for name, values in expected.items():
            np.testing.assert_array_equal(state[name], values, err_msg=name)
    assert result.estimate is not None
    np.testing.assert_array_equal(result.estimate, agents[0].w0)


@pytest.mark.parametrize(
    ("app", "client_api"), [(numpy_app(), "numpy"), (APP, "message")]
)
def test_every_client_gives_the_same(app: ClientApp, client_api: str) -> None:
    grid = shuffled(InProcessGrid(app, N), 1)
    strategy_of(client_api=client_api).start(grid)
    assert_undisturbed(grid)


@pytest.mark.parametrize("keep", ["last", "best"])
def test_communication_is_as_counted(keep: Any) -> None:
    grid = Counting()
    regression = replace(REGRESSION, keep=keep)
    settings = replace(SETTINGS, regression=regression)
    strategy = strategy_of(settings, client_api="message")
    result = strategy.start(grid)
    phase_one = 2 * STEPS * N * D_W + N * D_W + (STEPS * N if keep == "best" else 0)
    sums = N * (D_W**2 + D_W)
    sent = result.num_synchronisations
    # A total of the last round's sums is handed out to nobody.
    last = strategy.server.ledger[-1].iteration == strategy.default_rounds() - 1
    assert sent >= 1
    assert grid.scalars == phase_one + sums * (2 * sent - last)


def test_a_regression_that_stops_early_leaves_rounds_in_which_nobody_is_asked(
    tmp_path: Path,
) -> None:
    # So long a step that the loss rises, and the second one is the last.
    regression = LangevinSettings(num_iterations=8, step=30.0, patience=1)
    settings = replace(SETTINGS, regression=regression)
    grid = Counting()
    strategy = strategy_of(settings, client_api="message", folder=tmp_path)
    result = strategy.start(grid)
    assert strategy.server.regression.num_steps == 2
    rounds, used = 8 + T - T0, 2 + T - T0
    assert [r.answered for r in result.rounds] == [N] * used + [0] * (rounds - used)
    agents, synchronised = played_without_flower(settings)
    assert result.num_synchronisations == synchronised
    for state, agent in zip(seen_by(grid), agents, strict=True):
        np.testing.assert_array_equal(state["outputs"], agent.state_dict()["outputs"])
    again = strategy_of(settings, folder=tmp_path).start(InProcessGrid(APP, N))
    assert again.num_synchronisations == synchronised


def test_who_is_away_in_phase_one_is_left_out_and_comes_back() -> None:
    grid = Counting()
    grid.away = {2: {1}, 3: {1}, STEPS + 1: {2}}  # 2 misses w0, at first
    result = strategy_of().start(grid)
    assert [r.late for r in result.rounds][:5] == [0, 1, 1, 0, 1]
    states = seen_by(grid)
    for state in states:
        assert len(state["rewards"]) == T  # it has caught up
        np.testing.assert_array_equal(state["w0"], result.estimate)


def _poisoned(slots: set[int]) -> ClientApp:
    """Return an app some of whose agents send NaN."""
    outer = ClientApp()

    @outer.train()
    def train(message: Message, context: Context) -> Message:
        reply = APP(message, context)
        if context.node_config["partition-id"] in slots and reply.has_content():
            for name in ("arrays", "fitres.parameters"):
                if name in reply.content.array_records:
                    record = reply.content.array_records[name]
                    arrays = [np.full_like(a.numpy(), np.nan) for a in record.values()]
                    reply.content[name] = to_array_record(arrays)
        return reply

    return outer


def test_gradients_that_are_not_finite_are_left_out() -> None:
    grid = InProcessGrid(_poisoned({0}), N)
    result = strategy_of().start(grid)
    assert all(r.answered == N for r in result.rounds)
    assert result.estimate is not None
    assert np.isfinite(result.estimate).all()


def test_with_none_the_run_ends_and_a_new_one_goes_on(tmp_path: Path) -> None:
    class Failing(InProcessGrid):
        poisoned = True

        def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
            asked = list(messages)
            replies = list(super().send_and_receive(asked, timeout=timeout))
            number = int(asked[0].metadata.group_id or 0) if asked else 0
            for reply in replies if number == 3 and self.poisoned else ():
                for name, record in reply.content.array_records.items():
                    arrays = [a.numpy() * np.nan for a in record.values()]
                    reply.content[name] = to_array_record(arrays)
            return replies

    grid = Failing(APP, N)
    with pytest.raises(FloatingPointError, match="Step 3 of phase I: none of 3"):
        strategy_of(folder=tmp_path).start(grid)
    grid.poisoned = False
    result = strategy_of(folder=tmp_path).start(grid)
    np.testing.assert_array_equal(result.estimate, undisturbed()[1])
    assert_undisturbed(grid)
    shown = CliRunner().invoke(cli, ["ledger", "show", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    assert "NOT PRIVATE" in shown.output


@pytest.mark.parametrize("last", [1, STEPS, STEPS + 3])
def test_goes_on_after_its_server_was_ended(tmp_path: Path, last: int) -> None:
    class Ending(InProcessGrid):
        ends = True

        def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
            asked = list(messages)
            replies = super().send_and_receive(asked, timeout=timeout)
            number = int(asked[0].metadata.group_id or 0) if asked else 0
            if self.ends and number == last + 1:
                raise RuntimeError("agents have answered, and nobody has heard")
            return replies

    grid = Ending(APP, N)
    with pytest.raises(RuntimeError, match="nobody has heard"):
        strategy_of(folder=tmp_path).start(grid)
    grid.ends = False
    strategy_of(folder=tmp_path).start(grid)
    assert_undisturbed(grid)


def test_clients_keep_their_agents_in_a_folder(tmp_path: Path) -> None:
    """A client that was restarted finds its agent there."""
    configs: list[Any] = [
        {"partition-id": i, "fbo-folder": str(tmp_path / f"{i}")} for i in range(N)
    ]
    grid = InProcessGrid(APP, N, node_configs=configs)
    strategy_of().start(grid)
    for i, state in enumerate(undisturbed()[0]):
        with Journal(None, last_journal(tmp_path / f"{i}", "neural-bandit")) as journal:
            kept = kept_in(journal)
        np.testing.assert_array_equal(kept["rewards"], state["rewards"])


def test_clients_bring_another_model() -> None:
    model = LinearModel(6)
    app = neural_bandit_app(make_environment, lambda context: model)
    result = strategy_of(model=model).start(InProcessGrid(app, N))
    assert all(r.answered == N for r in result.rounds)
    with pytest.raises(Exception, match="which every client has to bring"):
        strategy_of(model=model).start(InProcessGrid(APP, N))


def test_an_environment_that_fails_is_not_quoted() -> None:
    def broken(context: Context) -> BanditEnvironment:
        raise ValueError("patient 7")

    with pytest.raises(Exception, match="The environment failed: ValueError") as caught:
        strategy_of().start(InProcessGrid(neural_bandit_app(broken), N))
    assert "patient" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: strategy_of("many"), "settings='many'"),  # type: ignore[arg-type]
        (lambda: strategy_of(model=None), "model=None"),
        (lambda: strategy_of(num_evaluations=T0), f"num_evaluations={T0}"),
        (lambda: strategy_of(seed=-1), "seed=-1"),
        (lambda: strategy_of(num_agents=1), "num_agents=1"),
        (
            lambda: strategy_of().start(InProcessGrid(APP, N), num_rounds=5),
            f"num_rounds=5 is not allowed: {STEPS + T - T0}",
        ),
        (lambda: neural_bandit_app("no"), "make_environment='no'"),  # type: ignore[arg-type]
    ],
)
def test_what_is_not_allowed(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
