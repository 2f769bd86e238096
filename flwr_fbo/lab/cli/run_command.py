"""``flwr-fbo run NAME|FILE``: run an experiment, print its table, draw its figure."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from flwr_fbo._common.text import counted
from flwr_fbo.cli.commands import AsJson
from flwr_fbo.cli.output import TextConsole, ends_like_ctrl_c, plain_errors
from flwr_fbo.lab.cli.claims_command import print_claims
from flwr_fbo.lab.cli.experiment_tables import print_report, report_json
from flwr_fbo.lab.cli.progress_bar import progress_bar
from flwr_fbo.lab.experiment_runner import runner
from flwr_fbo.lab.experiment_runner.base import Experiment
from flwr_fbo.lab.experiment_runner.config import find_experiment
from flwr_fbo.lab.experiment_runner.results import ResultsFile, place_of


def run(
    experiment: Annotated[str, typer.Argument(metavar="NAME|FILE")],
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Runs of each method; the experiment's by default."),
    ] = None,
    num_evaluations: Annotated[
        int | None,
        typer.Option(
            "--evaluations",
            min=1,
            help="Evaluations of each agent, or trials of a bandit.",
        ),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(help="Another epsilon, in a folder of its own."),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(min=1, help="Worker processes.", show_default="one per core"),
    ] = os.cpu_count() or 1,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Folder for figure and results: 'results' by default; those of a "
            "published figure are beside its TOML.",
            file_okay=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run an experiment with its controls: a built-in NAME, or a TOML FILE.

    `flwr-fbo list` prints the names. In a clone of the repository a NAME may also be
    that of a published figure, such as fts/fig3a.

    It writes results and a figure into a folder of the output folder. After you stop
    it, the same command continues. A published figure continues from the runs that are
    in the repository.

    Examples
    --------
    $ flwr-fbo run digits
    $ flwr-fbo run mine.toml --seeds 2 --output results
    """
    console = TextConsole(stderr=as_json)
    with plain_errors(ValueError, ImportError):
        plan = find_experiment(experiment)
        if num_evaluations is not None:
            plan = plan.with_steps(num_evaluations)
        if epsilon is not None:
            plan = plan.with_epsilon(epsilon)
        plan.check()
        place = place_of(experiment, plan, output)
        results = ResultsFile(place.rows, plan, compact=place.compact)
        taken_over = sum(results.take_over(path, plan) for path in place.others)
    wanted = range(plan.num_seeds if seeds is None else seeds)
    if taken_over:
        runs_of_others = counted(taken_over, "run")
        console.print(f"Taken over from other experiments: {runs_of_others}.")
    with plain_errors(), results, ends_like_ctrl_c(signal.SIGTERM):
        try:
            _run(plan, wanted, jobs, results, console)
        except KeyboardInterrupt:
            console.print(
                f"Stopped. {results.path} has {counted(len(results.runs), 'run')}: the "
                "same command goes on with the others."
            )
            raise typer.Exit(130) from None
        runs = [run for run in results.runs if run.seed in wanted]
        print_report(plan, runs, console)
        print_claims(plan, runs, console)
        if as_json:
            typer.echo(report_json(plan, runs))
        console.print(f"\nResults: {results.path}")
        from flwr_fbo.lab.experiment_runner.figure import draw

        draw(plan, runs, place.figure)
        console.print(f"Figure:  {place.figure}")


def _run(
    plan: Experiment, seeds: range, jobs: int, results: ResultsFile, console: Console
) -> None:
    """Do the runs that are not among the results, and add them."""
    there = {(run.method, run.seed) for run in results.runs}
    every = [(method, seed) for seed in seeds for method in plan.methods]
    todo = [pair for pair in every if pair not in there]
    labels = [plan.label_of(name) for name in plan.methods]
    console.print(
        f"{plan.name}: {counted(plan.num_agents, 'agent')}, "
        f"{counted(plan.num_steps, plan.step)}, {counted(len(seeds), 'seed')}, "
        f"methods {', '.join(labels)}"
    )
    if not todo:
        console.print(f"All {len(every)} runs are in {results.path}: nothing is run.")
        return
    if len(todo) < len(every):
        done = len(every) - len(todo)
        console.print(f"{done} of {len(every)} runs are in {results.path}: going on.")
    with progress_bar("first runs", len(todo), console) as advance:
        for run in runner.play(plan, todo, jobs):
            results.append(run)
            text = f"{plan.label_of(run.method)}, seed {run.seed}"
            advance(1, text)
