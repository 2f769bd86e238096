"""The journals of a client's tuning studies: which is whose, and what is best in them.

A journal in a folder bears the names of its study and slot, so that a client which was
restarted finds its own.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from flwr.app import ConfigRecord, Context

from flwr_fbo._common.validation import require, require_function
from flwr_fbo.journal.journal import Journal, open_patiently
from flwr_fbo.journal.journal_file import has_journal
from flwr_fbo.journal.npy import from_json_array, to_json_array
from flwr_fbo.site.site_journal import (
    configured_folder,
    configured_slot,
    noted_slot,
    record_name,
)
from flwr_fbo.site.study_journals import (
    last_study,
    study_journal,
    study_journals,
)
from flwr_fbo.space.search_space import Params
from flwr_fbo.tuning.search.agent import Agent
from flwr_fbo.tuning.search.agent_journal import KIND, load_agent
from flwr_fbo.tuning.search.comparison import Comparison, Score, as_json, compared
from flwr_fbo.tuning.search.settings import Direction
from flwr_fbo.tuning.search.study import TuningStudy

_log = logging.getLogger("flwr.fbo")

# In a journal: the last comparison with the default. In context.state: what was said.
_COMPARISON, _SAID = "comparison", "flwr-fbo-compared"
_NOT_COMPARED = (
    "The tuned setting is used, and was not compared with the default: give `compare` "
    "to best_params, with_tuning or add_tuning."
)
_ALL_ALIKE = (
    "All {} trials of the tuning scored {:.4g}: it cannot say which setting is better."
)
_AVERAGE_NOT_COMPARED = (
    "The average of all sites was not compared, and may be worse with it: have "
    "FederationTuner compare it, by `fbo-tuned` in the run config."
)
# Key of the run config: whether sites use what they have found, or their defaults.
_USES_TUNED = "fbo-tuned"
# Seconds to wait for a journal that another process, such as a report, is reading.
_PATIENCE = 10.0


def journal_path(folder: Path | None, study: TuningStudy, slot: int) -> Path | None:
    """Return the file of an agent's journal, if the client has a folder."""
    return folder and study_journal(folder, KIND, study.study_id, slot)


def agent_id(context: Context, study: TuningStudy) -> int:
    """Return the slot this client knows it holds, or -1.

    That is ``agent-id`` of the node config, else ``partition-id``, else the slot that
    the server issued before in the same study.

    Raises
    ------
    ValueError
        If the node config's value is not an integer >= 0.
    """
    configured = configured_slot(context)
    return taken_slot(context, study) if configured < 0 else configured


def taken_slot(context: Context, study: TuningStudy) -> int:
    """Return the slot this client has played in ``study``, or -1.

    A client that was restarted finds it in its folder, if no other keeps a journal
    of the study there.
    """
    noted = noted_slot(context, record_name(KIND), study.study_id)
    if noted >= 0:
        return noted
    folder = configured_folder(context)
    if folder is None:
        return -1
    prefix = study_journal(folder, KIND, study.study_id).stem
    found = study_journals(folder, KIND, study.study_id)
    slots = [path.stem.removeprefix(prefix) for path in found]
    slots = [slot for slot in slots if slot.isdecimal()]  # not of a longer study_id
    return int(slots[0]) if len(slots) == 1 else -1


def kept_agent(context: Context, study: TuningStudy) -> Agent | None:
    """Return this client's agent of ``study`` as its journal has it, if there is one.

    Raises
    ------
    JournalError
        If the journal cannot be read.
    """
    slot = taken_slot(context, study)
    if slot < 0:
        return None
    path = journal_path(configured_folder(context), study, slot)
    content = None
    if path is None:
        content = context.state.config_records[record_name(KIND)]["journal"]
    assert content is None or isinstance(content, bytes)
    with Journal(None, path, content) as journal:
        return load_agent(journal, study, slot)


