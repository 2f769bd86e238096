"""``flwr-fbo claims NAME...``: what papers claim, and what came out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from flwr_fbo._common.text import counted, humanised, printable
from flwr_fbo._common.validation import require
from flwr_fbo.cli.output import plain_errors
from flwr_fbo.lab.experiment_runner.base import Claim, Experiment, Run
from flwr_fbo.lab.experiment_runner.claims import (
    MOST_NEEDED,
    Finding,
    finding_of,
    findings,
    hours_missing,
    in_second_reading,
)
from flwr_fbo.lab.experiment_runner.config import (
    builtin_experiments,
    find_experiment,
    load_experiment,
    published_experiments,
)
from flwr_fbo.lab.experiment_runner.estimates import Estimate
from flwr_fbo.lab.experiment_runner.results import place_of, read_results

_DETAILS = ("claim (section)", "what came out", "verdict", "power")
_SECOND = ("second reading", "its verdict")
_SUMMARY = ("figure", "seeds", "CPU minutes", "claims", "confirmed")
# Counted by how verdicts begin, in columns of these headings.
_COUNTED = {
    "not over noise-only": "not told from noise-only",
    "undecided": "undecided",
    "less than the paper's": "not confirmed: less",
    "contrary": "not confirmed: the contrary",
    "no room": "no room",
}
_LAST = ("CPU hours missing", "second reading confirms")
_WHEN = {
    "final": "in the end",
    "mean": "in the mean",
    "scalars": "fewer scalars",
    "seconds": "fewer CPU seconds",
}


def claims(
    experiments: Annotated[
        list[str] | None, typer.Argument(metavar="NAME|FILE|PAPER...")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the results: 'results' by default; those of a published "
            "figure are beside its TOML.",
            file_okay=False,
        ),
    ] = None,
) -> None:
    """Print a Markdown table: what papers claim, and what came out.

    Each claim of an experiment has a row: NAME and FILE are as in `flwr-fbo run`. Each
    figure of a PAPER has one, which counts verdicts. These follow a rule: see
    flwr_fbo/lab/experiment_runner/claims.py. A second reading of a paper, where its
    text leaves one open, has columns of its own. Without a name the command lists the
    experiments that have claims.

    Examples
    --------
    $ flwr-fbo claims
    $ flwr-fbo claims dp-fts-de/fig3d
    $ flwr-fbo claims dp-fts-de
    """
    with plain_errors(ValueError):
        if not experiments:
            typer.echo("\n".join(_listed()))
            return
        named = {name: _names_of(name) for name in experiments}
        found = {
            name: [_Found.of(experiment, output) for experiment in names]
            for name, names in named.items()
        }
    for number, (name, figures) in enumerate(found.items()):
        if named[name] == [name]:
            lines = [figures[0].title(), "", *figures[0].details()]
        else:
            rows = [figure.summary() for figure in figures]
            lines = _table((*_SUMMARY, *_COUNTED, *_LAST), rows)
        typer.echo(printable("\n".join([""] * (number > 0) + lines)))


def _names_of(name: str) -> list[str]:
    """Return the figures of a paper that have claims, or an experiment's own name."""
    figures = published_experiments()
    of_paper = [figure for figure in figures if figure.startswith(f"{name}/")]
    return [f for f in of_paper if load_experiment(figures[f]).claims] or [name]


def print_claims(experiment: Experiment, runs: Sequence[Run], console: Console) -> None:
    """Print what the runs say of the experiment's claims, if it has any."""
    if not experiment.claims:
        return
    console.print("\nWhat is claimed, and what these runs show (95% t intervals):")
    for finding in findings(experiment, runs):
        console.print(f"- {finding.claim.text}: {_told(finding)}")
        second = in_second_reading(finding.claim, experiment)
        if second is not None:
            found = finding_of(second, experiment, runs)
            console.print(f"  second reading: {_told(found)}")


def _told(finding: Finding) -> str:
    text = f"{outcome(finding)}: {finding.verdict}"
    return f"{text}; power {power}" if (power := power_text(finding)) else text


def _listed() -> list[str]:
    """Return the experiments that have claims, a line each."""
    files = {**builtin_experiments(), **published_experiments()}
    plans = {name: load_experiment(path) for name, path in files.items()}
    claimed = {name: plan.claims for name, plan in plans.items() if plan.claims}
    width = max(map(len, claimed), default=0)
    return [
        f"{name:{width}}  {counted(len(claims), 'claim')}"
        for name, claims in sorted(claimed.items())
    ]


