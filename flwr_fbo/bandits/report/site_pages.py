"""The pages of sites that play bandits, for the site: from its agent's journal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flwr_fbo._common.pictures import BLUE
from flwr_fbo._common.text import counted
from flwr_fbo.bandits.report.ledgers import LINEAR_SITE, NEURAL_SITE
from flwr_fbo.bandits.site.policy_summary import PolicySummary
from flwr_fbo.bandits.site.recorded_bandit import RecordedBandit
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.tables import Trial
from flwr_fbo.study.report import charts
from flwr_fbo.study.report.ledger_view import LedgerView
from flwr_fbo.study.report.page import (
    FOR_THE_SITE,
    Part,
    Section,
    Table,
    journal_page,
)
from flwr_fbo.study.report.releases import spent_in_words


def policy_page(journal: Journal) -> str:
    """Return the page of a site that plays a linear bandit."""
    trials = journal.trials()
    rewarded = [trial for trial in trials if trial.state == "complete"]
    summary = RecordedBandit(journal).summary()
    sections = [_policy_summary(summary), _rewards(rewarded)]
    num_open = len(trials) - len(rewarded)
    lead = f"{counted(len(trials), 'trial')}, {num_open} without a reward yet."
    return _bandit_page("A site's linear bandit", lead, sections, journal, LINEAR_SITE)


def neural_page(journal: Journal) -> str:
    """Return the page of a site that plays a bandit with a network."""
    slot = int(journal.load_state().get("slot", -1))
    lead = f"Agent {slot}." if slot >= 0 else "No round is done yet."
    sent = ""
    if journal.identity["settings"]["privacy"] is None:
        sent = "Gradients and sums of raw evaluations leave this site as they are."
    title, sections = "A site's bandit with a network", list[Section]()
    # Without a network the study's model is the site's own, which a page has not.
    if slot >= 0 and journal.identity["network"] is not None:
        from flwr_fbo.bandits.site.recorded_neural_agent import RecordedNeuralAgent

        rewarded = [t for t in journal.trials() if t.state == "complete"]
        summary = RecordedNeuralAgent(journal).summary()
        sections = [_policy_summary(summary), _rewards(rewarded)]
    return _bandit_page(title, lead, sections, journal, NEURAL_SITE, sent)


def _bandit_page(
    title: str,
    lead: str,
    sections: Sequence[Section],
    journal: Journal,
    view: LedgerView,
    sent_as_it_is: str = "",
) -> str:
    """Return a page that tells, too, what has left the site, and what it cost.

    ``sent_as_it_is`` says what leaves the site without any privacy.
    """
    identity, ledger = journal.identity, journal.ledger()
    parts: list[Part] = []
    warning = ""
    if sent_as_it_is:
        parts = [sent_as_it_is]
        warning = f" NOT PRIVATE: {sent_as_it_is}"
    elif not ledger:
        parts = ["This site has released nothing yet."]
    else:
        spent = view.spent(identity, ledger)
        if spent is not None:
            said = spent_in_words(spent, view.whose)
            parts.append(f"{said} All of it is spent with the first release.")
        rows = [view.cells(row) for row in ledger]
        parts.append(Table(view.headings, rows, "What has left this site."))
        if not all(row.facts["private"] for row in ledger):
            warning = f" NOT PRIVATE: {view.why_not}"
    every = [*sections, Section("Privacy", parts)]
    return journal_page(title, lead, every, journal, ledger, f"{FOR_THE_SITE}{warning}")


def _policy_summary(summary: PolicySummary) -> Section:
    """Return what `BanditPolicy.summary` says."""
    caption = "What this site's bandit rests on."
    facts = Table(("what", "state"), summary.facts, caption, numeric=False)
    rows = [(name, f"{e:.4g}", f"{w:.4g}") for name, e, w in summary.coordinates]
    headings = ("coordinate", "estimate", "confidence half-width")
    estimate = [Table(headings, rows, summary.interval_text)] if rows else []
    warning = [summary.warning] if summary.warning else []
    return Section("Summary", [facts, *warning, *estimate])


def _rewards(rewarded: list[Trial]) -> Section:
    if not rewarded:
        return Section("Convergence")
    values = np.array([trial.value for trial in rewarded])
    mean = np.cumsum(values) / np.arange(1, len(values) + 1)
    caption = (
        f"Chart of the mean reward so far against trial; {mean[-1]:.4g} in the end."
    )
    numbers = [trial.number for trial in rewarded]
    labels = "trial", "mean reward so far"
    figure = charts.chart(
        "rewards", caption, labels, lambda axes: axes.plot(numbers, mean, color=BLUE)
    )
    return Section("Convergence", [figure])
