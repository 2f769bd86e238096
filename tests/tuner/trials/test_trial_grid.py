"""The Grids that `main` gets, and what a trial keeps to itself."""

import pickle
import sys
from copy import copy, deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from flwr_fbo import InProcessGrid, tuner_mod
from flwr_fbo.privacy.spending_ledger import Charge, Promise
from flwr_fbo.tuner.message_headers import (
    SettingsHeader,
    TrialsHeader,
    pack,
    read_header,
)
from flwr_fbo.tuner.trial_context import FederationTrial, Overlay
from flwr_fbo.tuner.trials.trial_grid import TrialGrid
from flwr_fbo.tuner.trials.trial_thread import random_states, restore_random_states
from flwr_fbo.tuner.trials.tuned_grid import TunedGrid
from tests.support.apps import in_process

SETTINGS = {"learning-rate": 0.5}


class Asked:
    """Stands for a Grid, and keeps what it was asked to send."""

    is_complete = True

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def push_messages(self, messages: Any) -> list[str]:
        """Keep messages."""
        self.messages += messages
        return ["1"]

    def send_and_receive(self, messages: Any, *, timeout: Any = None) -> list[Message]:
        """Keep messages."""
        self.messages += messages
        return []


@pytest.mark.parametrize("is_hidden", [True, False])
@pytest.mark.parametrize("how", ["push_messages", "send_and_receive"])
def test_the_real_training_tells_its_settings_however_it_sends(
    how: str, is_hidden: bool
) -> None:
    in_process()  # for the identity that a message needs
    inner: Any = Asked()
    grid = TunedGrid(inner, SETTINGS, is_hidden)
    own = ConfigRecord({"x": 1})
    getattr(grid, how)([Message(RecordDict({"config": own}), 1, "train")])
    (sent,) = inner.messages
    assert read_header(sent.content) == SettingsHeader(SETTINGS, is_hidden)
    assert sent.content["config"] == own
    assert grid.is_complete


def test_a_send_of_nothing_is_not_waited_for() -> None:
    inner: Any = Asked()

    def send(*_: Any) -> list[Message]:
        raise AssertionError

    assert TrialGrid(inner, send, True, print).send_and_receive([]) == []


def test_a_run_config_has_the_name_of_a_dict_and_can_be_copied() -> None:
    trial = FederationTrial(3, 1, 2, {"x": 1})
    config = Overlay({"x": 0, "other": 2}, {"x": 1}, trial)
    # By this OmegaConf, which one of Flower's baselines uses, knows a dict.
    name = type(config).__module__, type(config).__qualname__
    assert name == ("builtins", "dict")
    for copied in (deepcopy(config), copy(config), pickle.loads(pickle.dumps(config))):
        assert copied == {"x": 1, "other": 2}
        assert copied.trial == trial
    assert config.read == {"x"}


@pytest.mark.parametrize(
    "read",
    [
        lambda config: config["learning-rate"],
        lambda config: config.get("learning-rate"),
        lambda config: dict(config),
        lambda config: list(config.values()),
        lambda config: [key for key in config],  # noqa: C416
        lambda config: list(config.items()),
    ],
)
def test_what_is_read_of_a_run_config_is_noted(read: Any) -> None:
    config = Overlay({"learning-rate": 1.0, "other": 2}, SETTINGS)
    assert config["other"] == 2
    assert config.get("none", 3) == 3
    assert config.read == set()
    read(config)
    assert config.read == {"learning-rate"}
    assert dict(config) == {"learning-rate": 0.5, "other": 2}


def test_what_the_server_has_put_into_a_config_stays() -> None:
    """And the settings that it has not put there are added, for a `NumPyClient`."""
    app, found = ClientApp(mods=[tuner_mod]), []

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        found.append(dict(message.content.config_records["fitins.config"]))
        return Message(RecordDict(), reply_to=message)

    grid = InProcessGrid(app, 1)
    settings = {**SETTINGS, "epochs": 2}
    promise = Promise((Charge(5.0),), private=True)
    metric = {"accuracy": 1.0}
    header = TrialsHeader("a", (0,), (settings,), (0,), metric, True, promise)
    config = ConfigRecord({"learning-rate": 0.1})
    content = pack(header, {0: RecordDict({"fitins.config": config})})
    [node] = grid.get_node_ids()
    grid.send_and_receive([Message(content, node, "evaluate")])
    assert found == [{"learning-rate": 0.1, "epochs": 2}]


@pytest.mark.parametrize("on_gpu", [False, True])
def test_the_states_of_torch_are_kept_too(
    on_gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it is imported; where it is not, nobody imports it."""
    state = {"cpu": 1, "gpu": 1}
    cuda = SimpleNamespace(
        is_initialized=lambda: on_gpu,
        get_rng_state_all=lambda: state["gpu"],
        set_rng_state_all=lambda value: state.update(gpu=value),
    )
    torch = SimpleNamespace(
        get_rng_state=lambda: state["cpu"],
        set_rng_state=lambda value: state.update(cpu=value),
        cuda=cuda,
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    kept = random_states()
    state.update(cpu=2, gpu=2)
    restore_random_states(kept)
    assert state == {"cpu": 1, "gpu": 1 if on_gpu else 2}
