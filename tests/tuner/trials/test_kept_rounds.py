"""A tuner that goes on does not train again what clients have trained."""

import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedProx,
    FedTrimmedAvg,
    FedYogi,
    Strategy,
)

from flwr_fbo import Halving, OneTraining, tuner_mod
from flwr_fbo.tuner.message_headers import (
    BallotHeader,
    TrialsHeader,
    read_header,
    unpack,
)
from tests.support.apps import message_app
from tests.support.races import FINAL, RaceGrid, race, race_context

ROUNDS = 9
# With 12 clients trials share them out, with 6 all clients train each trial.
SHARED, WHOLE = 12, 6
SCHEDULE = OneTraining(trials=4)


class KeptGrid(RaceGrid):
    """Notes which round of which trial clients are asked to train or evaluate."""

    def __init__(self, num_nodes: int = SHARED, **app: Any) -> None:
        config = {"num-server-rounds": ROUNDS}
        super().__init__(message_app(counts=False, **app), num_nodes, config)
        self.rounds: dict[str, list[tuple[int, int]]] = {"train": [], "evaluate": []}

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Deliver all messages and replies."""
        asked = list(messages)
        header = read_header(asked[0].content)
        found = []
        if isinstance(header, TrialsHeader):
            # Not all nodes have all trials.
            for message in asked:
                own = read_header(message.content)
                assert isinstance(own, TrialsHeader)
                parts = unpack(message.content, range(len(own.trials)))
                found += [(t, parts[i]) for i, t in enumerate(own.trials)]
        elif not isinstance(header, BallotHeader):
            found = [(FINAL, asked[0].content)]
        noted = {
            (trial, int(str(content.config_records["config"]["server-round"])))
            for trial, content in found
        }
        replies = super().send_and_receive(asked, timeout=timeout)
        if noted:  # the replies have come
            self.rounds[asked[0].metadata.message_type] += sorted(noted)
        return replies

    def of(self, best: int, kind: str = "train") -> list[tuple[int, int]]:
        """Return them with the chosen trial's own number after the choice."""
        return [(best if t == FINAL else t, n) for t, n in self.rounds[kind]]


def _main(
    make: Callable[[], Strategy] = FedAvg,
    start: Callable[[], Any] = lambda: np.zeros(3),
) -> Callable[[Grid, Context], Any]:
    def main(grid: Grid, context: Context) -> Any:
        config = context.run_config
        return make().start(
            grid=grid,
            initial_arrays=ArrayRecord({"w": Array(start())}),
            num_rounds=int(config["num-server-rounds"]),
            train_config=ConfigRecord({"learning-rate": config["learning-rate"]}),
        )

    return main


def _start(grid: KeptGrid, main: Any, folder: Path | None, **options: Any) -> Any:
    num_nodes = len(list(grid.get_node_ids()))
    context = race_context(**{"num-server-rounds": ROUNDS})
    exact = options.pop("exact_metrics", False)
    study = race(num_nodes, **{"schedule": SCHEDULE, "folder": folder, **options})
    return study.start(main, grid, context, exact_metrics=exact)


def _killed(
    folder: Path, main: Any, dies_at: int, grid: Any = None, **options: Any
) -> Any:
    grid = KeptGrid() if grid is None else grid
    grid.dies_at = dies_at
    with pytest.raises(KeyboardInterrupt):
        _start(grid, main, folder, **options)
    return grid


def _assert_alike(result: Any, whole: Any) -> None:
    """Assert that the models are the same, but for the order in which replies come."""
    found, wanted = (one.returned.arrays["w"].numpy() for one in (result, whole))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-14)


def _files(folder: Path) -> set[str]:
    return {str(p.relative_to(folder / "kept")) for p in folder.glob("kept/*/*")}


