"""Each epsilon on a page stands with its unit, its adjacency and its delta.

In what commands and programs print, each by itself. In prose, too, or a page says once,
before the first that stands alone, what such an epsilon is.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.documents import ROOT

PAGES = sorted(
    [
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("examples/*/README.md"),
        *ROOT.glob("experiments/*/README.md"),
        *ROOT.glob("*.md"),
    ]
)
# A number that is a study's epsilon, in prose; and in what is printed.
_NUMBER = r"(?:[0-9][0-9.]*|infinite|inf\b)"
IN_PROSE = re.compile(
    rf"(?i)\bepsilon\b\W{{1,3}}(?:is |of |at least |about )?{_NUMBER}"
    rf"|{_NUMBER} of epsilon\b(?! {_NUMBER})"
)
PRINTED = re.compile(rf"(?i)\bepsilon:? *=? *(?:>= )?{_NUMBER}")
# What follows one that has its terms, in one of the ways in which output has them.
_WORDS = r"(?:message or zeros|with or without it|(?:message )?replaced by another)"
TERMS = re.compile(
    rf"(?i)epsilon\W{{1,3}}\S+ per (?:client|example|patient) \({_WORDS}, delta "
)
ALONE = re.compile(
    r"Where an epsilon stands alone on this page, it is per (?:client \(message or "
    r"zeros|example \((?:with or without it|replaced by another)), delta [\d.e-]+\)"
)
BLOCK = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
# Blocks whose lines are what something has printed, but for the commands in them.
OUTPUTS = ("console", "text", "output")


def printed_in(text: str) -> list[tuple[int, str]]:
    """Return the place and the text of each piece of output in a page."""
    found = []
    for block in BLOCK.finditer(text):
        if block[1] not in OUTPUTS:
            continue
        lines, is_command = [], False
        for line in block[2].splitlines():
            # A command may go on after a backslash.
            is_command = line.startswith("$ ") or is_command
            lines.append("" if is_command else line)
            is_command = is_command and line.endswith("\\")
        found.append((block.start(), " ".join(" ".join(lines).split())))
    return found


def prose_of(text: str) -> str:
    """Return a page without code; what is left keeps its place."""
    blank = BLOCK.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)
    return re.sub(r"`[^`]*`", lambda m: re.sub(r"[^\n]", "x", m[0]), blank)


def faults_of(text: str) -> list[str]:
    """Return each epsilon of a page that has no terms."""
    faults = []
    for _, shown in printed_in(text):
        for match in PRINTED.finditer(shown):
            if not TERMS.match(shown, match.start()):
                faults.append(f"printed: {shown[match.start() :][:80]}")
    prose = prose_of(text)
    flowing = prose.replace("\n", " ")
    said = ALONE.search(flowing)
    for match in IN_PROSE.finditer(flowing):
        if TERMS.match(flowing, match.start()):
            continue
        if said is None or match.start() < said.start():
            faults.append(flowing[match.start() :][:80])
    return faults


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_epsilon_of_a_page_has_its_terms(path: Path) -> None:
    assert faults_of(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("text", "num_faults"),
    [
        ("At epsilon 2 nobody follows.", 1),
        ("**Epsilon 8** is large.", 1),
        ("It has 4.81 for 10.39 of epsilon.", 1),
        ("Each of 2 studies of epsilon 1 per client (message or zeros, delta 1e-3)", 0),
        ("epsilon 2 per client (message or zeros, delta 1e-3)", 0),
        ("epsilon 4 per example, delta 1e-5", 1),
        ("`epsilon=2` is a parameter.", 0),
        ("```console\n$ flwr-fbo privacy --epsilon 2\nepsilon 2\n```\n", 1),
        ("```console\n$ flwr-fbo privacy \\\n --epsilon 2\nepsilon\n```\n", 0),
        ("```python\nepsilon = 2\n```\n", 0),
        (
            "Where an epsilon stands alone on this page, it is per client (message or\n"
            "zeros, delta 1e-3). At epsilon 2 nobody follows.",
            0,
        ),
        (
            "At epsilon 2 nobody. Where an epsilon stands alone on this page, it is "
            "per client (message or zeros, delta 1e-3).",
            1,
        ),
        (
            "Where an epsilon stands alone on this page, it is per client (message or "
            "zeros, delta 1e-3).\n```text\nepsilon 2\n```\n",
            1,
        ),
    ],
)
def test_a_bare_epsilon_is_found(text: str, num_faults: int) -> None:
    assert len(faults_of(text)) == num_faults
