"""The bar of commands that take minutes."""

from io import StringIO

from rich.console import Console

from flwr_fbo.lab.cli.progress_bar import progress_bar


def test_a_bar_is_drawn_on_a_terminal_only() -> None:
    for is_terminal in (True, False):
        text = StringIO()
        console = Console(file=text, force_terminal=is_terminal, width=80)
        with progress_bar("first runs", 2, console) as advance:
            advance(1, "alone, seed 0")
            advance(1)
        assert ("alone, seed 0" in text.getvalue()) == is_terminal
