"""What a server learns of an error at a site: its type, and no value of the site."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
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
    RecordDict,
    UserConfig,
)
from flwr.clientapp import ClientApp
from optuna.distributions import FloatDistribution

from flwr_fbo import add_tuning, linear_bandit_app, tuning_app, with_tuning
from flwr_fbo._common.errors import end_of_faults
from flwr_fbo._compat import TUNE_ACTION, ensure_task_identity, instruction_content
from flwr_fbo.bandits import neural_bandit_app
from flwr_fbo.bandits.fed_go_ucb.study import FedGOUCBInstruction
from flwr_fbo.bandits.kind import LINEAR_SITE, NEURAL_SITE
from flwr_fbo.bandits.linear.study import LinearBanditInstruction
from flwr_fbo.bandits.site.recorded_bandit import RecordedBandit
from flwr_fbo.bandits.site.recorded_neural_agent import RecordedNeuralAgent
from flwr_fbo.journal.journal import Journal
from flwr_fbo.site.site import SiteError
from flwr_fbo.study.codec import Config, Phase, Study
from flwr_fbo.tuning.search.agent_journal import agent_identity
from flwr_fbo.tuning.search.study import TuningInstruction
from flwr_fbo.tuning.site.tuning_journals import journal_path
from tests.support.bandit_sites import fed_ucb
from tests.support.fed_go_ucb import strategy_of
from tests.support.federation import objective_of
from tests.support.site_budget import study_of as tuning_study

# Of a name, a path or a number of the site: none of it may leave.
SECRET = "471193"
NUMBER = float(SECRET)
ADVICE = "(the site's log has the details)."

TUNING = tuning_study()
LINEAR = fed_ucb().study
NEURAL = strategy_of().study


def _fails(*_: Any) -> Any:
    raise ValueError(f"could not convert 'Doe {SECRET}'")


def _objective(context: Context) -> Any:
    return objective_of(0)


class _Hidden:
    def __repr__(self) -> str:
        return SECRET


@dataclass(frozen=True)
class Case:
    """A site at which something goes wrong, and what the server may hear of it.

    Attributes
    ----------
    public : str
        The whole text that leaves.
    options : dict
        Of the app, or the client.
    node_config, run_config : dict
        ``{folder}`` stands for the site's folder.
    prepare : callable, optional
        Takes the folder, before the message comes.
    phase : Phase
    is_secret : bool
        Whether the error quotes the secret, which the site's log then has.
    """

    public: str
    options: dict[str, Any] = field(default_factory=dict)
    node_config: UserConfig = field(default_factory=dict)
    run_config: UserConfig = field(default_factory=dict)
    prepare: Callable[[Path], Any] | None = None
    phase: Phase = "round"
    is_secret: bool = True


def _journal(path: Path, identity: dict[str, Any]) -> None:
    Journal(identity, path).close()


def _file(folder: Path) -> None:
    folder.write_text("in the way")


def _damaged(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        folder.mkdir()
        (folder / name).touch(0o600)
        (folder / name).write_bytes(b"rubbish" * 999)

    return damage


def _of_another(name: str, identity: dict[str, Any]) -> Callable[[Path], None]:
    return lambda folder: _journal(folder / name, identity)


GOOD = {"x": 0.1, "C": 1.0, "depth": 2}
FOLDER: UserConfig = {"fbo-folder": "{folder}"}
LIMITS: UserConfig = {
    "fbo-max-epsilon-per-client": f"0.{SECRET}",
    "fbo-max-epsilon-per-example": f"0.{SECRET}",
    "fbo-max-delta": 1e-3,
}
OF_NODE = {
    "a folder that is not absolute": Case(
        "NodeConfigError: fbo-folder is not allowed: an absolute path " + ADVICE,
        node_config={"fbo-folder": SECRET},
    ),
    "such a folder of the run config": Case(
        "NodeConfigError: fbo-folder is not allowed: an absolute path " + ADVICE,
        run_config={"fbo-folder": SECRET},
    ),
    "no agent-id": Case(
        "NodeConfigError: node config agent-id is not allowed: an integer from 0 to "
        "the number of agents - 1 " + ADVICE,
        node_config={**FOLDER, "agent-id": f"x{SECRET}"},
        phase="enrol",
    ),
    "no partition-id": Case(
        "NodeConfigError: node config partition-id is not allowed: an integer from 0 "
        "to the number of agents - 1 " + ADVICE,
        node_config={**FOLDER, "partition-id": f"x{SECRET}"},
    ),
    "no limit": Case(
        "NodeConfigError: node config fbo-max-epsilon-per-client is not allowed "
        + ADVICE,
        node_config={"fbo-max-epsilon-per-client": SECRET + "x"},
    ),
    "half a limit": Case(
        "NodeConfigError: node config fbo-max-delta is not allowed " + ADVICE,
        node_config={"fbo-max-epsilon-per-client": SECRET},
    ),
    "a folder that cannot be": Case(
        "JournalError " + ADVICE, node_config=FOLDER, prepare=_file
    ),
}
# Where all kinds read the node config by the same code, one kind has all cases.
OF_ANY = {"no limit": OF_NODE["no limit"]}
TUNING_CASES = {
    **OF_NODE,
    "a limit": Case(
        "RefusedError: This site takes no part: its limits " + ADVICE,
        node_config=LIMITS,
        phase="enrol",
    ),
    "make_objective": Case(
        "AppFailedError: make_objective failed: ValueError " + ADVICE,
        {"make": _fails},
    ),
    "an enqueued value": Case(
        "StudyMismatchError: enqueue[1] does not fit the study's space " + ADVICE,
        {"enqueue": [GOOD, {**GOOD, "x": NUMBER}]},
    ),
    "an enqueued name": Case(
        "StudyMismatchError: enqueue[0] does not fit the study's space " + ADVICE,
        {"enqueue": [{SECRET: 1.0}]},
    ),
    "a space": Case(
        "StudyMismatchError: This client declares another space than the study has "
        + ADVICE,
        {"space": {"x": FloatDistribution(0, NUMBER)}},
    ),
    "a name that is asked for": Case(
        "StudyMismatchError " + ADVICE,
        {"make": lambda context: lambda trial: trial[SECRET]},
    ),
    "a range that is asked for": Case(
        "StudyMismatchError " + ADVICE,
        {"make": lambda context: lambda t: t.suggest_float("x", 0.0, NUMBER)},
    ),
    "a journal of another study": Case(
        "JournalError " + ADVICE,
        node_config={**FOLDER, "agent-id": 0},
        prepare=lambda folder: _journal(
            journal_path(folder, TUNING, 0) or folder,
            agent_identity(replace(TUNING, study_seed=int(SECRET)), 0),
        ),
    ),
    "a damaged journal": Case(
        "JournalError " + ADVICE,
        node_config={**FOLDER, "agent-id": 0},
        prepare=_damaged(f"study-{TUNING.study_id}-agent-0.sqlite"),
    ),
}
# An environment of FedUCB that fails: see `test_linear_bandit_site`.
LINEAR_CASES = {
    **OF_ANY,
    "a folder that cannot be": replace(
        OF_NODE["a folder that cannot be"], phase="enrol"
    ),
    "a limit": Case(
        "RefusedError: This site takes no part: the study is not private: no "
        "noise, seeded noise, or a trigger " + ADVICE,
        node_config=LIMITS,
        is_secret=False,
    ),
    "a journal of another study": Case(
        "JournalError " + ADVICE,
        node_config=FOLDER,
        prepare=_of_another(
            f"{LINEAR_SITE.name}-{LINEAR.study_id}.sqlite",
            RecordedBandit.identity_of(replace(LINEAR, noise_seed=int(SECRET))),
        ),
        phase="enrol",
    ),
    "a damaged journal": Case(
        "JournalError " + ADVICE,
        node_config=FOLDER,
        prepare=_damaged(f"{LINEAR_SITE.name}-{LINEAR.study_id}.sqlite"),
        phase="enrol",
    ),
    "a lost journal": Case(
        "JournalError: This agent's journal is lost, with the noise of its releases, "
        "so the agent stops. Restore the journal, or begin another study " + ADVICE,
        node_config=FOLDER,
    ),
}
NEURAL_CASES = {
    **OF_ANY,
    "the environment": Case(
        "AppFailedError: The environment failed: ValueError " + ADVICE,
        {"make_environment": _fails},
    ),
    "the model": Case(
        "AppFailedError: The environment failed: ValueError " + ADVICE,
        {"make_model": _fails},
    ),
    "a model of another study": Case(
        "StudyMismatchError: The study has a network, and this client has model= "
        + ADVICE,
        {"make_model": lambda context: _Hidden()},
        is_secret=False,
    ),
    "a journal of another study": Case(
        "JournalError " + ADVICE,
        node_config=FOLDER,
        prepare=_of_another(
            f"{NEURAL_SITE.name}-{NEURAL.study_id}.sqlite",
            RecordedNeuralAgent.identity_of(replace(NEURAL, seed=int(SECRET))),
        ),
        phase="enrol",
    ),
}


def asked_of(study: Study, phase: Phase) -> tuple[Config, list[np.ndarray]]:
    """Return a message's config and arrays, for slot 0."""
    slot = -1 if phase == "enrol" else 0
    if study is TUNING:
        return TuningInstruction(phase, study, slot, 0, release=1).to_config(), []
    if study is LINEAR:
        one = LinearBanditInstruction(phase, study, slot, num_trials=1)
        return one.to_config(), []
    two = FedGOUCBInstruction(phase, study, slot, num_evaluations=1)
    return two.to_config(), []


