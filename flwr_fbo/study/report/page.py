"""What a report is made of, and how it becomes one HTML page.

All text is escaped by jinja2; figures are SVG: see `flwr_fbo.study.report.charts`.
"""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from optuna.distributions import CategoricalDistribution, IntDistribution

from flwr_fbo._common.text import flat, humanised, printable, short_value
from flwr_fbo._common.version import __version__
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.space.search_space import SearchSpace

Cells = Sequence[Any]

FOR_THE_SITE = (
    "For this site alone: the page shows the site's own data. Do not pass it on."
)

_BREAK = re.compile(r"(?<=\w[._])(?=\w)")
_CODE = re.compile("`([^`]+)`")
_SEEDS = ("study_seed", "noise_seed", "seed")


@dataclass(frozen=True)
class Table:
    """Rows below a heading each.

    Attributes
    ----------
    headings : sequence of str
        Headings of the columns.
    rows : sequence of sequences
        A cell a heading.
    caption : str
        What the table shows, also for screen readers.
    numeric : bool
        Whether all but the first column are numbers.
    folded : str
        Name below which the table is shown on demand only; always if it is empty.
    """

    headings: Sequence[str]
    rows: Sequence[Cells]
    caption: str
    numeric: bool = True
    folded: str = ""


@dataclass(frozen=True)
class Figure:
    """A picture, and the words for those who do not see it.

    Attributes
    ----------
    svg : Markup
        Without a reference to anything outside it.
    caption : str
        Text below the figure.
    """

    svg: Markup
    caption: str


Part = str | Table | Figure


@dataclass(frozen=True)
class Section:
    """A part of a page; not shown where it is empty.

    Attributes
    ----------
    heading : str
        Heading of the section.
    parts : sequence of str, Table or Figure
        Text is a paragraph.
    """

    heading: str
    parts: Sequence[Part] = ()


def render(
    title: str, lead: str, sections: Sequence[Section], warning: str = ""
) -> str:
    """Return a page as HTML, with nothing invisible in it.

    The warning is what must not be missed; none if it is empty.
    """
    page = {"title": title, "lead": lead, "sections": sections, "warning": warning}
    environment = Environment(
        loader=PackageLoader("flwr_fbo.study.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = _breakable
    environment.filters["with_code"] = _with_code
    environment.tests["figure"] = lambda part: isinstance(part, Figure)
    return printable(environment.get_template("page.html.jinja").render(page))


def _with_code(text: str) -> Markup:
    """Return text as HTML, with what stands between backticks as code."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))


def _breakable(name: Any) -> Markup:
    """Return a name as HTML that may be broken after its dots and underscores."""
    return Markup(_BREAK.sub("<wbr>", str(escape(name))))


def journal_page(
    title: str,
    lead: str,
    sections: Sequence[Section],
    journal: Journal,
    releases: Iterable[LedgerRow] = (),
    warning: str = "",
) -> str:
    """Return a page that ends with a journal's settings, and who wrote its releases.

    Seeds are left out except that they were given: who knows them can repeat choices
    and, in an experiment, noise.
    """
    settings = {
        name: "given" if name in _SEEDS and value is not None else value
        for name, value in identity_in_words(journal.identity).items()
    }
    versions = (str(row.facts["flwr_fbo"]) for row in releases)
    return whole_page(title, lead, sections, settings, versions, warning)


def identity_in_words(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return a journal's identity with its space, if it has one, in words."""
    if "space" not in identity:
        return dict(identity)
    ranges = SearchSpace.from_json(identity["space"]).distributions.items()
    return {**identity, "space": {name: range_in_words(one) for name, one in ranges}}


def range_in_words(distribution: Any) -> str:
    """Return which values a parameter can have."""
    if isinstance(distribution, CategoricalDistribution):
        return "one of " + ", ".join(map(str, distribution.choices))
    text = f"{distribution.low} to {distribution.high}"
    if distribution.log:
        text += ", on a log scale"
    if distribution.step not in (None, 1):
        text += f", in steps of {distribution.step}"
    return (
        f"{text}, whole numbers" if isinstance(distribution, IntDistribution) else text
    )


def whole_page(
    title: str,
    lead: str,
    sections: Sequence[Section],
    settings: Mapping[str, Any],
    recorded: Iterable[str],
    warning: str = "",
) -> str:
    """Return a page that ends with all settings, by dotted name, and with versions.

    ``recorded`` are the versions of flwr_fbo that wrote the results; none where they
    were not recorded.
    """
    rows = [(name, _text(value)) for name, value in flat(settings)]
    caption = "What the results were made with."
    table = Table(("setting", "value"), rows, caption, numeric=False)
    wrote = ", ".join(sorted(set(recorded))) or "not recorded"
    versions = [
        ("results written by flwr_fbo", wrote),
        ("page written by flwr_fbo", __version__),
        ("flwr", version("flwr")),
        ("numpy", version("numpy")),
        ("Python", platform.python_version()),
    ]
    caption = "flwr, numpy and Python are those that wrote this page."
    last = Table(("what", "version"), versions, caption, numeric=False)
    ends = Section("Settings", [table]), Section("Versions", [last])
    return render(title, lead, [*sections, *ends], warning)


def _text(value: Any) -> str:
    if value in (None, "", [], (), {}):
        return "-"
    if isinstance(value, (list, tuple)):
        simple = all(isinstance(one, (str, int, float)) for one in value)
        return ", ".join(map(str, value)) if simple else json.dumps(value)
    return str(value)


def bytes_text(numbers: float) -> str:
    """Return how many bytes so many numbers of 8 bytes are."""
    text = humanised(8 * numbers)
    return f"{text}B" if text[-1].isalpha() else f"{text} B"


def params_text(params: Mapping[str, Any] | None) -> str:
    """Return a setting in a line; a dash where there is none."""
    if params is None:
        return "-"
    return ", ".join(f"{name} = {short_value(value)}" for name, value in params.items())
