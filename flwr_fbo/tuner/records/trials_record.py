"""The durable record of a `FederationTuner`: trials, and what each rung released."""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from flwr_fbo._common.fields import from_json
from flwr_fbo.journal.journal import Journal, open_patiently
from flwr_fbo.journal.journal_file import JournalError, has_journal
from flwr_fbo.journal.npy import from_json_array, to_json_array
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy.accounting import PrivacySpent, ReleaseAccountant
from flwr_fbo.privacy.conditions import WITHOUT_TRAINING
from flwr_fbo.privacy.guarantee import (
    CLIENT,
    EXAMPLE,
    Guarantee,
    PrivacyUnit,
    Trust,
)
from flwr_fbo.space.search_space import Params, SearchSpace
from flwr_fbo.tuner.candidates.candidates import Candidates
from flwr_fbo.tuner.candidates.trial_space import TrialSpace
from flwr_fbo.tuner.decisions.lead_over_defaults import Lead, lead_over_defaults
from flwr_fbo.tuner.decisions.settings_effect import DrawnTrials
from flwr_fbo.tuner.federation_result import FederationResult, Rung
from flwr_fbo.tuner.kind import RECORD
from flwr_fbo.tuner.records.site_ledgers import SiteLedgers
from flwr_fbo.tuner.schedules.schedule import Plan
from flwr_fbo.tuning.search.settings import Direction

FILE_NAME = RECORD.files

# What `TrialsRecord.save` keeps: the settings of all trials so far, and their plan.
SETTINGS, PLAN = "settings", "plan"
# The secure sum that may have been unmasked, but gave no rung yet.
OPEN_SUM = "open-sum"
# Once the chosen trial was trained to its end: whether with exact metrics.
HANDED_OVER = "handed-over"
# Once the app of any client has kept a state in a trial.
CLIENT_STATE = "client-state"
_NAME, _APP, _LEDGERS = "name", "app", "site-ledgers"
_MEASURED, _PLAIN = "measured", "plain"


class TrialsRecord:
    """Keeps settings and rungs in a journal; without a folder, in memory.

    Parameters
    ----------
    folder : Path or None
        Folder of this tuner alone; None keeps the record in memory.
    identity : mapping of str to JSON value
        Settings that may not change while the tuner goes on.
    patience : float
        Seconds to wait for another process to let go of it.

    Attributes
    ----------
    folder : Path or None
        Folder of this tuner alone.
    journal : Journal
        The record itself, which the functions of this module read.

    Raises
    ------
    JournalError
        If the folder cannot be used, or holds something else; the message names the
        difference.
    """

    def __init__(
        self, folder: Path | None, identity: Mapping[str, Any], patience: float
    ) -> None:
        self.folder = folder
        whole = {"kind": RECORD.name, **identity}
        if folder is None:
            self.journal = Journal(whole)
        else:
            self.journal = open_patiently(whole, folder / FILE_NAME, patience)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.journal.close()

    def name(self) -> str:
        """Return the name of the tuner; drawn, and on disk when this returns."""
        # Callbacks, and an Optuna study, know a tuner by it in all its runs.
        letters = self.journal.load_array(_NAME)
        if letters is None:
            letters = np.frombuffer(secrets.token_hex(8).encode(), dtype=np.uint8)
            self.journal.put({_NAME: letters})
        return letters.tobytes().decode()

    def save(self, name: str, values: Any) -> None:
        """Save JSON values, such as the `SETTINGS` of all trials so far.

        On disk when this returns. They are read by `stored`.
        """
        self.journal.put({name: to_json_array(values)})

    def check_app(self, app: Mapping[str, Any], ignored: Collection[Any]) -> None:
        """Note what the app's own values are; refuse those of another training.

        Parameters
        ----------
        app : mapping of str to JSON value
            Values of the app, by name.
        ignored : collection of JSON value
            Values that may come or go: the tuner's own folder.

        Raises
        ------
        JournalError
            If a value is another one than when the tuner began.
        """
        before = stored(self.journal, _APP)
        if before is None:
            self.save(_APP, dict(app))
            return
        pairs = {
            name: (before.get(name), app.get(name))
            for name in sorted(before.keys() | app.keys())
        }
        different = {
            name: pair
            for name, pair in pairs.items()
            # As JSON: 1 is not True.
            if json.dumps(pair[0]) != json.dumps(pair[1]) and not {*pair} & {*ignored}
        }
        if different:
            raise JournalError(
                f"The tuner in {self.journal.path} began with another app: its rungs "
                f"are of another training. What differs (stored, now): {different}. To "
                "continue it, start it as it was. In a folder of its own this one is a "
                "new tuner; a private one then spends epsilon again."
            )

    def save_measured(self, measured: Mapping[int, Mapping[int, Any]]) -> None:
        """Save what the server's own evaluation gave in some trials, by round."""
        if measured:
            known = {**_measured_in(self.journal), **measured}
            texts = {  # JSON has no other keys
                str(trial): {str(number): metrics for number, metrics in rounds.items()}
                for trial, rounds in known.items()
            }
            self.save(_MEASURED, texts)

    def add(self, row: LedgerRow, ledgers: SiteLedgers) -> None:
        """Add a rung, from 0; no sum is open then. On disk when this returns.

        With what is known of the sites' ledgers, which receipts are then given of.
        """
        # In one transaction: neither a release without its sum's end, nor twice a rung.
        arrays = {_LEDGERS: to_json_array(ledgers.to_json())}
        self.journal.change_state(arrays, [OPEN_SUM], [row])
        ledgers.commit()