def _tuning(options: dict[str, Any]) -> list[Callable[[], ClientApp]]:
    options = dict(options)
    make = options.pop("make", _objective)
    return [
        lambda: tuning_app(make, **options),
        lambda: add_tuning(ClientApp(), make, None, **options),
        lambda: ClientApp(client_fn=with_tuning(_fails, make, None, **options)),
    ]


def _linear(options: dict[str, Any]) -> list[Callable[[], ClientApp]]:
    options = {"make_environment": _fails, **options}
    return [
        lambda: linear_bandit_app(**options),
    ]


def _neural(options: dict[str, Any]) -> list[Callable[[], ClientApp]]:
    options = dict(options)
    make = options.pop("make_environment", _fails)
    return [
        lambda: neural_bandit_app(make, **options),
    ]


KINDS: list[tuple[Study, Any, dict[str, Case]]] = [
    (TUNING, _tuning, TUNING_CASES),
    (LINEAR, _linear, LINEAR_CASES),
    (NEURAL, _neural, NEURAL_CASES),
]


@pytest.mark.parametrize(
    ("study", "apps", "case"),
    [
        pytest.param(study, apps, case, id=f"{apps.__name__[1:]}: {name}")
        for study, apps, cases in KINDS
        for name, case in cases.items()
    ],
)
def test_an_error_at_a_site_is_told_without_its_values(
    study: Study,
    apps: Callable[[dict[str, Any]], list[Callable[[], ClientApp]]],
    case: Case,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """By both of Flower's client APIs; the site's log has all."""
    makers = apps(case.options)
    for i, make in enumerate(makers):
        end_of_faults()  # each app is a process of its own
        caplog.clear()
        folder = tmp_path / f"{i}-{SECRET}"
        if case.prepare is not None:
            case.prepare(folder)
        config, arrays = asked_of(study, case.phase)
        text, whole = _told(make(), config, arrays, _context(case, folder))
        assert text == case.public
        assert SECRET not in whole
        assert (SECRET in caplog.text) == case.is_secret


def _context(case: Case, folder: Path) -> Context:
    def filled(config: UserConfig) -> UserConfig:
        return {
            key: value.format(folder=folder) if isinstance(value, str) else value
            for key, value in config.items()
        }

    node, run = filled(case.node_config), filled(case.run_config)
    return Context(1, 1, node, RecordDict(), run)


def _told(
    app: ClientApp, config: Config, arrays: list[np.ndarray], context: Context
) -> tuple[str, str]:
    """Return the text that Flower sends, and all that a traceback would say too."""
    ensure_task_identity()
    record = ArrayRecord({str(i): Array(array) for i, array in enumerate(arrays)})
    content = instruction_content(record, ConfigRecord({**config}), "both")
    actions = app._registered_funcs  # of the Message API
    is_added = f"train.{TUNE_ACTION}" in actions
    kind = f"train.{TUNE_ACTION}" if is_added else "train"
    try:
        reply = app(Message(content, 1, kind), context)
    except SiteError as error:  # of a NumPyClient
        return str(error), "".join(traceback.format_exception(error))
    assert reply.has_error()
    reason = reply.error.reason or ""
    return reason.removeprefix("SiteError: "), reason


def test_a_message_that_is_not_for_the_client_is_told_in_full() -> None:
    """It quotes what the server itself has sent."""
    context = Context(1, 1, {}, RecordDict(), {})
    config, arrays = asked_of(TUNING, "round")
    for wrong, public in (
        ({**config, "fbo-protocol": 1}, "the server sent 1 "),
        ({**config, "fbo-iteration": -3}, "iteration=-3 is not allowed: an integer"),
    ):
        for make in _tuning({}):
            text, _ = _told(make(), wrong, arrays, context)
            assert text.startswith("StudyMismatchError: ")
            assert public in text
    text, _ = _told(linear_bandit_app(), config, arrays, context)
    assert "This client takes part in linear-bandit studies" in text
