"""``flwr-fbo evaluate JOURNAL``: what other policies would have earned at a site."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from flwr_fbo._common.text import printable, write_whole
from flwr_fbo._common.validation import require
from flwr_fbo.bandits.kind import LINEAR_SITE
from flwr_fbo.bandits.off_policy.estimators import PolicyValue
from flwr_fbo.bandits.off_policy.policies import (
    PolicyEvaluation,
    TargetPolicy,
    cells_of,
    evaluate_policy,
    parse_policy,
)
from flwr_fbo.bandits.site.linear_bandit_policy import LinearBanditPolicy
from flwr_fbo.cli.commands import AsJson
from flwr_fbo.cli.output import (
    RULED,
    check_output,
    csv_of,
    json_of,
    plain_errors,
    wide_console,
)
from flwr_fbo.journal.journal import open_patiently
from flwr_fbo.site.study_journals import last_journal

# Seconds to wait while the site has its journal, for the time of one call.
_PATIENCE = 30.0
_NARROW = (
    "Intervals of IPS and SNIPS are too narrow where the effective sample is below "
    "about 100: see python -m benchmarks.off_policy_coverage."
)
_OWN = (
    "`greedy` takes the site's current estimate, which has partly been learned from "
    "the decisions that it is evaluated on."
)


def evaluate(
    journal: Path,
    policy: Annotated[
        list[str],
        typer.Option(
            "--policy",
            metavar="POLICY",
            help="uniform, always:NAME, greedy or python:MODULE:FUNCTION. Repeatable.",
        ),
    ],
    confidence: Annotated[
        float, typer.Option(help="Confidence of each interval.")
    ] = 0.95,
    unsettled: Annotated[
        bool,
        typer.Option(
            "--unsettled", help="Use decisions younger than the RewardTimeout, too."
        ),
    ] = False,
    as_json: AsJson = False,
    csv: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", dir_okay=False, help="File to write the rows to, too."
        ),
    ] = None,
) -> None:
    """Estimate what other policies would have earned.

    JOURNAL is the folder, or the file in it, of a site that plays a linear bandit with
    randomised exploration. The first row is the log's own mean reward. Each policy has
    a row for each estimator: IPS, SNIPS and doubly robust.

    Nothing leaves the site. The output is statistics of the site's raw data, without
    noise: it has no privacy, so keep it at the site. Rewards that are overdue by the
    study's RewardTimeout are recorded first, as in every call of the policy; decisions
    that are younger than it are left out.

    `greedy` is the arm that is best by the site's current estimate. A FUNCTION takes
    context, arms and features, and returns an arm; its MODULE may be in this folder.

    Examples
    --------
    $ flwr-fbo evaluate /var/lib/fbo --policy uniform --policy always:ward
    $ flwr-fbo evaluate /var/lib/fbo --policy greedy --json
    $ flwr-fbo evaluate /var/lib/fbo --policy python:rules:by_age --csv rows.csv
    """
    with plain_errors(ValueError, ImportError):
        if csv is not None:
            check_output("csv", csv)
        # A folder's newest, or a file of whatever name.
        path = last_journal(journal, LINEAR_SITE.name) if journal.is_dir() else journal
        with open_patiently(None, path, _PATIENCE) as opened:
            opened.require_kind(LINEAR_SITE.name)
        site = LinearBanditPolicy(path, _PATIENCE)
        # All names are checked before the first evaluation, which may take a while.
        targets = [_parsed(text, site) for text in policy]
        decisions = site.decisions(not unsettled)
        found = [evaluate_policy(decisions, target, confidence) for target in targets]
        rows = [
            {"policy": policy, **asdict(estimate), "confidence": confidence}
            for policy, _, estimate in _estimates(found)
        ]
        if csv is not None:
            write_whole(csv, csv_of(rows))
    if as_json:
        typer.echo(json_of(rows))
        return
    _print(found)


def _parsed(text: str, site: LinearBanditPolicy) -> TargetPolicy:
    if text != "greedy":
        return parse_policy(text)
    estimate = site.summary().estimate
    allowed = "another one: the site's estimators, which play in turn, have no one best"
    require(estimate.ndim == 1, "policy", text, allowed)
    allowed = "another one until the site has learned something; its estimate is 0"
    require(bool(estimate.any()), "policy", text, allowed)
    return parse_policy(text, estimate)


def _estimates(
    found: Sequence[PolicyEvaluation],
) -> Iterator[tuple[str, str, PolicyValue]]:
    """Yield policy, estimator and estimate of each row; the log's own first."""
    yield "logged policy", "mean", found[0].logged
    for evaluation in found:
        for estimator, estimate in evaluation.estimates.items():
            yield evaluation.policy, estimator, estimate


def _print(found: Sequence[PolicyEvaluation]) -> None:
    table = Table(box=RULED, padding=(0, 1, 0, 0))
    table.add_column("policy", overflow="fold")
    table.add_column("estimator", no_wrap=True)
    interval = f"{100 * found[0].confidence:g} % interval"
    # Narrow enough for 80 columns, unless a policy's name is long.
    weights = "effective\nsample", "mean\nweight"
    for heading in ("value", interval, *weights):
        table.add_column(heading, justify="right", no_wrap=True)
    for policy, estimator, estimate in _estimates(found):
        value, _, interval, sample, mean_weight, _ = cells_of(estimate)
        table.add_row(policy, estimator, value, interval, sample, mean_weight)
    console, logged = wide_console(), found[0].logged
    console.print(table)
    console.print(
        f"{logged.num_decisions} decisions with a reward; {logged.num_awaited} without "
        "one are left out."
    )
    for evaluation in found:
        for warning in evaluation.warnings:
            console.print(f"{printable(evaluation.policy)}: {warning}", markup=False)
    console.print(_NARROW)
    if any(evaluation.policy == "greedy" for evaluation in found):
        console.print(_OWN)
