"""Make a list of settings from the records of finished tuners and studies.

No model is fitted. First come the settings that the studies have chosen, then their
second best, and so on; studies with less noise come first. Over six federated tasks a
Gaussian process over all scores, with a greedy choice, made no better lists (the
docstring of `benchmarks.listed_trials`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from flwr_fbo._common.validation import (
    require,
    require_bool,
    require_int,
)
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import has_journal
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy.spending_ledger import composed_epsilon
from flwr_fbo.space.search_space import Params, SearchSpace
from flwr_fbo.strategies.study_record import read_ledger
from flwr_fbo.study.kinds import SERVER_FILE
from flwr_fbo.tuner.kind import RECORD
from flwr_fbo.tuner.records.trials_record import FILE_NAME as TUNER_FILE
from flwr_fbo.tuner.records.trials_record import not_private_because, recorded_result
from flwr_fbo.tuning.kind import SERVER
from flwr_fbo.tuning.registry import algorithm_of
from flwr_fbo.tuning.search.recommendation import Recommendation, released_function
from flwr_fbo.tuning.search.study import TuningStudy
from flwr_fbo.tuning.search.study_portfolio import (
    MOST_LISTED,
    SIZE,
    PortfolioSource,
    StudyPortfolio,
    require_same_names,
)

_log = logging.getLogger("flwr.fbo")


@dataclass(frozen=True)
class Finding:
    """Settings of one study, and how sure their order is.

    Attributes
    ----------
    space : SearchSpace
        Search space of the study.
    settings : list of dict
        The best ones first.
    source : PortfolioSource
        Study that it is from.
    reason : str
        Why there are no settings; empty where there are.
    """

    space: SearchSpace
    settings: list[Params]
    source: PortfolioSource
    reason: str = ""


def portfolio_of_studies(
    folders: Sequence[str | Path], size: int = SIZE, exact: bool = False
) -> StudyPortfolio:
    """Return a list of the settings that finished studies lead to.

    Parameters
    ----------
    folders : sequence of str or Path
        The ``folder`` of a `FederationTuner`, or of a strategy that recommends a
        setting, each; all of one search space. A strategy that recommends nothing is
        left out, and the log says so.
    size : int
        Settings at most, from 1 to 100.
    exact : bool
        Whether studies may be among them that were not private. The order of the list
        then depends on exact scores of their clients, and the list says so.

    Raises
    ------
    JournalError
        If a record cannot be read.
    ValueError
        If a folder has no such record, or one of a study that is not finished, not
        private, a control, or of another space; if one is given twice; or if no study
        recommends anything. The message names the folder.

    Notes
    -----
    *Formal guarantees*: those of `StudyPortfolio`. Only what was released is read: for
    a tuner which trials survived, and their released scores. Settings that a tuner was
    given as ``enqueue`` are listed as they are: whoever has given them answers for what
    they tell.
    """
    is_list = isinstance(folders, list | tuple) and len(folders) > 0
    is_valid = is_list and all(isinstance(folder, str | Path) for folder in folders)
    require(is_valid, "folders", folders, "a list of folders, one at least")
    require_int("size", size, 1, MOST_LISTED)
    require_bool("exact", exact)
    paths = [Path(folder) for folder in folders]
    findings: list[Finding] = []
    for number, path in enumerate(paths):
        is_new = path.resolve() not in [p.resolve() for p in paths[:number]]
        require(is_new, "folders", str(path), "each study once")
        try:
            found = _finding(path)
            is_allowed = found.source.private or exact
            allowed = "True, unless exact=True (--exact): then the list is not private"
            require(is_allowed, "private", False, allowed)
            if findings:
                _check_space(findings[0].space, found.space, paths[0])
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        if not found.settings:
            text = "%s recommends no setting, and is left out: %s."
            _log.warning(text, path, found.reason)
        findings.append(found)
    used = [found for found in findings if found.settings]
    require(len(used) > 0, "folders", list(map(str, paths)), "one with a finding")
    return merged(used, size)


def merged(findings: Sequence[Finding], size: int) -> StudyPortfolio:
    """Return what studies have chosen, then their second best, and so on."""
    # The more clients and epsilon, the less noise is in an order. Stable: ties are in
    # the order that was given.
    used = sorted(
        findings, key=lambda f: -f.source.num_agents * (f.source.epsilon or math.inf)
    )
    listed: list[Params] = []
    for params in chain(*zip_longest(*(found.settings for found in used))):
        if params is not None and params not in listed:
            listed.append(params)
    sources = tuple(found.source for found in used)
    return StudyPortfolio(used[0].space, tuple(listed[:size]), sources)


def ordered_trials(rows: Sequence[LedgerRow]) -> list[int]:
    """Return a tuner's trials, the best first; without those that have failed.

    The chosen trial is first, then those that ended at the last rung, by its scores,
    then those that ended at the rung before, and so on.

    Parameters
    ----------
    rows : sequence of LedgerRow
        What each rung has released, larger is better, of which trials.
    """
    failed = {trial for row in rows for trial in row.facts.get("failed", ())}
    order: list[int] = [rows[-1].facts["survivors"][0]]
    for row in reversed(rows):
        scores = dict(zip(row.facts["trials"], row.vectors.tolist(), strict=True))
        left = [t for t in scores if t not in order and math.isfinite(scores[t])]
        order += sorted(left, key=lambda trial: -scores[trial])
    return [trial for trial in order if trial not in failed]


def _finding(folder: Path) -> Finding:
    tuner, server = folder / TUNER_FILE, folder / SERVER_FILE
    both = has_journal(tuner) and has_journal(server)
    require(not both, "folder", str(folder), "that of one study: it has two")
    if has_journal(tuner):
        with Journal.snapshot(tuner) as journal:
            journal.require_kind(RECORD.name)
            return _of_tuner(journal)
    allowed = "the folder of a FederationTuner, or of a strategy's server"
    require(has_journal(server), "folder", str(folder), allowed)
    with Journal.snapshot(server) as journal:
        journal.require_kind(SERVER.name)
        return _of_strategy(journal)


def _of_tuner(journal: Journal) -> Finding:
    identity, result = journal.identity, recorded_result(journal)
    num, done = result.num_rungs, len(result.rungs)
    require(result.is_decided, "rungs", done, f"{num}: the tuner is not finished")
    privacy = identity["privacy"]
    _check_is_no_control(privacy is not None and privacy["noise_only"])
    space = SearchSpace.from_json(identity["space"])
    settings = []
    for trial in ordered_trials(journal.ledger()):
        with suppress(ValueError):  # the app's own default may be outside
            space.to_unit(result.settings[trial])
            settings.append(result.settings[trial])
    is_private = not_private_because(identity) == ""
    spent = result.privacy_spent if is_private else None
    epsilon = None if spent is None else spent.epsilon
    if identity["score"] == "server":
        epsilon = 0.0  # the server's own data
    source = PortfolioSource(
        "FederationTuner",
        identity["num_agents"],
        is_private,
        epsilon,
        None if spent is None else spent.delta,
    )
    return Finding(space, settings, source)


def _of_strategy(journal: Journal) -> Finding:
    identity, (stored, ledger) = journal.identity, read_ledger(journal)
    done, num = len(stored["rounds"]), identity["num_rounds"]
    require(done == num, "rounds", done, f"{num}: the study is not finished")
    study = TuningStudy.from_dict(stored["study"])
    _check_is_no_control(any(row.facts["noise_only"] for row in ledger))
    released = released_function(study, ledger)
    found = Recommendation() if released is None else released.recommendation
    known = getattr(study.facts, "known", None)  # releases that it began with
    is_private = all(row.facts["private"] for row in ledger)
    is_private = is_private and (known is None or known.private)
    delta = identity["delta"]
    source = PortfolioSource(
        algorithm_of(study.agent).strategy.rpartition(":")[2],
        identity["num_agents"],
        is_private,
        composed_epsilon(study.promise.charges, delta) if is_private else None,
        delta if is_private else None,
    )
    settings = [] if found.params is None else [dict(found.params)]
    return Finding(study.space, settings, source, found.reason)


def _check_is_no_control(is_control: Any) -> None:
    require(not is_control, "noise_only", True, "False: a control finds nothing")


def _check_space(first: SearchSpace, other: SearchSpace, where: Path) -> None:
    """Raise ValueError, naming the parameter, unless two spaces are the same."""
    require_same_names(first, other, str(where))
    for name, distribution in first.distributions.items():
        found = other.distributions[name]
        allowed = f"{distribution}, as in {where}"
        require(found == distribution, f"space[{name!r}]", found, allowed)
