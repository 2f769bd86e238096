"""Sites whose folders are lost, restored, cloned or exchanged while a study goes on.

One site of each study is harmed. What the server got from it is noted as it arrives:
the ledger of its data must never have less.
"""

from __future__ import annotations

import hashlib
import logging
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from typer.testing import CliRunner

from flwr_fbo import (
    FedGOUCB,
    FedUCB,
    Halving,
    InProcessGrid,
    PrivateChoice,
    linear_bandit_app,
    tuning_app,
)
from flwr_fbo._compat import reply_arrays
from flwr_fbo.bandits import ContinualSettings, LinearUCBSettings, neural_bandit_app
from flwr_fbo.bandits.fed_go_ucb.study import FedGOUCBInstruction
from flwr_fbo.bandits.linear.study import LinearBanditInstruction
from flwr_fbo.cli import app as command
from flwr_fbo.privacy.spending_ledger import FILE_NAME, Charge, SpendingLedger
from flwr_fbo.study.codec import Instruction, kind_of
from flwr_fbo.tuner.message_headers import BALLOT, BallotHeader, read_header
from flwr_fbo.tuning.search.study import TuningInstruction
from tests.support import apps, bandit_sites
from tests.support import private_agent as neural_study
from tests.support.federation import make_objective, strategy
from tests.support.grouped import hosted
from tests.support.ledgers import ledger_charges

# The site that is harmed, and all of them.
SITE, NUM_SITES = 1, 3
_INSTRUCTIONS: dict[str, type[Instruction]] = {
    one.kind: one
    for one in (TuningInstruction, LinearBanditInstruction, FedGOUCBInstruction)
}
_NEXT_NODE = 2001


class Sites(InProcessGrid):
    """Sites with a folder each; what a server got of one of them is noted.

    Parameters
    ----------
    app : ClientApp
    folder : Path
        Where each site has its folder.
    harms : dict of int to callable
        What is done before the site's message of this number, from 1, enrolments left
        out.

    Attributes
    ----------
    released : set
        Study, release and content of what the server got, each with its charge.
    errors : list of tuple
        The number of the site's message, and the error that it answered with.
    asked : int
        How many messages the site was sent.
    """

    def __init__(
        self, app: ClientApp, folder: Path, run_config: Any = None, num: int = NUM_SITES
    ) -> None:
        self.folders = [folder / f"site-{slot}" for slot in range(num)]
        configs: list[Any] = [
            {"agent-id": i, "partition-id": i, "fbo-folder": str(one)}
            for i, one in enumerate(self.folders)
        ]
        super().__init__(app, num, node_configs=configs, run_config=run_config)
        self.harms: dict[int, Callable[[Sites], None]] = {}
        self.released: dict[Any, Charge] = {}
        self.errors: list[tuple[int, str]] = []
        self.asked = 0

    @property
    def folder(self) -> Path:
        """The folder of the site that is harmed."""
        return self.folders[SITE]

    @property
    def nodes(self) -> list[int]:
        """The nodes that are the harmed site's, or a clone's."""
        found = self.contexts.items()
        return [n for n, c in found if c.node_config.get("agent-id") == SITE]

    def restart(self, **node_config: Any) -> None:
        """Have the site's SuperNode come back, with another node id."""
        [old] = self.nodes
        context = self.contexts.pop(old)
        config = {**context.node_config, **node_config}
        self.add_node(config, context.run_config)

    def add_node(self, node_config: Any, run_config: Any) -> None:
        """Connect one more SuperNode."""
        node = max(_NEXT_NODE, *(n + 1 for n in self.contexts))
        context = Context(1, node, dict(node_config), RecordDict(), run_config)
        self.contexts[node] = context

    def push_messages(self, messages: Any) -> Any:
        """Note what the site is asked, do harm first, and note what it answers."""
        sent = list(messages)
        own = [m for m in sent if m.metadata.dst_node_id in self.nodes]
        rounds = [m for m in own if not _enrols(m)]
        if rounds:
            self.asked += 1
            if self.asked in self.harms:
                self.harms[self.asked](self)
        # Harm may have given the site another node: messages to the old one are lost.
        sent = [m for m in sent if m.metadata.dst_node_id in self.contexts]
        ids = list(super().push_messages(sent))
        for message, number in zip(sent, ids, strict=True):
            if message in own:
                self._note(message, self._replies[number])
        return ids

    def _note(self, asked: Message, reply: Message) -> None:
        if reply.has_error():
            self.errors.append((self.asked, str(reply.error.reason)))
            return
        header = read_header(asked.content)
        if isinstance(header, BallotHeader):
            charge = header.promise.charge_of(header.release)
            ballot = reply.content.array_records[BALLOT]["ballot"].data
            about: Any = header.attempt, header.release, ballot
            self.released[about] = charge
        elif header is None and not _enrols(asked):
            config = asked.content.config_records["config"]
            instruction = _INSTRUCTIONS[kind_of(config)].from_config(config)
            release = instruction.release_charged
            arrays = reply_arrays(reply.content)
            if release is None or not arrays:
                return
            study = instruction.study
            # All releases of a bandit are one mechanism, and one charge.
            content = b"".join(a.tobytes() for a in arrays)
            is_tuning = isinstance(instruction, TuningInstruction)
            digest = hashlib.sha256(content).digest() if is_tuning else b""
            about = study.study_id, release, digest
            self.released[about] = study.promise.charge_of(release)

    def lacking(self, folder: Path | None = None) -> Counter[Charge]:
        """Return the charges of what the server got that the site's ledger lacks."""
        had = charges_in(self.folder if folder is None else folder)
        return Counter(self.released.values()) - Counter(had)


