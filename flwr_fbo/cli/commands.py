"""How commands are found, and what their help looks like."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, ClassVar

import click
import typer
from typer.core import TyperCommand, TyperGroup

from flwr_fbo._common.validation import nearest

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV instead of text.")]

_EXAMPLES = "Examples\n--------\n"


@dataclass(frozen=True)
class Listed:
    """A subcommand that has not been imported.

    Attributes
    ----------
    function : str
        In the command's module: a function, or a Typer of several.
    text : str
        A line, for the list of commands.
    """

    function: str
    text: str

    def load(self, name: str) -> click.Command:
        """Import it, and return the command."""
        try:
            module = import_module(f"flwr_fbo.cli.{name}_command")
        except ImportError as error:
            if "flwr-fbo[" not in str(error):
                raise
            raise click.ClickException(str(error)) from error  # it names the extra
        found = getattr(module, self.function)
        if isinstance(found, typer.Typer):
            return typer.main.get_command(found)
        alone = group()
        add(alone, name, found)
        return typer.main.get_command(alone)


class PlainCommand(TyperCommand):
    """A command whose help is plain text."""

    def get_help(self, ctx: click.Context) -> str:
        """Return the help; typer writes brackets for rich, whoever prints them."""
        return super().get_help(ctx).replace("\\[", "[")


class Group(TyperGroup):
    """Commands, of which the nearest is suggested for one that there is not."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, as `click.Group` does."""
        if args and self.get_command(ctx, args[0]) is None and args[0][:1] != "-":
            allowed = nearest(args[0], self.list_commands(ctx))
            raise click.UsageError(f"There is no command {args[0]!r}: {allowed}.", ctx)
        return super().resolve_command(ctx, args)


class LazyGroup(Group):
    """Commands that are imported when they are used."""

    listed: ClassVar[dict[str, Listed]] = {}

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, one in self.listed.items():
            self.add_command(click.Command(name, help=one.text), name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, as `click.Group` does, and import it."""
        name, command, rest = super().resolve_command(ctx, args)
        if name in self.listed:
            command = self.listed[name].load(name)
        return name, command, rest


def group() -> typer.Typer:
    """Return a Typer for commands, as all of them are shown."""
    return typer.Typer(
        cls=Group,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )


def add(app: typer.Typer, name: str, command: Callable[..., Any]) -> None:
    """Add a command; the examples of its docstring end its help."""
    text, _, examples = (inspect.getdoc(command) or "").partition(_EXAMPLES)
    lines = ["\b", "Examples:", *(f"  {line}" for line in examples.splitlines())]
    app.command(name, cls=PlainCommand, help=text, epilog="\n".join(lines))(command)
