"""The code blocks of a Markdown page, run from top to bottom as a reader would.

- ``python`` blocks share one namespace; a ``text`` block right after one is what it
  printed since the last such block.
- In ``console`` blocks a line that begins with ``$`` is a command, and what follows,
  if anything, is its output, which ``> FILE`` writes. ``flwr-fbo`` runs; every other
  program is on the list `NOT_RUN`, with what is checked in its place. On a *menu*, a
  README whose commands are alternatives that take minutes to hours, ``flwr-fbo`` is
  only asked whether it would take the command, and has such an experiment.
- A ``toml`` block whose first line is ``# NAME.toml`` is written to that file.
- A ``python`` block whose first line is ``# flwr_fbo/FILE.py`` is that file, and one
  with ``# flwr_fbo/FILE.py, at its end`` is added to it. Such a page runs in a process
  of its own, with a copy of the package that has these files: see `run_in_a_copy`.

Outputs are compared as doctest does, with ``...`` for anything, but for the last digit
of a decimal number: it may be one more or less, as other processors round otherwise.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from flwr_fbo.cli import app
from tests.support.documents_not_run import NOT_RUN, parse_flwr_fbo

ROOT = Path(__file__).parents[2]
_DECIMAL = r"([+-]?\d+\.\d+)"
_PATTERNS = {"...": ".*?"}
_VAGUE = re.compile(r"(\.\.\.|[+-]?\d+\.\d+)")
_FILE = re.compile(r"# (flwr_fbo/[\w/]+\.py)(, at its end)?\n")
_FENCE = re.compile(r"^(```+)([^\n]*)\n(.*?)^\1$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and what stands between it and the last.

    Attributes
    ----------
    language, text : str
    gap : str
        Empty where it follows another block directly.
    """

    language: str
    text: str
    gap: str


def blocks_of(path: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page, but for Sphinx's directives and formulas."""
    text, end = path.read_text(), 0
    for match in _FENCE.finditer(text):
        language = match[2].strip()
        if not language.startswith("{"):
            yield Block(language, match[3], text[end : match.start()].strip())
        end = match.end()


@dataclass(frozen=True)
class Command:
    """A command in a ``console`` block.

    Attributes
    ----------
    terminal : str
        What stands before the ``$``.
    line : str
        As it is typed; several lines if they end in backslashes.
    output : str
        What the page shows below it.
    """

    terminal: str
    line: str
    output: str

    @property
    def words(self) -> list[str]:
        """Program and arguments, without the variables that are set for it."""
        words = shlex.split(self.line.replace("\\\n", " "), comments=True)
        return list(itertools.dropwhile(re.compile(r"[A-Z_]+=").match, words))


def commands_of(block: Block) -> Iterator[Command]:
    """Yield the commands of a ``console`` block."""
    command = r"^([\w-]*)\$ ((?:.*\\\n)*.*)\n((?:(?![\w-]*\$ ).*\n)*)"
    found = list(re.finditer(command, block.text, re.M))
    assert "".join(m[0] for m in found) == block.text, f"not a command:\n{block.text}"
    for match in found:
        yield Command(*match.groups())


@dataclass
class Page:
    """A page that runs in the current folder.

    Attributes
    ----------
    path : Path
    menu : bool
        Whether its commands are for the reader to choose from, and not one after the
        other.
    python : bool
        Whether its Python is run; that of an example's README is part of its code.
    names : dict
        The namespace of its Python.
    printed : str
        What its Python has printed.
    """

    path: Path
    menu: bool = False
    python: bool = True
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "document"})
    printed: str = ""
    _shown: int = 0

    def run(self) -> None:
        """Run all blocks, and compare what the page says they print."""
        handlers: dict[str, Callable[[Block], None]] = {
            "python": self._python,
            "console": self._console,
            "text": self._text,
            "toml": self._toml,
            "diff": self._shown_elsewhere,
            "output": self._shown_elsewhere,
        }
        last = ""
        for block in blocks_of(self.path):
            assert block.language in handlers, f"{self.path}: a block without language"
            if block.language == "text":
                assert last == "python", f"{self.path}: whose output is it?"
                assert not block.gap, f"{self.path}: output away from its block"
            handlers[block.language](block)
            last = block.language

    def _python(self, block: Block) -> None:
        if not self.python or _FILE.match(block.text):
            return
        self._shown = len(self.printed)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = compile(block.text, str(self.path), "exec", dont_inherit=True)
            exec(code, self.names)
        self.printed += out.getvalue()

    def _text(self, block: Block) -> None:
        assert_output(self.printed[self._shown :], block.text, str(self.path))

    def _console(self, block: Block) -> None:
        for shown in commands_of(block):
            command, output = shown.words, shown.output
            line = shlex.join(command)
            for how in NOT_RUN:
                if re.match(how.pattern, line):
                    assert not output, f"{self.path}: {line}: unchecked output"
                    how.check(command)
                    break
            else:
                assert command[0] == "flwr-fbo", f"{self.path}: cannot run {line}"
                if self.menu:
                    assert not output, f"{self.path}: {line}: unchecked output"
                    parse_flwr_fbo(command)
                else:
                    assert_output(run_command(command[1:]), output, line)

    def _toml(self, block: Block) -> None:
        tomllib.loads(block.text)
        if match := re.match(r"# (\w+\.toml)\n", block.text):
            Path(match[1]).write_text(block.text)

    def _shown_elsewhere(self, block: Block) -> None:
        """Do nothing: there are tests of their own for them.

        A diff is compared with its files by tests/test_examples.py and
        tests/test_documents.py. The triage example's report takes minutes: it is not
        compared.
        """