def best_params(
    context: Context, default: Params, *, compare: Score | None = None
) -> Params:
    """Return this client's best setting of its last study, or the default.

    The study may be over, or another run's if the client's journals are in a folder,
    which notes the last study of each agent.

    The best of many trials looks better than it is. With ``compare`` the default and
    the tuned setting are scored, and the better one is returned. The outcome is logged
    once a run. Without ``compare`` a comparison of the same two settings that is on
    record decides. Where none is, the tuned setting is returned, and a warning says so.

    Where scores are near chance, one setting is as good as another. A site cannot know
    what chance gives, but a warning says where its own scores tell nothing: if all
    trials scored the same, or if the lead of the tuned setting is at most twice the
    difference between its two scores, that of the tuning and that of ``compare``.

    A site compares models of its own. What is better there may be worse for the average
    of all sites, and a warning says so too. `FederationTuner` compares the averages: it
    tries both values of the key ``fbo-tuned`` of the run config. With
    ``fbo-tuned=false`` the default is returned in any case; with either value nothing
    warns that a setting was not compared.

    Examples
    --------
    >>> from optuna.distributions import FloatDistribution
    >>> from flwr_fbo import FedVote, InProcessGrid, best_params, tuning_app
    >>> app = tuning_app(lambda context: lambda trial: -abs(trial["x"] - 0.5))
    >>> strategy = FedVote(
    ...     {"x": FloatDistribution(0, 1)}, "maximize", num_agents=2,
    ...     epsilon=8, delta=1e-3,
    ... )
    >>> grid = InProcessGrid(app, num_nodes=2)
    >>> result = strategy.start(grid, num_rounds=3)
    >>> context = grid.contexts[1001]  # Flower gives each client its own
    >>> best_params(context, default={"x": 0.1})
    {'x': 0.5}

    Parameters
    ----------
    context : flwr.app.Context
        Context of the client's message; its node config names the folder.
    default : dict
        The setting to use without a better one. Not empty. It is returned where no
        trial has succeeded and, with a warning, where it is not known which journal is
        meant.
    compare : callable, optional
        Score of a setting on the site's held-out data: takes a dict, returns a float in
        the unit of the objective.
        The study's direction says which score is better; at a tie the default is kept.
        A score that raises or is NaN has failed: the other setting is better, and if
        both fail the default is kept. It is called for both settings once, and again
        when either of them changes. A new run tries failed scores again.

    Raises
    ------
    ValueError
        If ``default``, ``compare`` or ``fbo-tuned`` is not allowed.
    JournalError
        If the journal cannot be used.
    """
    is_valid = isinstance(default, Mapping) and len(default) > 0
    require(is_valid, "default", default, "a setting: a dict that is not empty")
    expected = "a function of a setting, or None"
    require_function("compare", compare, expected, optional=True)
    uses_tuned = context.run_config.get(_USES_TUNED)
    is_valid = uses_tuned is None or isinstance(uses_tuned, bool)
    require(is_valid, _USES_TUNED, uses_tuned, "true or false, in the run config")
    tuned = _tuned(context)
    if tuned is None or as_json(tuned.params) == as_json(default):
        return dict(default)
    warns = uses_tuned is None
    comparison = tuned.comparison
    if comparison and not comparison.is_of(default, tuned.params, context.run_id):
        comparison = None
    if comparison is None and compare is None:
        doubts = [tuned.doubt, _NOT_COMPARED if warns else ""]
        if any(doubts):
            _say_once(context, tuned, logging.WARNING, " ".join(filter(None, doubts)))
        return dict(default) if uses_tuned is False else tuned.params
    if comparison is None:
        # With fbo-tuned=false too: a trial of FederationTuner finds it on record.
        assert compare is not None
        settings = default, tuned.params
        # The journal is closed: a score may take long, and a report wait for it.
        comparison = compared(compare, *settings, tuned.direction, context.run_id)
        _keep(context, tuned, comparison)
    doubts = []
    if comparison.tuned_is_better:
        doubts = [tuned.doubt or comparison.doubt(tuned.score)]
        doubts += [_AVERAGE_NOT_COMPARED] if warns else []
    is_alarming = comparison.is_alarming or any(doubts)
    level = logging.WARNING if is_alarming else logging.INFO
    said = " ".join(filter(None, [comparison.outcome, *doubts]))
    _say_once(context, tuned, level, said)
    if uses_tuned is False or not comparison.tuned_is_better:
        return dict(default)
    return tuned.params


