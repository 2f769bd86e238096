"""``flwr-fbo evaluate LOG``: what other policies would have earned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from flwr_fbo._common.text import printable, write_whole
from flwr_fbo._common.validation import refuse, require
from flwr_fbo.bandits.kind import LINEAR_SITE, NEURAL_SITE
from flwr_fbo.bandits.off_policy.estimators import PolicyValue
from flwr_fbo.bandits.off_policy.policies import (
    PolicyEvaluation,
    TargetPolicy,
    cells_of,
    evaluate_policy,
    parse_policy,
)
from flwr_fbo.bandits.off_policy.tables import TableLog, read_table
from flwr_fbo.bandits.site.bandit_policy import BanditPolicy
from flwr_fbo.bandits.site.decision import Decision
from flwr_fbo.bandits.site.linear_bandit_policy import LinearBanditPolicy
from flwr_fbo.bandits.site.neural_bandit_policy import NeuralBanditPolicy
from flwr_fbo.bandits.site.site_policies import policy_file
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

# Seconds to wait while the site has its journal, for the time of one call.
_PATIENCE = 30.0
_TABLES = (".csv", ".parquet")
_OWN = (
    "`greedy` takes the site's current estimate, which has partly been learned from "
    "the decisions that it is evaluated on."
)


def evaluate(
    logs: Annotated[list[Path], typer.Argument(metavar="LOG...")],
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
    reward_range: Annotated[
        tuple[float, float] | None,
        typer.Option(
            metavar="LOW HIGH",
            help="Of a table: smallest and largest possible reward.",
            show_default="those of the table",
        ),
    ] = None,
    action: Annotated[
        str, typer.Option(help="Of a table: column of the chosen arm.")
    ] = "action",
    reward: Annotated[
        str, typer.Option(help="Of a table: column of the reward.")
    ] = "reward",
    propensity: Annotated[
        str,
        typer.Option(
            help="Of a table: column of the probability of the action; 'none' if it is "
            "unknown, and to be estimated."
        ),
    ] = "pscore",
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

    LOG is the folder, or the file in it, of a site that plays a bandit with randomised
    exploration; or the table of another system: CSV or Parquet files with
    columns of action, reward, propensity and context. Several files are one log: no
    number of a decision may be in two. The first row is the log's own mean reward. Each
    policy has a row for each estimator: IPS, SNIPS and doubly robust.

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
    $ flwr-fbo evaluate may.csv june.csv --policy uniform --reward-range 0 1
    $ flwr-fbo evaluate log.csv --policy always:ward --propensity none
    """
    with plain_errors(ValueError, ImportError):
        if csv is not None:
            check_output("csv", csv)
        # All names are checked before the first evaluation, which may take a while.
        if all(log.suffix in _TABLES for log in logs):
            targets = [_parsed(text, None) for text in policy]
            column = None if propensity == "none" else propensity
            decisions: TableLog | list[Decision] = read_table(
                logs, action=action, reward=reward, propensity=column
            )
        else:
            expected = f"one site, or files that end in {' or '.join(_TABLES)}"
            require(len(logs) == 1, "logs", [*map(str, logs)], expected)
            site = _opened(logs[0])
            if isfinite(site.reward_range[1]):
                expected = "left out for a site, whose study has one"
                require(reward_range is None, "reward_range", reward_range, expected)
                reward_range = site.reward_range
            targets = [_parsed(text, site) for text in policy]
            decisions = list(site.decisions(not unsettled))
        found = [
            evaluate_policy(decisions, target, confidence, reward_range)
            for target in targets
        ]
        rows = [
            {
                "policy": name,
                **asdict(estimate),
                "confidence": confidence,
                "propensities": found[0].propensities or "on record",
            }
            for name, _, estimate in _estimates(found)
        ]
        if csv is not None:
            write_whole(csv, csv_of(rows))
    if as_json:
        typer.echo(json_of(rows))
        return
    _print(found)


def _opened(log: Path) -> BanditPolicy[Any]:
    """Return the policy of a folder, or of a file of whatever name."""
    path = policy_file(log) if log.is_dir() else log
    with open_patiently(None, path, _PATIENCE) as opened:
        is_neural = opened.identity.get("kind") == NEURAL_SITE.name
        if not is_neural:
            opened.require_kind(LINEAR_SITE.name)
    kind = NeuralBanditPolicy if is_neural else LinearBanditPolicy
    return kind(path, _PATIENCE)


def _parsed(text: str, site: BanditPolicy[Any] | None) -> TargetPolicy:
    if text != "greedy":
        return parse_policy(text)
    if site is None:
        refuse("policy", text, "another one: a table has no estimate of a site")
    if not isinstance(site, LinearBanditPolicy):
        refuse("policy", text, "another one: it is for sites of a linear bandit")
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
    if any(evaluation.policy == "greedy" for evaluation in found):
        console.print(_OWN)
