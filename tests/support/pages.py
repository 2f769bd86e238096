"""Pages that reports make: drawn by the command, and what is true of all of them."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from flwr_fbo.cli import app


class Elements(HTMLParser):
    """All elements of a page: name, attributes and text directly in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None], list[str]]] = []
        self._open: list[list[str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open.append([])
        self.found.append((tag, dict(attrs), self._open[-1]))

    def handle_data(self, data: str) -> None:
        if self._open:
            self._open[-1].append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes, _ in self.found if name == tag]


def invoke(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(one) for one in arguments])


def page(results: Path, output: Path) -> str:
    made = invoke("report", results, "--output", output)
    assert made.exit_code == 0, made.output
    assert made.output == f"Report: {output}\n"
    return output.read_text(encoding="utf-8")


def headings_of(text: str) -> list[str]:
    return re.findall("<h2>(.*?)</h2>", text)


def assert_self_contained(text: str) -> None:
    elements = Elements(text)
    assert not re.search(r"https?:|//[a-z]|@import", text)
    assert not {"script", "link", "img", "iframe", "object", "base"} & {
        name for name, _, _ in elements.found
    }
    for _, attributes, _ in elements.found:
        assert not {"src", "srcset", "data", "action"} & attributes.keys()
        assert (attributes.get("href") or "#").startswith("#")
        assert not any(name.startswith("on") for name in attributes)
    for address in re.findall(r"url\((.*?)\)", text):
        assert address.startswith("#")


def assert_figures_can_be_read(text: str) -> None:
    """Each has words, letters, and in-page references that lead to one place."""
    elements = Elements(text)
    figures = elements.named("svg")
    assert len(figures) == len(elements.named("figure")) > 0
    for figure in figures:
        assert figure["role"] == "img"
        assert len(figure["aria-label"] or "") > 30
        # Letters are 12 pixels high where the page is 400 pixels wide.
        width = float(str(figure["viewbox"]).split()[2])
        assert width <= 303
    sizes = {float(size) for size in re.findall(r"font-size: ([\d.]+)px", text)}
    assert min(sizes) >= 10, sizes
    named = [one["id"] for _, one, _ in elements.found if "id" in one]
    assert len(set(named)) == len(named)
    used = re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', text)
    assert {a or b for a, b in used} <= set(named)
    assert "#000000" not in text  # black on a dark page
    assert "mathdefault" not in text
