"""``flwr-fbo audit``: what studies give away at least, against what is promised."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Annotated, Any, cast

import typer
from rich.console import Console

from flwr_fbo._common.validation import require, require_known
from flwr_fbo.cli.commands import AsJson
from flwr_fbo.cli.output import json_of, plain_errors
from flwr_fbo.lab.audit import study_audit
from flwr_fbo.lab.audit.default_studies import (
    DELTA,
    EPSILON,
    FLIPPED_EPSILON,
    SECURE_STUDIES,
    STUDIES,
)
from flwr_fbo.lab.audit.planted_faults import COHORT_FAULTS, CONTINUAL_FAULTS, FAULTS
from flwr_fbo.lab.audit.secure_audit import SECURE_FAULTS
from flwr_fbo.lab.audit.secure_bandit_audit import BLOCK_FAULTS
from flwr_fbo.lab.audit.study_audit import AuditResult, StreamEntropy, StudyPlan
from flwr_fbo.lab.audit.tuning_audit import Absence, TuningAuditPlan
from flwr_fbo.lab.cli.progress_bar import progress_bar
from flwr_fbo.privacy.accounting import calibrate_noise_multiplier
from flwr_fbo.privacy.guarantee import Adjacency, Protects
from flwr_fbo.privacy.noise import Entropy, OsEntropy
from flwr_fbo.privacy.release import Calibration

_TUNING = ("FedVote", "DPFTSDE")
_MOST_WEIGHTS = 10**6  # one per agent and sub-region
_FAULTS = sorted(
    {*FAULTS, *COHORT_FAULTS, *CONTINUAL_FAULTS, *SECURE_FAULTS, *BLOCK_FAULTS}
)


def audit(
    study: Annotated[
        str | None, typer.Option(help=f"One of {', '.join(STUDIES)}; all by default.")
    ] = None,
    secure: Annotated[
        bool,
        typer.Option(
            "--secure", help=f"Secure aggregation: {', '.join(SECURE_STUDIES)}."
        ),
    ] = False,
    honest: Annotated[
        int | None,
        typer.Option(help="With --secure: agents that keep their noise secret."),
    ] = None,
    num_agents: Annotated[
        int | None, typer.Option("--agents", min=1, help="Number of agents N.")
    ] = None,
    num_sub_regions: Annotated[
        int | None,
        typer.Option("--sub-regions", min=1, help="Number of sub-regions P."),
    ] = None,
    sampling_probability: Annotated[
        float | None, typer.Option("--q", help="Sampling probability.")
    ] = None,
    release_after: Annotated[
        list[int] | None,
        typer.Option(help="Round with a release; repeat for more."),
    ] = None,
    num_features: Annotated[
        int | None, typer.Option("--features", help="Length M of a message.")
    ] = None,
    calibration: Annotated[
        Calibration | None, typer.Option(help="How z becomes noise.")
    ] = None,
    unit: Annotated[
        Protects | None, typer.Option(help="Only promises for this unit.")
    ] = None,
    adjacency: Annotated[
        Adjacency | None, typer.Option(help="Only promises under this adjacency.")
    ] = None,
    absence: Annotated[
        Absence | None,
        typer.Option("--absent", help="What a canary sends that is zeroed."),
    ] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option("--z", help="Noise multiplier; replaces --epsilon.")
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(
            help=f"Epsilon of a strategy; {EPSILON:g}, or {FLIPPED_EPSILON:g} where "
            "messages flip."
        ),
    ] = None,
    delta: Annotated[
        float, typer.Option(help="Delta at which epsilon is compared.")
    ] = DELTA,
    num_draws: Annotated[
        int,
        typer.Option("--draws", help="Number of studies with the canary, and without."),
    ] = 10_000,
    plant: Annotated[
        str | None, typer.Option(help=f"Fault to plant: {', '.join(_FAULTS)}.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the noise: faster, repeatable.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Audit whole studies: bound their epsilon from below, compare with the promise.

    Without arguments it audits a study of each private strategy, with the system's
    entropy: this takes minutes.

    It draws many independent studies with a canary and as many without. The canary is
    one agent; in a bandit one trial. Under the adjacency "replaced" the others have its
    opposite in its place: epsilon 2 for a client whose messages are zeroed is 4.7 if
    they are replaced, at delta 1e-3. A test guesses from the releases in which world
    they were made, and its success bounds epsilon. The exit status is 1 on a
    violation. A site of FedUCB that acts on its own raw trials is audited for a
    finished table, which epsilon is for, and in a running clinic, which it is not
    for. With --plant it audits studies with that fault, to show that it finds the
    fault. With --secure the sites add the noise, and the server knows the noise of the
    agents that are not honest. Options from --honest to --z need --study FedVote or
    DPFTSDE.

    It cannot see: an excess of epsilon too small for this number of studies; faults
    that appear only in other settings or with other data; timing, logs, metrics, who
    answers, or the server's memory; secrets that only a combination of many low bits
    reveals; bad entropy of the operating system.

    Examples
    --------
    $ flwr-fbo audit
    $ flwr-fbo audit --study DPFTSDE --plant mask-in-low-bits --seed 0
    $ flwr-fbo audit --study FedVote --adjacency replaced
    $ flwr-fbo audit --secure
    """
    studies = SECURE_STUDIES if secure else STUDIES
    # Fields of the plan, or of its release.
    fields: dict[str, Any] = {
        "honest": honest,
        "num_agents": num_agents,
        "num_sub_regions": num_sub_regions,
        "sampling_probability": sampling_probability,
        "release_after": tuple(release_after) if release_after else None,
        "num_features": num_features,
        "calibration": calibration,
        "absence": absence,
        "noise_multiplier": noise_multiplier,
    }
    changes = {name: value for name, value in fields.items() if value is not None}
    with plain_errors(ValueError, ImportError):
        if study is not None:
            require_known("study", study, studies)
        names = list(studies) if study is None else [study]
        require(secure or honest is None, "honest", honest, "only with --secure")
        for name, value in changes.items():
            expected = f"only with --study {' or '.join(_TUNING)}"
            require(study in _TUNING, name, value, expected)
        if noise_multiplier is not None:
            require(epsilon is None, "epsilon", epsilon, "only without --z, its source")
        if absence is not None:
            expected = "'zeroed', with --absent"
            require(adjacency != "replaced", "adjacency", adjacency, expected)
            adjacency = "zeroed"
        about = {"delta": delta} | ({} if epsilon is None else {"epsilon": epsilon})
        plans: list[tuple[str, StudyPlan]] = []
        for name in names:
            for make in studies[name]:
                plan = replace(make(**about), num_draws=num_draws)
                if changes:
                    plan = _changed(cast(TuningAuditPlan, plan), changes, epsilon)
                plans.append((name, plan))
        plans = _of_kind(plans, "unit", "protects", unit)
        plans = _of_kind(plans, "adjacency", "adjacency", adjacency)
        if plant is not None:
            of_plans = sorted({fault for _, plan in plans for fault in plan.faults})
            require_known("plant", plant, of_plans)
            # A fault shows by a promise that it breaks.
            plans = [
                (name, plan)
                for name, plan in plans
                if plant in plan.faults and math.isfinite(plan.promised.epsilon)
            ]
        entropy: Entropy = OsEntropy() if seed is None else StreamEntropy(seed)
    found = []
    for name, plan in plans:
        build = None if plant is None else plan.faults[plant]
        text = f"{name} studies"
        with progress_bar(text, 2 * num_draws, Console(stderr=True)) as advance:
            result = study_audit.audit(plan, entropy, build, advance)
        facts = {
            "study": name,
            "planted_fault": plant,
            "private_entropy": entropy.private,
        }
        found.append(facts | _values_of(plan, result))
        if not as_json:
            typer.echo("\n".join(_lines_of(facts, plan, result)) + "\n")
    if as_json:
        typer.echo(json_of(found))
    if any(row["violated"] for row in found):
        raise typer.Exit(1)


