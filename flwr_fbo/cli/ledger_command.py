"""``flwr-fbo ledger show FOLDER``: what has left a study's server, for an auditor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from flwr_fbo._common.conversion import finite
from flwr_fbo._common.text import counted, printable
from flwr_fbo.cli.commands import add, group
from flwr_fbo.cli.output import RULED, json_of, plain_errors, wide_console
from flwr_fbo.cli.tune_record import check_no_app
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalError, has_journal
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy.accounting import PrivacySpent
from flwr_fbo.privacy.gaussian import check_delta
from flwr_fbo.privacy.spending_ledger import FILE_NAME as SPENDING_FILE
from flwr_fbo.privacy.spending_ledger import KIND as SPENDING_KIND
from flwr_fbo.privacy.spending_ledger import SpendingLedger
from flwr_fbo.site.proofs import recover
from flwr_fbo.site.questions import forget_questions, num_questions
from flwr_fbo.site.spending_view import SPENDING
from flwr_fbo.strategies.study_record import read_ledger, recorded_book
from flwr_fbo.study.kinds import SERVER_FILE, journal_kind, journal_kinds, load
from flwr_fbo.study.report.ledger_view import LedgerView, committed_text
from flwr_fbo.study.report.page import identity_in_words
from flwr_fbo.study.report.releases import spent_in_words

app = group()


# A ledger: how it is shown, of what it is, its releases, and what was spent by whom.
_Ledger = tuple[
    LedgerView, dict[str, Any], list[LedgerRow], list[tuple[str, PrivacySpent]]
]


@app.callback()
def ledger() -> None:
    """Read the record of what left a study's server, or a site."""


def show(
    folder: Path,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a list in JSON, with the vectors.")
    ] = False,
    delta: Annotated[
        float | None,
        typer.Option(help="Delta for several studies (default: the studies' own)."),
    ] = None,
) -> None:
    """Check and print the ledgers in FOLDER, the folder of a server or of a site.

    A study's server, a FederationTuner and a bandit's site each keep a ledger of their
    releases. The folder of a site, or the `budget` of a server, has a ledger of what
    all studies have spent together: the smallest limit that would have allowed all of
    it, had it been set before the first release. Studies that protect a client and
    those that protect one example are not added up, except for an example: all that a
    client sends counts there, too. So do trainings that the app has charged; their
    total is also given alone, and for an example that is replaced by another. FOLDER
    may also be one file. A damaged
    ledger is refused; a forgery by somebody who can write the file is not noticed. A
    ledger is also read while its server or site is running.

    Agents that share a folder have data of their own: each has its own epsilon, and
    there is no total over agents.

    Examples
    --------
    $ flwr-fbo ledger show /var/lib/fbo
    $ flwr-fbo ledger show /var/lib/fbo --json > ledger.json
    """
    with plain_errors(ValueError):
        if delta is not None:
            check_delta(delta)
    with plain_errors(ValueError):
        check_no_app(folder)
        found = [_read(path, delta) for path in _ledgers_in(folder)]
    if as_json:
        typer.echo(json_of([_json(one) for one in found]))
        return
    console = wide_console()
    for one in found:
        _print(console, one)


def recover_ledger(
    folder: Path,
    receipts: Annotated[
        list[Path] | None,
        typer.Argument(help="Files with receipts of servers: `ledger receipts`."),
    ] = None,
) -> None:
    """Add to a site's ledger in FOLDER what its journals and receipts prove.

    For a site that refuses to answer: its folder was lost or restored from a backup, or
    its ledger was deleted or replaced by an older copy. Read are all journals in
    FOLDER, the receipts that servers have sent there, and those in RECEIPTS. Nothing is
    taken out of the ledger; one that was lost is begun again. What cannot be read is an
    error, and nothing is added then.

    A receipt is signed by its study's server: the site cannot know whether that lies.
    A lie makes the count too high, never too low.

    Examples
    --------
    $ flwr-fbo ledger recover /var/lib/fbo
    $ flwr-fbo ledger recover /var/lib/fbo receipts.json
    """
    with plain_errors():
        if not folder.is_dir():
            raise JournalError(f"There is no folder {folder}.")
        found = recover(folder, receipts or ())
    added = found.of_journals + found.of_receipts
    typer.echo(
        f"{counted(added, 'release')} added, {found.of_receipts} by receipts; the "
        f"ledger has {found.total} now."
    )
    for study, server in found.servers.items():
        typer.echo(
            f"Study {printable(study)}: receipts of the server with key {server}"
        )
    for study in found.cannot_go_on:
        typer.echo(
            f"Study {printable(study)} cannot go on at this site: the journal with the "
            "noise of its releases is gone. It is counted; other studies go on."
        )


def write_receipts(
    folder: Path,
    slot: Annotated[
        int | None, typer.Option(help="Only those of this slot, or agent-id.")
    ] = None,
) -> None:
    """Print the receipts of a study's server in FOLDER, one a line.

    For the operator of a site that has lost its folder or restored it from a backup:
    `flwr-fbo ledger recover` counts them there. While the study runs the site is sent
    its receipt anyway. A receipt says what the site has released in this study.

    Examples
    --------
    $ flwr-fbo ledger receipts /var/lib/fbo --slot 3 > receipts.json
    """
    with plain_errors():
        files = {SERVER_FILE: _server_receipts}
        files |= {k.files: load(k.receipts) for k in journal_kinds() if k.receipts}
        records = [name for name in files if has_journal(folder / name)]
        if not records:
            raise JournalError(f"There is no record of a server in {folder}.")
        with Journal.snapshot(folder / records[0]) as journal:
            receipts = files[records[0]](journal, slot)
        if not receipts:
            whose = "" if slot is None else f" for slot {slot}"
            raise JournalError(
                f"{folder} has no receipts{whose}: the sites keep no ledgers, or have "
                "answered nothing."
            )
        for receipt in receipts:
            typer.echo(receipt)