@dataclass(frozen=True)
class _Found:
    """An experiment and those of its runs that are there.

    Attributes
    ----------
    plan : Experiment
        The experiment.
    runs : list of Run
        Its runs, in the order in which they ended.
    missing : str
        Text about a method that has not been run.
    """

    plan: Experiment
    runs: list[Run]
    missing: str

    @classmethod
    def of(cls, name: str, output: Path | None) -> _Found:
        """Return what there is of an experiment that has claims."""
        plan = find_experiment(name)
        expected = "one that has claims: flwr-fbo claims lists them"
        require(len(plan.claims) > 0, "experiment", name, expected)
        path = place_of(name, plan, output).rows
        if not path.is_file():
            return cls(plan, [], "not run")
        stored, runs = read_results(path)
        if stored.num_steps < plan.num_steps:
            ran = f"{stored.num_steps} of {plan.num_steps} {plan.step}s run"
            return cls(plan, [], ran)
        same = {
            method
            for method in {*plan.methods} & {*stored.methods}
            if stored.recipe(method) == plan.recipe(method)
        }
        of_plan = [run for run in runs if run.method in same]
        return cls(plan, of_plan, "not run" if of_plan else "run with other settings")

    def _minutes(self) -> str:
        return f"{sum(run.seconds for run in self.runs) / 60:.3g}"

    def title(self) -> str:
        """Return the figure, and what its runs took."""
        return (
            f"{self.plan.name}: {self.plan.description}. {self._minutes()} CPU minutes."
        )

    def details(self) -> list[str]:
        """Return a table with a row per claim."""
        plan = self.plan
        seconds = [in_second_reading(claim, plan) for claim in plan.claims]
        rows = []
        for claim, second in zip(plan.claims, seconds, strict=True):
            text = f"{claim.text} ({claim.section or 'not in the paper'})"
            cells = [text, *self._cells(claim)]
            if any(seconds):
                cells += self._cells(second)[:2] if second else ["-", "-"]
            rows.append(cells)
        return _table((*_DETAILS, *(_SECOND if any(seconds) else ())), rows)

    def summary(self) -> list[str]:
        """Return the row of the figure, which counts verdicts."""
        first = [self._finding(claim) for claim in self.plan.claims]
        seconds = (in_second_reading(claim, self.plan) for claim in self.plan.claims)
        second = [self._finding(claim) for claim in seconds if claim is not None]
        found = [finding for finding in first if finding is not None]
        num_seeds = {finding.gain.num_runs if finding else 0 for finding in first}
        verdicts = [finding.verdict for finding in found]
        starts = ["confirmed", *_COUNTED.values()]
        counts = [sum(v.startswith(start) for v in verdicts) for start in starts]
        hours = hours_missing(found)
        confirmed = sum(f is not None and f.verdict == "confirmed" for f in second)
        return [
            self.plan.name,
            "-".join(map(str, sorted(num_seeds))),
            self._minutes(),
            str(len(first)),
            *map(str, counts),
            f"{hours:.2g}" if hours else "-",
            f"{confirmed} of {len(second)}" if second else "-",
        ]

    def _finding(self, claim: Claim) -> Finding | None:
        """Return what the runs say of a claim; None if a method has not been run."""
        with suppress(ValueError):
            return finding_of(claim, self.plan, self.runs)
        return None

    def _cells(self, claim: Claim) -> list[str]:
        """Return what came out, the verdict and the power."""
        finding = self._finding(claim)
        if finding is None:
            return [self.missing, "-", "-"]
        num_seeds, verdict = finding.gain.num_runs, finding.verdict
        if num_seeds < self.plan.num_seeds:
            verdict += f" ({num_seeds} of {self.plan.num_seeds} seeds)"
        return [outcome(finding), verdict, power_text(finding) or "-"]


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = [headings, ["---"] * len(headings), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def outcome(finding: Finding) -> str:
    """Return what came out for a claim, in figures."""
    claim = finding.claim
    of_scalars = claim.by == "scalars"
    text = f"{_WHEN[claim.by]} {_number(finding.gain, of_scalars)}"
    if (beyond := finding.beyond_noise) is not None:
        more = _number(beyond, of_scalars)
        if finding.in_logs:
            factor = math.exp(beyond.mean)
            more = f"{factor:.3g} ± {factor * beyond.standard_error:.2g} times"
        text += f", beyond noise-only {more}"
    if 1 < finding.gain.num_groups < finding.gain.num_runs:
        text += f" (± over {finding.gain.num_groups} functions)"
    return text


def power_text(finding: Finding) -> str:
    """Return what runs could have shown that leave a claim open; empty if they do not.

    The power for the effect that is looked for, which effect has a power of 0.8, and
    what the effect that is looked for would need.
    """
    power = finding.power
    if power is None:
        return ""
    of_scalars = finding.claim.by == "scalars"

    def shown(value: float) -> str:
        return _number(Estimate(value, math.nan, 1, 1), of_scalars)

    text = f"0.8 at {shown(power.detectable)}"
    if power.effect is None:
        return text
    whose = "the paper's" if finding.claim.effect else "the seen"
    text = f"{power.value:.2f} at {whose} {shown(power.effect)}; {text}"
    gain = finding.gain
    unit = "functions" if gain.num_groups < gain.num_runs else "seeds"
    if power.num_needed is None:
        return f"{text} or with more than {MOST_NEEDED} {unit}"
    return f"{text} or with {power.num_needed} {unit}"


def _number(estimate: Estimate, of_scalars: bool) -> str:
    """Return a mean with its sign and, if it is known, its standard error.

    Four decimals, or none of a large number.
    """
    if of_scalars:
        return humanised(estimate.mean, estimate.standard_error, "+")
    values = (estimate.mean, estimate.standard_error)
    mean, error = (f"{v:+.4f}" if abs(v) < 100 else f"{v:+,.0f}" for v in values)
    return mean if estimate.num_runs < 2 else f"{mean} ± {error[1:]}"
