"""The Flower side: failures, bad input, what goes over the wire."""

import json
import logging
import math
import re
import sys
from collections.abc import Callable
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
from flwr.serverapp.exception import AggregationError
from optuna.distributions import CategoricalDistribution, FloatDistribution

import flwr_fbo._compat as compat
from flwr_fbo import Host, InProcessGrid, tuning_app
from flwr_fbo.integrations import Callback
from flwr_fbo.journal.journal import Journal
from flwr_fbo.lab.baselines.random_search import LocalServer, RandomSearchSettings
from flwr_fbo.space.search_space import SearchSpace
from flwr_fbo.strategies.study_record import read_ledger
from flwr_fbo.strategies.tuning_strategy import TuningStrategy
from flwr_fbo.study.callbacks import Round
from flwr_fbo.tuning import DPFTSDESettings
from flwr_fbo.tuning.search.study import TuningStudy
from tests.support.federation import (
    NUM_AGENTS,
    SPACE,
    Objective,
    SilentGrid,
    assert_same,
    counting,
    make_objective,
    numpy_app,
    run,
    strategy,
)

SHORT = 3  # rounds, of which two release


def spoiled(
    spoil: Callable[[int, Message], Message], make: Any = make_objective
) -> ClientApp:
    """Return an app whose replies in rounds go through ``spoil(client, reply)``."""
    honest, app = tuning_app(make), ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        reply = honest(message, context)
        if message.content["config"]["fbo-phase"] == "enrol":
            return reply
        return spoil(int(context.node_config["partition-id"]), reply)

    return app


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"space": {}}, "space={}"),
        ({"space": {"x": FloatDistribution(1.0, 1.0)}}, "space['x']"),
        ({"space": {"k": CategoricalDistribution(["a", "b"])}}, "num_sub_regions=4"),
        ({"direction": "up"}, "direction='up'"),
        ({"num_agents": 0}, "num_agents=0"),
        ({"sampling_probability": 0}, "sampling_probability=0"),
        ({"noise_multiplier": -1}, "noise_multiplier=-1"),
        ({"clip_norm": 0}, "clip_norm=0"),
        ({"calibration": "none"}, "calibration='none'"),
        ({"delta": 0.0}, "delta=0.0"),
        ({"preset": "best"}, "preset='best'"),
        ({"client_api": "grpc"}, "client_api='grpc'"),
        ({"metrics": ["loss"]}, "metrics=['loss']"),
        ({"agent": {"num_features": 3}}, "agent={'num_features': 3}"),
        ({"noise_only": "no"}, "noise_only='no'"),
        ({"authenticated": "yes"}, "authenticated='yes'"),
        ({"max_empty_rounds": 0}, "max_empty_rounds=0"),
        ({"patience": -1.0}, "patience=-1.0"),
        ({"noise_seed": -1}, "noise=-1"),
        ({"study_seed": "a"}, "study='a'"),
    ],
)
def test_bad_arguments_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match="is not allowed") as error:
        strategy(**options)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"num_rounds": 1}, "num_rounds=1"),
        ({"num_rounds": 2.5}, "num_rounds=2.5"),
        ({"timeout": "x"}, "timeout='x'"),
        ({"folder": "relative/path"}, "folder='relative/path'"),
        ({"folder": 3}, "folder=3"),
        ({"host": {"patience": 1.0}}, "host={'patience': 1.0}"),
        ({"host": Host(min_agents=5)}, "min_agents=5"),
        ({"initial_arrays": ArrayRecord({"0": Array(np.ones(2))})}, "initial_arrays"),
    ],
)
def test_bad_start_arguments_reach_no_client(
    arguments: dict[str, Any], words: str
) -> None:
    app, asked = counting()
    with pytest.raises(ValueError, match="is not allowed") as error:
        strategy().start(InProcessGrid(app, NUM_AGENTS), **arguments)
    assert words in str(error.value)
    assert not asked


def test_a_strategy_runs_once() -> None:
    local = TuningStudy(SearchSpace(SPACE), "maximize", RandomSearchSettings())
    for once in (strategy(), TuningStrategy(LocalServer(NUM_AGENTS), local)):
        once.start(InProcessGrid(numpy_app(), NUM_AGENTS), num_rounds=3)
        with pytest.raises(ValueError, match="has run already"):
            once.start(InProcessGrid(numpy_app(), NUM_AGENTS), num_rounds=3)


def test_an_agent_that_leaves_counts_as_zero_and_the_study_goes_on() -> None:
    class Leaving(InProcessGrid):
        def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
            asked = list(messages)
            replies = super().send_and_receive(asked, timeout=timeout)
            if asked and asked[0].content["config"]["fbo-phase"] == "round":
                self.contexts.pop(1004, None)
            return replies

    grid, study = Leaving(numpy_app(), NUM_AGENTS), strategy(min_agents=3)
    study.start(grid, num_rounds=4)
    assert study.privacy_spent.num_releases == 3
    assert [len(a.values) for a in grid.agents(study.study)] == [7] * 3


