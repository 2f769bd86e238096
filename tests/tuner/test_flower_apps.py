"""Flower's strategies, wrappers for differential privacy and mods, under the tuner."""

from collections.abc import Sequence
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
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import (
    LocalDpMod,
    adaptiveclipping_mod,
    fixedclipping_mod,
    message_size_mod,
)
from flwr.clientapp.typing import Mod
from flwr.common.config import unflatten_dict
from flwr.serverapp import Grid
from flwr.serverapp.exception import AggregationError
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedMedian,
    FedProx,
    QFedAvg,
    Strategy,
)
from optuna.distributions import IntDistribution

from flwr_fbo import Halving, InProcessGrid, PrivateChoice, tuner_mod
from tests.support.apps import (
    NUM_CLIENTS,
    MakeStrategy,
    distance,
    in_process,
    main_of,
    message_app,
    server_context,
    trained,
    tuner,
)
from tests.support.emnist import needs_torch
from tests.support.federation_tuner import NumpyDistances
from tests.support.flower_apps import legacy_main

SCHEDULE = Halving(4, (1, 2), parallel=3)


def _followed(make: MakeStrategy, models: dict[float, list[Any]]) -> Any:
    """Return a `main` that notes the model after each round, by learning rate."""

    def main(grid: Grid, context: Context) -> None:
        strategy = make()
        aggregate = strategy.aggregate_train
        mine = models.setdefault(float(context.run_config["learning-rate"]), [])

        def noted(server_round: int, replies: Any) -> Any:
            arrays, metrics = aggregate(server_round, replies)
            mine.append(None if arrays is None else arrays["w"].numpy())
            return arrays, metrics

        strategy.aggregate_train = noted  # type: ignore[method-assign]
        main_of(lambda: strategy)(grid, context)

    return main


def _run(make: MakeStrategy, train_mods: Sequence[Mod] = ()) -> dict[float, list[Any]]:
    models: dict[float, list[Any]] = {}
    app = message_app(train_mods=train_mods)
    study = tuner(schedule=SCHEDULE, space={"learning-rate": tuner_space()})
    study.start(_followed(make, models), in_process(app), server_context())
    assert len(models) == SCHEDULE.trials
    return models


def tuner_space() -> Any:
    """Return the axis that is tuned here."""
    from tests.support.apps import SPACE

    return SPACE["learning-rate"]


@pytest.mark.parametrize("make", [FedAdam, FedProx, FedMedian])
def test_a_strategy_gives_in_each_trial_what_it_gives_alone(make: MakeStrategy) -> None:
    for rate, models in _run(make).items():
        alone: dict[float, list[Any]] = {}
        context = server_context(**{"learning-rate": rate})
        _followed(make, alone)(in_process(), context)
        np.testing.assert_allclose(models, alone[rate][: len(models)], rtol=1e-5)


def _fixed(wrapper: Any) -> Strategy:
    wrapped: Strategy = wrapper(FedAvg(), 1e-3, 0.5, NUM_CLIENTS)
    return wrapped


def _adaptive(wrapper: Any) -> Strategy:
    wrapped: Strategy = wrapper(
        FedAvg(),
        noise_multiplier=0.1,
        num_sampled_clients=NUM_CLIENTS,
        initial_clipping_norm=0.5,
        clipped_count_stddev=0.1,
    )
    return wrapped


def test_a_dp_mod_on_the_whole_app_is_told_where_it_belongs() -> None:
    app = message_app(first=(tuner_mod, fixedclipping_mod))
    main = main_of(lambda: _fixed(DifferentialPrivacyClientSideFixedClipping))
    with pytest.raises(AggregationError, match=r"error 6, a mod refused .* @app.train"):
        tuner().start(main, in_process(app), server_context())


@pytest.mark.parametrize(
    ("make", "mods"),
    [
        (lambda: _fixed(DifferentialPrivacyServerSideFixedClipping), []),
        (lambda: _adaptive(DifferentialPrivacyServerSideAdaptiveClipping), []),
        (
            lambda: _fixed(DifferentialPrivacyClientSideFixedClipping),
            [fixedclipping_mod],
        ),
        (
            lambda: _adaptive(DifferentialPrivacyClientSideAdaptiveClipping),
            [adaptiveclipping_mod],
        ),
    ],
)
def test_flowers_dp_wrappers_train_in_each_trial(
    make: MakeStrategy, mods: list[Mod]
) -> None:
    """Clipped: no round moves the model further than the norm, and some noise."""
    models = _run(make, mods)
    for steps in models.values():
        assert np.isfinite(steps).all()
    fastest = models[max(models)]
    assert 0.1 < np.linalg.norm(fastest[0]) < 1.0


