"""The results of an experiment: JSON Lines that only grow.

The first line says which experiment it is; each other one is a run. A line that was cut
off, because the process was ended as it wrote, is written again.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from reprlib import Repr
from typing import Any

from pydantic import ValidationError

from flwr_fbo._common.validation import require
from flwr_fbo._common.version import __version__
from flwr_fbo.lab.experiment_runner.base import Experiment, Run
from flwr_fbo.lab.experiment_runner.config import (
    experiment_of,
    load_experiment,
    published_experiments,
)

FILE_NAME = "results.jsonl"

_START = b'{"flwr_fbo": '


class ResultsFile:
    """The results of one experiment, held by one process.

    Parameters
    ----------
    path : Path
        Created with its folder, or gone on with.
    experiment : Experiment
        Experiment that the runs are of.
    compact : bool
        Whether runs are kept without what tables and figures do not show.

    Attributes
    ----------
    runs : list of Run
        In the order in which they ended.

    Raises
    ------
    ValueError
        If the file is damaged, or of another experiment or version; the message names
        the difference.
    OSError
        If it cannot be written, or another process is writing it.
    """

    def __init__(
        self, path: Path, experiment: Experiment, *, compact: bool = False
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._compact = compact
        self._file = path.open("a+", encoding="utf-8")
        try:
            self._lock()
            self.runs = self._go_on(experiment)
        except BaseException:
            self._file.close()
            raise

    def append(self, run: Run) -> None:
        """Add a run; it is on disk when this returns."""
        kept = run.compact() if self._compact else run
        self._write(kept.to_json())
        self.runs.append(kept)

    def take_over(self, path: Path, experiment: Experiment) -> int:
        """Add what another results file has of the same runs, whatever they are called.

        It is left alone if it cannot be read, or was written by another version.
        Returns how many runs were added.
        """
        names: dict[str, list[str]] = {}  # two curves may be one and the same
        for name in experiment.methods:
            names.setdefault(_key(experiment, name), []).append(name)
        try:
            lines = _lines(path)
            header = _header_of(path, lines)
            other = _experiment_of(path, header)
            keys = {name: _key(other, name) for name in other.methods}
            shared = names.keys() & keys.values()
            if header["flwr_fbo"] != __version__ or not shared:
                return 0
            runs = _runs_of(path, other, lines)
        except (ValueError, OSError):
            return 0
        there = {(run.method, run.seed) for run in self.runs}
        num_there = len(there)
        for run in runs:
            for name in names.get(keys[run.method], ()):
                if (name, run.seed) not in there:
                    self.append(replace(run, method=name))
                    there.add((name, run.seed))
        return len(there) - num_there

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            reason = "another process is writing these results"
            raise OSError(error.errno, reason, str(self.path)) from error

    def _go_on(self, experiment: Experiment) -> list[Run]:
        """Return the runs that are there; begin the file where there are none."""
        header = {"flwr_fbo": __version__, "experiment": experiment.to_dict()}
        lines = _lines(self.path)
        runs: list[Run] = []
        if lines:
            different = _differences(_filled_in(_header_of(self.path, lines)), header)
            if different and len(lines) > 1:
                raise ValueError(
                    f"{self.path} belongs to another experiment: {_told(different)}. "
                    "Give this one another output folder, or rename that one: runs "
                    "that are the same will be taken over."
                )
            runs = _runs_of(self.path, experiment, lines)
        if not runs:
            self._refuse_strangers(lines)
            self._file.truncate(0)
            self._write(json.dumps(header))
        else:
            # What was cut off, now that the rest is known to be ours.
            self._file.truncate(sum(len(line) + 1 for line in lines))
        return runs

    def _refuse_strangers(self, lines: list[bytes]) -> None:
        """Raise where the file has content, but not a line of ours."""
        start = self.path.read_bytes()[: len(_START)]
        if not lines and not _START.startswith(start):
            raise ValueError(f"{self.path} is no results file: move it away.")

    def _write(self, line: str) -> None:
        self._file.write(line + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def __enter__(self) -> ResultsFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def read_results(path: Path) -> tuple[Experiment, list[Run]]:
    """Return what is in a results file, or in the one of a folder.

    Raises
    ------
    ValueError
        If it is not a results file, or damaged.
    OSError
        If it cannot be read.
    """
    path = path / FILE_NAME if path.is_dir() else path
    lines = _lines(path)
    experiment = _experiment_of(path, _header_of(path, lines))
    return experiment, _runs_of(path, experiment, lines)


def version_of(path: Path) -> str:
    """Return the version of flwr_fbo that wrote a results file."""
    return str(_header_of(path, _lines(path))["flwr_fbo"])


def _key(experiment: Experiment, method: str) -> str:
    return json.dumps(experiment.recipe(method), sort_keys=True)


def _lines(path: Path) -> list[bytes]:
    """Return the complete lines: what follows the last line end was cut off."""
    return path.read_bytes().split(b"\n")[:-1]


def _header_of(path: Path, lines: list[bytes]) -> dict[str, Any]:
    expected = "a file that flwr-fbo run wrote"
    whole = len(lines) > 0
    found = "has no complete line" if path.stat().st_size else "is empty"
    require(whole, "results", str(path), f"{expected}; this one {found}")
    try:
        values = json.loads(lines[0])
        header = {key: values[key] for key in ("flwr_fbo", "experiment")}
        if not isinstance(header["experiment"], dict):
            raise TypeError("no experiment")
        return header
    except (ValueError, TypeError, KeyError) as error:
        ours = lines[0].startswith(_START)
        require(ours, "results", str(path), f"{expected}; this one begins with no JSON")
        raise _damaged(path, 1) from error


def _experiment_of(path: Path, header: dict[str, Any]) -> Experiment:
    try:
        return experiment_of(header["experiment"])
    except ValidationError as error:
        raise _damaged(path, 1) from error


def _runs_of(path: Path, experiment: Experiment, lines: list[bytes]) -> list[Run]:
    """Return the runs; raise unless each is of the experiment, and none twice."""
    runs: list[Run] = []
    seen: set[tuple[str, int]] = set()
    for number, line in enumerate(lines[1:], start=2):
        try:
            run = experiment.run_of(json.loads(line))
        except (ValueError, TypeError, KeyError) as error:
            raise _damaged(path, number) from error
        is_valid = run.method in experiment.methods and run.epsilon >= 0
        if not is_valid or (run.method, run.seed) in seen:
            raise _damaged(path, number)
        seen.add((run.method, run.seed))
        runs.append(run)
    return runs


def _damaged(path: Path, number: int) -> ValueError:
    remedy = "move it away"
    if number > 1:
        remedy += ", or remove that line (its run is then done again)"
    return ValueError(f"{path} is damaged in line {number}: {remedy}.")


def _filled_in(header: dict[str, Any]) -> dict[str, Any]:
    """Return a header with what has been added since it was written, as unset."""
    try:
        experiment = experiment_of(header["experiment"]).to_dict()
    except ValidationError:  # its differences say more
        return header
    return {**header, "experiment": experiment}


def _differences(there: Any, now: Any, name: str = "") -> dict[str, tuple[Any, Any]]:
    """Return what differs, by the dotted name of the setting."""
    if not (isinstance(there, dict) and isinstance(now, dict)):
        return {} if there == now else {name: (there, now)}
    different: dict[str, tuple[Any, Any]] = {}
    for key in sorted(there.keys() | now.keys()):
        full = f"{name}.{key}".lstrip(".").removeprefix("experiment.")
        different |= _differences(there.get(key), now.get(key), full)
    return different


def _told(different: Mapping[str, tuple[Any, Any]]) -> str:
    """Say what differs; of long values as much as one can read."""
    brief = Repr()
    brief.maxlist = brief.maxdict = 12
    brief.maxstring = brief.maxother = 60
    return "; ".join(
        f"{name}: {brief.repr(there)} there, {brief.repr(now)} now"
        for name, (there, now) in different.items()
    )


@dataclass(frozen=True)
class Place:
    """Files of an experiment.

    Attributes
    ----------
    rows : Path
        Its runs.
    figure : Path
        Picture of its figure.
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
        The experiment of that name.
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
