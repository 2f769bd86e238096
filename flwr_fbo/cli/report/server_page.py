"""The page of a study's server: from its record, and nothing of single agents on it.

What is shown is what left the server, counts, and what everybody may know: no raw sum,
no noise, no value of an objective, no setting that an agent has tried.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.pictures import BLUE
from flwr_fbo._common.text import counted, humanised
from flwr_fbo.cli.ledger_kinds import LEDGER_KINDS, LedgerKind
from flwr_fbo.cli.report import figures
from flwr_fbo.cli.report.page import (
    Figure,
    Part,
    Section,
    Table,
    bytes_text,
    journal_page,
    params_text,
)
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy.accounting import PrivacySpent
from flwr_fbo.space.search_space import SearchSpace
from flwr_fbo.strategies.study_record import (
    KIND,
    read_ledger,
)
from flwr_fbo.tuning.fed_warm_start.server import reported_in, verdict
from flwr_fbo.tuning.search.recommendation import (
    ReleasedFunction,
    released_function,
)
from flwr_fbo.tuning.search.study import TuningStudy

NOTHING_RELEASED = "Nothing was released yet."
# Points along an axis, and along the side of a map.
_NUM_POINTS, _MAP_SIDE = 101, 41
# Values of a discrete parameter that are told apart.
_MOST_DOTS = 20
_SCORE = "released score"

Rounds = Sequence[Mapping[str, Any]]


def server_page(journal: Journal) -> str:
    """Return the page of a server's journal.

    Raises
    ------
    JournalError
        If it is damaged.
    """
    identity = journal.identity
    kind = LEDGER_KINDS[str(identity["kind"])]
    stored, ledger = read_ledger(journal)
    rounds, num_agents = stored["rounds"], identity["num_agents"]
    sections = [
        _recommendation(stored["study"], ledger, identity["kind"] == KIND),
        *_verdict(stored["study"], journal.load_state()),
        _privacy(kind, identity, ledger, rounds),
        _participation(rounds, num_agents),
        _communication(kind, ledger, rounds, num_agents),
        releases_section(kind, ledger),
        Section(
            "What agents found",
            [
                "This page has no values or settings of single agents. Each site sees "
                "its own with `flwr-fbo report` on its folder."
            ],
        ),
    ]
    done = f"{len(rounds)}"
    if "num_rounds" in identity:  # not where their number is open
        done += f" of {identity['num_rounds']}"
    lead = (
        f"The server's record: {num_agents} agents, {done} rounds done, "
        f"{counted(len(ledger), 'release')}. In the ledgers of its sites it is study "
        f"{stored['study']['study_id']}."
    )
    private = all(row.facts["private"] for row in ledger)
    warning = "" if private else f"NOT PRIVATE: {kind.why_not}"
    return journal_page(
        f"Study of {kind.study}", lead, sections, journal, ledger, warning
    )


def _recommendation(
    stored: Mapping[str, Any], ledger: Sequence[LedgerRow], is_tuning: bool
) -> Section:
    """Return what the releases recommend, with a picture of their function."""
    if not is_tuning:
        return Section("Recommendation")
    study = TuningStudy.from_dict(stored)
    released = released_function(study, ledger)
    if released is None:
        return Section("Recommendation", [NOTHING_RELEASED])
    found = released.recommendation
    first: Part = (
        f"{found.purpose}: none, because {found.reason} ({found.evidence})."
        if found.params is None
        else Table(
            ("parameter", "value"),
            list(found.params.items()),
            f"{found.purpose}: {found.evidence}.",
            numeric=False,
        )
    )
    # A cross would point to a setting that is not recommended.
    is_mapped = found.params is not None and study.space.dim == 2
    maps = [score_map(study.space, released)] if is_mapped else []
    return Section("Recommendation", [first, *slices(study.space, released), *maps])


def _verdict(
    stored: Mapping[str, Any], state: Mapping[str, NDArray[Any]]
) -> list[Section]:
    """Return whether later sites gained, where sites have reported best values."""
    reported = reported_in(state)
    told = verdict(TuningStudy.from_dict(stored), reported) if reported else ""
    return [Section("Whether it helped", [f"{told}."])] if told else []


def slices(space: SearchSpace, released: ReleasedFunction) -> list[str | Figure]:
    """Return a chart of the released function along each axis, through its best.

    The parameters that matter most come first.
    """
    curves = {}
    for index, name in enumerate(space.distributions):
        positions, numbers = _along(space, index, _NUM_POINTS)
        x = np.tile(released.best, (len(positions), 1))
        x[:, index] = positions
        curves[name] = numbers, released.function(x)
    order = sorted(curves, key=lambda name: -np.ptp(curves[name][1]))
    best, threshold = space.from_unit(released.best), released.recommendation.threshold
    all_scores = np.concatenate([scores for _, scores in curves.values()])
    levels = np.append(all_scores, [] if threshold is None else threshold)
    margin = 0.05 * np.ptp(levels) or 1.0

    def chart(index: int, name: str) -> Figure:
        def draw(axes: Any) -> None:
            style = ".:" if len(curves[name][0]) <= _MOST_DOTS else "-"
            axes.plot(*curves[name], style, color=BLUE)
            # One scale for all: what hardly matters looks flat.
            axes.set_ylim(levels.min() - margin, levels.max() + margin)
            if threshold is not None:
                label = "chance and noise reach this in 5 % of studies"
                axes.axhline(threshold, color="#7f7f7f", ls="--", lw=1, label=label)

        caption = (
            f"Chart of the released score against {name}; all other parameters have "
            f"their best values. It is highest at {params_text({name: best[name]})}."
        )
        labels = (name, space.distributions[name]), _SCORE
        return figures.chart(f"slice-{index}", caption, labels, draw)

    shown = [chart(*item) for item in enumerate(order[: figures.MOST_SHOWN])]
    return [*shown, *figures.left_out(order)]


def score_map(space: SearchSpace, released: ReleasedFunction) -> Figure:
    """Return a map of the released function of two parameters."""
    (rows, y), (columns, x) = (_along(space, index, _MAP_SIDE) for index in (1, 0))
    points = np.stack(np.meshgrid(columns, rows), axis=-1)
    values = released.function(points.reshape(-1, 2)).reshape(points.shape[:2])
    best = space.from_unit(released.best)
    across, up = space.distributions.items()

    def draw(axes: Any) -> None:
        shades = axes.contourf(x, y, values, levels=10, cmap="Blues")
        axes.figure.colorbar(shades, ax=axes, label=_SCORE)
        here = (figures.number_of(best[name], kind) for name, kind in (across, up))
        # White with a dark edge: seen on all shades.
        axes.plot(*here, "X", ms=11, color="#ffffff", mec="#1b1b1b", clip_on=False)

    caption = (
        f"Map of the released score over {across[0]} and {up[0]}, dark where it is "
        f"high. The cross marks the highest score, at {params_text(best)}."
    )
    return figures.chart("map", caption, (across, up), draw)


def _along(
    space: SearchSpace, index: int, num_points: int
) -> tuple[FloatArray, FloatArray]:
    """Return positions along one axis of the cube, and the parameter's numbers there.

    Each value of a discrete axis is there once.
    """
    points = np.tile(space.center, (num_points, 1))
    points[:, index] = np.linspace(0.0, 1.0, num_points)
    points = np.unique(space.snap_discrete(points), axis=0)
    name = list(space.distributions)[index]
    values = [space.from_unit(point)[name] for point in points]
    numbers = [figures.number_of(value, space.distributions[name]) for value in values]
    return points[:, index], np.array(numbers)


def _privacy(
    kind: LedgerKind,
    identity: Mapping[str, Any],
    ledger: list[LedgerRow],
    rounds: Rounds,
) -> Section:
    spent = kind.spent(identity, ledger) if ledger else None
    condition = kind.condition(identity, ledger)
    lines = spent_lines(spent, kind.whose, condition, ledger)
    course = [r["epsilon"] for r in rounds]
    known = np.array([math.nan if e is None else float(e) for e in course])
    if spent is None or not np.isfinite(known).any():
        return Section("Privacy", lines)
    caption = (
        f"Chart of epsilon spent against round, at delta = {spent.delta:g}; "
        f"{spent.epsilon:.4g} in the end{condition}."
    )
    figure = figures.by_round("privacy", caption, "epsilon spent", known)
    return Section("Privacy", [*lines, figure])


def spent_lines(
    spent: PrivacySpent | None,
    whose: str,
    condition: str,
    ledger: Sequence[LedgerRow],
) -> list[str]:
    """Say what the releases have spent, or why there is no epsilon."""
    if spent is not None:
        return [spent_in_words(spent, whose, condition)]
    return [
        "There is no epsilon: the releases have no privacy guarantee."
        if ledger
        else NOTHING_RELEASED
    ]


def spent_in_words(spent: PrivacySpent, whose: str, condition: str) -> str:
    """Return what was spent as a sentence."""
    epsilon = "infinite" if math.isinf(spent.epsilon) else f"{spent.epsilon:.4f}"
    releases = counted(spent.num_releases, "release")
    return (
        f"{releases}{whose}: epsilon = {epsilon} at delta = {spent.delta:g} "
        f"({spent.accounting_method}){condition}."
    )


def _participation(rounds: Rounds, num_agents: int) -> Section:
    if not rounds:
        return Section("Participation", ["No round is done yet."])
    answered = np.array([float(r["answered"]) for r in rounds])
    caption = (
        f"Chart of how many of the {num_agents} agents answered, by round: "
        f"{answered.mean():.1f} on average, {answered.min():.0f} at least."
    )
    figure = figures.by_round("participation", caption, "agents", answered, whole=True)
    names = ("answered", "failed", "late", "absent")
    row = ("all rounds", *(sum(r[name] for r in rounds) for name in names))
    table = Table(("", *names), [row], "Answers of agents, in all rounds.")
    return Section("Participation", [figure, table])


def _communication(
    kind: LedgerKind, ledger: Sequence[LedgerRow], rounds: Rounds, num_agents: int
) -> Section:
    if kind.lengths is None:
        line = "The server passes messages on and keeps none: they are not counted."
        return Section("Communication", [line])
    if not ledger or not rounds:
        return Section("Communication")
    sent = np.zeros(len(rounds))
    for row in ledger:
        up, down = kind.lengths(row)
        made_in = row.made_after
        if made_in < len(rounds):
            sent[made_in] += up * rounds[made_in]["answered"]
        if made_in + 1 < len(rounds):  # the next round brings it to all
            sent[made_in + 1] += down * num_agents
    total = np.cumsum(sent)
    words = f"{humanised(total[-1])} numbers, {bytes_text(total[-1])}"
    caption = f"Chart of numbers sent so far against round; {words} in the end."
    line = (
        "By agents and server together, 8 bytes a number. Enrolment, what Flower adds "
        "to a message, and messages that are sent again, are not counted."
    )
    figure = figures.by_round("communication", caption, "numbers sent", total)
    return Section("Communication", [line, figure])


def releases_section(kind: LedgerKind, ledger: Sequence[LedgerRow]) -> Section:
    """Return a section of all releases, as ``flwr-fbo ledger show`` has them."""
    if not ledger:
        return Section("Releases", [NOTHING_RELEASED])
    caption = "What has left the server, from its ledger."
    rows = [kind.cells(row) for row in ledger]
    return Section("Releases", [Table(kind.headings, rows, caption)])