@pytest.mark.parametrize("mod", [LocalDpMod(0.5, 1e-3, 1.0, 1e-3), message_size_mod])
def test_flowers_mods_work_behind_the_tuners(mod: Mod) -> None:
    for steps in _run(FedAvg, [mod]).values():
        assert np.isfinite(steps).all()
        assert np.linalg.norm(steps[0]) > 0


def test_a_mod_before_the_tuners_that_refuses_its_messages_is_named() -> None:
    app = message_app(first=(fixedclipping_mod, tuner_mod))
    with pytest.raises(AggregationError, match=r"exactly one.*first mod"):
        tuner().start(main_of(), in_process(app), server_context())


def test_qfedavg_is_refused_by_name() -> None:
    """It weights models by the clients' exact losses, which stay at the clients."""

    def make() -> Strategy:
        return QFedAvg(client_learning_rate=0.1, train_loss_key="loss")

    two = Halving(2, (2,))
    tuner(privacy=None, schedule=two).start(
        main_of(make), in_process(), server_context()
    )

    with pytest.raises(ValueError, match=r"^model=nan .*QFedAvg"):
        tuner(schedule=two).start(main_of(make), in_process(), server_context())


@needs_torch
def test_noise_from_torch_differs_from_trial_to_trial() -> None:
    import torch

    drawn: list[float] = []

    def main(grid: Grid, context: Context) -> None:
        drawn.append(float(torch.randn(()).item()))
        main_of()(grid, context)

    for _ in range(2):
        torch.manual_seed(3)
        tuner(schedule=Halving(3, (1,))).start(main, in_process(), server_context())
    assert drawn[:3] == drawn[3:]
    assert len(set(drawn)) == 3
    assert float(torch.randn(()).item()) not in drawn


# --------------------------------------------- workflows and mods of `flwr.server`

PRIVATE = PrivateChoice(1000.0, 1e-3)


def _start_workflow(
    main: Any, privacy: PrivateChoice | None = PRIVATE
) -> dict[str, Any]:
    app = ClientApp(client_fn=lambda c: NumpyDistances(c).to_client(), mods=[tuner_mod])
    best = {"learning-rate": 0.5, "local-epochs": 5}
    study = tuner(schedule=SCHEDULE, privacy=privacy, metric="loss", enqueue=[best])
    return study.start(main, in_process(app), server_context()).best


@pytest.mark.parametrize("privacy", [PRIVATE, None])
@pytest.mark.parametrize("has_initial", [True, False])
def test_a_legacy_workflow_is_tuned(
    privacy: PrivateChoice | None, has_initial: bool
) -> None:
    best = _start_workflow(legacy_main(has_initial), privacy)
    assert best == {"learning-rate": 0.5, "local-epochs": 5}


# ------------------------------------------------------------ what apps have besides


class _OwnLoop(FedAvg):
    """A strategy with a loop of its own, which keeps the best model in a file.

    As that of Flower's advanced PyTorch example; it also stops early if it is told to.
    """

    def __init__(self, patience: int = 99) -> None:
        super().__init__()
        self._patience = patience

    def start(  # type: ignore[override]
        self, grid: Grid, arrays: ArrayRecord, num_rounds: int, config: ConfigRecord
    ) -> list[float]:
        """Train; return the mean distance of each round."""
        best, seen, since = float("inf"), [], 0
        for server_round in range(1, num_rounds + 1):
            asked = self.configure_train(server_round, arrays, config, grid)
            replies = grid.send_and_receive(asked, timeout=60)
            new, _ = self.aggregate_train(server_round, replies)
            assert new is not None
            arrays = new
            asked = self.configure_evaluate(server_round, arrays, config, grid)
            replies = grid.send_and_receive(asked, timeout=60)
            metrics = self.aggregate_evaluate(server_round, replies)
            assert metrics is not None
            seen.append(float(str(metrics["distance"])))
            since += 1
            if seen[-1] < best:
                best, since = seen[-1], 0
                Path(f"model-{server_round}.json").write_text(str(best))
            if since >= self._patience:
                break
        return seen