MAKERS: dict[str, Callable[[], Strategy]] = {
    "FedAvg": FedAvg,
    "FedProx": lambda: FedProx(proximal_mu=0.1),
    "FedAvgM": lambda: FedAvgM(server_momentum=0.5),
    "FedAdagrad": FedAdagrad,
    "FedAdam": FedAdam,
    "FedYogi": FedYogi,
}


@pytest.mark.gate
@pytest.mark.parametrize("num_nodes", [SHARED, WHOLE])
def test_killed_at_ten_places_no_round_is_trained_again(
    tmp_path: Path, num_nodes: int
) -> None:
    """And the model is that of a tuner that was not killed."""
    main = _main()
    grid = KeptGrid(num_nodes)
    whole = _start(grid, main, None)
    places = np.linspace(1, grid.num_sends - 1, 10).astype(int)
    for dies_at in places.tolist():
        folder = tmp_path / str(dies_at)
        dying = _killed(folder, main, dies_at, KeptGrid(num_nodes))
        second = KeptGrid(num_nodes)
        result = _start(second, main, folder)
        assert result.best == whole.best
        assert result.rungs == whole.rungs
        best = result.best_trial
        first, again = dying.of(best), second.of(best)
        assert len(first) > 0
        assert sorted(first + again) == sorted(grid.of(best))
        _assert_alike(result, whole)
        assert not list(folder.glob("kept/*"))


@pytest.mark.parametrize("name", MAKERS)
def test_a_strategy_of_means_goes_on_where_it_was(tmp_path: Path, name: str) -> None:
    main = _main(MAKERS[name])
    grid = KeptGrid()
    whole = _start(grid, main, None)
    _killed(tmp_path, main, grid.num_sends - 3)
    second = KeptGrid()
    result = _start(second, main, tmp_path)
    _assert_alike(result, whole)
    assert {n for _, n in second.rounds["train"]} <= {ROUNDS - 1, ROUNDS - 2}
    for name in ("train_metrics_clientapp", "evaluate_metrics_clientapp"):
        found, wanted = (getattr(r.returned, name) for r in (result, whole))
        assert found.keys() == wanted.keys()


def test_what_main_reads_is_the_same(tmp_path: Path) -> None:
    """Where clients send their metrics; evaluations are not asked for again, either."""
    options: dict[str, Any] = {"privacy": None}
    grid = KeptGrid(WHOLE)
    whole = _start(grid, _main(), None, **options)
    dying = _killed(tmp_path, _main(), grid.num_sends - 4, KeptGrid(WHOLE), **options)
    second = KeptGrid(WHOLE)
    result = _start(second, _main(), tmp_path, **options)
    best = result.best_trial
    for kind in ("train", "evaluate"):
        both = dying.of(best, kind) + second.of(best, kind)
        # The evaluation that came last is asked for again.
        assert 0 <= len(both) - len(grid.of(best, kind)) <= (kind == "evaluate")
    for name in ("train_metrics_clientapp", "evaluate_metrics_clientapp"):
        found, wanted = (getattr(r.returned, name) for r in (result, whole))
        assert found.keys() == wanted.keys()
        for number, metrics in wanted.items():
            assert dict(found[number]) == pytest.approx(dict(metrics))


def test_a_halving_goes_on_within_a_rung(tmp_path: Path) -> None:
    options: dict[str, Any] = {"schedule": Halving(8, (1, 4)), "privacy": None}
    grid = KeptGrid(WHOLE)
    whole = _start(grid, _main(), None, **options)
    dying = _killed(tmp_path, _main(), grid.num_sends - 4, KeptGrid(WHOLE), **options)
    second = KeptGrid(WHOLE)
    result = _start(second, _main(), tmp_path, **options)
    assert result.settings == whole.settings
    assert result.best == whole.best
    assert second.rounds["train"]
    assert not {*dying.rounds["train"]} & {*second.rounds["train"]}
    assert not list(tmp_path.glob("kept/*"))