def _of_kind(
    plans: list[tuple[str, StudyPlan]], option: str, field: str, value: str | None
) -> list[tuple[str, StudyPlan]]:
    """Return the plans whose unit of privacy has a value, or all for None."""
    if value is None:
        return plans
    found = [(getattr(p.promised.guarantee.unit, field), n, p) for n, p in plans]
    allowed = " or ".join(repr(kind) for kind in sorted({kind for kind, *_ in found}))
    of_kind = [(name, plan) for kind, name, plan in found if kind == value]
    require(bool(of_kind), option, value, f"{allowed}, of these studies")
    return of_kind


def _changed(
    plan: TuningAuditPlan, given: dict[str, Any], epsilon: float | None
) -> TuningAuditPlan:
    """Return the plan with what is given, its noise calibrated anew."""
    settings = plan.settings
    chosen = {n: value for n, value in given.items() if hasattr(settings, n)}
    num_agents = chosen.get("num_agents", settings.num_agents)
    size = num_agents * chosen.get("num_sub_regions", settings.num_sub_regions)
    expected = f"1 to {_MOST_WEIGHTS:,}"
    require(size <= _MOST_WEIGHTS, "--agents x --sub-regions", size, expected)
    settings = replace(settings, **chosen)
    rest = {n: value for n, value in given.items() if n not in chosen}
    plan = replace(plan, settings=settings, **rest)
    if "noise_multiplier" in given:
        return plan
    if epsilon is None:
        epsilon = EPSILON if plan.adjacency == "zeroed" else FLIPPED_EPSILON
    noise_multiplier = calibrate_noise_multiplier(
        epsilon, plan.delta, settings.subsampling, len(plan.release_after)
    )
    return replace(plan, settings=replace(settings, noise_multiplier=noise_multiplier))


def _lines_of(
    about: Mapping[str, Any], plan: StudyPlan, result: AuditResult
) -> list[str]:
    """Return what an audit found in words, a line each."""
    promised = result.promised
    lines = {
        "Strategy": about["study"],
        **plan.describe(),
        "Entropy": "operating system, OpenDP" if about["private_entropy"] else "seeded",
        "Draws": f"{plan.num_draws} with it, {plan.num_draws} without; half of them "
        "fixed the test",
        "Test": f"{result.test}",
        "Seen": f"right in {result.true_positives}, wrong in "
        f"{result.false_positives} of the other {result.num_counted} each",
        "Epsilon": f"at least {result.epsilon_lower:.3f} "
        f"{promised.guarantee.unit.terms(promised.delta)}, 99.8 % sure",
        "Promised": promised.text(".3f"),
        "Verdict": result.verdict,
    }
    if about["planted_fault"] is not None:
        lines["Planted"] = about["planted_fault"]
    return [f"{name:9} {text}" for name, text in lines.items()]


def _values_of(plan: StudyPlan, result: AuditResult) -> dict[str, Any]:
    """Return what an audit found for ``--json``."""
    counts = ("true_positives", "false_positives", "num_counted")
    return {
        "plan": asdict(plan),
        "test": str(result.test),
        **{name: getattr(result, name) for name in counts},
        "epsilon_lower": result.epsilon_lower,
        "epsilon_promised": result.promised.epsilon,
        **result.promised.guarantee.facts(result.promised.delta),
        "violated": result.violated,
        "verdict": result.verdict,
    }
