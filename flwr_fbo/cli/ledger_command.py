"""``flwr-fbo ledger show FOLDER``: what has left a study's server, for an auditor."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from flwr_fbo.agents.durable.bandit_journals import bandit_journals
from flwr_fbo.agents.durable.fed_go_ucb import KIND as NEURAL_SITE_KIND
from flwr_fbo.agents.durable.fed_ucb import KIND as SITE_KIND
from flwr_fbo.cli.commands import add, group
from flwr_fbo.cli.errors import plain_errors
from flwr_fbo.cli.tables import RULED, wide_console
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.ledger_table import LedgerRow
from flwr_fbo.privacy.accounting import PrivacySpent, ReleaseAccountant
from flwr_fbo.privacy.budget import check_delta
from flwr_fbo.privacy.neural_privacy import NeuralPrivacy
from flwr_fbo.privacy.sampling import Subsampling
from flwr_fbo.privacy.spending import FILE_NAME as SPENDING_FILE_NAME
from flwr_fbo.privacy.spending import KIND as SPENDING_KIND
from flwr_fbo.privacy.spending import Charge, composed_epsilon
from flwr_fbo.protocol.linear_bandit_study import LinearBanditStudy
from flwr_fbo.servers.fed_go_ucb import spent_by_neural_agent
from flwr_fbo.servers.fed_ucb import spent_by_agent
from flwr_fbo.strategies.study_record import (
    BANDIT_KIND,
    FILE_NAME,
    KIND,
    NEURAL_KIND,
    PEER_KIND,
    RELAY_KIND,
    read_ledger,
)
from flwr_fbo.tuner.envelope import KIND as TUNER_KIND
from flwr_fbo.tuner.tuner_record import FILE_NAME as TUNER_FILE_NAME
from flwr_fbo.tuner.tuner_record import recorded_spent

app = group()


@app.callback()
def ledger() -> None:
    """Read the record of what left a study's server, or a site."""


def show(
    folder: Annotated[Path, typer.Argument()],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a list in JSON, with the vectors.")
    ] = False,
    delta: Annotated[
        float, typer.Option(help="Delta for the epsilon of several studies.")
    ] = 1e-5,
) -> None:
    """Check and print the ledgers in FOLDER, the folder of a server or of a site.

    A study's server, a FederationTuner and a bandit's site each keep a ledger of their
    releases. The folder of a site, or the `budget` of a server, has a ledger of what
    all studies have spent together. FOLDER may also be one file. A damaged ledger is
    refused; a forgery by somebody who can write the file is not noticed. A running
    server holds its ledger.

    Examples
    --------
    $ flwr-fbo ledger show /var/lib/fbo
    $ flwr-fbo ledger show /var/lib/fbo --json > ledger.json
    """
    with plain_errors(ValueError):
        check_delta(delta)
    with plain_errors():
        found = [_read(path, delta) for path in _ledgers_in(folder)]
    if as_json:
        typer.echo(json.dumps([_json(*one) for one in found], indent=2))
        return
    console = wide_console()
    for identity, rows, spent in found:
        _print(console, identity, rows, spent)


add(app, "show", show)


def _ledgers_in(folder: Path) -> list[Path]:
    """Return the ledgers in a folder; a study's server's where there is none."""
    if not folder.is_dir():
        return [folder]
    found = [folder / name for name in (FILE_NAME, TUNER_FILE_NAME)]
    for kind in (SITE_KIND, NEURAL_SITE_KIND):
        found += bandit_journals(folder, kind)
    found = [path for path in (*found, folder / SPENDING_FILE_NAME) if path.is_file()]
    return found or [folder / FILE_NAME]


Found = tuple[dict[str, Any], list[LedgerRow], PrivacySpent | None]


def _read(path: Path, delta: float) -> Found:
    with Journal(None, path) as journal:
        identity = journal.identity
        kind = _KINDS.get(str(identity.get("kind")))
        if kind is None:
            journal.require_kind(KIND)
        assert kind is not None
        rows = kind.rows(journal)
    spent = kind.spent({"delta": delta, **identity}, rows) if rows else None
    return identity, rows, spent


def _print(
    console: Console,
    identity: Mapping[str, Any],
    rows: list[LedgerRow],
    spent: PrivacySpent | None,
) -> None:
    kind = _KINDS[identity["kind"]]
    for name, value in sorted(identity.items()):
        console.print(f"{name}: {value}", highlight=False, soft_wrap=True)
    console.print(_table(kind.columns, rows))
    if spent is not None:
        noun = "release" if spent.num_releases == 1 else "releases"
        console.print(
            f"{spent.num_releases} {noun}{kind.whose}: epsilon = {spent.epsilon:.4f} "
            f"at delta = {spent.delta:g} ({spent.accounting_method})"
        )
    if not all(row.facts.get("private", True) for row in rows):
        console.print(f"NOT PRIVATE: {kind.why_not}")