def test_a_round_of_too_few_voices_stays_one(tmp_path: Path) -> None:
    def fails(message: Message, context: Context, call_next: Any) -> Message:
        client = int(context.node_config["partition-id"])
        if message.metadata.message_type == "train" and client == 3:
            raise MemoryError
        reply: Message = call_next(message, context)
        return reply

    def grid() -> KeptGrid:
        return KeptGrid(first=(tuner_mod, fails))

    options: dict[str, Any] = {"schedule": OneTraining(trials=4, min_clients=6)}
    first = grid()
    whole = _start(first, _main(), None, **options)
    dying = _killed(tmp_path, _main(), first.num_sends - 3, grid(), **options)
    second = grid()
    result = _start(second, _main(), tmp_path, **options)
    best = whole.best_trial
    assert not {*dying.of(best)} & {*second.of(best)}
    _assert_alike(result, whole)


def test_only_the_owner_reads_the_files_and_they_go_with_their_trial(
    tmp_path: Path,
) -> None:
    grid = KeptGrid()
    whole = _start(grid, _main(), None)
    numbers = {len(r.trials) for r in whole.rungs}
    assert numbers == {4, 2}
    seen = set()
    for dies_at in range(1, grid.num_sends, 3):
        folder = tmp_path / str(dies_at)
        _killed(folder, _main(), dies_at)
        for path in folder.glob("kept/*/*"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        seen.add(len(list(folder.glob("kept/*"))))
    assert seen == {4, 2, 1}


# ------------------------------------------------------------ what is trained again


def test_replies_that_main_fails_of_are_not_kept(tmp_path: Path) -> None:
    """Their mean would not fail: the trial would go on in another run."""

    def odd(message: Message, context: Context, call_next: Any) -> Message:
        reply: Message = call_next(message, context)
        is_odd = int(context.run_config["local-epochs"]) > 1
        if is_odd and context.node_config["partition-id"] == 1:
            for record in reply.content.array_records.values():
                record["more"] = Array(np.zeros(1))
        return reply

    def grid() -> KeptGrid:
        return KeptGrid(WHOLE, first=(tuner_mod, odd))

    options: dict[str, Any] = {"schedule": Halving(8, (1, 4)), "privacy": None}
    whole = _start(grid(), _main(), None, **options)
    failed = whole.rungs[0].failed
    assert 0 < len(failed) < 8
    _killed(tmp_path, _main(), 4, grid(), **options)  # before the ballots
    assert not {f"trial-{n}" for n in failed} & {
        path.name for path in tmp_path.glob("kept/*")
    }
    assert _start(grid(), _main(), tmp_path, **options).rungs[0].failed == failed


class Saving(FedAvg):
    """Looks at the replies itself, as some apps do."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        """Aggregate."""
        return super().aggregate_train(server_round, list(replies))


class Owned(FedAvg):
    """Has a loop of its own."""

    def start(self, *args: Any, **options: Any) -> Any:
        """Train."""
        return super().start(*args, **options)


def _by_rounds(grid: Grid, context: Context) -> Any:
    """Train a round at a time, with the app's own code in between."""
    arrays = ArrayRecord({"w": Array(np.zeros(3))})
    config = ConfigRecord({"learning-rate": context.run_config["learning-rate"]})
    for _ in range(int(context.run_config["num-server-rounds"])):
        found = FedAvg().start(grid, arrays, 1, train_config=config)
        arrays = ArrayRecord({"w": Array(found.arrays["w"].numpy() + 1e-3)})
    return found


def _last_metrics(contents: Any, _key: str) -> MetricRecord:
    return MetricRecord({"loss": float(len(contents))})


def _noisy() -> Strategy:
    return DifferentialPrivacyServerSideFixedClipping(FedAvg(), 0.1, 10.0, WHOLE)


@pytest.mark.parametrize(
    "main",
    [
        _main(Saving),
        _main(FedTrimmedAvg),
        _main(_noisy),  # else the same sum would get noise twice
        _main(lambda: FedAvg(train_metrics_aggr_fn=_last_metrics)),
        _main(Owned),
        _by_rounds,
    ],
)
def test_another_app_begins_again(tmp_path: Path, main: Any) -> None:
    grid = _killed(tmp_path, main, 13, KeptGrid(WHOLE))
    assert len(grid.rounds["train"]) > 4
    assert not any("-2-" in name for name in _files(tmp_path))
    second = KeptGrid(WHOLE)
    best = _start(second, main, tmp_path).best_trial
    assert {*grid.of(best)} & {*second.of(best)}


def test_an_app_whose_clients_keep_a_state_begins_again(tmp_path: Path) -> None:
    """In another run that state is gone: a model that goes on without it is another."""

    def grid() -> RaceGrid:
        return RaceGrid(message_app(), SHARED, {"num-server-rounds": ROUNDS})

    first: Any = grid()
    _killed(tmp_path, _main(), 6, first)
    assert _files(tmp_path) == set()
    whole, second = _start(grid(), _main(), None), grid()  # type: ignore[arg-type]
    result = _start(second, _main(), tmp_path)  # type: ignore[arg-type]
    _assert_alike(result, whole)


def test_a_state_that_clients_keep_later_ends_it(tmp_path: Path) -> None:
    """Also the files that are there already."""

    def keeps(message: Message, context: Context, call_next: Any) -> Message:
        config = message.content.config_records.get("config")
        if config is not None and config["server-round"] == 3:
            context.state["mine"] = ConfigRecord({"n": 1})
        reply: Message = call_next(message, context)
        return reply

    def grid() -> KeptGrid:
        return KeptGrid(first=(tuner_mod, keeps))

    options: dict[str, Any] = {"schedule": Halving(4, (2, 5))}
    first = grid()
    found: list[int] = []
    send = first.send_and_receive

    def noted(messages: Any, *, timeout: Any = None) -> Any:
        found.append(len(_files(tmp_path)))
        return send(messages, timeout=timeout)

    first.send_and_receive = noted  # type: ignore[method-assign]
    _killed(tmp_path, _main(), 10, first, **options)
    assert max(found) > 0
    assert _files(tmp_path) == set()
    second = grid()
    result = _start(second, _main(), tmp_path, **options)
    assert second.rounds["train"][0][1] == 1
    assert result == _start(grid(), _main(), None, **options)


@pytest.mark.parametrize(("make", "is_kept"), [(FedAvg, True), (FedAdam, False)])
def test_another_initial_model_matters_to_a_strategy_with_a_memory(
    tmp_path: Path, make: Any, is_kept: bool
) -> None:
    rng = np.random.default_rng(0)
    main = _main(make, lambda: rng.normal(size=3))
    dying = _killed(tmp_path, main, 9)
    second = KeptGrid()
    best = _start(second, main, tmp_path).best_trial
    shared = {*dying.of(best)} & {*second.of(best)}
    assert bool(shared) is not is_kept


def test_a_model_of_another_form_begins_again(tmp_path: Path) -> None:
    """The app's code has changed, and says the same of itself."""
    _killed(tmp_path, _main(), 9)
    second = KeptGrid()

    def main(grid: Grid, context: Context) -> Any:
        return _main(start=lambda: np.zeros(3, dtype=np.float32))(grid, context)

    _start(second, main, tmp_path)
    assert second.rounds["train"][0][1] == 1


def test_a_file_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    dying = _killed(tmp_path, _main(), 9)
    (folder,) = tmp_path.glob("kept/*")
    (folder / "round-2-trained.npz").write_bytes(b"PK")
    second = KeptGrid()
    best = _start(second, _main(), tmp_path).best_trial
    assert min(number for _, number in second.rounds["train"]) == 2
    assert (best, 2) in dying.of(best)


def test_without_a_folder_nothing_is_kept(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    _start(KeptGrid(), _main(), None)
    assert not list(tmp_path.iterdir())