def questions(
    folder: Path,
    forget: Annotated[
        bool, typer.Option("--forget", help="Answer such questions again.")
    ] = False,
) -> None:
    """Count the studies that a site in FOLDER was asked about, and did not play.

    A site with limits answers ten of them a day, and a hundred in all
    (fbo-max-questions), and tells two apart only if one spends at least twice as much
    as the other: else a server could read from refusals what is left of the
    limits, and so what other federations have spent. A question is no longer counted
    once the first release of its study is charged.

    Examples
    --------
    $ flwr-fbo ledger questions /var/lib/fbo
    $ flwr-fbo ledger questions /var/lib/fbo --forget
    """
    with plain_errors():
        if not has_journal(folder / SPENDING_FILE):
            raise JournalError(f"There is no ledger in {folder}.")
        with SpendingLedger.held(folder) as ledger:
            num_asked = num_questions(ledger)
            if forget:
                forget_questions(ledger)
    asked = counted(num_asked, "question")
    typer.echo(f"{asked} about a study that was not played{': forgotten' * forget}.")


add(app, "questions", questions)
add(app, "show", show)
add(app, "recover", recover_ledger)
add(app, "receipts", write_receipts)


def _server_receipts(journal: Journal, slot: int | None) -> list[str]:
    book = recorded_book(journal)
    return [book.receipt(site) for site in book.sites if slot in (None, site)]


def _ledgers_in(folder: Path) -> list[Path]:
    """Return the ledgers in a folder, or the one file that is named."""
    if folder.is_file():
        return [folder]
    kept = (kind.files_in(folder) for kind in journal_kinds() if kind.ledger)
    found = [*dict.fromkeys(path for files in kept for path in files)]
    found += filter(has_journal, [folder / SPENDING_FILE])
    if not found:
        raise JournalError(
            f"There is no ledger in {folder}: nothing was spent there, or it is "
            "another folder."
        )
    return found


def _read(path: Path, delta: float | None) -> _Ledger:
    with Journal.snapshot(path) as journal:
        identity, view = journal.identity, SPENDING
        name = identity.get("kind")
        if name != SPENDING_KIND:
            kind = journal_kind(name)
            if kind is None or not kind.ledger:
                text = f"The journal {journal.path} is of kind {name!r}, which has no"
                raise JournalError(f"{text} ledger.")
            view = load(kind.ledger)
        if view.study:
            stored, rows = read_ledger(journal)  # once they fit the rest of it
            # The settings alone do not tell.
            identity = {**identity, "study_id": stored["study"]["study_id"]}
        else:
            rows = journal.ledger()
    if delta is None:  # the smallest delta of all studies is theirs
        deltas = [row.facts.get("delta") for row in rows]
        delta = min((one for one in deltas if one is not None), default=1e-5)
    spent = []
    for whose, own in view.parts(rows).items() if rows else ():
        one = view.spent({"delta": delta, **identity}, own)
        if one is not None:
            spent.append((whose or view.whose, one))
    return view, identity, rows, spent


def _print(console: Console, found: _Ledger) -> None:
    """Print who has spent how much and when, each release, and then the settings."""
    view, identity, rows, spent = found
    lines = []
    if "study_id" in identity:
        agents = identity.get("num_agents")
        of = "" if agents is None else f" of {counted(agents, 'agent')}"
        lines.append(f"Study {identity['study_id']}{of}")
    if rows:
        times = [row.committed for row in rows]
        first, last = (committed_text(at) for at in (min(times), max(times)))
        lines.append(f"Committed from {first} to {last}")
    else:
        lines.append(counted(0, "release"))
    lines += [spent_in_words(one, whose) for whose, one in spent]
    if not all(row.facts.get("private", True) for row in rows):
        lines.append(f"NOT PRIVATE: {view.why_not}")
    for line in lines:
        console.print(line, highlight=False)
    table = Table(box=RULED, padding=(0, 1, 0, 0))
    for heading in view.headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*view.cells(row))
    anywhere = console.options.update(max_width=10_000)
    if Measurement.get(console, anywhere, table).maximum <= console.width:
        console.print(table)
    else:  # a number that is cut into pieces is another number
        for row in rows:
            pairs = zip(view.headings, view.cells(row), strict=True)
            for line in _folded([f"{name} {cell}" for name, cell in pairs], console):
                console.print(line, highlight=False)
    for name, value in sorted(identity_in_words(identity).items()):
        console.print(f"{name}: {value}", highlight=False, soft_wrap=True)


def _folded(pieces: Sequence[str], console: Console) -> list[str]:
    """Return pieces in lines that fit a console; a piece is never cut."""
    lines: list[str] = []
    for piece in pieces:
        text = f"{lines[-1]}; {piece}" if lines else piece
        if lines and len(text) <= console.width:
            lines[-1] = text
        else:
            lines.append(piece)
    return lines


def _json(found: _Ledger) -> dict[str, Any]:
    view, identity, rows, spent = found
    releases = [
        {
            **view.numbers(row),
            "committed": row.committed,
            **{name: it for name, it in row.facts.items() if name != "made_after"},
            "vectors": row.vectors.tolist(),
        }
        for row in rows
    ]
    values = finite({"study": identity, "releases": releases})
    # Agents have data of their own, and units are not added: there may be several.
    totals = [{"of": whose.strip(), **one.to_json()} for whose, one in spent]
    return {**values, "spent": finite(totals)}