def _table(
    columns: Mapping[str, Callable[[LedgerRow], str]], rows: list[LedgerRow]
) -> Table:
    table = Table(box=RULED, padding=(0, 1, 0, 0))
    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(cell(row) for cell in columns.values()))
    return table


def _spent(identity: Mapping[str, Any], rows: list[LedgerRow]) -> PrivacySpent | None:
    """Charge the rows again; None where there is nothing that can be charged."""
    charges = [row.facts["noise_multiplier"] for row in rows]
    delta, method = identity.get("delta"), identity.get("accountant", "pld")
    if delta is None or min(charges) <= 0:
        return None
    if all(row.facts["noise_only"] for row in rows):
        return PrivacySpent(0.0, delta, len(rows), "noise-only")
    names = ("sampling", "sample_size", "population_size")
    subsampling = Subsampling(*(rows[0].facts[name] for name in names))
    accountant = ReleaseAccountant(subsampling, delta, method)
    if identity.get("cohorts"):  # a site is in one release: see `WarmStartServer`
        charges = charges[:1]
    for charge in charges:
        accountant.charge(charge)
    return accountant.spent()


def _bandit_spent(identity: Mapping[str, Any], rows: list[LedgerRow]) -> PrivacySpent:
    """Return what the agents of FedUCB have spent, as its server counts it."""
    study = LinearBanditStudy.from_dict({**identity, "study_id": "one"})
    return spent_by_agent(study, max(rows[-1].facts["num_releases"]))


def _site_spent(identity: Mapping[str, Any], rows: list[LedgerRow]) -> PrivacySpent:
    """Return what this agent has spent: all of its epsilon, from the first release."""
    return spent_by_agent(LinearBanditStudy.from_dict(identity), len(rows))


def _neural_spent(
    identity: Mapping[str, Any], rows: list[LedgerRow]
) -> PrivacySpent | None:
    """Return what the agents of Fed-GO-UCB have spent; None without privacy."""
    privacy = identity["settings"]["privacy"]
    if privacy is None:
        return None
    return spent_by_neural_agent(NeuralPrivacy.from_dict(privacy), len(rows))


def _all_spent(identity: Mapping[str, Any], rows: list[LedgerRow]) -> PrivacySpent:
    """Return what all studies in a ledger have spent together."""
    charges = [Charge(*row.facts["charge"]) for row in rows]
    count = sum(charge.num_releases for charge in charges)
    delta = identity["delta"]
    return PrivacySpent(composed_epsilon(charges, delta), delta, count, "pld")


def _norm_of_total(row: LedgerRow) -> str:
    return f"{np.linalg.norm(row.vectors.sum(axis=0)):.4g}"


def _num_messages(row: LedgerRow) -> str:
    return str(int(np.isfinite(row.vectors).all(axis=1).sum()))


def _made(row: LedgerRow) -> str:
    made = row.facts["num_releases"]
    return str(max(made)) if min(made) == max(made) else f"{min(made)} to {max(made)}"


def _noise_of_scores(row: LedgerRow) -> str:
    """Return the standard deviation of a tuner's noise, or epsilon of its winner."""
    if row.facts["mechanism"] == "gaussian":
        return f"{row.facts['noise_std'][0]:.4g}"
    epsilon = row.facts.get("epsilon")
    return "-" if epsilon is None else f"epsilon {epsilon:.4g}"


_COMMON: dict[str, Callable[[LedgerRow], str]] = {
    "iteration": lambda row: str(row.iteration),
    "committed": lambda row: datetime.fromtimestamp(row.committed).isoformat(
        " ", "seconds"
    ),
}
_VERSION: dict[str, Callable[[LedgerRow], str]] = {
    "version": lambda row: str(row.facts["flwr_fbo"])
}


@dataclass(frozen=True)
class LedgerKind:
    """How one kind of ledger is read and shown."""

    rows: Callable[[Journal], list[LedgerRow]]
    spent: Callable[[Mapping[str, Any], list[LedgerRow]], PrivacySpent | None]
    columns: Mapping[str, Callable[[LedgerRow], str]]
    whose: str = ""
    why_not: str = "the noise was seeded, or there was none."


