"""Examples that are an app before and after: what changes, and what pages show."""

import difflib
import re
from collections.abc import Sequence
from pathlib import Path


def diff(example: Path, name: str) -> list[str]:
    """Return the lines of `diff -U1` of one file."""
    old, new = ((example / v / name).read_text() for v in ("before", "after"))
    lines = difflib.unified_diff(
        old.splitlines(keepends=True),
        new.splitlines(keepends=True),
        f"before/{name}",
        f"after/{name}",
        n=1,
    )
    return list(lines)


def assert_readme_shows(example: Path, names: Sequence[str]) -> None:
    """Assert that the README has the diffs of these files, in this order."""
    readme = (example / "README.md").read_text()
    (shown,) = re.findall(r"```diff\n(.*?)```", readme, re.DOTALL)
    assert shown == "".join(line for name in names for line in diff(example, name))
