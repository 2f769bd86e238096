"""Variants of the tuner's halving, replayed at 20 clients, on old and on new tasks.

    python -m benchmarks.halving_variants FILE ... [--draws 1000] [--tables partial]

FILEs are those of ``benchmarks/trained``. In a draw 20 clients and 16 trials of a task
are drawn, the app's defaults among them, and halving is replayed as `FederationTuner`
decides it, without a margin of the defaults. The figure is the loss of test
accuracy of the chosen trial against the best of the file's. All variants share draws
and noise; a difference is a mean over these pairs, by task, and then over tasks.

The tasks ``digits-20``, ``digits-100``, ``har`` and ``writers`` are those on which the
half was chosen that is carried. ``magic`` and ``shuttle`` are new: nothing was chosen
on them. Endpoints, written down before any of their trials was replayed, all at epsilon
2, delta 1e-3, in the mean over the two new tasks, where the best score is chosen:

- *Carried scores*: rung r > 1 is decided by its released scores plus half of those that
  rung r - 1 released, compared with its released scores alone. Better: the mean
  difference of loss is below 0, and twice its standard error does not reach .0005. It
  is adopted then; otherwise it is not.
- *Two rungs*: ``Halving(18, (3, 27))``, which takes 102 trial-rounds, compared with
  ``Halving(16, (3, 9, 27))``, which takes 114; both carry. No worse: the mean
  difference plus twice its standard error is at most .001.
- *Partial ballots*: in each round a trial is evaluated at a share of .1, .5 or 1 of the
  clients, drawn anew. A ballot is about the trials that its client has evaluated so
  far, whenever that was, by their scores at the end of the rung. It is scaled (today's
  form), or as large as a full one (unscaled: of norm 1), or that and clipped to the
  entries of a full one. Another form is adopted if at .1 its loss is lower by twice the
  standard error, and is not higher, by the same measure, at any share and under any
  lie. A third of the clients lies together: they reverse their scores, do what they
  can for the worst trial, or have no finite score. Whatever was evaluated where, a liar
  sends what its message allows at most.
- *Compounded* and *ties*, written down after the above was replayed, and before these
  were on a new task: rungs are decided with half of the scores that *decided* the rung
  before, compared with half of those that it *released*; and trials that tie at a
  client share the mean of their entries, compared with an order that is drawn. On the
  old tasks both were better (-.0002 and -.0004 at epsilon 2; ties -.0010 at epsilon 8).
  Each is adopted if on the new ones the mean difference plus twice its standard error
  is at most .0005.
- *Filled*, written down after the above was replayed, and before this was on a new
  task: a ballot on a part, clipped to the entries of a full one, whose remainder the
  other trials share, so that it sums to zero, as the count of clients without scores
  needs. It is adopted by the rule for partial ballots. A liar can say no more of a
  trial than before.
- *Bars*: the loss is within .001 of that of exact means, and with a third lying at most
  .02, on each task, old and new. The rule with a margin of the defaults is printed
  beside it.

Found, in the mean over the new tasks, with standard errors: carried scores -.0002
(.0001), compounded -.0001 (.0000) more, ties shared -.0001 (.0000): adopted. Two rungs
+.0001 (.0001), so no worse. Filled ballots at a share of .1: -.0012 (.0002)
where all are honest, -.0102 (.0015), -.0072 (.0014) and -.0017 (.0003) under the lies,
and no difference at .5: adopted. They replace the clipped ones, which passed as well,
but do not sum to zero. Full ballots gain more: -.0032 at .1. Carrying exact means, too,
was better on three old tasks and worse on ``har`` (+.0009): they are not carried.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from benchmarks.choice_methods import (
    DELTA,
    METHODS,
    Design,
    Method,
    Question,
    chooser_of,
    worst_ballot,
)
from benchmarks.how_sure import EPSILONS
from benchmarks.tune_fedavg import (
    SCHEDULE,
    Decide,
    Trials,
    climb,
    drawn,
    read_trials,
)
from flwr_fbo import Halving, PrivateChoice
from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.tuner.ballots.rank_ballots import (
    ballot_entries,
    capped,
    make_ballot,
    no_scores,
)
from flwr_fbo.tuner.decisions.survivors import decision_scores

NUM_CLIENTS, NEW = 20, ("magic", "shuttle")
RANKS = METHODS["ranks (ours)"]
TWO_RUNGS = Halving(18, (3, 27))

# The tuner's, that before it, and one without bounds but the norm.
Form = Literal["filled", "scaled", "unscaled"]
Lie = Literal["honest", "reversed", "for the worst", "NaN"]


def partial_ballot(scores: FloatArray, is_scored: Any, form: Form) -> FloatArray:
    """Return a ballot about the trials that a client has scored."""
    if form == "filled":
        return make_ballot(scores, is_scored)
    own = scores[is_scored]
    entries = make_ballot(own, np.full(len(own), True))
    if form == "scaled" and entries.any():
        lowest, *_, highest = ballot_entries(len(scores))
        scale = min(lowest / entries.min(), highest / entries.max(), 1.0)
        entries = np.clip(scale * entries, lowest, highest)
    ballot = np.zeros(len(scores))
    ballot[is_scored] = entries
    return ballot


def passed(ballot: FloatArray, form: Form) -> FloatArray:
    """Return what the server lets pass of a ballot."""
    clipped: FloatArray = capped(ballot, len(ballot))
    return ballot if form == "unscaled" else clipped


def lying_ballot(
    scores: FloatArray, accuracies: FloatArray, form: Form, lie: Lie
) -> FloatArray:
    """Return a liar's ballot, about all trials: as far as the server lets it pass."""
    if lie == "NaN":
        return no_scores(len(scores))
    if lie == "reversed":
        return make_ballot(-scores, np.full(len(scores), True))
    if form != "unscaled":
        return worst_ballot(ballot_entries(len(accuracies)), accuracies)
    # Nothing bounds an entry but the norm.
    ballot = np.zeros(len(scores))
    ballot[np.argsort(accuracies)[[0, -1]]] = 0.5**0.5, -(0.5**0.5)
    return ballot