SERVER_KINDS = {
    KIND: LedgerKind(
        lambda journal: read_ledger(journal)[1],
        _spent,
        {
            **_COMMON,
            "noise multiplier": lambda row: f"{row.facts['noise_multiplier']:.4g}",
            "q": lambda row: (
                f"{row.facts['sample_size'] / row.facts['population_size']:g}"
            ),
            "sensitivity": lambda row: f"{row.facts['sensitivity']:.4g}",
            "norm of vectors": lambda row: f"{np.linalg.norm(row.vectors):.4g}",
            **_VERSION,
        },
    ),
    BANDIT_KIND: LedgerKind(
        lambda journal: read_ledger(journal)[1],
        _bandit_spent,
        {
            **_COMMON,
            "releases an agent": _made,
            "norm of total": _norm_of_total,
            **_VERSION,
        },
        " of each agent, for one trial of it",
    ),
    PEER_KIND: LedgerKind(
        lambda journal: read_ledger(journal)[1],
        _bandit_spent,
        {
            **_COMMON,
            "releases an agent": _made,
            "messages": lambda row: str(len(row.facts["senders"])),
            **_VERSION,
        },
        " of each agent, for one trial of it",
    ),
    RELAY_KIND: LedgerKind(
        lambda journal: read_ledger(journal)[1],
        lambda identity, rows: None,
        {**_COMMON, "messages": _num_messages, **_VERSION},
        why_not="every message reached all agents as it was.",
    ),
    NEURAL_KIND: LedgerKind(
        lambda journal: read_ledger(journal)[1],
        _neural_spent,
        {**_COMMON, "phase": lambda row: str(row.facts["phase"]), **_VERSION},
        " of each agent, for one trial of it",
        why_not="gradients and sums were sent without noise, or it was seeded.",
    ),
}
SITE_LEDGER = LedgerKind(
    lambda journal: journal.ledger(),
    _site_spent,
    {
        **_COMMON,
        "norm of release": lambda row: f"{np.linalg.norm(row.vectors):.4g}",
        **_VERSION,
    },
    " of this agent, for one trial of it",
)
NEURAL_SITE_LEDGER = LedgerKind(
    lambda journal: journal.ledger(),
    _neural_spent,
    {
        **_COMMON,
        "norm of release": lambda row: f"{np.linalg.norm(row.vectors):.4g}",
        **_VERSION,
    },
    " of this agent, for one trial of it",
)
SPENDING_LEDGER = LedgerKind(
    lambda journal: journal.ledger(),
    _all_spent,
    {
        "committed": _COMMON["committed"],
        "study": lambda row: str(row.facts["study_id"]),
        "kind": lambda row: str(row.facts["study_kind"]),
        "release": lambda row: str(row.facts["release"]),
        "noise multiplier": lambda row: f"{row.facts['charge'][0]:.4g}",
        "q": lambda row: f"{row.facts['charge'][1]:g}",
    },
    " of all studies together",
)
TUNER_LEDGER = LedgerKind(
    lambda journal: journal.ledger(),
    recorded_spent,
    {
        "rung": lambda row: str(row.iteration + 1),
        "committed": _COMMON["committed"],
        "round": lambda row: str(row.facts["rounds"]),
        "trials": lambda row: str(len(row.facts["trials"])),
        "mechanism": lambda row: str(row.facts["mechanism"]),
        "noise": _noise_of_scores,
        "survivors": lambda row: ", ".join(map(str, row.facts["survivors"])),
        **_VERSION,
    },
    " by a tuner",
    why_not="the server read exact scores, or the noise was seeded.",
)
_KINDS = {
    **SERVER_KINDS,
    TUNER_KIND: TUNER_LEDGER,
    SITE_KIND: SITE_LEDGER,
    NEURAL_SITE_KIND: NEURAL_SITE_LEDGER,
    SPENDING_KIND: SPENDING_LEDGER,
}


def _json(
    identity: Mapping[str, Any], rows: list[LedgerRow], spent: PrivacySpent | None
) -> dict[str, Any]:
    releases = [
        {
            "iteration": row.iteration,
            "committed": row.committed,
            **_finite(row.facts),
            "vectors": _finite(row.vectors.tolist()),
        }
        for row in rows
    ]
    epsilon = None if spent is None else spent.epsilon
    values = {"study": _finite(identity), "releases": releases}
    return {**values, "epsilon": _finite(epsilon)}


def _finite(value: Any) -> Any:
    """Return the value; null where JSON lacks what is in it."""
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
