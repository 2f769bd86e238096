"""``flwr-fbo report RESULTS``: results as one HTML page, of whichever kind they are."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from flwr_fbo._common.text import write_whole
from flwr_fbo.cli.commands import EXPERIMENT_PAGE, loaded
from flwr_fbo.cli.output import check_output, plain_errors
from flwr_fbo.cli.server_page import server_page
from flwr_fbo.cli.tune_record import check_no_app
from flwr_fbo.journal.journal import Journal
from flwr_fbo.study.kinds import JournalKind, journal_kind, journal_kinds, load

# What an experiment of the lab leaves in a folder.
_RESULTS_FILE = "results.jsonl"
_ALLOWED = (
    "a folder or file of flwr-fbo run, of a strategy or a tuner (folder=), or of a "
    "client"
)
# From one writing to the next.
_SECONDS = 5
_SQLITE = b"SQLite format 3\0"


def report(
    results: Path,
    output: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            help="File to write; report.html beside the results by default.",
        ),
    ] = None,
    watch: Annotated[
        bool,
        typer.Option(
            help="Write it again every few seconds, and have the browser load it, "
            "until a tuner has ended or you press Ctrl-C."
        ),
    ] = False,
) -> None:
    """Write RESULTS as one self-contained HTML page.

    RESULTS is the output of `flwr-fbo run`, the `folder` of a study's server or of a
    FederationTuner, a site's `fbo-folder`, or a file in one of them. The page of a
    server or a tuner has no data of single agents. A site's page shows the site's best
    settings, and is for the site only.

    Examples
    --------
    $ flwr-fbo report results/digits
    $ flwr-fbo report /var/lib/fbo --output server.html
    $ flwr-fbo report my-app/tuner --watch
    """
    with plain_errors(ValueError):
        path = _file_of(results)
        output = output or path.parent / "report.html"
        check_output("output", output)
        if watch:
            typer.echo(f"Report: {output}. It is written anew until Ctrl-C.")
            with suppress(KeyboardInterrupt):
                _write_until_the_end(path, output)
        # Readable by its owner alone, as the journals are that it may tell of.
        write_whole(output, _page_of(path))
    typer.echo(f"Report: {output}")


def _write_until_the_end(path: Path, output: Path) -> None:
    """Write a page that is loaded again and again, until its record has ended."""
    reload = f'<meta http-equiv="refresh" content="{_SECONDS}">'
    ending = ""
    if _is_journal(path):
        with Journal.snapshot(path) as journal:
            ending = _kind_of(journal).has_ended
    has_ended = load(ending) if ending else None
    while has_ended is None or not has_ended(path):
        text = _page_of(path)
        write_whole(output, text.replace("<head>", f"<head>\n{reload}", 1))
        time.sleep(_SECONDS)


def _file_of(results: Path) -> Path:
    """Return the one file of results that a path names."""
    if not results.is_dir():
        return results
    journals = [path for kind in journal_kinds() for path in kind.files_in(results)]
    found = sorted({*results.glob(_RESULTS_FILE), *journals})
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise ValueError(
            f"{results} has results of several kinds or agents: {names}. Name one."
        )
    if not found:
        check_no_app(results)
        raise ValueError(f"There are no results in {results}: RESULTS is {_ALLOWED}.")
    return found[0]


def _is_journal(path: Path) -> bool:
    with path.open("rb") as file:
        is_journal = file.read(len(_SQLITE)) == _SQLITE
    # A damaged one may not even begin like one: opened, it says so.
    return is_journal or path.suffix == ".sqlite"


def _kind_of(journal: Journal) -> JournalKind:
    name = str(journal.identity.get("kind"))
    kind = journal_kind(name)
    if kind is None:
        where = f"{journal.path} is a journal of kind {name!r}"
        raise ValueError(f"{where}: RESULTS is {_ALLOWED}.")
    return kind


def _page_of(path: Path) -> str:
    if not _is_journal(path):
        page: str = loaded(EXPERIMENT_PAGE)(path)
        return page
    with Journal.snapshot(path) as journal:
        kind = _kind_of(journal)
        if not kind.page:
            return server_page(journal, kind)
        page = load(kind.page)(journal)
        return page
