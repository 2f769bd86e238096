"""Apps of `flwr.server`: a `server_fn`, and a thread for each client's message."""

import gc
from concurrent.futures import ThreadPoolExecutor, wait
from threading import enumerate as enumerate_threads
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import (
    EvaluateIns,
    FitIns,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.server import Server, ServerAppComponents, ServerConfig
from flwr.server.compat.grid_client_proxy import GridClientProxy
from flwr.server.strategy import FedAvg
from flwr.serverapp import ServerApp
from optuna.distributions import FloatDistribution

from flwr_fbo import (
    FederationTuner,
    Halving,
    InProcessGrid,
    OneTraining,
    PrivateChoice,
    Seeds,
    tuner_mod,
)
from flwr_fbo._compat import clients_waited_for, frame_of, main_of
from flwr_fbo.tuner.first_round import FirstRound
from tests.support.apps import assert_all_end

NUM_SITES, ROUNDS = 20, 4
SPACE = {"learning-rate": FloatDistribution(1e-3, 1.0, log=True)}
RUN_CONFIG: dict[str, Any] = {"learning-rate": 0.001, "num-server-rounds": ROUNDS}


class Distances(NumPyClient):
    """A client whose loss is the distance of the model to 1."""

    def __init__(self, context: Context) -> None:
        self._rate = float(context.run_config["learning-rate"])

    def get_parameters(self, config: Any) -> Any:
        """Return the model to begin with, if the server has none."""
        return [np.zeros(3)]

    def fit(self, parameters: Any, config: Any) -> Any:
        """Take one step."""
        w = parameters[0]
        return [w - self._rate * (w - 1.0)], 10, {}

    def evaluate(self, parameters: Any, config: Any) -> Any:
        """Return the distance."""
        distance = float(np.linalg.norm(parameters[0] - 1.0))
        return distance, 10, {"distance": distance, "text": "{}"}


def client_app() -> ClientApp:
    """Return the client's half."""
    return ClientApp(
        client_fn=lambda context: Distances(context).to_client(), mods=[tuner_mod]
    )


class Saver(Server):
    """Which does more once it has trained, as those of Flower's baselines."""

    def fit(self, num_rounds: int, timeout: float | None) -> Any:
        """Train."""
        return super().fit(num_rounds, timeout)


class OneByOne(Server):
    """Which has two threads of its own choice, and notes its rounds."""

    def fit_round(self, server_round: int, timeout: float | None) -> Any:
        """Train for a round."""
        self.set_max_workers(2)
        return super().fit_round(server_round, timeout)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.set_max_workers(2)


def server_app(
    server: type[Server] | None = None, has_initial: bool = True, **options: Any
) -> ServerApp:
    """Return the server's half; ``options`` are those of its strategy."""

    def server_fn(context: Context) -> ServerAppComponents:
        initial = ndarrays_to_parameters([np.zeros(3)]) if has_initial else None
        strategy = FedAvg(initial_parameters=initial, **options)
        config = ServerConfig(num_rounds=int(context.run_config["num-server-rounds"]))
        if server is None:
            return ServerAppComponents(strategy=strategy, config=config)
        from flwr.server.client_manager import SimpleClientManager

        made = server(client_manager=SimpleClientManager(), strategy=strategy)
        return ServerAppComponents(server=made, config=config)

    return ServerApp(server_fn=server_fn)


def _context() -> Context:
    return Context(1, 1, {}, RecordDict(), RUN_CONFIG)


class Counting(InProcessGrid):
    """Which counts its sends, and the messages of each, by type."""

    def __init__(self) -> None:
        super().__init__(client_app(), NUM_SITES, run_config=RUN_CONFIG)
        self.sends: list[tuple[str, int]] = []

    def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
        """Deliver messages and replies."""
        asked = list(messages)
        self.sends.append((asked[0].metadata.message_type, len(asked)))
        return super().send_and_receive(asked, timeout=timeout)


def _tuner(**options: Any) -> FederationTuner:
    about: dict[str, Any] = {"seeds": Seeds(study=1), "privacy": None, **options}
    about = {"schedule": OneTraining(trials=4), **about}
    return FederationTuner(SPACE, "distance", "minimize", NUM_SITES, **about)


@pytest.mark.parametrize("privacy", [None, PrivateChoice(1000.0, 1e-3)])
@pytest.mark.parametrize("server", [None, OneByOne])
@pytest.mark.parametrize("has_initial", [True, False])
def test_a_server_fn_is_tuned(
    privacy: PrivateChoice | None, server: type[Server] | None, has_initial: bool
) -> None:
    before, grid = enumerate_threads(), Counting()
    app = server_app(server, has_initial)
    result = _tuner(privacy=privacy).start(app, grid, _context())
    best = max(settings["learning-rate"] for settings in result.settings)
    assert result.best == {"learning-rate": best}
    assert_all_end(before)
    # One send a round of all its clients, not one for each.
    assert all(num > 1 for kind, num in grid.sends if kind == "train")
    assert result.rungs[-1].rounds <= ROUNDS


def test_clients_of_a_server_fn_are_shared_out_where_it_waits_for_few() -> None:
    def plan(**options: Any) -> Any:
        app = server_app(**options)
        return _tuner(schedule=OneTraining()).plan(app, Counting(), LONG)

    LONG = Context(1, 1, {}, RecordDict(), {**RUN_CONFIG, "num-server-rounds": 15})
    assert (plan().group_size, plan().reason) == (5, "")
    assert plan().num_trainings == (15 * NUM_SITES, 15 * NUM_SITES)
    assert plan(min_fit_clients=11).reason == "the server waits for more than 5 nodes"
    assert plan(fraction_fit=0.5).group_size == 10
    assert plan(server=Saver).group_size == 5
    own = plan(server=OneByOne)
    assert (own.group_size, own.reason) == (
        0,
        "the Server has rounds of its own",
    )
    app, grid = server_app(), Counting()
    result = _tuner(schedule=OneTraining()).start(app, grid, LONG)
    best = max(settings["learning-rate"] for settings in result.settings)
    assert result.best == {"learning-rate": best}
    # Four trials at a time, each client in one of them; all evaluate at a rung's end.
    assert {num for kind, num in grid.sends if kind == "train"} == {NUM_SITES}


def test_evaluation_at_the_server_alone_scores_trials() -> None:
    def evaluate(_: int, arrays: Any, __: Any) -> Any:
        distance = float(np.linalg.norm(arrays[0] - 1.0))
        return distance, {"distance": distance}

    app = server_app(fraction_evaluate=0.0, evaluate_fn=evaluate)
    result = _tuner(score="server").start(app, Counting(), _context())
    best = max(settings["learning-rate"] for settings in result.settings)
    assert result.best == {"learning-rate": best}


class Saving(FedAvg):
    """A strategy that saves the model of each round, and thinks that there is one."""

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        """Save the model."""
        found, metrics = super().aggregate_fit(server_round, results, failures)
        assert found is not None
        parameters_to_ndarrays(found)
        return found, metrics


def test_what_is_ended_inside_a_strategy_has_not_failed() -> None:
    def server_fn(context: Context) -> ServerAppComponents:
        initial = ndarrays_to_parameters([np.zeros(3)])
        config = ServerConfig(num_rounds=ROUNDS)
        strategy = Saving(initial_parameters=initial)
        return ServerAppComponents(strategy=strategy, config=config)

    app = ServerApp(server_fn=server_fn)
    first = FirstRound.of(main_of(app), Counting(), _context())
    assert first.failure is None
    assert first.evaluate == {"distance", "loss"}
    result = _tuner().start(app, Counting(), _context())
    best = max(settings["learning-rate"] for settings in result.settings)
    assert result.best == {"learning-rate": best}


def test_a_server_that_nobody_evaluates_for_ends_with_the_reason() -> None:
    before = enumerate_threads()
    app = server_app(fraction_evaluate=0.0)
    with pytest.raises(ValueError, match="no client to evaluate"):
        _tuner().start(app, Counting(), _context())
    assert_all_end(before)


def test_clients_that_cannot_train_end_the_trial() -> None:
    class Broken(Distances):
        def fit(self, parameters: Any, config: Any) -> Any:
            raise RuntimeError("no data")

    app = ClientApp(
        client_fn=lambda context: Broken(context).to_client(), mods=[tuner_mod]
    )
    before = enumerate_threads()
    grid = InProcessGrid(app, NUM_SITES, run_config=RUN_CONFIG)
    with pytest.raises(Exception, match="RuntimeError"):
        _tuner().start(server_app(), grid, _context())
    assert_all_end(before)


def test_more_clients_than_there_are_is_an_error_at_once() -> None:
    before = enumerate_threads()
    app = server_app(min_available_clients=NUM_SITES + 1)
    with pytest.raises(RuntimeError, match=f"waits for {NUM_SITES + 1} clients"):
        _tuner().start(app, Counting(), _context())
    del before


def test_threads_of_an_apps_own_are_one_send() -> None:
    def main(grid: Any, context: Context) -> None:
        model = ndarrays_to_parameters([np.zeros(3)])
        for number in range(1, ROUNDS + 1):
            proxies = [GridClientProxy(n, grid, 1) for n in grid.get_node_ids()]

            def fit(proxy: Any, model: Any = model, number: int = number) -> Any:
                return proxy.fit(FitIns(model, {}), None, number)

            with ThreadPoolExecutor(4) as pool:
                results = list(pool.map(fit, proxies))
            arrays = [parameters_to_ndarrays(one.parameters)[0] for one in results]
            model = ndarrays_to_parameters([np.mean(arrays, axis=0)])

            def evaluate(proxy: Any, model: Any = model, number: int = number) -> Any:
                return proxy.evaluate(EvaluateIns(model, {}), None, number)

            with ThreadPoolExecutor(4) as pool:
                list(pool.map(evaluate, proxies))

    grid = Counting()
    result = _tuner().start(main, grid, _context())
    best = max(settings["learning-rate"] for settings in result.settings)
    assert result.best == {"learning-rate": best}
    assert max(num for _, num in grid.sends) >= 4


def test_threads_that_ignore_the_end_of_a_trial_come_to_theirs() -> None:
    """A thread of a pool that is never let go would keep the process for ever."""

    def main(grid: Any, context: Context) -> None:
        proxies = [GridClientProxy(n, grid, 1) for n in grid.get_node_ids()]
        model = ndarrays_to_parameters([np.zeros(3)])
        for number in range(1, 12):
            with ThreadPoolExecutor(4) as pool:
                wait(
                    pool.submit(proxy.fit, FitIns(model, {}), None, number)
                    for proxy in proxies
                )
            with ThreadPoolExecutor(4) as pool:
                wait(
                    pool.submit(proxy.evaluate, EvaluateIns(model, {}), None, number)
                    for proxy in proxies
                )

    before = enumerate_threads()
    _tuner(schedule=Halving(4, (1, 2))).start(main, Counting(), _context())
    assert_all_end(before)


def test_nothing_is_collected_while_the_list_of_threads_is_locked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a thread that starts waits for ever."""
    seen = []

    def frames() -> dict[int, Any]:
        seen.append(gc.isenabled())
        return {}

    monkeypatch.setattr("sys._current_frames", frames)
    assert frame_of(1) is None
    assert clients_waited_for(1) is None
    assert seen == [False, False]
    assert gc.isenabled()
