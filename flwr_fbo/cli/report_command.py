"""``flwr-fbo report RESULTS``: results as one HTML page, of whichever kind they are."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from flwr_fbo._common.text import write_whole
from flwr_fbo.cli.commands import EXPERIMENT_PAGE, loaded
from flwr_fbo.cli.ledger_kinds import LEDGER_KINDS
from flwr_fbo.cli.output import check_output, plain_errors
from flwr_fbo.cli.report.server_page import server_page
from flwr_fbo.cli.report.site_page import SITE_PAGES
from flwr_fbo.cli.report.tuner_page import tuner_page
from flwr_fbo.cli.tune_record import check_no_app
from flwr_fbo.clients.bandits.bandit_files import LINEAR_KIND as POLICY_KIND
from flwr_fbo.clients.bandits.bandit_files import NEURAL_KIND as NEURAL_KIND
from flwr_fbo.journal.journal import Journal
from flwr_fbo.strategies.study_record import FILE_NAME as SERVER_FILE
from flwr_fbo.tuner.envelope import KIND as TUNER_KIND
from flwr_fbo.tuner.tuner_record import FILE_NAME as TUNER_FILE
from flwr_fbo.tuner.tuner_record import has_ended

# What an experiment of the lab leaves in a folder.
_RESULTS_FILE = "results.jsonl"
# What a strategy, a tuner and a client leave in a folder.
_JOURNALS = (
    SERVER_FILE,
    TUNER_FILE,
    f"{POLICY_KIND}*.sqlite",
    f"{NEURAL_KIND}*.sqlite",
    "study-*-agent-*.sqlite",
)
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
    """Write a page that is loaded again and again, until its tuner has ended."""
    reload = f'<meta http-equiv="refresh" content="{_SECONDS}">'
    while not (path.name == TUNER_FILE and has_ended(path)):
        text = _page_of(path)
        write_whole(output, text.replace("<head>", f"<head>\n{reload}", 1))
        time.sleep(_SECONDS)


def _file_of(results: Path) -> Path:
    """Return the one file of results that a path names."""
    if not results.is_dir():
        return results
    found = [p for name in (_RESULTS_FILE, *_JOURNALS) for p in results.glob(name)]
    if len(found) > 1:
        names = ", ".join(sorted(path.name for path in found))
        raise ValueError(
            f"{results} has results of several kinds or agents: {names}. Name one."
        )
    if not found:
        check_no_app(results)
        raise ValueError(f"There are no results in {results}: RESULTS is {_ALLOWED}.")
    return found[0]


def _page_of(path: Path) -> str:
    with path.open("rb") as file:
        is_journal = file.read(len(_SQLITE)) == _SQLITE
    # A damaged one may not even begin like one: opened, it says so.
    if not is_journal and path.suffix != ".sqlite":
        page: str = loaded(EXPERIMENT_PAGE)(path)
        return page
    with Journal.snapshot(path) as journal:
        kind = str(journal.identity.get("kind"))
        if kind in LEDGER_KINDS and LEDGER_KINDS[kind].study:
            return server_page(journal)
        if kind == TUNER_KIND:
            return tuner_page(journal)
        if kind in SITE_PAGES:
            return SITE_PAGES[kind](journal)
    raise ValueError(f"{path} is a journal of kind {kind!r}: RESULTS is {_ALLOWED}.")