def has_begun(folder: Path | None) -> bool:
    """Return whether a tuner has begun in the folder; without one, never."""
    return folder is not None and has_journal(folder / FILE_NAME)


def has_ended(path: Path) -> bool:
    """Return whether a tuner's file has its choice, and the training after it."""
    with Journal.snapshot(path) as journal:
        plan, num_decided = plan_of(journal), len(journal.ledger())
        is_handed_over = stored(journal, HANDED_OVER) is not None
    if plan is None or num_decided < len(plan.rungs):
        return False
    return is_handed_over or not plan.hands_over


def stored(journal: Journal, name: str) -> Any:
    """Return what `TrialsRecord.save` has saved under a name; None without any."""
    array = journal.load_array(name)
    return None if array is None else from_json_array(array)


def recorded_settings(journal: Journal) -> list[Params]:
    """Return the settings of all trials so far."""
    return stored(journal, SETTINGS) or []


def recorded_site_ledgers(journal: Journal) -> SiteLedgers:
    """Return what a tuner's record has of its sites' ledgers."""
    return SiteLedgers(stored(journal, _LEDGERS) or ())


def recorded_receipts(journal: Journal, slot: int | None) -> list[str]:
    """Return the receipts of a site, or of all, from a tuner's record."""
    return [*recorded_site_ledgers(journal).receipts(slot)]


def _measured_in(journal: Journal) -> dict[int, dict[int, dict[str, float]]]:
    """Return what the server's own evaluation gave, by trial and round."""
    found = stored(journal, _MEASURED) or {}
    return {int(trial): _by_round(rounds) for trial, rounds in found.items()}


def _by_round(rounds: Mapping[str, Any]) -> dict[int, dict[str, float]]:
    return {int(number): metrics for number, metrics in rounds.items()}


def plan_of(journal: Journal) -> Plan | None:
    """Return the plan of a tuner's trials; None before it is settled."""
    values = stored(journal, PLAN)
    return None if values is None else from_json(Plan, values)


def rung_of(row: LedgerRow, direction: Direction) -> Rung:
    """Return the rung that a row of the ledger tells of.

    In a row larger scores are better. Exact ones get the sign of the metric back.
    """
    # Ranks have no sign of the metric: a larger one is better anyway.
    is_exact = row.facts["mechanism"] != "gaussian"
    sign = -1.0 if is_exact and direction == "minimize" else 1.0
    return Rung(
        row.facts["rounds"],
        tuple(row.facts["trials"]),
        tuple((sign * row.vectors).tolist()),
        tuple(row.facts["survivors"]),
        tuple(row.facts["failed"]),
    )


