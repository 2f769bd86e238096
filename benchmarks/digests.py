"""Do two versions of the code play the same studies? Names the first difference.

    python -m benchmarks.digests A [B]

A and B are commits; without B it is the working tree as it is. Each plays the same
short seeded studies (every strategy, every control, every kind of experiment) in a
worktree of its own, on this machine and with this environment's packages. What is
compared: every array that crosses Flower's grid, in both directions, all that agents
and servers end with, and the results of experiments. All settings are spelled out, so
that another default changes nothing here; a test checks that none is missing.

It compares two versions on one machine, and so needs no fixed numbers. Run it after a
step that must not change behaviour.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed

from benchmarks.digest_studies import STUDIES

ROOT = Path(__file__).parents[1]


def digest_of(value: Any) -> str:
    """Return what stands for an array, or for JSON values, in a comparison."""
    if not isinstance(value, np.ndarray):
        text = json.dumps(value, sort_keys=True, default=str)
        return text if len(text) <= 60 else f"{_hash(text.encode())} {text[:40]}..."
    numbers = value.astype(np.float64) if value.dtype.kind in "iufb" else np.zeros(0)
    digest = _hash(str(value.dtype).encode() + np.ascontiguousarray(value).tobytes())
    return f"{digest} shape {value.shape}, sum {np.nansum(numbers):.17g}"


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def played(name: str) -> list[tuple[str, str]]:
    """Play a study; return its steps in order, each with its digest."""
    return [(step, digest_of(value)) for step, value in STUDIES[name]()]


def first_difference(
    one: Iterable[tuple[str, str]], other: Iterable[tuple[str, str]]
) -> str | None:
    """Return where two studies part, in words; None where they do not."""
    ours, theirs = list(one), list(other)
    for (step, digest), (step_there, digest_there) in zip(ours, theirs, strict=False):
        if step != step_there:
            return f"step {step!r} is {step_there!r} there"
        if digest != digest_there:
            return f"{step}: {digest} against {digest_there}"
    if len(ours) != len(theirs):
        return f"{len(ours)} steps against {len(theirs)}"
    return None


@contextmanager
def _worktree(commit: str | None) -> Any:
    """Give a folder with a commit's files; the working tree's own without one."""
    if commit is None:
        yield ROOT
        return
    git = ("git", "-C", str(ROOT), "worktree")
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "tree"
        subprocess.run([*git, "add", "--quiet", "--detach", folder, commit], check=True)
        try:
            yield folder
        finally:
            subprocess.run([*git, "remove", "--force", folder], check=True)


def _record(jobs: int) -> None:
    """Print the steps of all studies, a line each."""
    results = Parallel(n_jobs=jobs)(delayed(_quietly)(name) for name in STUDIES)
    for name, steps in zip(STUDIES, results, strict=True):
        print(json.dumps([name, steps]))


def _quietly(name: str) -> list[tuple[str, str]]:
    logging.disable(logging.WARNING)
    return played(name)


def _recorded(commit: str | None, jobs: int) -> Mapping[str, list[tuple[str, str]]]:
    with _worktree(commit) as folder:
        command = [sys.executable, "-m", "benchmarks.digests", "--record"]
        done = subprocess.run(
            [*command, f"--jobs={jobs}"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder)},
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
    lines = (json.loads(line) for line in done.stdout.splitlines())
    return {name: [(step, digest) for step, digest in steps] for name, steps in lines}


def compare(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return what differs, a line a study."""
    lines = [f"{name}: only in one of the two" for name in sorted({*one} ^ {*other})]
    for name in one:
        if name in other and (found := first_difference(one[name], other[name])):
            lines.append(f"{name}: {found}")
    return lines


def main() -> None:
    """Compare two versions; exit with status 1 where they differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("one", nargs="?", metavar="A", help="a commit")
    parser.add_argument("other", nargs="?", metavar="B", help="a commit")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--record", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.record:
        _record(options.jobs)
        return
    if options.one is None:
        parser.error("give a commit to compare with")
    both = [_recorded(commit, options.jobs) for commit in (options.one, options.other)]
    lines = compare(*both)
    steps = sum(map(len, both[1].values()))
    print("\n".join(lines) or f"{len(both[1])} studies, {steps} steps: all are equal.")
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()