def has_files(path: Path) -> bool:
    """Return whether a page has files of the package."""
    return any(_FILE.match(block.text) for block in blocks_of(path))


def run_in_a_copy(path: Path, folder: Path) -> None:
    """Run a page in a folder with a copy of the package, and the page's files in it."""
    shutil.copytree(ROOT / "flwr_fbo", folder / "flwr_fbo")
    for block in blocks_of(path):
        if match := _FILE.match(block.text):
            file = folder / match[1]
            file.parent.mkdir(exist_ok=True)
            assert file.exists() == bool(match[2]), f"{path}: {match[0]}"
            with file.open("a") as end:
                end.write(block.text)
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.documents", str(path)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def run_command(arguments: list[str]) -> str:
    """Run ``flwr-fbo``, 80 columns wide, and return what it prints."""
    arguments = [name for a in arguments for name in _expanded(a)]
    *arguments, sign, file = arguments if ">" in arguments else [*arguments, "", ""]
    assert sign in ("", ">"), f"{arguments}: what follows the file?"
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "80"})
    assert done.exit_code == 0, f"{arguments}: {done.output}"
    if not file:
        return done.stdout
    Path(file).write_text(done.stdout)
    return ""


def assert_output(got: str, wanted: str, where: str) -> None:
    """Compare what was printed with what a page shows, if it shows anything."""
    if wanted:
        got, wanted = (_without_trailing_space(text) for text in (got, wanted))
        ok = is_shown_as(got, wanted)
        assert ok, f"{where}\nprinted:\n{got}\nbut is shown as:\n{wanted}"


def is_shown_as(got: str, wanted: str) -> bool:
    """Return whether a text is the one that a page shows, but for last digits."""
    pieces = _VAGUE.split(wanted)
    pattern = "".join(
        re.escape(piece) if i % 2 == 0 else _PATTERNS.get(piece, _DECIMAL)
        for i, piece in enumerate(pieces)
    )
    match = re.fullmatch(pattern, got, re.DOTALL)
    shown = [piece for piece in pieces[1::2] if piece not in _PATTERNS]
    return match is not None and all(
        _differ_in_the_last_digit_at_most(Decimal(one), Decimal(other))
        for one, other in zip(match.groups(), shown, strict=True)
    )


def _differ_in_the_last_digit_at_most(one: Decimal, other: Decimal) -> bool:
    unit = Decimal(1).scaleb(int(other.as_tuple().exponent))
    same_length = one.as_tuple().exponent == other.as_tuple().exponent
    return same_length and abs(one - other) <= unit


def _without_trailing_space(text: str) -> str:
    lines = [line.rstrip() for line in text.strip("\n").splitlines()]
    return "\n".join(line for line in lines if line) + "\n"


def _expanded(argument: str) -> list[str]:
    return sorted(map(str, Path().glob(argument))) if "*" in argument else [argument]


if __name__ == "__main__":
    Page(Path(sys.argv[1])).run()