def test_an_objective_that_fails_costs_the_agent_its_trials_only() -> None:
    def make(context: Context) -> Objective:
        if context.node_config["partition-id"] == 1:
            return lambda params: 1 / 0
        if context.node_config["partition-id"] == 2:
            return lambda params: math.nan
        if context.node_config["partition-id"] == 3:
            return lambda params: sys.exit("no licence")
        return make_objective(context)

    for app in (numpy_app(make), tuning_app(make)):
        _, agents = run(app, num_rounds=2)
        assert [int(np.isnan(a.values).sum()) for a in agents] == [0, 10, 10, 10]


def _fails(client: int, reply: Message) -> Message:
    raise RuntimeError(f"client {client} is broken")


def test_when_every_reply_is_an_error_the_run_says_so_and_stops() -> None:
    with pytest.raises(AggregationError) as error:
        run(spoiled(_fails))
    assert "Round 1: none of 4 agents gave a result (4 failed" in str(error.value)
    assert "agent 0: RuntimeError: client 0 is broken" in str(error.value)


def test_a_client_without_data_is_an_error_and_not_a_failed_trial() -> None:
    def make(context: Context) -> Objective:
        raise FileNotFoundError("site.csv")

    for app in (numpy_app(make), tuning_app(make)):
        with pytest.raises(AggregationError, match="FileNotFound"):
            run(app)


def test_when_nobody_answers_the_run_says_so_and_stops() -> None:
    class Silent(InProcessGrid):
        def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
            asked = list(messages)
            replies = super().send_and_receive(asked, timeout=timeout)
            phase = asked[0].content["config"]["fbo-phase"]
            return replies if phase == "enrol" else []

    with pytest.raises(AggregationError, match="0 failed, 4 late, 0 absent"):
        strategy().start(Silent(numpy_app(), 4), num_rounds=3)


def test_rounds_in_which_nobody_answers_are_counted() -> None:
    """Those before the limit cost nothing: releases that were due are postponed."""
    study = strategy(max_empty_rounds=3)
    result = study.start(SilentGrid((2, 4, 5)), num_rounds=6)
    assert [r.answered for r in result.rounds] == [4, 0, 4, 0, 0, 4]
    # Five releases are planned, in six rounds: one a round in which agents answer.
    assert study.privacy_spent.num_releases == 3
    assert [row.iteration for row in study.server.ledger] == [0, 1, 2]
    with pytest.raises(AggregationError, match=r"Round 4.*\(after 3 such rounds\)"):
        strategy(max_empty_rounds=3).start(SilentGrid((2, 3, 4)), num_rounds=6)


class Offline(InProcessGrid):
    """Loses nodes for good after the first round."""

    lost = frozenset[int]()

    def get_node_ids(self) -> Any:
        nodes = sorted(super().get_node_ids())
        return [node for i, node in enumerate(nodes) if i not in self.lost]

    def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
        asked = list(messages)
        replies = super().send_and_receive(asked, timeout=timeout)
        if asked and asked[0].content["config"]["fbo-phase"] == "round":
            self.lost = frozenset({1, 2})
        return replies


def test_sites_that_go_offline_stay_in_every_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Round] = []

    class Told(Callback):
        def on_round(self, finished: Round) -> None:
            told.append(finished)

    study = strategy(callbacks=[Told()], folder=tmp_path)
    with caplog.at_level(logging.INFO, "flwr.fbo"):
        result = study.start(Offline(numpy_app(), NUM_AGENTS), num_rounds=3)
    counts = [(r.answered, r.failed, r.late, r.absent) for r in result.rounds]
    assert counts == [(4, 0, 0, 0), (2, 0, 0, 2), (2, 0, 0, 2)]
    assert told == result.rounds
    with Journal(None, tmp_path / "server.sqlite") as journal:
        assert read_ledger(journal)[0]["rounds"][1]["absent"] == 2
    assert re.search("round 2 of 3 of .*: 2 of 4 agents answered", caplog.text)
    assert "absent: agents 1 to 2" in caplog.text
    warned = [r.getMessage() for r in caplog.records if "was planned for" in r.message]
    (warning,) = warned  # of the second release alone
    assert warning.startswith("Release 2 is of 2 of the 4 agents")
    assert "0.5 times as much" in warning