@dataclass(frozen=True)
class _Tuned:
    """Best setting of a client's last study, as its journal has it."""

    params: Params
    score: float
    direction: Direction
    slot: int
    study_id: str
    path: Path | None
    comparison: Comparison | None
    doubt: str


def _tuned(context: Context) -> _Tuned | None:
    """Return the best setting of this client's last study, if there is one."""
    journal = _last_journal(context)
    if journal is None:
        return None
    with journal:
        trials = [t for t in journal.trials() if t.state == "complete"]
        comparison = recorded_comparison(journal)
        identity = journal.identity
    if not trials:
        return None
    sign = 1.0 if identity["direction"] == "maximize" else -1.0
    best = max(trials, key=lambda trial: sign * trial.value)
    doubt = ""
    if len(trials) > 1 and all(trial.value == best.value for trial in trials):
        doubt = _ALL_ALIKE.format(len(trials), best.value)
    return _Tuned(
        best.params,
        best.value,
        identity["direction"],
        identity["slot"],
        identity["study_id"],
        journal.path,
        comparison,
        doubt,
    )


def recorded_comparison(journal: Journal) -> Comparison | None:
    """Return the comparison with the default that a journal keeps, if there is one."""
    array = journal.load_array(_COMPARISON)
    return None if array is None else Comparison(**from_json_array(array))


def _keep(context: Context, tuned: _Tuned, comparison: Comparison) -> None:
    """Keep a comparison in the journal, in place of an older one."""
    arrays = {_COMPARISON: to_json_array(asdict(comparison))}
    if tuned.path is not None:
        with open_patiently(None, tuned.path, _PATIENCE) as journal:
            journal.put(arrays)
        return
    record = context.state.config_records[record_name(KIND)]
    content = record["journal"]
    assert isinstance(content, bytes)
    with Journal(None, content=content) as journal:
        journal.put(arrays)
        record["journal"] = journal.to_bytes()


def _say_once(context: Context, tuned: _Tuned, level: int, said: str) -> None:
    """Log what has become of a study, once a run: not at each of many messages."""
    records, known = context.state.config_records, {"study": tuned.study_id}
    known["said"] = said
    if dict(records.get(_SAID, {})) == known:
        return
    records[_SAID] = ConfigRecord({**known})
    _log.log(level, "agent %d, on held-out data: %s", tuned.slot, said)


def _last_journal(context: Context) -> Journal | None:
    """Open the journal of this client's last study, if it is known which that is."""
    folder = configured_folder(context)
    known = context.state.config_records.get(record_name(KIND))
    if folder is None:
        content = known.get("journal") if known else None
        return Journal(None, content=content) if isinstance(content, bytes) else None
    if known:  # of this run
        slot, last = int(str(known["slot"])), str(known["study_id"])
    else:
        slot = configured_slot(context)
        if slot < 0:  # that of the folder's journals, if they are of one agent
            stems = [path.stem for path in study_journals(folder, KIND)]
            slots = {stem.rpartition("-")[2] for stem in stems}
            slots = {end for end in slots if end.isdecimal()}
            if len(slots) > 1:
                _log.warning(
                    "%s has journals of several agents, and this client does not know "
                    "which it is: give its node config an agent-id.",
                    folder,
                )
            slot = int(slots.pop()) if len(slots) == 1 else -1
        last = last_study(folder, KIND, slot)
    # Only where there is no note the folder is searched: it may be that of many agents.
    named = [study_journal(folder, KIND, last, slot)] if last else []
    paths = named or study_journals(folder, KIND, slot=slot)
    if len(paths) > 1:
        _log.warning(
            "%s has journals of several studies of agent %d, and no note which was the "
            "last: best_params gives the default. Move the others elsewhere.",
            folder,
            slot,
        )
        return None
    if last and not has_journal(paths[0]):
        _log.warning(
            "The journal of the last study, %s, is not there: best_params gives the "
            "default.",
            paths[0],
        )
        return None
    return Journal(None, paths[0]) if paths else None
