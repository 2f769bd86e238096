"""A page: all that is on it is escaped, and it breaks where words may."""

from dataclasses import replace

import pytest
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from flwr_fbo.study.report.page import Section, Table, range_in_words, render

EVIL = '<script>alert("x")</script> $\\frac$ & more'


def test_all_that_is_on_a_page_is_escaped() -> None:
    table = Table((EVIL, EVIL), [(EVIL, EVIL)], EVIL)
    section = Section(EVIL, [EVIL, table, replace(table, folded=EVIL)])
    assert "<script" not in render(EVIL, EVIL, [section], EVIL)


@pytest.mark.parametrize(
    ("distribution", "text"),
    [
        (FloatDistribution(0.001, 10, log=True), "0.001 to 10.0, on a log scale"),
        (FloatDistribution(0, 1), "0.0 to 1.0"),
        (FloatDistribution(0, 1, step=0.5), "0.0 to 1.0, in steps of 0.5"),
        (IntDistribution(1, 9), "1 to 9, whole numbers"),
        (CategoricalDistribution(["a", None]), "one of a, None"),
    ],
)
def test_ranges_are_words(distribution: BaseDistribution, text: str) -> None:
    assert range_in_words(distribution) == text


def test_names_can_be_broken_and_code_is_marked() -> None:
    table = Table(("what", "value"), [("a.long_name", "b_c")], "Of `x<y`.", False)
    text = render("", "", [Section("", ["Give `f(a)` and ` alone."])])
    assert "<p>Give <code>f(a)</code> and ` alone.</p>" in text
    text = render("", "", [Section("", [table])])
    assert '<th scope="row">a.<wbr>long_<wbr>name</th><td>b_c</td>' in text
    assert "<caption>Of <code>x&lt;y</code>.</caption>" in text
