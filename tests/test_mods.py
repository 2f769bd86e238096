"""Flower's mods and DP wrappers: the tables of docs/app/mods.md, cell by cell."""

import importlib
import logging
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import flwr.client.mod
import flwr.clientapp.mod
import flwr.serverapp.strategy
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from flwr.serverapp import (
    NeighboringRelation,
    PrivacyConfig,
    PrivacySpent,
    RdpAccountant,
    SamplingMethod,
)
from flwr.serverapp.exception import AggregationError
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    Strategy,
)

from flwr_fbo import FTS, InProcessGrid, add_tuning, linear_bandit_app, tuning_app
from flwr_fbo.tuning import FTSSettings
from flwr_fbo.tuning.search.agent import Agent
from tests.support.bandit_sites import fed_ucb, make_environment
from tests.support.documents import ROOT, Page
from tests.support.federation import (
    NUM_AGENTS,
    SPACE,
    assert_same,
    make_objective,
    numpy_app,
    run,
    strategy,
)
from tests.support.grouped import hosted

PAGE = (ROOT / "docs/app/mods.md").read_text()


def _rows(pattern: str) -> dict[str, list[str]]:
    """Return the cells of each row of the page whose first cell is like that."""
    rows = re.findall(rf"^\| `({pattern})` \| (.*) \|$", PAGE, re.MULTILINE)
    return {name: cells.split(" | ") for name, cells in rows}


MODS = _rows(r"flwr\.client(?:app)?\.mod\.\w+")
WRAPPERS = _rows(r"DifferentialPrivacy\w+")


def _mod(name: str) -> Mod:
    module, _, attribute = name.rpartition(".")
    found = getattr(importlib.import_module(module), attribute)
    # A NumPy number too: divided by zero it is no error, and the mod goes on.
    norm, small = np.float64(1.0), 1e-3
    mod: Mod = found(norm, 1.0, 1.0, small) if isinstance(found, type) else found
    return mod


def _message_app(mod: Mod) -> ClientApp:
    """Return an app that has a mod around what `tuning_app` makes."""
    return _with_mod(mod, tuning_app(make_objective))


def _with_mod(mod: Mod, inner: ClientApp) -> ClientApp:
    app = ClientApp(mods=[mod])
    app.train()(lambda message, context: inner(message, context))
    return app


def _numpy_app(mod: Mod) -> ClientApp:
    return numpy_app(mods=[mod])


def _action_app(mod: Mod) -> ClientApp:
    return add_tuning(ClientApp(mods=[mod]), make_objective, None)


# Kinds of clients, which are the columns of the page, and `client_api`.
CLIENTS: list[tuple[str, Callable[[Mod], ClientApp], str]] = [
    ("Message API", _message_app, "message"),
    ("Message API", _message_app, "both"),
    ("NumPyClient", _numpy_app, "numpy"),
    ("NumPyClient", _numpy_app, "both"),
    ("`add_tuning`", _action_app, "action"),
]


COLUMNS = list(dict.fromkeys(client for client, _, _ in CLIENTS))


def _cell(name: str, client: int) -> str:
    return MODS[name][COLUMNS.index(CLIENTS[client][0])]


@cache
def _plain_agents() -> list[Agent]:
    return run(numpy_app(), num_rounds=3)[1]


def _cells() -> Iterator[Any]:
    """Yield name and column of each cell; most that say the same again are slow."""
    for name in MODS:
        for column, (_, _, client_api) in enumerate(CLIENTS):
            is_typical = name.endswith(("message_size_mod", "secaggplus_mod"))
            is_fast = _cell(name, column) == "refused" or is_typical
            marks = () if is_fast and client_api != "both" else pytest.mark.slow
            yield pytest.param(name, column, marks=marks)


