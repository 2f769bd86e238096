"""Where the runs of an experiment and its figure lie."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from flwr_fbo.lab.experiment_runner.base import Experiment
from flwr_fbo.lab.experiment_runner.config import load_experiment, published_experiments
from flwr_fbo.lab.experiment_runner.results import FILE_NAME


@dataclass(frozen=True)
class Place:
    """Files of an experiment.

    Attributes
    ----------
    rows : Path
        Its runs.
    figure : Path
    others : tuple of Path
        Runs of other experiments, which may be the same.
    compact : bool
        Whether runs are kept without what tables and figures do not show: they are in
        the repository.
    """

    rows: Path
    figure: Path
    others: tuple[Path, ...]
    compact: bool


def place_of(name: str, plan: Experiment, output: Path | None) -> Place:
    """Return where the runs of an experiment lie.

    Parameters
    ----------
    name : str
        As the command was given it.
    plan : Experiment
    output : Path, optional
        A folder, which has a folder for each experiment. By default it is ``results``;
        but the runs of a published figure are beside its TOML, unless the plan differs
        from it.
    """
    toml = published_experiments().get(name)
    if output is None and toml is not None and load_experiment(toml) == plan:
        rows, figure = toml.with_suffix(".jsonl"), toml.with_suffix(".png")
        found = toml.parent.glob("*.jsonl")
        return Place(rows, figure, _but(rows, found), compact=True)
    output = output or Path("results")
    rows, figure = (output / plan.name / file for file in (FILE_NAME, "figure.png"))
    return Place(rows, figure, _but(rows, output.rglob(FILE_NAME)), compact=False)


def _but(rows: Path, found: Iterable[Path]) -> tuple[Path, ...]:
    return tuple(sorted({*found} - {rows}))
