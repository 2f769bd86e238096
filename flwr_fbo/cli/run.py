"""``flwr-fbo run NAME``: run an experiment, print its table, draw its figure."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from flwr_fbo.cli.errors import plain_errors
from flwr_fbo.study.experiment import EXPERIMENTS, Experiment
from flwr_fbo.study.runner import Run, run_all
from flwr_fbo.study.summary import Estimate, Row, summarize, verdict


def run(
    name: Annotated[str, typer.Argument()],
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each method.")] = 5,
    iterations: Annotated[
        int | None, typer.Option(min=1, help="Queries an agent, if not as built in.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Worker processes.")] = os.cpu_count()
    or 1,
    output: Annotated[
        Path, typer.Option(help="Folder for figure and results.", file_okay=False)
    ] = Path("results"),
) -> None:
    """Run the experiment NAME (digits) with its controls.

    Prints a table, and leaves a figure and the results in the output folder.
    """
    if name not in EXPERIMENTS:
        raise typer.BadParameter(
            f"{name!r} is not an experiment: one of {sorted(EXPERIMENTS)}.",
            param_hint="NAME",
        )
    experiment = EXPERIMENTS[name]
    if iterations is not None:
        experiment = replace(experiment, num_iterations=iterations)
    folder = output / name
    console = Console()
    with plain_errors(), _ends_like_ctrl_c(signal.SIGTERM):
        folder.mkdir(parents=True, exist_ok=True)
        # Of this process alone, until it is complete: no run spoils another's.
        partial = folder / f"results.{os.getpid()}.jsonl"
        try:
            runs = _run(experiment, seeds, jobs, partial, console)
        except KeyboardInterrupt:
            console.print(f"Stopped. The runs that ended are in {partial}.")
            raise typer.Exit(130) from None
        partial.replace(folder / "results.jsonl")
        _report(experiment, runs, console)
        console.print(f"\nResults: {folder / 'results.jsonl'}")
        from flwr_fbo.study.figure import draw

        draw(experiment, runs, folder / "figure.png")
        console.print(f"Figure:  {folder / 'figure.png'}")


@contextmanager
def _ends_like_ctrl_c(number: signal.Signals) -> Iterator[None]:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(number, interrupt)
    try:
        yield
    finally:
        signal.signal(number, before)


def _run(
    experiment: Experiment, seeds: int, jobs: int, results: Path, console: Console
) -> list[Run]:
    labels = {method.name: method.label for method in experiment.methods}
    console.print(
        f"{experiment.task.name}: {experiment.num_agents} agents, "
        f"{experiment.num_iterations} iterations, {seeds} seeds, "
        f"methods {', '.join(labels.values())}"
    )
    runs = []
    with Progress(
        TextColumn("[progress.description]{task.description:22}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
    ) as progress:
        bar = progress.add_task("starting workers", total=seeds * len(labels))
        for done in run_all(experiment, range(seeds), jobs, results):
            runs.append(done)
            text = f"{labels[done.method]}, seed {done.seed}"
            progress.update(bar, advance=1, description=text)
    return runs


def _report(experiment: Experiment, runs: Sequence[Run], console: Console) -> None:
    names = [method.name for method in experiment.methods]
    rows = summarize(runs, names, experiment.task.direction == "maximize")
    console.print(_table(experiment, rows))
    privacy = experiment.privacy
    console.print(
        "± one standard error over seeds. * paired by seed, mean over iterations "
        f"1 to {experiment.num_iterations}; positive is better."
    )
    console.print(
        f"epsilon: spent at delta = {privacy.delta:g} (Renyi accountant), had the "
        "noise been real. The noise of this experiment is seeded: NOT PRIVATE."
    )
    failed = sum(run.failed_trials for run in runs)
    if failed:
        console.print(f"{failed} trials failed.")
    console.print()
    for line in verdict(rows):
        console.print(line)


def _table(experiment: Experiment, rows: dict[str, Row]) -> Table:
    last = experiment.num_iterations
    title = f"Best {experiment.task.unit} so far, mean over agents"
    # Narrow enough for 80 columns.
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("method", no_wrap=True)
    for heading in (f"iteration {last}", "minus TS*", "minus noise-only*", "epsilon"):
        table.add_column(heading, justify="right", no_wrap=True)
    for method in experiment.methods:
        row = rows[method.name]
        table.add_row(
            method.label,
            _number(row.final, ""),
            _number(row.over_ts, "+"),
            _number(row.over_noise_only, "+"),
            "no privacy" if math.isinf(row.epsilon) else f"{row.epsilon:.3g}",
        )
    return table


def _number(estimate: Estimate | None, sign: str) -> str:
    if estimate is None:
        return "-"
    if estimate.num_runs < 2:
        return f"{estimate.mean:{sign}.4f}"
    return f"{estimate.mean:{sign}.4f} ± {estimate.standard_error:.4f}"