@pytest.mark.parametrize(("name", "column"), _cells())
def test_a_mod_changes_nothing_or_is_refused(name: str, column: int) -> None:
    _, make_app, client_api = CLIENTS[column]
    grid = InProcessGrid(make_app(_mod(name)), NUM_AGENTS)
    study = strategy(client_api=client_api)
    expected = _cell(name, column)
    if expected == "works":
        study.start(grid, num_rounds=3)
        assert_same(grid.agents(study.study), _plain_agents())
        return
    assert expected == "refused"
    with pytest.raises(AggregationError, match=r"ClientApp\? See docs/app/mods\.md"):
        study.start(grid, num_rounds=3)
    # Nothing was evaluated, nothing released.
    for context in grid.contexts.values():
        assert "flwr-fbo-agent" not in context.state.config_records
    assert study.privacy_spent.num_releases == 0


def test_a_mod_for_training_only_leaves_the_tuning_alone() -> None:
    """The page's `for_training` makes one of a mod that would be refused."""
    page = Page(ROOT / "docs/app/mods.md")
    page.run()
    for_training = page.names["for_training"]
    app = _numpy_app(for_training(_mod("flwr.client.mod.secaggplus_mod")))
    study = strategy(client_api="numpy")
    grid = InProcessGrid(app, NUM_AGENTS)
    study.start(grid, num_rounds=3)
    assert_same(grid.agents(study.study), _plain_agents())


def test_the_table_has_all_mods_and_clients() -> None:
    public = {f"flwr.clientapp.mod.{name}" for name in flwr.clientapp.mod.__all__}
    legacy = set(flwr.client.mod.__all__) - {"make_ffn"}  # which is no mod
    legacy -= {"arrays_size_mod", "message_size_mod"}  # the same objects
    assert flwr.client.mod.arrays_size_mod is flwr.clientapp.mod.arrays_size_mod
    assert flwr.client.mod.message_size_mod is flwr.clientapp.mod.message_size_mod
    assert set(MODS) == public | {f"flwr.client.mod.{name}" for name in legacy}
    (head,) = re.findall(r"^\| mod \| (.*) \|$", PAGE, re.MULTILINE)
    assert head.split(" | ") == COLUMNS


@pytest.mark.parametrize("name", [n for n in MODS if n.endswith("DpMod")])
def test_a_bandit_gets_no_noise_from_a_mod(name: str) -> None:
    app = _with_mod(_mod(name), linear_bandit_app(make_environment=make_environment))
    grid = InProcessGrid(app, NUM_AGENTS)
    with pytest.raises(AggregationError, match=r"ClientApp\? See docs/app/mods\.md"):
        fed_ucb(client_api="message").start(grid)


def test_one_site_with_a_mod_is_left_out_by_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    mod = _mod("flwr.clientapp.mod.LocalDpMod")

    def at_one_site(message: Message, context: Context, call_next: Any) -> Message:
        at_it = context.node_config["partition-id"] == 2
        return (
            mod(message, context, call_next) if at_it else call_next(message, context)
        )

    study = strategy(client_api="message", min_agents=NUM_AGENTS - 1)
    grid = InProcessGrid(_message_app(at_one_site), NUM_AGENTS)
    with caplog.at_level(logging.WARNING, "flwr.fbo"):
        study.start(grid, num_rounds=3)
    assert "Not enrolled: client failed: LocalDpMod expects the keys" in caplog.text
    assert [agent.slot for agent in grid.agents(study.study)] == [0, 1, 3]


CLIP, PUSH = 0.5, 2.0


def _training_app(mods: list[Mod]) -> ClientApp:
    """Return an app whose clients all move the model by `PUSH`, tuning added."""
    app = ClientApp()

    @app.train(mods=mods)
    def train(message: Message, context: Context) -> Message:
        moved = message.content.array_records["arrays"]["w"].numpy() + PUSH
        arrays = ArrayRecord({"w": Array(moved)})
        metrics = MetricRecord({"num-examples": 1})
        content = RecordDict({"arrays": arrays, "metrics": metrics})
        return Message(content, reply_to=message)

    return add_tuning(app, make_objective, None)


