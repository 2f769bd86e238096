"""Figures that pages tell of an epsilon: computed again, by scipy alone."""

from __future__ import annotations

import math
import re

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from benchmarks import records_of_a_patient
from tests.support.documents import ROOT


def _delta(epsilon: float, mu: float) -> float:
    second = math.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu))
    return float(norm.cdf(mu / 2 - epsilon / mu) - second)


def epsilon_of(mu: float, delta: float = 1e-3) -> float:
    return float(brentq(lambda e: _delta(e, mu) - delta, 0, 500, xtol=1e-12))


def mu_of(epsilon: float, delta: float = 1e-3) -> float:
    return float(brentq(lambda mu: _delta(epsilon, mu) - delta, 1e-3, 20, xtol=1e-12))


def guess(mu: float) -> str:
    return f"{100 * norm.cdf(mu / 2):.0f} times"


MU, VISIT = mu_of(2), mu_of(4, 1e-5)
ODDS = math.exp(epsilon_of(2 * MU))
FIGURES = {
    "docs/privacy/choose-epsilon.md": (
        f"{100 * norm.cdf(MU / 2 - 2 / MU):.2f} % of studies",
        f"is right {guess(MU)}",
        f"is then {epsilon_of(2 * MU):.2f} ({100 * ODDS / (1 + ODDS):.1f} %",
        f"is right {guess(2 * MU)}",
        f"{epsilon_of(4 * MU):.1f} if both are replaced, and {guess(4 * MU)}",
        f"epsilon {epsilon_of(MU, 1e-6):.2f} at delta 1e-6",
        f"{epsilon_of(MU, 1e-9):.2f} at 1e-9",
        f"1e-6: {MU / mu_of(2, 1e-6):.2f} times the noise",
        f"record, {epsilon_of(2 * MU, 1e-6):.2f} at 1e-6",
        f"that is {epsilon_of(2 * mu_of(2, 1e-6), 1e-6):.2f}",
    ),
    "docs/privacy/what-privacy-covers.md": (
        f"guesses right {guess(MU)}",
        f"{100 * norm.cdf(MU / 2 - 2 / MU):.2f} % of studies",
        f"covered by {epsilon_of(2 * MU):.2f}, and {guess(2 * MU)}",
        f"by {epsilon_of(4 * MU):.1f}, and {guess(4 * MU)}",
        ", ".join(f"{epsilon_of(MU * k**0.5):.2f}" for k in (1, 2, 3))
        + f" and {epsilon_of(2 * MU):.2f} together",
        f"a month for a year, cost {epsilon_of(MU * 12**0.5):.2f}",
        f"({epsilon_of(2 * MU * 12**0.5):.1f} if replaced by another; "
        f"{epsilon_of(2 * MU * 60**0.5):.1f} after five years)",
    ),
    "docs/privacy/for-the-board.md": (
        f"total is {epsilon_of(MU * 12**0.5):.2f} per client",
        f"{epsilon_of(MU * 60**0.5):.1f} after five",
        f"{epsilon_of(2 * MU * 12**0.5):.1f} and {epsilon_of(2 * MU * 60**0.5):.1f} "
        "if the message is replaced by another",
        f"is right {guess(MU * 12**0.5)} in 100",
        f"one patient's record {guess(2 * MU * 12**0.5)}",
    ),
    "docs/app/linear-bandits.md": (
        f"2 visits has epsilon {epsilon_of(2 * VISIT, 1e-5):.1f} in place of 4",
        f"3 visits {epsilon_of(3 * VISIT, 1e-5):.1f}",
        f"10 visits {epsilon_of(10 * VISIT, 1e-5):.0f}",
    ),
}


@pytest.mark.parametrize("page", FIGURES)
def test_figures_of_a_page_are_right(page: str) -> None:
    text = re.sub(r"\s+", " ", (ROOT / page).read_text(encoding="utf-8"))
    for figure in FIGURES[page]:
        assert figure in text


@pytest.mark.gate
def test_the_table_of_records_is_what_the_command_prints() -> None:
    page = (ROOT / "docs/privacy/one-epsilon-for-a-patient.md").read_text()
    assert "\n".join(records_of_a_patient.table()) in page
