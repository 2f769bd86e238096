"""``flwr-fbo audit``: what a release gives away at least, against what is promised."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from flwr_fbo._validation import nearest, require
from flwr_fbo.audit import release_audit as privacy_audit
from flwr_fbo.audit.planted_faults import FAULTS
from flwr_fbo.audit.release_audit import AuditPlan, AuditResult, StreamEntropy
from flwr_fbo.cli.commands import AsJson
from flwr_fbo.cli.errors import plain_errors
from flwr_fbo.cli.tables import count
from flwr_fbo.privacy.calibration import calibrate_noise_multiplier
from flwr_fbo.privacy.noise import Entropy, OsEntropy
from flwr_fbo.privacy.release import Calibration, Release, ReleaseSettings

# Agents and sub-regions: the smallest, where an agent stands out most, and one with
# concentrated weights, where the joint sensitivity is more than each vector's alone.
_DEFAULT_SIZES = ((2, 1), (8, 4))
_MOST_WEIGHTS = 10**6  # one an agent and sub-region


def audit(
    agents: Annotated[
        int | None, typer.Option(min=1, help="N; 2 where only P is given.")
    ] = None,
    sub_regions: Annotated[
        int | None, typer.Option(min=1, help="P; 1 where only N is given.")
    ] = None,
    q: Annotated[float, typer.Option(help="Sampling probability.")] = 0.35,
    z: Annotated[
        float | None, typer.Option(help="Noise multiplier, in place of --epsilon.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Promised for one release; 1 unless given.")
    ] = None,
    delta: Annotated[float, typer.Option(help="Where epsilon is compared.")] = 1e-3,
    calibration: Annotated[
        Calibration, typer.Option(help="What z is multiplied with.")
    ] = "joint",
    iteration: Annotated[int, typer.Option(help="t, decides the weights.")] = 0,
    features: Annotated[int, typer.Option(help="M, the length of a message.")] = 1,
    absent: Annotated[
        privacy_audit.Absence, typer.Option(help="What an absent agent sends.")
    ] = "missing",
    draws: Annotated[int, typer.Option(help="Releases with it, and without.")] = 200000,
    plant: Annotated[
        str | None, typer.Option(help=f"A fault to be found: {', '.join(FAULTS)}.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seeded noise: faster, and repeatable.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Audit one release: bound its epsilon from below, and compare with the promise.

    An agent takes part or does not, in many independent releases; how well the two can
    be told apart bounds epsilon. Exits with 1 on a violation. With --plant it audits a
    release with that fault, to show what it would find. Without --agents and
    --sub-regions it audits two releases: of 2 agents, and of 8 in 4 sub-regions.

    Examples
    --------
    $ flwr-fbo audit
    $ flwr-fbo audit --plant half-noise --seed 0
    """
    sizes: tuple[tuple[int, int], ...] = ((agents or 2, sub_regions or 1),)
    if agents is None and sub_regions is None:
        sizes = _DEFAULT_SIZES
    with plain_errors(ValueError, ImportError):
        known = plant is None or plant in FAULTS
        require(known, "plant", plant, nearest(plant, FAULTS))
        most = max(math.prod(size) for size in sizes)
        allowed = f"1 to {_MOST_WEIGHTS:,}"
        require(most <= _MOST_WEIGHTS, "agents x sub-regions", most, allowed)
        entropy: Entropy = OsEntropy() if seed is None else StreamEntropy(seed)
        settings = [
            ReleaseSettings(*size, sampling_probability=q, calibration=calibration)
            for size in sizes
        ]
        z = _noise_multiplier(z, epsilon, delta, q)
        settings = [replace(s, noise_multiplier=z) for s in settings]
        how = (delta, draws, iteration, features, absent)
        plans = [AuditPlan(s, *how) for s in settings]
    build = Release if plant is None else FAULTS[plant]
    results = []
    for plan in plans:
        with _progress(2 * draws) as advance:
            found = privacy_audit.audit(plan, entropy, build, advance)
        results.append(found)
        if not as_json:
            typer.echo("\n".join(_lines(found, entropy, plant)) + "\n")
    if as_json:
        values = [_values(result, entropy, plant) for result in results]
        typer.echo(json.dumps(values, indent=2))
    if any(result.violated for result in results):
        raise typer.Exit(1)


def _noise_multiplier(
    z: float | None, epsilon: float | None, delta: float, q: float
) -> float:
    if z is None:
        promised = 1.0 if epsilon is None else epsilon
        return calibrate_noise_multiplier(promised, delta, q, 1)
    require(epsilon is None, "epsilon", epsilon, "only without z, which decides it")
    return z


@contextmanager
def _progress(total: int) -> Iterator[Any]:
    columns = (TextColumn("releases"), BarColumn(), TimeElapsedColumn())
    left = (TextColumn("left"), TimeRemainingColumn())
    console = Console(stderr=True)
    shown: dict[str, Any] = {"transient": True, "disable": not console.is_terminal}
    with Progress(*columns, *left, console=console, **shown) as progress:
        bar = progress.add_task("", total=total)
        yield lambda size: progress.advance(bar, size)


def _lines(result: AuditResult, entropy: Entropy, plant: str | None) -> list[str]:
    plan, promised = result.plan, result.promised
    s = plan.settings
    accountant = f"{promised.epsilon:.3f} ({promised.accounting_method})"
    lines = {
        "Release": f"{count(s.num_agents, 'agent')}, "
        f"{count(s.num_sub_regions, 'sub-region')}, "
        f"{count(plan.num_features, 'feature')}, iteration {plan.iteration}",
        "Privacy": f"q = {s.sampling_probability:g}, z = {s.noise_multiplier:.4g}, "
        f"{s.calibration} calibration",
        "Entropy": "operating system, OpenDP" if entropy.private else "seeded",
        "Canary": f"agent {result.canary}: 10 times the clip norm against "
        f"{plan.absence}; the others send zeros",
        "Draws": f"{plan.num_draws} with it, {plan.num_draws} without; half of them "
        "fixed the test",
        "Test": f"{result.test}",
        "Seen": f"right in {result.true_positives}, wrong in {result.false_positives} "
        f"of the other {result.num_counted} each",
        "Epsilon": f"at least {result.epsilon_lower:.3f} (99.8 % sure), at most "
        f"{accountant}, at delta = {plan.delta:g}",
        "Verdict": result.verdict,
    }
    if plant is not None:
        lines["Planted"] = plant
    return [f"{name:9} {text}" for name, text in lines.items()]


def _values(result: AuditResult, entropy: Entropy, plant: str | None) -> dict[str, Any]:
    return {
        "plan": asdict(result.plan),
        "planted_fault": plant,
        "private_entropy": entropy.private,
        "canary": result.canary,
        "test": str(result.test),
        "true_positives": result.true_positives,
        "false_positives": result.false_positives,
        "num_counted": result.num_counted,
        "epsilon_lower": result.epsilon_lower,
        "epsilon_promised": result.promised.epsilon,
        "violated": result.violated,
        "verdict": result.verdict,
    }