def _enrols(message: Message) -> bool:
    config = message.content.config_records.get("config")
    return config is not None and config.get("fbo-phase") == "enrol"


def charges_in(folder: Path) -> list[Charge]:
    """Return what a site's ledger has; nothing where it is lost."""
    if not (folder / FILE_NAME).is_file():
        return []
    with SpendingLedger.held(folder) as ledger:
        return ledger_charges(ledger)


def server_receipts(server: Path, into: Path) -> Path:
    """Have a server's receipts for the harmed site written to a file."""
    arguments = ["ledger", "receipts", str(server), "--slot", str(SITE)]
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 0, result.output
    into.write_text(result.output)
    return into


def recover(folder: Path, *receipts: Path) -> str:
    """Do what the message says; return what the command prints."""
    folder.mkdir(exist_ok=True)
    arguments = ["ledger", "recover", str(folder), *map(str, receipts)]
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


# Harm


def lose(sites: Sites) -> None:
    """Lose the folder."""
    shutil.rmtree(sites.folder)


def older(age: int, copies: dict[int, Path]) -> Callable[[Sites], None]:
    """Return what restores the folder as it was some messages ago."""

    def restore(sites: Sites) -> None:
        shutil.rmtree(sites.folder)
        shutil.copytree(copies[sites.asked - age], sites.folder)

    return restore


def anothers(sites: Sites) -> None:
    """Have the site use the folder of another one, as a wrong fbo-folder does."""
    shutil.rmtree(sites.folder)
    shutil.copytree(sites.folders[0], sites.folder)


# Four kinds of study: each has its app, and is started with a grid.


def _tuning(folder: Path) -> tuple[Sites, Callable[[Sites], Any]]:
    def start(grid: Sites) -> Any:
        study = strategy(
            num_agents=NUM_SITES,
            folder=folder / "server",
            noise_seed=None,
            sampling_probability=1.0,
            min_agents=1,
        )
        study.start(grid, num_rounds=6)
        return study

    return Sites(tuning_app(make_objective), folder), start


def _linear(folder: Path) -> tuple[Sites, Callable[[Sites], Any]]:
    releases = ContinualSettings(num_releases=3, dimension=3, epsilon=3.0, delta=1e-3)
    settings = LinearUCBSettings(releases, local_data="released")

    def start(grid: Sites) -> Any:
        study = hosted(
            FedUCB,
            settings,
            NUM_SITES,
            schedule=[3, 6, 9],
            num_trials=12,
            folder=folder / "server",
            patience=0.0,
            min_agents=1,
        )
        study.start(grid, num_rounds=study.default_rounds())
        return study

    app = linear_bandit_app(make_environment=bandit_sites.make_environment)
    return Sites(app, folder), start


def _neural(folder: Path) -> tuple[Sites, Callable[[Sites], Any]]:
    def start(grid: Sites) -> Any:
        study = hosted(
            FedGOUCB,
            neural_study.SETTINGS,
            neural_study.MODEL,
            NUM_SITES,
            num_evaluations=neural_study.T,
            seed=1,
            folder=folder / "server",
            patience=0.0,
            min_agents=1,
        )
        study.start(grid)
        return study

    app = neural_bandit_app(neural_study.make_environment)
    return Sites(app, folder), start


def _tuner(folder: Path) -> tuple[Sites, Callable[[Sites], Any]]:
    def start(grid: Sites) -> Any:
        study = apps.tuner(
            num_agents=NUM_SITES,
            schedule=Halving(8, (1, 2, 3)),
            privacy=PrivateChoice(epsilon=8.0, delta=1e-3),
            seeds=None,
            folder=folder / "server",
        )
        study.start(apps.main_of(), grid, apps.server_context())
        return study

    return Sites(apps.message_app(), folder, apps.RUN_CONFIG), start


KINDS = {"tuning": _tuning, "linear": _linear, "neural": _neural, "tuner": _tuner}
GOES_ON = ("tuning", "tuner")


def copying(sites: Sites, into: Path, last: int = 100) -> dict[int, Path]:
    """Have the site's folder copied before each message; return the copies."""
    copies: dict[int, Path] = {}

    def copy(sites: Sites) -> None:
        copies[sites.asked] = into / str(sites.asked)
        if sites.folder.is_dir():
            shutil.copytree(sites.folder, copies[sites.asked])
        else:
            copies[sites.asked].mkdir(parents=True)

    for number in range(1, last):
        sites.harms[number] = copy
    return copies


def said(text: str, folder: Path) -> bool:
    """Return whether a log says what to do about a folder."""
    return re.search(rf"ledger recover {re.escape(str(folder))}\b", text) is not None


def quiet() -> None:
    """Log nothing: for programs that play many studies."""
    logging.disable(logging.CRITICAL)
