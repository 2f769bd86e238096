"""``flwr-fbo statement FOLDER``: who is protected, from whom, how much, on one page."""

from __future__ import annotations

import hashlib
import json
import platform
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from flwr_fbo._common.conversion import finite
from flwr_fbo._common.text import write_whole
from flwr_fbo._common.validation import require, require_int
from flwr_fbo._common.version import __version__
from flwr_fbo.cli.commands import AsJson
from flwr_fbo.cli.output import check_output, columns_of, json_of, plain_errors
from flwr_fbo.cli.tune_record import check_no_app, recorded_code
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalError, has_journal
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy.accounting import PrivacySpent
from flwr_fbo.privacy.conditions import FINISHED_TABLE
from flwr_fbo.privacy.gaussian import check_delta, gaussian_mu
from flwr_fbo.privacy.guarantee import Guarantee, PrivacyUnit
from flwr_fbo.privacy.spending_ledger import (
    DEFAULT_DELTA,
    SERVER,
    TRAINING,
    UNPROTECTED,
    Charge,
    charge_facts,
    study_of,
    unit_of,
)
from flwr_fbo.privacy.spending_ledger import FILE_NAME as SPENDING_FILE
from flwr_fbo.site.spending_view import SPENDING
from flwr_fbo.strategies.study_record import read_ledger
from flwr_fbo.study.conditions import totals_of
from flwr_fbo.study.kinds import SERVER_FILE, JournalKind, Kind, kind_named, kinds, load
from flwr_fbo.study.report.ledger_view import LedgerView, committed_text
from flwr_fbo.study.report.statement import (
    NOT_ON_RECORD,
    Cost,
    InLedger,
    StudyFacts,
    claim,
    of_patient,
    training_facts,
)
from flwr_fbo.study.report.statement_page import html_of, text_of

# The output of `flwr-fbo audit --json`, if the folder has it.
_AUDIT_FILE = "audit.json"
_OF_AUDIT = (
    "study",
    "planted_fault",
    "private_entropy",
    "epsilon_lower",
    "epsilon_promised",
    "delta",
    "unit",
    "adjacency",
    "trust",
    "conditions",
    "violated",
    "verdict",
)
_COLUMNS = 100
_MOST_FORECAST, _MOST_OF_GROUP = 60, 1000
_METRICS = (
    "metrics that a host turned on: not on record at a server; a site's ledger has "
    "them as replies without noise"
)
_IN_ALL_STUDIES = (
    "who takes part, who answers, and when",
    "what a site's own code lets out: error texts of other stages, files, logs",
    "other computations on the same data, outside the studies of this ledger",
)


@dataclass(frozen=True)
class _Told:
    """A study of a record: what it says, and the charges of one site in it."""

    values: dict[str, Any]
    charges: list[dict[str, Any]]