def recorded_result(journal: Journal, trust: str = "") -> FederationResult:
    """Return what a tuner has chosen, as far as its rungs are decided."""
    identity, ledger, plan = journal.identity, journal.ledger(), plan_of(journal)
    settings = recorded_settings(journal)
    num_rungs = len(identity["sizes"]) if plan is None else len(plan.rungs)
    over_defaults: Lead | None = None
    # Of exact scores the noise is not known, and a lead is over all rungs.
    if identity["privacy"] is not None and len(ledger) == num_rungs:
        space = SearchSpace.from_json(identity["space"])
        # The settings that were not drawn are the first ones.
        fixed = Candidates(
            TrialSpace(space, identity["conditions"]),
            len(settings),
            identity["defaults"],
            identity["enqueue"],
            seed=0,
        ).settings
        trials = DrawnTrials(settings, len(fixed), space)
        over_defaults = lead_over_defaults(ledger, identity["num_agents"], trials)
    return FederationResult(
        tuple(settings),
        tuple(rung_of(row, identity["direction"]) for row in ledger),
        recorded_spent(identity, ledger),
        trust,
        over_defaults,
        num_rungs=num_rungs,
        exact_metrics=stored(journal, HANDED_OVER),
        measured=_measured_in(journal),
        plain=_by_round(stored(journal, _PLAIN) or {}),
    )


def save_plain(path: Path, measured: Mapping[int, Any]) -> None:
    """Save what a training with the app's defaults alone gave, by round."""
    with Journal(None, path) as journal:
        values = {str(number): metrics for number, metrics in measured.items()}
        journal.put({_PLAIN: to_json_array(values)})


def recorded_spent(
    identity: Mapping[str, Any], rows: Sequence[LedgerRow]
) -> PrivacySpent | None:
    """Charge the releases of a ledger again; None without privacy."""
    if identity["privacy"] is None:
        return None
    accountant = ReleaseAccountant(1.0, identity["privacy"]["delta"])
    # Each rung once, in the order of their release.
    for row in rows:
        accountant.charge(row.facts["noise_multiplier"])
    trust: Trust = "sums" if "aggregation" in identity else "server"
    return accountant.spent(Guarantee(unit_of(identity), trust, (WITHOUT_TRAINING,)))


def unit_of(identity: Mapping[str, Any]) -> PrivacyUnit:
    """Return whom the private choice of a tuner protects."""
    return EXAMPLE if identity["privacy"]["protects"] == "example" else CLIENT


def metric_in_words(metric: str | Mapping[str, float]) -> str:
    """Return a metric, or a weighted sum of several, in words."""
    if isinstance(metric, str):
        return metric
    terms = (f"{weight:g} {name}" for name, weight in metric.items())
    return " + ".join(terms).replace("+ -", "- ")


def score_in_words(identity: Mapping[str, Any]) -> str:
    """Return what the scores of a tuner's rungs are, and which are better."""
    metric = metric_in_words(identity["metric"])
    if identity["privacy"] is not None and unit_of(identity) == EXAMPLE:
        text = f"the mean {metric} over all examples, in parts of its range and with"
        return f"{text} noise: 0 is the mean of the rung's trials, larger is better"
    if identity["privacy"] is not None:
        text = f"the clients' mean rank score by {metric}, with noise"
        return f"{text}: 0 is the middle, larger is better"
    whose = "the clients' mean" if identity["score"] == "clients" else "the server's"
    is_small = identity["direction"] == "minimize"
    return f"{whose} {metric}; {'smaller' if is_small else 'larger'} is better"


def not_private_because(identity: Mapping[str, Any]) -> str:
    """Return why the choices of a tuner are not private; empty where they are."""
    if identity["score"] == "server":
        return ""
    if identity["privacy"] is None:
        return "the server read every client's exact scores."
    if identity["noise_seed"] is not None:
        return "the noise can be predicted from its seed."
    return ""