def test_failures_are_logged_with_the_agents_slot(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def spoil(client: int, reply: Message) -> Message:
        return _fails(client, reply) if client == 2 else reply

    with caplog.at_level(logging.INFO, "flwr.fbo"):
        run(spoiled(spoil), num_rounds=3)
    assert "(1 failed, 0 late, 0 absent)" in caplog.text
    assert "agent 2: RuntimeError: client 2 is broken" in caplog.text


def _reply(message: Message, content: RecordDict) -> Message:
    message.content = content
    return message


BROKEN_CONTENTS = {
    "nothing": RecordDict(),
    "no array": RecordDict({"arrays": ArrayRecord()}),
    "two arrays": RecordDict(
        {"arrays": ArrayRecord({"0": Array(np.ones(30)), "1": Array(np.ones(30))})}
    ),
    "another shape": RecordDict({"arrays": ArrayRecord({"0": Array(np.ones(3))})}),
    "nan": RecordDict({"arrays": ArrayRecord({"0": Array(np.full(30, np.nan))})}),
    "text": RecordDict({"arrays": ArrayRecord({"0": Array(np.array(["a"] * 30))})}),
    "no numpy": RecordDict(
        {
            "arrays": ArrayRecord(
                {"0": Array(dtype="float64", shape=(30,), stype="x", data=b"zz")}
            )
        }
    ),
    "pickle": RecordDict(
        {
            "arrays": ArrayRecord(
                {
                    "0": Array(
                        dtype="object",
                        shape=(),
                        stype="numpy.ndarray",
                        data=b"\x80\x04N.",
                    )
                }
            )
        }
    ),
    "records under other types": RecordDict({"arrays": ConfigRecord({"0": 1})}),
    "hostile metrics": RecordDict(
        {"metrics": MetricRecord({"best-value": [1.0, 2.0], "agent-id": 0})}
    ),
}


def test_a_broken_reply_releases_what_a_zero_message_would() -> None:
    """Client 1 breaks its reply otherwise in each round."""
    contents = iter(BROKEN_CONTENTS.values())

    def zero(client: int, reply: Message) -> Message:
        arrays = ArrayRecord({"0": Array(np.zeros(30))})
        return _reply(reply, RecordDict({"arrays": arrays})) if client == 1 else reply

    def broken(client: int, reply: Message) -> Message:
        return _reply(reply, next(contents)) if client == 1 else reply

    rounds = len(BROKEN_CONTENTS)
    about: dict[str, Any] = {"metrics": ["best-value"], "noise_multiplier": 0.1}
    as_zero, agents = run(spoiled(zero), rounds, **about)
    as_broken, others = run(spoiled(broken), rounds, **about)
    assert next(contents, None) is None
    np.testing.assert_array_equal(as_zero.server.vectors, as_broken.server.vectors)
    for row, other in zip(as_zero.server.ledger, as_broken.server.ledger, strict=True):
        np.testing.assert_array_equal(row.vectors, other.vectors)
    assert_same(agents, others)


def test_a_reply_counts_once_and_strangers_not_at_all() -> None:
    class Doubling(InProcessGrid):
        def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
            replies = list(super().send_and_receive(messages, timeout=timeout))
            for reply in replies[:2]:
                reply.metadata.__dict__["_src_node_id"] = 12345  # as after a failure
            stranger = Message(RecordDict(), 1001, "train")
            return [*replies, *replies, stranger]

    plain, agents = run(numpy_app(), num_rounds=SHORT)
    doubled = strategy()
    grid = Doubling(numpy_app(), NUM_AGENTS)
    doubled.start(grid, num_rounds=SHORT)
    assert_same(agents, grid.agents(doubled.study))
    np.testing.assert_array_equal(plain.server.vectors, doubled.server.vectors)


def test_metrics_are_off_unless_asked_for() -> None:
    seen: list[list[str]] = []

    def look(client: int, reply: Message) -> Message:
        seen.append(list(reply.content["metrics"]))
        return reply

    grid = InProcessGrid(spoiled(look), NUM_AGENTS)
    assert strategy().start(grid, num_rounds=2).train_metrics_clientapp == {}
    assert seen == [[]] * 2 * NUM_AGENTS
    asked = strategy(metrics=["best-value"]).start(grid, num_rounds=2)
    assert set(asked.train_metrics_clientapp[2]) == {"mean-best-value"}


def test_secrets_do_not_travel() -> None:
    """Neither noise seed nor mask is in what a client gets; vectors alone come."""
    configs: list[ConfigRecord] = []
    inner, app = tuning_app(make_objective), ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        assert {len(r) for r in message.content.array_records.values()} <= {0, 1}
        configs.append(message.content.config_records["config"])
        return inner(message, context)

    run(app, SHORT, noise_seed=987654321, client_api="message")
    assert len(configs) == NUM_AGENTS * (1 + SHORT)
    for config in configs:
        text = json.dumps(dict(config))
        assert "987654321" not in text
        assert "mask" not in text
    assert configs[-1]["server-round"] == SHORT
    assert configs[-1]["fbo-release"] == 0  # its release would be of no use
    assert configs[-NUM_AGENTS - 1]["fbo-release"] == SHORT - 1


def test_the_users_own_config_travels_along_and_is_left_alone() -> None:
    configs: list[ConfigRecord] = []
    inner, app = tuning_app(make_objective), ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        configs.append(message.content.config_records["config"])
        return inner(message, context)

    mine = ConfigRecord({"epochs": 3})
    grid = InProcessGrid(app, NUM_AGENTS)
    strategy().start(grid, num_rounds=2, train_config=mine)
    assert configs[-1]["epochs"] == 3
    assert dict(mine) == {"epochs": 3}


def test_the_summary_says_what_is_not_private(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "flwr"):
        run(numpy_app(), num_rounds=2, metrics=["best-value"])
    assert "NOT PRIVATE: the noise is seeded" in caplog.text
    assert "without any privacy guarantee: best-value" in caplog.text
    assert "Privacy spent in 1 release: epsilon " in caplog.text


def test_a_large_delta_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    strategy(noise_seed=None, delta=0.009).summary()
    said = "WARNING: delta 0.009 is not well below one over the 4 clients"
    assert said in caplog.text
    caplog.clear()
    strategy(noise_seed=None, delta=None).summary()
    strategy(noise_seed=None).summary()
    assert "WARNING" not in caplog.text


def test_what_is_no_function_is_named() -> None:
    with pytest.raises(ValueError, match="make_objective=3 is not allowed"):
        tuning_app(3)  # type: ignore[arg-type]


def test_fts_de_and_dp_fts_are_settings() -> None:
    fts_de, agents = run(
        numpy_app(),
        SHORT,
        noise_multiplier=0,
        sampling_probability=1,
        clip_norm=math.inf,
    )
    assert fts_de.privacy_spent.epsilon == math.inf
    assert fts_de.server.vectors is not None
    assert len(agents) == NUM_AGENTS
    dp_fts, _ = run(numpy_app(), SHORT, agent=DPFTSDESettings(num_sub_regions=1))
    assert dp_fts.server.vectors is not None
    assert dp_fts.server.vectors.shape == (1, 100)


def test_presets_are_the_published_settings() -> None:
    real, synthetic = (
        strategy(agent=None),
        strategy(agent=None, preset="paper-synthetic"),
    )
    agent = real.study.agent
    assert isinstance(agent, DPFTSDESettings)
    assert (agent.lengthscale, agent.regularization) == (0.01, 1e-6)
    assert (agent.num_features, agent.num_sub_regions) == (100, 4)
    assert (agent.num_initial, agent.refit_every) == (10, 5)
    assert agent.follow == "inverse"
    assert real.server.release.settings.clip_norm == 22.0
    assert real.server.release.settings.weights.num_decay_rounds == 30
    agent = synthetic.study.agent
    assert isinstance(agent, DPFTSDESettings)
    assert (agent.num_features, agent.follow) == (50, "inverse-sqrt")
    assert (agent.lengthscale, agent.regularization) == (0.03, 0.01)
    assert agent.num_sub_regions == 2
    assert synthetic.server.release.settings.clip_norm == 11.0
    assert synthetic.server.release.settings.weights.num_decay_rounds == 5


def test_controls_share_nothing() -> None:
    study = TuningStudy(
        SearchSpace(SPACE), "maximize", RandomSearchSettings(), study_seed=1
    )
    control = TuningStrategy(LocalServer(NUM_AGENTS), study)
    grid = InProcessGrid(numpy_app(), NUM_AGENTS)
    result = control.start(grid, num_rounds=3, host=Host(patience=0.0))
    assert len(result.arrays) == 0
    assert result.recommended is None
    assert result.privacy_spent is None
    assert [len(a.values) for a in grid.agents(study)] == [12] * NUM_AGENTS
    control.server.resume(control.server.ledger)


def test_messages_can_be_built_outside_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    identity = compat.TaskIdentity
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(identity, name, None)
    compat.ensure_task_identity()
    assert (identity.task_id, identity.run_id, identity.node_id) == (1, 1, 1)


def test_a_silent_node_is_not_waited_for_in_every_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timeouts: list[float | None] = []

    class OneIsSilent(InProcessGrid):
        def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
            sent = list(messages)
            silent = max(self.contexts)
            if any(m.metadata.dst_node_id == silent for m in sent):
                timeouts.append(timeout)
            heard = [m for m in sent if m.metadata.dst_node_id != silent]
            return super().send_and_receive(heard, timeout=timeout)

    study = strategy(min_agents=3, patience=5.0)
    study.start(OneIsSilent(numpy_app(), NUM_AGENTS), num_rounds=6)
    assert len(timeouts) == 3
    assert all(timeout is not None and timeout <= 5.0 for timeout in timeouts)
