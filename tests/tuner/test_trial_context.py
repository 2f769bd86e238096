"""Which trial an app is in, and that its loggers can keep trials apart."""

from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from flwr_fbo import Halving, tuner_mod
from flwr_fbo.tuning import FederationResult, current_trial
from tests.support.apps import (
    NUM_CLIENTS,
    in_process,
    main_of,
    message_app,
    server_context,
    tuner,
)
from tests.support.federation_tuner import NumpyDistances

SCHEDULE = Halving(6, (1, 3), parallel=3)
NUM_ROUNDS = 4


def test_outside_of_a_tuner_there_is_none() -> None:
    assert current_trial(server_context()) is None


def _watched(seen: list[tuple[int, Any]]) -> Any:
    """Return a `main` that notes round and trial after each round of training."""

    def main(grid: Grid, context: Context) -> None:
        class Watched(FedAvg):
            def aggregate_train(self, server_round: int, replies: Any) -> Any:
                seen.append((server_round, current_trial(context)))
                return super().aggregate_train(server_round, replies)

        main_of(Watched)(grid, context)

    return main


def test_main_and_clients_know_trial_rung_rounds_and_settings() -> None:
    at_server: list[tuple[int, Any]] = []
    at_clients: list[tuple[Any, dict[str, Any]]] = []

    def watching(message: Message, context: Context, call_next: Any) -> Message:
        if message.metadata.message_type == "train":
            at_clients.append((current_trial(context), dict(context.run_config)))
        reply: Message = call_next(message, context)
        return reply

    grid = in_process(message_app(first=(tuner_mod, watching)))
    context = server_context()
    result = tuner(schedule=SCHEDULE).start(_watched(at_server), grid, context)
    finalists = result.rungs[1].trials
    wanted = [(1, number, 1, 1) for number in range(6)]
    wanted += [(r, number, 2, 3) for r in (2, 3) for number in finalists]
    seen = [(r, t.number, t.rung, t.rounds) for r, t in at_server]
    assert sorted(seen) == sorted(wanted)
    of_clients = [(t.number, t.rung, t.rounds) for t, _ in at_clients]
    assert sorted(of_clients) == sorted([row[1:] for row in wanted] * NUM_CLIENTS)
    for trial in [trial for _, trial in at_server]:
        assert trial.settings == result.settings[trial.number]
    for trial, config in at_clients:
        assert trial.settings == result.settings[trial.number]
        assert config.items() >= trial.settings.items()
    # The training after it is no trial.
    at_server.clear()
    at_clients.clear()
    _watched(at_server)(*result.apply(grid, context))
    assert [trial for _, trial in at_server] == [None] * NUM_ROUNDS
    assert [trial for trial, _ in at_clients] == [None] * NUM_ROUNDS * NUM_CLIENTS


def test_a_numpy_client_knows_its_trial_from_client_fn() -> None:
    seen: set[int] = set()

    class Watching(NumpyDistances):
        def evaluate(self, parameters: Any, config: Any) -> Any:
            trial = current_trial(self._context)
            assert trial is not None
            assert config["learning-rate"] == trial.settings["learning-rate"]
            seen.add(trial.number)
            return super().evaluate(parameters, config)

    from tests.support.flower_apps import legacy_main

    app = ClientApp(client_fn=lambda c: Watching(c).to_client(), mods=[tuner_mod])
    study = tuner(schedule=SCHEDULE, metric="loss")
    study.start(legacy_main(), in_process(app), server_context())
    assert seen == set(range(6))


class FakeLogger:
    """A logger with one run for the whole process, and runs of one's own, as W&B has.

    Attributes
    ----------
    runs : list of FakeLogger.Run
    """

    class Run:
        """A run."""

        def __init__(self, name: str) -> None:
            self.name = name
            self.rounds: list[int] = []
            self.is_finished = False

        def log(self, server_round: int) -> None:
            """Note a round."""
            assert not self.is_finished
            self.rounds.append(server_round)

        def finish(self) -> None:
            """Take no more."""
            self.is_finished = True

    def __init__(self) -> None:
        self.runs: list[FakeLogger.Run] = []

    def init(self, name: str) -> "FakeLogger.Run":
        """Begin a run, which is that of the process from now on."""
        self.runs.append(self.Run(name))
        return self.runs[-1]

    def log(self, server_round: int) -> None:
        """Note a round in the run of the process."""
        self.runs[-1].log(server_round)


def _logging_main(logger: FakeLogger, keeps_apart: bool) -> Any:
    def main(grid: Grid, context: Context) -> None:
        trial = current_trial(context)
        run = logger.init("final" if trial is None else f"trial-{trial.number}")

        class Logged(FedAvg):
            def aggregate_train(self, server_round: int, replies: Any) -> Any:
                (run if keeps_apart else logger).log(server_round)
                return super().aggregate_train(server_round, replies)

        try:
            main_of(Logged)(grid, context)
        finally:
            run.finish()

    return main


def _logged(keeps_apart: bool) -> tuple[FakeLogger, FederationResult]:
    logger, grid, context = FakeLogger(), in_process(), server_context()
    main = _logging_main(logger, keeps_apart)
    # To a round that no trial comes to: each runs to its end.
    study = tuner(schedule=Halving(3, (9,), parallel=2), privacy=None)
    result = study.start(main, grid, context)
    main(*result.apply(grid, context))
    return logger, result


def test_a_run_of_its_own_gets_the_rounds_of_one_trial() -> None:
    logger, _ = _logged(keeps_apart=True)
    names = ["trial-0", "trial-1", "trial-2", "final"]
    assert [run.name for run in logger.runs] == names
    assert [run.rounds for run in logger.runs] == [[1, 2, 3, 4]] * 4
    assert all(run.is_finished for run in logger.runs)


def test_the_run_of_the_process_mixes_trials() -> None:
    """What the how-to is for."""
    logger, _ = _logged(keeps_apart=False)
    assert [len(run.rounds) for run in logger.runs] == [0, 0, 12, 4]


def test_a_trial_that_is_ended_finishes_its_run() -> None:
    logger = FakeLogger()
    tuner(schedule=SCHEDULE).start(
        _logging_main(logger, keeps_apart=True), in_process(), server_context()
    )
    assert len(logger.runs) == 6
    assert all(run.is_finished for run in logger.runs)
    assert sorted(len(run.rounds) for run in logger.runs) == [1, 1, 1, 1, 3, 3]
