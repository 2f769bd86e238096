"""``flwr-fbo export``: trials for Optuna, or what a study released for another one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import optuna
import typer

from flwr_fbo._common.text import counted
from flwr_fbo._common.validation import refuse, require
from flwr_fbo.cli.output import check_output, plain_errors
from flwr_fbo.cli.tune_record import check_no_app
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import has_journal
from flwr_fbo.privacy.guarantee import CLIENT, Guarantee
from flwr_fbo.strategies.fed_warm_start import recorded_knowledge
from flwr_fbo.study.kinds import journal_kind, journal_kinds, load


def export(
    source: Path,
    storage: Annotated[str | None, typer.Argument()] = None,
    knowledge: Annotated[
        Path | None, typer.Option(help="File to write, for a server's folder.")
    ] = None,
) -> None:
    """Copy trials to Optuna, or releases to a file.

    If SOURCE is a client's journal, or a FederationTuner's folder, its trials go to an
    Optuna STORAGE, such as sqlite:///trials.db, for optuna-dashboard and other tools.
    Run it again to add new trials. Those of a FederationTuner have released scores by
    round; the last rung's are complete, the others pruned.

    If SOURCE is the folder of a FedWarmStart server, its releases go to the file
    --knowledge. Other studies and single sites start from that file at no epsilon.

    Examples
    --------
    $ flwr-fbo export study-1a2b-agent-0.sqlite sqlite:///trials.db
    $ flwr-fbo export /var/lib/tuner sqlite:///trials.db
    $ flwr-fbo export /var/lib/fbo --knowledge warm.json
    """
    if (storage is None) == (knowledge is None):
        raise typer.BadParameter("one of STORAGE and --knowledge.", param_hint="export")
    if knowledge is not None:
        _export_knowledge(source, knowledge)
        return
    assert storage is not None
    if "://" not in storage:
        raise typer.BadParameter(
            f"{storage!r} is not a URL such as sqlite:///trials.db.",
            param_hint="STORAGE",
        )
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with plain_errors(ValueError, ImportError):
        file = _file_of(source)
        with Journal.snapshot(file) as journal:
            name = journal.identity.get("kind")
        kind = journal_kind(name)
        exporter = "" if kind is None else kind.export
        allowed = f"a journal with trials, and this is one of kind {name!r}"
        require(exporter != "", "SOURCE", str(file), allowed)
        study = load(exporter)(file, storage)
    number = len(study.get_trials(deepcopy=False))
    typer.echo(f"{counted(number, 'trial')} in study {study.study_name} of {storage}")


def _file_of(source: Path) -> Path:
    """Return the journal that is meant: a site's folder may have those of many."""
    if not source.is_dir():
        return source
    exported = [kind for kind in journal_kinds() if kind.export]
    for kind in exported:
        if kind.is_of_one_study and has_journal(source / kind.files):
            return source / kind.files
    journals = sorted(path.name for kind in exported for path in kind.files_in(source))
    check_no_app(source)
    allowed = "a client's journal, or the folder of a tuner"
    if journals:
        allowed = f"one of its journals: {', '.join(journals)}"
    refuse("SOURCE", str(source), allowed)


def _export_knowledge(folder: Path, file: Path) -> None:
    with plain_errors(ValueError):
        check_output("knowledge", file)
        knowledge = recorded_knowledge(folder)
        knowledge.save(file)
    for release in knowledge.releases:
        typer.echo(
            f"release {release.release_id}: {counted(release.num_sites, 'site')}, "
            f"{Guarantee(CLIENT).text(release.epsilon, release.delta, '.3f')}"
        )
    if not knowledge.private:
        typer.echo("NOT PRIVATE: seeded noise, or none; for experiments only.")
    typer.echo(f"{counted(len(knowledge.releases), 'release')} in {file}")
