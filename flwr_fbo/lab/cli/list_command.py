"""``flwr-fbo list``: the experiments that ship with the package."""

from __future__ import annotations

import typer
from rich.table import Table

from flwr_fbo.cli.commands import AsJson
from flwr_fbo.cli.output import RULED, json_of, wide_console
from flwr_fbo.lab.experiment_runner.config import builtin_experiments, load_experiment
from flwr_fbo.lab.tasks.catalogue import TASKS


def list_experiments(
    as_json: AsJson = False,
) -> None:
    """List the built-in experiments, and the tasks that a TOML file can name.

    Examples
    --------
    $ flwr-fbo list
    """
    experiments = [load_experiment(path) for path in builtin_experiments().values()]
    if as_json:
        values = [
            {**e.to_dict(), "num_seeds": e.num_seeds, "description": e.description}
            for e in experiments
        ]
        typer.echo(json_of(values))
        return
    table = Table(box=RULED, padding=(0, 1, 0, 0))
    for heading in ("name", "agents", "evaluations", "seeds", "what it is"):
        table.add_column(heading)
    for e in experiments:
        counts = (e.num_agents, e.num_steps, e.num_seeds)
        table.add_row(e.name, *map(str, counts), e.description)
    console = wide_console()
    console.print(table)
    console.print(f"\nTasks of a TOML file: {', '.join(sorted(TASKS))}.")