def statement(
    folder: Path,
    records: Annotated[
        int | None,
        typer.Option(
            "--records-per-patient",
            help="Records, such as visits, that a patient has at one hospital.",
        ),
    ] = None,
    hospitals: Annotated[
        int | None,
        typer.Option(
            "--hospitals-per-patient", help="Hospitals that have records of a patient."
        ),
    ] = None,
    forecast: Annotated[
        int, typer.Option(help="Number of more studies like the last to add up.")
    ] = 3,
    delta: Annotated[
        float | None,
        typer.Option(help="Delta of the totals (default: the studies' smallest)."),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="Write an HTML page to this file instead."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """State what the studies of FOLDER reveal of whom, and to whom, on one page.

    FOLDER is that of a study's server, of a FederationTuner or of a site. Before a
    study it is a file with the output of `flwr-fbo privacy --json`. The statement has
    the claim with its unit and adjacency, what follows for one patient, the same in
    plain words, against whom it holds, what left, what is not covered, totals with a
    forecast, conditions, and blanks that an officer fills in. All figures are computed
    from the records, and a digest ties the page to them. What no record has is "not on
    record". A forgery by somebody who can write the records is not noticed.

    The output of `flwr-fbo audit --json` is quoted if it is FOLDER/audit.json.

    Examples
    --------
    $ flwr-fbo statement /var/lib/fbo
    $ flwr-fbo statement /var/lib/fbo --records-per-patient 3 --forecast 12
    $ flwr-fbo statement /var/lib/fbo --html statement.html
    """
    with plain_errors(ValueError):
        for name, size in (("records", records), ("hospitals", hospitals)):
            if size is not None:
                require_int(name, size, 1, _MOST_OF_GROUP)
        require_int("forecast", forecast, 0, _MOST_FORECAST)
        if delta is not None:
            check_delta(delta)
        if html is not None:
            check_output("html", html)
            require(not as_json, "as_json", as_json, "left out, with --html")
        check_no_app(folder)
        group = records, hospitals
        if folder.is_file() and folder.suffix == ".json":
            values = _planned(folder, group)
        else:
            values = _recorded(folder, group, forecast, delta)
    values = finite(values)
    if as_json:
        typer.echo(json_of(values))
    elif html is not None:
        write_whole(html, html_of(values))
        typer.echo(f"Statement: {html}")
    else:
        typer.echo(text_of(values, columns_of(sys.stdout) or _COLUMNS))


Group = tuple[int | None, int | None]


def _recorded(
    folder: Path, group: Group, forecast: int, delta: float | None
) -> dict[str, Any]:
    """Return the statement of a folder's records."""
    server, ledger = _server_file(folder), folder / SPENDING_FILE
    files = []
    if server is not None:
        path, kind, journal_kind = server
        told, about = _of_server(path, kind, journal_kind, group)
        studies, of = [told], "a study's server"
        files.append(about)
    elif has_journal(ledger):
        with Journal.snapshot(ledger) as journal:
            rows = journal.ledger()
            files.append(_file(ledger, journal, rows))
        if delta is None:
            at = [row.facts["delta"] for row in rows]
            delta = min(filter(None, at), default=DEFAULT_DELTA)
        has_trainings = any(row.facts["study_kind"] == TRAINING for row in rows)
        found: dict[Any, list[LedgerRow]] = {}
        for row in rows:
            found.setdefault(study_of(row.facts), []).append(row)
        studies = []
        for (kind_name, study_id), own in found.items():
            kept = _journal_of(folder, kind_name, study_id)
            site = kind_name, study_id, own, kept
            studies.append(_of_site(*site, group, delta, has_trainings))
            if kept is not None:
                with Journal.snapshot(kept) as journal:
                    files.append(_file(kept, journal, journal.ledger()))
        of = "a site"
    else:
        raise JournalError(
            f"There is no record of a server and no ledger in {folder}: nothing was "
            "spent there, or it is another folder."
        )
    charges = [facts for told in studies for facts in told.charges]
    if delta is None:
        deltas = [facts["delta"] for facts in charges if facts["delta"] is not None]
        delta = min(deltas, default=DEFAULT_DELTA)
    versions = {one for told in studies for one in told.values.pop("versions")}
    return {
        "of": of,
        "folder": str(folder),
        "studies": [told.values for told in studies],
        "totals": _totals(charges, delta),
        "forecast": [
            {"more": more, "totals": _totals(_with_more(studies, more), delta)}
            for more in range(1, forecast + 1)
            if studies
        ],
        "conditions": {
            "records written by flwr_fbo": ", ".join(sorted(versions)) or NOT_ON_RECORD,
            **_this_machine(),
            "code of the app": recorded_code(folder) or NOT_ON_RECORD,
            "list of reviewed apps": f"{NOT_ON_RECORD}: it is the site's",
            "limits in force": f"{NOT_ON_RECORD}: `flwr-fbo check-site` reads them",
            "authenticated SuperNodes": NOT_ON_RECORD,
        },
        "audit": _audit(folder / _AUDIT_FILE),
        "records": files,
        "to_fill_in": _BLANKS,
    }


_BLANKS = {
    "controller": "",
    "processor": "",
    "contact": "",
    "purpose": "",
    "legal basis": "",
    "retention of the records": "",
}


def _planned(file: Path, group: Group) -> dict[str, Any]:
    """Return the statement of a study that is not begun, by its plan."""
    try:
        plan = json.loads(file.read_text(encoding="utf-8"))
        promises = plan.get("promises") or {"": plan}
        training = plan.get("with_training")
        studies = [
            _of_plan(plan, name, promise, group) for name, promise in promises.items()
        ]
        if training is not None:
            studies.append(_of_planned_training(plan, training, group))
        totals = [
            {"of": name, "releases": 0, **training[part]}
            for part, name in _PLANNED.items()
            if training is not None
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        text = "the output of `flwr-fbo privacy --json`"
        raise ValueError(f"folder={str(file)!r} is not allowed: {text}.") from error
    return {
        "of": "a plan",
        "folder": str(file),
        "studies": studies,
        "totals": totals,
        "forecast": [],
        "conditions": _this_machine(),
        "audit": _audit(file.parent / _AUDIT_FILE),
        "records": [],
        "to_fill_in": _BLANKS,
    }


# The parts of a choice that is planned with a training, as totals are called.
_PLANNED = {
    "training": "of the training",
    "choice": "of the choice",
    "together": "of both together",
}


def _of_plan(
    plan: Mapping[str, Any], name: str, promise: Mapping[str, Any], group: Group
) -> dict[str, Any]:
    epsilon, delta = plan["epsilon"], promise["delta"]
    guarantee = Guarantee(
        PrivacyUnit(promise["unit"], promise["adjacency"]),
        promise["trust"],
        tuple(promise["conditions"]),
    )
    q, z = plan.get("q", 1.0), plan.get("noise_multiplier")
    count = plan.get("releases", 1)
    if z is None and epsilon is not None:
        # The noise for an epsilon: of a bandit, and of a plan that asks for its noise.
        found = plan.get("accountants", {}).get("pld", {}).get("default")
        z = 1 / gaussian_mu(epsilon, delta) if found is None else found
        count = count if found is not None else 1
    cost = Cost.of_study(guarantee.unit, [Charge(z, q, count)]) if z else None
    spent = PrivacySpent(
        epsilon,
        delta,
        count,
        "plan",
        guarantee=guarantee,
        epsilon_if_replaced=plan.get("epsilon_if_replaced"),
    )
    # What no kind plans is tuning: `flwr-fbo privacy` has its strategies' presets.
    kind = next(
        (k for k in kinds() if plan["strategy"] in k.plans), kind_named("tuning")
    )
    assert kind is not None
    ledger = InLedger((), guarantee.unit, "with_training" in plan)
    facts = replace(_facts_of(kind, {}, [], ledger), trust=guarantee.trust)
    strategy = plan["strategy"] + (f", {name}" if name else "")
    return _planned_study(plan, strategy, facts, spent, cost, group)


def _of_planned_training(
    plan: Mapping[str, Any], training: Mapping[str, Any], group: Group
) -> dict[str, Any]:
    """Return what a plan says of the training beside a choice."""
    about = training["training"]
    unit = PrivacyUnit(about["unit"], about["adjacency"])
    facts = training_facts(InLedger((), unit, has_trainings=True))
    names = "noise_multiplier", "sampling_probability", "num_steps"
    charge = Charge(*(training[name] for name in names))
    spent = PrivacySpent(
        about["epsilon"],
        about["delta"],
        charge.num_releases,
        "plan",
        guarantee=Guarantee(unit, facts.trust, tuple(about["conditions"])),
        epsilon_if_replaced=about["epsilon_if_replaced"],
    )
    cost = Cost.of_study(unit, [charge])
    return _planned_study(plan, facts.strategy, facts, spent, cost, group)


def _planned_study(
    plan: Mapping[str, Any],
    strategy: str,
    facts: StudyFacts,
    spent: PrivacySpent,
    cost: Cost | None,
    group: Group,
) -> dict[str, Any]:
    about = _of_facts(facts, spent)
    told = "against", "trust_on_record", "exact", "not_covered"
    return {
        "strategy": strategy,
        "agents": plan["agents"],
        "private": True,
        "claim": claim(spent, cost),
        "patient": of_patient(cost, spent.delta, *group),
        **{name: about[name] for name in told},
        "sent": [],
    }


def _server_file(folder: Path) -> tuple[Path, Kind, JournalKind] | None:
    """Return the record of a study's server in a folder, or None."""
    for kind in kinds():
        for journal in kind.journals:
            path = folder / journal.files
            if journal.ledger and not journal.at_site and has_journal(path):
                with Journal.snapshot(path) as found:
                    if found.identity.get("kind") == journal.name:
                        return path, kind, journal
    return None


def _of_server(
    path: Path, kind: Kind, journal_kind: JournalKind, group: Group
) -> tuple[_Told, dict[str, Any]]:
    """Return what a study's server has on record, and its file."""
    view: LedgerView = load(journal_kind.ledger)
    with Journal.snapshot(path) as journal:
        identity, rows = journal.identity, journal.ledger()
        about = _file(path, journal, rows)
        rounds, study_id = _course(journal, rows)
    facts = _facts_of(kind, identity, rows, InLedger())
    spent = view.spent(identity, rows) if rows else None
    private = all(row.facts["private"] for row in rows) and not facts.is_seeded
    deltas = [None if spent is None else spent.delta]
    unit = kind.units[0] if spent is None else spent.guarantee.unit
    cost = None
    if private and facts.charges:
        cost = Cost.of_study(unit, facts.charges)
    own = [
        charge_facts(
            (kind.name, study_id),
            number,
            charge,
            delta=deltas[0],
            promised=facts.charges,
            fixed_rows=spent is not None
            and FINISHED_TABLE in spent.guarantee.conditions,
            unit=unit,
        )
        for number, charge in enumerate(facts.charges, 1)
    ]
    if not private:
        own = [charge_facts((kind.name, study_id), 1, Charge(0.0), unit=unit)]
    values = {
        "kind": kind.name,
        "study_id": study_id,
        "strategy": facts.strategy,
        "agents": identity.get("num_agents"),
        "senders": facts.num_senders,
        "rounds": rounds,
        **_times(rows),
        "private": private,
        "claim": claim(spent if private else None, cost),
        "patient": of_patient(cost, spent.delta, *group)
        if spent is not None and private
        else [],
        **_of_facts(facts, spent),
        "versions": [str(row.facts["flwr_fbo"]) for row in rows],
    }
    return _Told(values, own), about


def _of_site(
    kind_name: str,
    study_id: str,
    rows: Sequence[LedgerRow],
    path: Path | None,
    group: Group,
    default_delta: float,
    has_trainings: bool,
) -> _Told:
    """Return what a site has on record of one study."""
    charges = [row.facts for row in rows]
    kind = kind_named(kind_name)
    identity: Mapping[str, Any] = {}
    own: list[LedgerRow] = []
    if path is not None:
        with Journal.snapshot(path) as journal:
            identity, own = journal.identity, journal.ledger()
    noisy = [one for one in charges if one["release"] != UNPROTECTED]
    unit = next((u for one in charges if (u := unit_of(one)) is not None), None)
    released = tuple(Charge(*one["charge"]) for one in noisy)
    in_ledger = InLedger(released, unit, has_trainings)
    if kind_name == TRAINING:
        facts = training_facts(in_ledger)
    elif kind is None:
        facts = StudyFacts(f"a study of kind {kind_name}")
    else:
        facts = _facts_of(kind, identity, own, in_ledger)
    # A training does not say where epsilon is told: there the totals are.
    delta = next((one["delta"] for one in charges if one["delta"]), default_delta)
    counted = [c for one in noisy for c in (one["charge"], *one.get("promised", ()))]
    private = len(noisy) == len(charges) and all(z for z, _, _ in counted)
    cost = spent = None
    if private and unit is not None:
        # As `flwr-fbo ledger show` adds them up, for the same unit.
        cost = Cost.in_ledger(totals_of(charges)[-1], charges)
        spent = SPENDING.spent({"delta": delta}, [*rows])
        assert spent is not None
        terms = replace(spent.guarantee, trust=facts.trust)
        spent = replace(spent, guarantee=terms)
    servers = sorted({one[SERVER] for one in charges if SERVER in one})
    values = {
        "kind": kind_name,
        "study_id": study_id,
        "strategy": facts.strategy,
        "agents": identity.get("num_agents"),
        "senders": facts.num_senders,
        **_times(rows),
        "private": private,
        "unprotected_replies": len(charges) - len(noisy),
        "claim": claim(spent, cost),
        "patient": of_patient(cost, delta, *group),
        **_of_facts(facts, spent),
        "server_key": ", ".join(servers) or NOT_ON_RECORD,
        "versions": [str(row.facts["flwr_fbo"]) for row in own],
    }
    return _Told(values, charges)


def _facts_of(
    kind: Kind,
    identity: Mapping[str, Any],
    rows: Sequence[LedgerRow],
    ledger: InLedger,
) -> StudyFacts:
    if not kind.statement:
        return StudyFacts(f"a study of kind {kind.name}")
    facts: StudyFacts = load(kind.statement)(identity, rows, ledger)
    return facts


def _of_facts(facts: StudyFacts, spent: PrivacySpent | None) -> dict[str, Any]:
    """Return what a kind says of a study, as JSON values."""
    against = "" if spent is None else spent.guarantee.against
    not_covered = [*facts.not_covered, *_IN_ALL_STUDIES]
    if facts.asks_sites:
        not_covered.append(_METRICS)
    if facts.trust == "server":
        text = "what the operator of the server reads of each site"
        not_covered.insert(0, f"{text}: {facts.reads or 'its messages'}")
    return {
        "against": against or NOT_ON_RECORD,
        "trust_on_record": facts.trust is not None,
        "groups": [
            {
                "sites": group["num_slots"],
                "honest": group["honest"],
                "colluding": group["colluding"],
                "threshold": group["threshold"],
            }
            for group in facts.groups
        ],
        "roster": (facts.roster or "none pinned") if facts.groups else "",
        "noise": NOT_ON_RECORD
        if facts.is_seeded is None
        else "of a seed that somebody knows"
        if facts.is_seeded
        else "from the operating system's entropy",
        "sent": [
            {"what": one.what, "times": one.times, "bytes": one.num_bytes}
            for one in facts.sent
        ],
        "exact": [*facts.exact, *(_NUM_CHARGES,) * facts.asks_sites],
        "not_covered": not_covered,
    }


_NUM_CHARGES = (
    "with each reply the number of the study's charges in the site's own ledger, where "
    "it keeps one"
)


def _times(rows: Sequence[LedgerRow]) -> dict[str, str]:
    if not rows:
        return {"first": NOT_ON_RECORD, "last": NOT_ON_RECORD}
    times = [row.committed for row in rows]
    return {"first": committed_text(min(times)), "last": committed_text(max(times))}


def _course(journal: Journal, rows: Sequence[LedgerRow]) -> tuple[Any, str]:
    """Return the rounds that a server has on record, and the study's id."""
    if journal.path is not None and journal.path.name == SERVER_FILE:
        stored, _ = read_ledger(journal)
        rounds = stored["rounds"]
        answers = [entry["answered"] for entry in rounds]
        counts = {"done": len(rounds), "fewest": min(answers, default=0)}
        return {**counts, "most": max(answers, default=0)}, stored["study"]["study_id"]
    named = {str(row.facts["study_id"]) for row in rows if "study_id" in row.facts}
    return None, ", ".join(sorted(named)) or NOT_ON_RECORD


def _journal_of(folder: Path, kind_name: str, study_id: str) -> Path | None:
    """Return a site's journal of a study, or None."""
    kind = kind_named(kind_name)
    for journal in () if kind is None else kind.journals:
        if journal.at_site:
            for path in journal.files_in(folder, study_id):
                return path
    return None


def _file(path: Path, journal: Journal, rows: Sequence[LedgerRow]) -> dict[str, Any]:
    """Return what ties a statement to a file."""
    return {
        "file": path.name,
        "kind": str(journal.identity.get("kind")),
        "releases": len(rows),
        "mode": f"{stat.S_IMODE(path.stat().st_mode):04o}",
        "sha256": digest_of(journal.identity, rows),
    }


def digest_of(identity: Mapping[str, Any], rows: Sequence[LedgerRow]) -> str:
    """Return the SHA-256 of a record: of its identity and its releases, as JSON.

    Of each release its number, its facts, the SHA-256 of what was released, and the
    time.
    """
    releases = [
        [
            row.iteration,
            row.facts,
            hashlib.sha256(np.ascontiguousarray(row.vectors).tobytes()).hexdigest(),
            row.committed,
        ]
        for row in rows
    ]
    text = json.dumps([dict(identity), releases], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _totals(charges: Sequence[dict[str, Any]], delta: float) -> list[dict[str, Any]]:
    """Return what all charges cost together, of each unit, as ledgers print it."""
    rows = [LedgerRow(n, facts, np.zeros(0)) for n, facts in enumerate(charges)]
    found = []
    for whose, own in SPENDING.parts(rows).items() if rows else ():
        spent = SPENDING.spent({"delta": delta}, own)
        if spent is not None:
            name = (whose or SPENDING.whose).strip()
            about = {"of": name, "releases": spent.num_releases, **spent.to_json()}
            found.append(about)
    return found


def _with_more(studies: Sequence[_Told], more: int) -> list[dict[str, Any]]:
    """Return all charges, and those of so many studies like the last one."""
    last = studies[-1].charges
    return [facts for told in studies for facts in told.charges] + [
        {**facts, "study_id": f"{facts['study_id']}, again {number}"}
        for number in range(more)
        for facts in last
    ]


def _this_machine() -> dict[str, str]:
    return {
        "statement written by flwr_fbo": __version__,
        "flwr": version("flwr"),
        "OpenDP": version("opendp"),
        "Python": platform.python_version(),
    }


def _audit(file: Path) -> Any:
    """Return the audit that somebody has put into the folder."""
    if not file.is_file():
        return "none on record"
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return [{name: one[name] for name in _OF_AUDIT} for one in found]
    except (ValueError, TypeError, KeyError) as error:
        text = f"{file} is not the output of `flwr-fbo audit --json`."
        raise JournalError(text) from error
