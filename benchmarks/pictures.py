"""The pictures of the documentation that explain: each in a light and a dark version.

    python -m benchmarks.pictures [--into docs/images]

*study* is how a study goes, *race* how a tuner chooses inside one training, *bandit* a
month of a private bandit, and *tuned* the demo (`python -m benchmarks.demo
benchmarks/demo.jsonl`). They are SVG files with text, 600 units wide.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.demo import ROWS
from benchmarks.rows import read_rows

FOLDER = Path(__file__).parents[1] / "docs" / "images"


class Theme(NamedTuple):
    """Colours, as an SVG has them."""

    text: str
    line: str
    site: str
    server: str
    noise: str
    tuned: str


THEMES = {
    "light": Theme("#1f2328", "#57606a", "#ddf4e4", "#dbe9fb", "#b35900", "#0969da"),
    "dark": Theme("#e6edf3", "#9ea7b3", "#1d3b29", "#1c3352", "#f0a04b", "#58a6ff"),
}


class Drawing:
    """An SVG, element by element."""

    def __init__(self, theme: Theme, height: int, title: str) -> None:
        self.theme, self.height, self.title = theme, height, title
        self.parts: list[str] = []

    def text(
        self, x: float, y: float, lines: str, color: str = "", anchor: str = "middle"
    ) -> None:
        """Write lines of text around a point, 20 units apart."""
        rows = lines.split("\n")
        for i, row in enumerate(rows):
            height = y + 5.5 + 20 * (i - (len(rows) - 1) / 2)
            self.parts.append(
                f'<text x="{x:g}" y="{height:g}" fill="{color or self.theme.text}" '
                f'text-anchor="{anchor}">{row}</text>'
            )

    def box(
        self, x: float, y: float, width: float, height: float, fill: str, lines: str
    ) -> None:
        """Draw a box with text in its middle."""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8" '
            f'fill="{fill}" stroke="{self.theme.line}"/>'
        )
        self.text(x + width / 2, y + height / 2, lines)

    def arrow(
        self, x1: float, y1: float, x2: float, y2: float, color: str = ""
    ) -> None:
        """Draw an arrow from one point to another."""
        color = color or self.theme.line
        length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
        dx, dy = (x2 - x1) / length, (y2 - y1) / length
        tail = f"{x2 - 9 * dx:g} {y2 - 9 * dy:g}"
        left = f"{x2 - 10 * dx - 5 * dy:g} {y2 - 10 * dy + 5 * dx:g}"
        right = f"{x2 - 10 * dx + 5 * dy:g} {y2 - 10 * dy - 5 * dx:g}"
        self.parts += [
            f'<path d="M{x1:g} {y1:g} L{tail}" stroke="{color}" stroke-width="2"/>',
            f'<path d="M{x2:g} {y2:g} L{left} L{right} Z" fill="{color}"/>',
        ]

    def path(
        self, points: Sequence[tuple[float, float]], color: str, width: float
    ) -> None:
        """Draw a line through points."""
        steps = " L".join(f"{x:g} {y:g}" for x, y in points)
        self.parts.append(
            f'<path d="M{steps}" fill="none" stroke="{color}" '
            f'stroke-width="{width:g}"/>'
        )

    def dot(self, x: float, y: float, radius: float, color: str) -> None:
        """Draw a filled circle."""
        self.parts.append(
            f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" fill="{color}"/>'
        )

    def __str__(self) -> str:
        """Return the SVG."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 600 {self.height}" '
            'font-family="Helvetica, Arial, sans-serif" font-size="16" role="img">'
        )
        title = f"<title>{self.title}</title>"
        return "\n".join((head, title, *self.parts, "</svg>\n"))


def study(theme: Theme) -> Drawing:
    """Draw how a study goes: sites, server and noise."""
    picture = Drawing(theme, 316, "Sites send vectors, the server adds noise")
    for i, name in enumerate(("site 1", "site 2", "site N")):
        y = 12 + 102 * i
        picture.box(
            8, y, 190, 86, theme.site, f"{name}\ntries settings on\ndata that stay here"
        )
        picture.arrow(204, y + 34, 372, 114 + 33 * i)
        picture.arrow(372, 132 + 33 * i, 204, y + 56, theme.noise)
    picture.text(103, 208, "⋮")
    picture.box(
        380,
        100,
        212,
        112,
        theme.server,
        "server\nadds up the vectors,\nadds random noise",
    )
    picture.text(390, 60, "one short vector")
    picture.text(420, 252, "the noisy sum, to all sites:", theme.noise)
    picture.text(420, 274, "epsilon says what it reveals", theme.noise)
    return picture