def _own_main(
    seen: dict[float, list[float]], patience: int = 99, rounds: int = 4
) -> Any:
    def main(grid: Grid, context: Context) -> None:
        rate = float(context.run_config["learning-rate"])
        seen[rate] = _OwnLoop(patience).start(
            grid,
            ArrayRecord({"w": Array(np.zeros(3))}),
            rounds,
            ConfigRecord({"learning-rate": rate}),
        )

    return main


@pytest.mark.parametrize("privacy", [PRIVATE, None])
def test_a_strategy_with_its_own_start_is_tuned(
    privacy: PrivateChoice | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[float, list[float]] = {}
    options = {"schedule": SCHEDULE, "space": {"learning-rate": tuner_space()}}
    study = tuner(**options, privacy=privacy, folder=tmp_path)
    result = study.start(_own_main(seen), in_process(), server_context())
    alone: dict[float, list[float]] = {}
    for settings in result.settings:
        monkeypatch.chdir(tmp_path)
        _own_main(alone)(in_process(), server_context(**settings))
    # The best after a round is that of most after two, too: no trials cross here.
    best = min(alone, key=lambda rate: alone[rate][1])
    assert result.best == {"learning-rate": best}
    of_rung = [alone[float(s["learning-rate"])][0] for s in result.settings]
    if privacy is None:
        assert result.rungs[0].scores == pytest.approx(of_rung)
        # The best models so far, in a folder of the trial: of the rounds it came to.
        for number in result.rungs[1].trials:
            found = sorted(p.name for p in (tmp_path / f"trial-{number}").iterdir())
            assert found == ["model-1.json", "model-2.json"]


NESTED: dict[str, Any] = {
    "train.optimizer.lr": 0.001,
    "train.epochs": 1,
    "num-server-rounds": 3,
}


def _nested_app() -> ClientApp:
    """Return an app whose client makes tables of its run config, as some do."""
    app = ClientApp(mods=[tuner_mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        tables: Any = unflatten_dict(context.run_config)
        context.run_config = {"local-epochs": tables["train"]["epochs"]}
        arrays = message.content.array_records["arrays"]
        rate = tables["train"]["optimizer"]["lr"]
        new = trained(arrays["w"].numpy(), context, rate)
        metrics = MetricRecord({"num-examples": 1})
        arrays = ArrayRecord({"w": Array(new)})
        content = RecordDict({"arrays": arrays, "metrics": metrics})
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        weights = message.content.array_records["arrays"]["w"].numpy()
        score = distance(weights, context)
        metrics = MetricRecord({"distance": score, "num-examples": 1})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def test_keys_of_tables_are_tuned() -> None:
    """Flower's run config has them with dots, whatever the app makes of them."""
    seen: list[Any] = []

    def main(grid: Grid, context: Context) -> None:
        tables: Any = unflatten_dict(context.run_config)
        seen.append(tables["train"]["optimizer"]["lr"])
        rounds = int(context.run_config["num-server-rounds"])
        FedAvg().start(grid, ArrayRecord({"w": Array(np.zeros(3))}), rounds)

    grid = InProcessGrid(_nested_app(), NUM_CLIENTS, run_config=NESTED)
    context = Context(1, 1, {}, RecordDict(), dict(NESTED))
    study = tuner(
        space={
            "train.optimizer.lr": tuner_space(),
            "train.epochs": IntDistribution(1, 5),
        },
        enqueue=[{"train.optimizer.lr": 0.5, "train.epochs": 5}],
        schedule=SCHEDULE,
        privacy=None,
    )
    result = study.start(main, grid, context)
    assert seen == [s["train.optimizer.lr"] for s in result.settings]
    assert result.best == {"train.optimizer.lr": 0.5, "train.epochs": 5}
    assert len(set(result.rungs[0].scores)) == SCHEDULE.trials
    seen.clear()
    main(*result.apply(grid, context))
    assert seen == [0.5]
