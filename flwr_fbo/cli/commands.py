"""Which commands there are, how they are found, and what their help looks like."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pkgutil import resolve_name
from typing import Annotated, Any

import click
import typer
from typer.core import TyperCommand, TyperGroup

# Where each command is, and its line in the list of them, in the order of `--help`. It
# is imported when it is used: `flwr-fbo --help` does not wait for what commands need.
# Nothing else in the core names a module of the lab.
COMMANDS = {
    "init": ("cli.init_command:init", "Write a Flower app that tunes a model."),
    "tune": (
        "cli.tune_command:tune",
        "Tune the settings of an app, with no line changed.",
    ),
    "run": ("lab.cli.run_command:run", "Run a built-in experiment or a TOML file."),
    "list": (
        "lab.cli.list_command:list_experiments",
        "List built-in experiments, and tasks.",
    ),
    "show": ("cli.show_command:show", "Print the table of results again."),
    "report": ("cli.report_command:report", "Write results as one HTML page."),
    "claims": (
        "lab.cli.claims_command:claims",
        "Print what papers claim, and what came out.",
    ),
    "export": (
        "cli.export_command:export",
        "Copy trials to Optuna, or releases to a file.",
    ),
    "portfolio": (
        "cli.portfolio_command:portfolio",
        "List settings of finished studies, for others.",
    ),
    "data": ("lab.cli.data_command:app", "Fetch data sets, and say what is there."),
    "ledger": (
        "cli.ledger_command:app",
        "Read what left a study's server, or a site.",
    ),
    "evaluate": (
        "cli.evaluate_command:evaluate",
        "Estimate what other policies would have earned.",
    ),
    "serve": (
        "cli.serve_command:serve",
        "Decide for programs that ask a site's bandit over HTTP.",
    ),
    "check-site": (
        "cli.check_site_command:check_site_command",
        "Say whether a site is ready for a study.",
    ),
    "trust": (
        "cli.trust_command:trust",
        "Put an app on a site's list of reviewed apps.",
    ),
    "superexec": (
        "cli.superexec_command:superexec",
        "Run a SuperNode's messages with reviewed apps only.",
    ),
    "keys": (
        "cli.keys_command:app",
        "Make the keys of secure aggregation, and a roster.",
    ),
    "audit": (
        "lab.cli.audit_command:audit",
        "Bound what a release gives away from below.",
    ),
    "privacy": ("cli.privacy_command:privacy", "Say what a study would spend."),
    "statement": (
        "cli.statement_command:statement",
        "State what studies reveal of whom, on one page.",
    ),
}
# What `show` and `report` do with the results of an experiment.
SHOW_EXPERIMENT = "lab.cli.experiment_tables:show_experiment"
EXPERIMENT_PAGE = "lab.cli.experiment_page:experiment_page"

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV instead of text.")]

_EXAMPLES = "Examples\n--------\n"


def loaded(where: str) -> Any:
    """Import ``module:name`` of this package; say which extra is missing, if one is."""
    try:
        return resolve_name(f"flwr_fbo.{where}")
    except ImportError as error:
        if "flwr-fbo[" not in str(error):
            raise
        raise click.ClickException(str(error)) from error  # it names the extra


def load_command(name: str) -> click.Command:
    """Import a command: a function, or a Typer of several."""
    found = loaded(COMMANDS[name][0])
    if not isinstance(found, typer.Typer):
        alone = group()
        add(alone, name, found)
        found = alone
    return typer.main.get_command(found)


class PlainCommand(TyperCommand):
    """A command whose help is plain text."""

    def get_help(self, ctx: click.Context) -> str:
        """Return the help; typer writes brackets for rich, whoever prints them."""
        return super().get_help(ctx).replace("\\[", "[")


class AllCommands(TyperGroup):
    """``COMMANDS``: listed at once, each imported when it is used."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, (_, text) in COMMANDS.items():
            self.add_command(click.Command(name, help=text), name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, as `TyperGroup` does, and import it."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, load_command(name) if name in COMMANDS else command, rest


def group() -> typer.Typer:
    """Return a Typer for commands, as all of them are shown."""
    return typer.Typer(
        no_args_is_help=True,
        suggest_commands=False,  # Click does
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )


def add(app: typer.Typer, name: str, command: Callable[..., Any]) -> None:
    """Add a command; the examples of its docstring end its help."""
    text, _, examples = (inspect.getdoc(command) or "").partition(_EXAMPLES)
    lines = ["\b", "Examples:", *(f"  {line}" for line in examples.splitlines())]
    app.command(name, cls=PlainCommand, help=text, epilog="\n".join(lines))(command)
