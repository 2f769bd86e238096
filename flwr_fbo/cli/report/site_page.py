"""The page of a site, for the site: from the journal that its client keeps."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import numpy as np

from flwr_fbo._common.palette import BLUE
from flwr_fbo._common.text import counted
from flwr_fbo.algorithms.search.comparison import Comparison
from flwr_fbo.algorithms.search.settings import Direction
from flwr_fbo.cli.ledger_kinds import NEURAL_SITE_LEDGER, SITE_LEDGER, LedgerKind
from flwr_fbo.cli.report import page_figures as figures
from flwr_fbo.cli.report.page import (
    Page,
    Section,
    Table,
    journal_settings,
    params_text,
    versions_section,
)
from flwr_fbo.cli.report.site_parameters import parameter_sections
from flwr_fbo.cli.report.site_worth import convergence_figure, worth_section
from flwr_fbo.clients.bandits.bandit_journals import LINEAR_KIND as POLICY_KIND
from flwr_fbo.clients.bandits.bandit_journals import NEURAL_KIND as NEURAL_KIND
from flwr_fbo.clients.bandits.policy_summary import PolicySummary
from flwr_fbo.clients.bandits.recorded_bandit import RecordedBandit
from flwr_fbo.clients.tuning_journals import recorded_comparison
from flwr_fbo.clients.tuning_record import KIND as AGENT_KIND
from flwr_fbo.clients.tuning_record import recorded_agent
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.trial_table import Trial

_OWN = "For this site alone: the page shows the site's own data. Do not pass it on."


def tuning_page(journal: Journal) -> Page:
    """Return the page of an agent that tunes."""
    agent = recorded_agent(journal)
    trials = journal.trials()
    done = [trial for trial in trials if trial.state == "complete"]
    ended = [trial for trial in trials if trial.state != "running"]
    comparison = recorded_comparison(journal)
    journal.close()  # its site may need it before all is drawn
    sections = [
        _best(agent.best_value, agent.best_setting, comparison),
        worth_section(ended, agent.direction, comparison),
        *_convergence(done, agent.direction),
        *parameter_sections(done, agent),
        _trials(trials),
        journal_settings(journal.identity),
        versions_section([]),
    ]
    num_trials = counted(len(trials), "trial")
    lead = f"Agent {agent.slot}: {num_trials}, {len(done)} with a value."
    return Page("A site's study of tuning", lead, sections, _OWN)


def _best(
    value: float | None, setting: dict[str, Any] | None, comparison: Comparison | None
) -> Section:
    if value is None or setting is None:
        return Section("Best setting", ["No trial has a value yet."])
    is_used = comparison is None or comparison.tuned_is_better
    given = "it" if is_used else "the default, which was kept on held-out data,"
    caption = (
        f"Value {value:.6g}. `best_params` gives {given} to the site's own code. With "
        "`fbo-tuned=false` in a run config it gives the default."
    )
    table = Table(("parameter", "value"), list(setting.items()), caption, numeric=False)
    return Section("Best setting", [table])


def _convergence(done: list[Trial], direction: Direction) -> list[Section]:
    if not done:
        return []
    return [Section("Convergence", [convergence_figure(done, direction)])]


def _trials(trials: list[Trial]) -> Section:
    rows = [
        (
            trial.number,
            trial.iteration,
            datetime.fromtimestamp(trial.started).isoformat(" ", "seconds"),
            f"{trial.value:.6g}" if trial.state == "complete" else trial.state,
            trial.source,
            params_text(trial.params),
        )
        for trial in trials
    ]
    headings = ("trial", "iteration", "started", "value", "source", "setting")
    table = Table(headings, rows, "All trials, in order.", numeric=False)
    return Section("Trials", folded=[(counted(len(trials), "trial"), table)])


def policy_page(journal: Journal) -> Page:
    """Return the page of a site that plays a linear bandit."""
    trials = journal.trials()
    rewarded = [trial for trial in trials if trial.state == "complete"]
    released, warning = _released(journal, SITE_LEDGER)
    sections = [
        _policy_summary(RecordedBandit(journal).summary()),
        *_rewards(rewarded),
        released,
        journal_settings(journal.identity),
        _versions(journal),
    ]
    num_open = len(trials) - len(rewarded)
    lead = f"{counted(len(trials), 'trial')}, {num_open} without a reward yet."
    return Page("A site's linear bandit", lead, sections, f"{_OWN}{warning}")


def _policy_summary(summary: PolicySummary) -> Section:
    """Return what `LinearBanditPolicy.summary` says."""
    caption = "What this site's bandit rests on."
    facts = Table(("what", "state"), summary.facts, caption, numeric=False)
    rows = [(name, f"{e:.4g}", f"{w:.4g}") for name, e, w in summary.coordinates]
    headings = ("coordinate", "estimate", "confidence half-width")
    estimate = Table(headings, rows, summary.interval_text)
    warning = [summary.warning] if summary.warning else []
    return Section("Summary", [facts, *warning, estimate])


def _released(journal: Journal, kind: LedgerKind) -> tuple[Section, str]:
    """Return what has left a site and what it cost, and a warning where it must be."""
    ledger = kind.rows(journal)
    if not ledger:
        return Section("Privacy", ["This site has released nothing yet."]), ""
    spent = kind.spent(journal.identity, ledger)
    lines = []
    if spent is not None:
        lines = [
            f"{counted(spent.num_releases, 'release')}{kind.whose}: epsilon = "
            f"{spent.epsilon:.4f} at delta = {spent.delta:g}. All of it is spent with "
            "the first release."
        ]
    rows = [[cell(row) for cell in kind.columns.values()] for row in ledger]
    table = Table(tuple(kind.columns), rows, "What has left this site.")
    private = all(row.facts["private"] for row in ledger)
    warning = "" if private else f" NOT PRIVATE: {kind.why_not}"
    return Section("Privacy", [*lines, table]), warning


def _versions(journal: Journal) -> Section:
    return versions_section(str(row.facts["flwr_fbo"]) for row in journal.ledger())


def _rewards(rewarded: list[Trial]) -> list[Section]:
    if not rewarded:
        return []
    values = np.array([trial.value for trial in rewarded])
    mean = np.cumsum(values) / np.arange(1, len(values) + 1)
    caption = (
        f"Chart of the mean reward so far against trial; {mean[-1]:.4g} in the end."
    )

    numbers, labels = (
        [trial.number for trial in rewarded],
        ("trial", "mean reward so far"),
    )
    figure = figures.chart(
        "rewards", caption, labels, lambda axes: axes.plot(numbers, mean, color=BLUE)
    )
    return [Section("Convergence", [figure])]


def neural_page(journal: Journal) -> Page:
    """Return the page of a site that plays a bandit with a network."""
    slot = int(journal.load_state().get("slot", -1))
    if journal.identity["settings"]["privacy"] is None:
        text = "Gradients and sums of raw evaluations leave this site as they are."
        released, warning = Section("Privacy", [text]), f" NOT PRIVATE: {text}"
    else:
        released, warning = _released(journal, NEURAL_SITE_LEDGER)
    sections = [released, journal_settings(journal.identity), _versions(journal)]
    lead = f"Agent {slot}." if slot >= 0 else "No round is done yet."
    title = "A site's bandit with a network"
    return Page(title, lead, sections, f"{_OWN}{warning}")


SITE_PAGES: dict[str, Callable[[Journal], Page]] = {
    AGENT_KIND: tuning_page,
    POLICY_KIND: policy_page,
    NEURAL_KIND: neural_page,
}