def by_partial_ballots(
    form: Form, share: float, lie: Lie, design: Design, asked: Question
) -> LedgerRow:
    """Compare by ballots on trials that a share of the clients evaluates a round."""
    choice = PrivateChoice(design.epsilon, DELTA)
    chooser = chooser_of(choice, design.num_clients, asked.num_rungs, asked.seed)
    num_rounds = SCHEDULE.rungs[asked.rung].rounds
    is_missed = asked.rng(6).random(asked.scores.shape) < (1 - share) ** num_rounds
    ballots: dict[int, Any] = {}
    for client, scores in enumerate(asked.scores):
        if client < design.num_liars:
            ballot = lying_ballot(scores, asked.accuracies, form, lie)
        else:
            ballot = partial_ballot(scores, ~is_missed[client], form)
        ballots[client] = passed(ballot, form)
    release = chooser.release(asked.num_trials)
    released = release.release(asked.rung, ballots, asked.num_trials)[0]
    facts = {**release.facts(asked.rung), "num_ballots": len(ballots)}
    return LedgerRow(asked.rung, {"mechanism": "gaussian", **facts}, released)


def with_drawn_ties(design: Design, asked: Question) -> LedgerRow:
    """Compare by ballots of clients that put trials which tie in a random order."""
    drawn_order = 1e-9 * asked.rng(7).random(asked.scores.shape)
    return RANKS(design, replace(asked, scores=asked.scores + drawn_order))


def alone(rows: Sequence[LedgerRow]) -> FloatArray:
    """Return what the last rung released: nothing is carried."""
    scores: FloatArray = rows[-1].vectors
    return scores


def not_compounded(rows: Sequence[LedgerRow]) -> FloatArray:
    """Return what the last rung released, plus half of what the one before did."""
    return decision_scores(rows[-2:])


@dataclass(frozen=True)
class Variant:
    """A way to tune.

    Attributes
    ----------
    method : callable
    epsilon : float
    schedule : Halving
    decide : callable
        By what a rung is decided, without the margin of the defaults.
    has_liars : bool
        Whether a third of the clients lies.
    has_defaults : bool
        Whether the defaults have a margin.
    """

    method: Method = RANKS
    epsilon: float = 2.0
    schedule: Halving = SCHEDULE
    decide: Decide = decision_scores
    has_liars: bool = False
    has_defaults: bool = False

    def loss(self, trials: Trials, seed: int) -> float:
        """Return the loss of test accuracy in a draw."""
        one = drawn(trials, NUM_CLIENTS, self.schedule.trials, seed)
        assert one is not None
        num_liars = NUM_CLIENTS // 3 if self.has_liars else 0
        design = Design(NUM_CLIENTS, self.schedule.trials, self.epsilon, num_liars)
        about = one, self.schedule, design, self.method, seed, self.has_defaults
        best = climb(*about, self.decide).best
        return float(trials.test[-1].max() - one.test[-1][best])


