"""What of a process's state belongs to a trial, and to nobody else."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flwr_fbo.tuner.random_states import RandomStates


class TurnState:
    """Random states and working directory of a trial: those of its turns.

    Parameters
    ----------
    random_states : RandomStates
        Those that it begins with.
    folder : Path, optional
        The working directory that it begins with, which is made anew. None: it has
        none of its own, and works where the process does.
    """

    def __init__(self, random_states: RandomStates, folder: Path | None = None) -> None:
        self._random_states = random_states
        self._folder = folder
        if folder is not None:
            if folder.exists():
                shutil.rmtree(folder)
            folder.mkdir(parents=True)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Make it the process's state, and keep what has become of it by the end."""
        random_states = RandomStates()
        folder = None if self._folder is None else Path.cwd()
        self._random_states.restore()
        _go_to(self._folder)
        try:
            yield
        finally:
            self._random_states = RandomStates()
            self._folder = _here(self._folder)
            random_states.restore()
            _go_to(folder)


def _go_to(folder: Path | None) -> None:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)  # a trial may have removed its own
        os.chdir(folder)


def _here(folder: Path | None) -> Path | None:
    """Return where the process works; the folder where that is gone, or is None."""
    try:
        return None if folder is None else Path.cwd()
    except FileNotFoundError:
        return folder