def _wrapped(name: str, inner: Strategy) -> Strategy:
    """Return a wrapper without noise, so that what it clips is seen."""
    wrapper = getattr(flwr.serverapp.strategy, name)
    options: dict[str, Any] = {"clipping_norm": CLIP}
    if "Adaptive" in name:
        options = {"initial_clipping_norm": CLIP, "clipped_count_stddev": 0.0}
    wrapped: Strategy = wrapper(
        inner, noise_multiplier=0.0, num_sampled_clients=NUM_AGENTS, **options
    )
    return wrapped


def _train(wrapper: Strategy, grid: InProcessGrid) -> float:
    arrays = ArrayRecord({"w": Array(np.zeros(1))})
    return float(wrapper.start(grid, arrays, num_rounds=1).arrays["w"].numpy()[0])


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapped_fedavg_comes_before_or_after(name: str) -> None:
    tuned_first = "Fixed" in name
    mod, beside, _ = WRAPPERS[name]
    assert beside == "works"
    mods = [] if mod == "none" else [_mod("flwr.clientapp.mod." + mod.strip("`"))]
    grid = InProcessGrid(_training_app(mods), NUM_AGENTS)
    study, wrapper = (
        strategy(client_api="action"),
        _wrapped(name, FedAvg(fraction_evaluate=0.0)),
    )
    if tuned_first:
        study.start(grid, num_rounds=3)
    assert _train(wrapper, grid) == pytest.approx(CLIP)
    if not tuned_first:
        study.start(grid, num_rounds=3)
    assert_same(grid.agents(study.study), _plain_agents())


def test_each_stage_counts_its_own_releases() -> None:
    config = PrivacyConfig(
        1e-3,
        NUM_AGENTS,
        NeighboringRelation.ADD_OR_REMOVE_ONE,
        SamplingMethod.NO_AMPLIFICATION,
    )
    accountant = RdpAccountant(config)
    wrapper = DifferentialPrivacyServerSideFixedClipping(
        FedAvg(fraction_evaluate=0.0), 1.0, CLIP, NUM_AGENTS, accountant=accountant
    )
    grid = InProcessGrid(_training_app([]), NUM_AGENTS)
    study = strategy(client_api="action")
    study.start(grid, num_rounds=3)
    _train(wrapper, grid)
    spent = wrapper.privacy_spent()
    assert spent is not None
    assert isinstance(study.privacy_spent, PrivacySpent)
    assert (study.privacy_spent.num_releases, spent.num_releases) == (2, 1)
    with pytest.raises(ValueError, match=r"FedAvg\.aggregate_train"):
        DifferentialPrivacyServerSideFixedClipping(
            strategy(), 1.0, CLIP, NUM_AGENTS, accountant=accountant
        )


def _fts() -> FTS:
    return hosted(FTS, SPACE, "maximize", NUM_AGENTS, agent=FTSSettings(), patience=0.0)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        *((name, strategy) for name in WRAPPERS),
        (min(WRAPPERS), _fts),
        (min(WRAPPERS), fed_ucb),
    ],
)
def test_no_wrapper_goes_around_ours(name: str, make: Callable[[], Strategy]) -> None:
    assert WRAPPERS[name][-1] == "refused"
    asked = []

    def note(message: Message, context: Context, call_next: Any) -> Message:
        asked.append(message)
        return Message(RecordDict(), reply_to=message)

    grid = InProcessGrid(_message_app(note), NUM_AGENTS)
    with pytest.raises(ValueError, match=r"Call start\(\) of .* itself.*Other strat"):
        _train(_wrapped(name, make()), grid)
    assert not asked


def test_nor_around_one_that_has_run() -> None:
    grid = InProcessGrid(numpy_app(), NUM_AGENTS)
    study = strategy()
    study.start(grid, num_rounds=3)
    with pytest.raises(ValueError, match=r"Call start\(\) of"):
        _train(_wrapped("DifferentialPrivacyServerSideFixedClipping", study), grid)


def test_the_table_has_all_wrappers() -> None:
    names = flwr.serverapp.strategy.__all__
    assert set(WRAPPERS) == {n for n in names if n.startswith("DifferentialPrivacy")}