# Of a variant, in the draws of a task, by its number.
Losses = Callable[[Variant, int], FloatArray]

# A name, a variant, and what is subtracted.
Row = tuple[str, Variant, Variant | None]


def carried_rows() -> Iterator[tuple[str, list[Row]]]:
    """Return title and rows of what is carried, and of ties."""
    exact = Variant(METHODS["no noise"])
    rows: list[Row] = [("exact means", exact, None)]
    for epsilon in EPSILONS:
        one = Variant(epsilon=epsilon)
        rows += [
            (f"epsilon {epsilon:g}", one, None),
            ("less nothing carried", one, replace(one, decide=alone)),
            ("less not compounded", one, replace(one, decide=not_compounded)),
            ("less ties drawn", one, replace(one, method=with_drawn_ties)),
            ("less exact means", one, exact),
            ("with the margin", replace(one, has_defaults=True), None),
        ]
    yield "carried scores and ties", rows


def rung_rows() -> Iterator[tuple[str, list[Row]]]:
    """Return title and rows of schedules."""
    rows: list[Row] = []
    for rule, three in (
        ("best score", Variant()),
        ("with the margin", Variant(has_defaults=True)),
    ):
        two = replace(three, schedule=TWO_RUNGS)
        rows.append((f"3, 27, {rule}", two, None))
        rows.append(("less 3, 9, 27", two, three))
    yield "two rungs", rows


def partial_rows() -> Iterator[tuple[str, list[Row]]]:
    """Return titles and rows of partial ballots, honest and not."""
    for lie in get_args(Lie):
        rows: list[Row] = []
        for share in (0.1, 0.5, 1.0):
            # Of full ballots all forms are the same, but for what liars may say.
            for form in get_args(Form):
                method = _partial(form, share, lie)
                one = Variant(method, has_liars=lie != "honest")
                scaled = replace(one, method=_partial("scaled", share, lie))
                rows.append((f"{share:g}, {form}", one, None))
                if form != "scaled":
                    rows.append(("less scaled", one, scaled))
        yield f"partial ballots, {lie}", rows


TABLES = {"carried": carried_rows, "rungs": rung_rows, "partial": partial_rows}


def _cell(found: Sequence[FloatArray]) -> str:
    errors = [one.std(ddof=1) / len(one) ** 0.5 for one in found]
    error = float(np.linalg.norm(errors)) / len(found)
    return f"{np.mean(found):.5f} ({error:.5f})"


def print_table(
    title: str,
    rows: Sequence[Row],
    names: Sequence[str],
    losses: Losses,
) -> None:
    """Print losses, or differences of two, by task, and means over old and new."""
    print(f"\n| {title} | {' | '.join(names)} | old | new |")
    print("| --- |" + " --- |" * (len(names) + 2))
    for name, variant, other in rows:
        found = [
            losses(variant, task) - (0.0 if other is None else losses(other, task))
            for task in range(len(names))
        ]
        old = [one for one, task in zip(found, names, strict=True) if task not in NEW]
        new = [one for one, task in zip(found, names, strict=True) if task in NEW]
        cells = [[one] for one in found] + [old, new]
        told = [_cell(one) if one else "" for one in cells]
        print(f"| {name} | {' | '.join(told)} |", flush=True)


def main() -> None:
    """Print a table for each of the endpoints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES)
    asked = parser.parse_args()
    tasks = [read_trials(path) for path in asked.files]
    names = [trials.task for trials in tasks]

    @cache
    def losses(variant: Variant, task: int) -> FloatArray:
        found = [variant.loss(tasks[task], seed) for seed in range(asked.draws)]
        return np.array(found)

    for name in asked.tables:
        for title, rows in TABLES[name]():
            print_table(title, rows, names, losses)


@cache
def _partial(form: Form, share: float, lie: Lie) -> Method:
    return partial(by_partial_ballots, form, share, lie)


if __name__ == "__main__":
    main()
