"""The audit of running bandits: promises, bounds, and what breaks them.

    python benchmarks/bandit_audit.py [--draws 20000] [--jobs 2] [CASE ...]

One agent with two arms in two dimensions, n = 4 releases, delta = 0.1; the reward of
the first trial is flipped. Epsilon of all releases together is 2 for the exact noise,
and 16 for the paper's, which is worth about as much. With a log it is the reward of one
of ten logged trials, which the first release includes. A row a case: what was asked
for, what the noise promises (with raw trials: for a finished table), the lower bound
found, their ratio, and the seconds it took.
"""

import argparse
import math
import time
from typing import Any

from joblib import Parallel, delayed
from rich.console import Console
from rich.table import Table

from flwr_fbo.bandits.linear.settings import LinearUCBSettings
from flwr_fbo.lab.audit.bandit_audit import BanditAuditPlan
from flwr_fbo.lab.audit.planted_faults import CONTINUAL_FAULTS
from flwr_fbo.lab.audit.study_audit import AuditResult, StreamEntropy, audit
from flwr_fbo.privacy.continual_settings import ContinualSettings
from flwr_fbo.privacy.gaussian import gaussian_epsilon

ARMS = ((1.0, 0.0), (0.0, 1.0))
DEFAULT: dict[str, Any] = {
    "mechanism": "tree",
    "epsilon": 2.0,
    "max_action_norm": 1.0,
    "calibration": "exact",
    "sliding_window": None,
    "local_data": "released",
    "actions": ARMS,
    "rewards": (1.0, -1.0),
    "fault": None,
}
LONG = {"max_action_norm": 2.0, "actions": ((2.0, 0.0), (0.0, 2.0))}
WINDOW = {"mechanism": "toeplitz", "sliding_window": 2}
PAPER = {"calibration": "paper", "epsilon": 16.0}
RAW = {"local_data": "raw", "rewards": (1.0, 1.0), "window": 10}
LOG = {"mechanism": "toeplitz", "num_logged": 10, "position": -5}
CASES: dict[str, dict[str, Any]] = {
    "exact, toeplitz": {"mechanism": "toeplitz"},
    "exact, tree": {},
    "exact, tree-honaker": {"mechanism": "tree-honaker", "position": 2},
    "exact, toeplitz, last trial": {"mechanism": "toeplitz", "position": 3},
    "exact, toeplitz, L = 2": {"mechanism": "toeplitz", **LONG},
    "exact, toeplitz, L = 2, trial": {
        "mechanism": "toeplitz",
        "change": "trial",
        **LONG,
    },
    "exact, window of 2": WINDOW,
    "exact, window of 2, second trial": {**WINDOW, "position": 1},
    "exact, log": LOG,
    "exact, log, window of 2": {**WINDOW, **LOG},
    "exact, log, L = 2, trial": {**LOG, "change": "trial", **LONG},
    "paper, tree": PAPER,
    "raw, one arm": {**RAW, "actions": ARMS[:1], "rewards": (1.0,)},
    "raw": RAW,
    "raw, paper": {**RAW, **PAPER},
    "raw, paper, 100 trials": {**RAW, **PAPER, "epsilon": 1.0, "window": 100},
    **{f"fault, {name}": {"fault": name} for name in CONTINUAL_FAULTS},
    "fault, unit-columns, window of 2": {**WINDOW, "fault": "unit-columns"},
    "fault, log-added-again, log": {**LOG, "fault": "log-added-again"},
    "fault, half-noise, log": {**LOG, "fault": "half-noise"},
    "fault, reused-noise": {"fault": "reused-noise", "position": 1},
    "fault, drawn-again": {"fault": "drawn-again", "num_requests": 4},
}


def one_audit(
    case: str, draws: int, seed: int
) -> tuple[AuditResult, ContinualSettings, float]:
    """Return what was found, the releases' settings, and the seconds it took."""
    chosen = {**DEFAULT, **CASES[case]}
    of_releases = set(ContinualSettings.__dataclass_fields__) & set(DEFAULT)
    releases = ContinualSettings(
        num_releases=4,
        dimension=2,
        delta=0.1,
        **{field: chosen.pop(field) for field in of_releases},
    )
    local_data, fault = chosen.pop("local_data"), chosen.pop("fault")
    settings = LinearUCBSettings(releases, local_data=local_data)
    plan = BanditAuditPlan(settings, num_draws=draws, **chosen)
    build = None if fault is None else CONTINUAL_FAULTS[fault]
    start = time.perf_counter()
    found = audit(plan, StreamEntropy(seed), build)
    return found, releases, time.perf_counter() - start


def main() -> None:
    """Audit, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help="; ".join(CASES))
    parser.add_argument("--draws", type=int, default=20_000, help="a side")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    cases = options.cases or list(CASES)
    workers = Parallel(n_jobs=options.jobs)
    results = workers(delayed(one_audit)(c, options.draws, options.seed) for c in cases)
    table = Table()
    table.add_column("case", no_wrap=True)
    for heading in ("epsilon", "promised", "at least", "ratio", "exceeds", "seconds"):
        table.add_column(heading, justify="right")
    for case, (found, releases, seconds) in zip(cases, results, strict=True):
        # With raw trials it is for a finished table, and what is drawn plays on.
        promised = gaussian_epsilon(releases.delta, releases.mu)
        # So little that delta alone covers it.
        ratio = math.inf if promised == 0 else found.epsilon_lower / promised
        figures = (promised, found.epsilon_lower, ratio)
        row = (f"{releases.epsilon:g}", *(f"{figure:.3f}" for figure in figures))
        exceeds = "yes" if found.epsilon_lower > promised else "no"
        table.add_row(case, *row, exceeds, f"{seconds:.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
