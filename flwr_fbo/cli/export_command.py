"""``flwr-fbo export JOURNAL STORAGE``: a client's trials for Optuna's dashboard."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import optuna
import typer

from flwr_fbo.cli.errors import plain_errors
from flwr_fbo.cli.tables import count
from flwr_fbo.integrations.optuna_export import export_journal


def export(
    journal: Annotated[Path, typer.Argument()],
    storage: Annotated[str, typer.Argument()],
) -> None:
    """Copy a client's JOURNAL to an Optuna STORAGE, such as sqlite:///trials.db.

    Once more, it adds what is new.

    Examples
    --------
    $ flwr-fbo export study-1a2b-agent-0.sqlite sqlite:///trials.db
    """
    if "://" not in storage:
        raise typer.BadParameter(
            f"{storage!r} is not a URL such as sqlite:///trials.db.",
            param_hint="STORAGE",
        )
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with plain_errors(ValueError, ImportError):
        study = export_journal(journal, storage)
    number = len(study.get_trials(deepcopy=False))
    typer.echo(f"{count(number, 'trial')} in study {study.study_name} of {storage}")