def race(theme: Theme) -> Drawing:
    """Draw how a tuner chooses inside one training of 20 clients."""
    picture = Drawing(theme, 396, "Sixteen settings share the clients out, one is left")
    rows = (
        ("rounds 1 to 4", "16 settings\nin 4 turns", ("0", "1", "2", "3")),
        ("rounds 5 to 8", "4 settings", ("3", "6", "9", "12")),
        ("rounds 9 to 11", "2 settings", ("6", "9")),
        ("to the end", "1 setting,\nall clients", ("6",)),
    )
    ends = ("four go on", "two go on", "one goes on")
    for i, (rounds, what, trials) in enumerate(rows):
        top, width = 12 + 100 * i, 440 / len(trials)
        picture.text(8, top + 14, rounds, anchor="start")
        picture.text(8, top + 44, what, anchor="start")
        for j, trial in enumerate(trials):
            left = 152 + width * j
            picture.box(left, top, width - 8, 32, theme.server, f"setting {trial}")
            num = 20 // len(trials)
            step = (width - 28) / (num - 1)
            for k in range(num):
                picture.dot(left + 10 + step * k, top + 44, 4, theme.line)
        if i < len(ends):
            picture.arrow(368, top + 54, 368, top + 96, theme.noise)
            told = "each client sends a ballot"
            picture.text(352, top + 74, told, theme.noise, "end")
            picture.text(384, top + 74, f"sum + noise: {ends[i]}", theme.noise, "start")
    return picture


def bandit(theme: Theme) -> Drawing:
    """Draw a month of a private bandit at one site."""
    picture = Drawing(theme, 290, "Decisions every day, a noisy sum every week")
    picture.box(8, 12, 584, 48, theme.server, "server: adds up the sums of all sites")
    picture.box(8, 168, 584, 74, theme.site, "")
    picture.text(
        20, 186, "site: chooses an action, and gets its reward", anchor="start"
    )
    for week in range(4):
        left = 24 + 142 * week
        for day in range(7):
            picture.dot(left + 15 * day, 220, 4.5, theme.line)
        edge = left + 112
        picture.arrow(edge - 8, 166, edge - 8, 64)
        picture.arrow(edge + 12, 64, edge + 12, 166, theme.noise)
        picture.text(left + 45, 264, f"week {week + 1}")
    picture.text(24, 104, "sum", anchor="start")
    picture.text(24, 126, "+ noise", anchor="start")
    picture.text(172, 104, "total of all,", theme.noise, anchor="start")
    picture.text(172, 126, "then in use", theme.noise, anchor="start")
    return picture


def tuned(theme: Theme) -> Drawing:
    """Draw the demo: accuracy by round of work, tuned and not."""
    picture = Drawing(theme, 300, "A tuned training beside the app's own")
    rows = read_rows(ROWS)
    most = max(x for row in rows for x, _ in row["points"])
    low, high = 0.55, 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        return 60 + 400 * x / most, 250 - 205 * (y - low) / (high - low)

    for level in (0.6, 0.7, 0.8, 0.9, 1.0):
        _, y = place(0, level)
        picture.path([(60, y), (470, y)], theme.server, 1)
        picture.text(52, y, f"{level:.1f}", anchor="end")
    for number in range(1, most + 1):
        picture.text(place(number, low)[0], 266, str(number))
    picture.text(265, 288, "round of work of all 20 sites")
    picture.text(8, 14, "accuracy on test data", anchor="start")
    for row in rows:
        points = [place(x, y) for x, y in row["points"]]
        if row["kind"] == "ended":
            picture.path(points, theme.line, 1)
            for x, y in points:
                picture.dot(x, y, 2.5, theme.line)
    for kind, color, words in (
        ("own", theme.noise, "not tuned"),
        ("tuned", theme.tuned, "tuned"),
    ):
        (row,) = [row for row in rows if row["kind"] == kind]
        points = [place(x, y) for x, y in row["points"]]
        picture.path(points, color, 3.5)
        x, y = points[-1]
        last = row["points"][-1][1]
        picture.text(x + 10, y, f"{last:.2f} {words}", color, "start")
    x, y = place(3, 0.62)
    picture.text(x + 14, y, "settings that\nfell away", theme.line, "start")
    return picture


PICTURES = (study, race, bandit, tuned)


def main() -> None:
    """Draw all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, default=FOLDER)
    folder: Path = parser.parse_args().into
    for draw in PICTURES:
        for name, theme in THEMES.items():
            file = folder / f"{draw.__name__}-{name}.svg"
            file.write_text(str(draw(theme)), encoding="utf-8")
            print(file)


if __name__ == "__main__":
    main()
