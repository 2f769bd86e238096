"""The bar of the privacy audit: the correct mechanism 20 times, every fault 20 times.

    python benchmarks/audit_bar.py [--audits 20] [--draws 200000] [--jobs 2] [CASE ...]

One release with q = 0.35 and the noise multiplier that gives epsilon = 1 at delta =
1e-3. A row a case: the lower bounds found, in how many audits they exceed 1, and the
seconds that one audit took.
"""

import argparse
import time

import numpy as np
from joblib import Parallel, delayed

from flwr_fbo.audit.planted_faults import FAULTS
from flwr_fbo.audit.release_audit import AuditPlan, StreamEntropy, audit
from flwr_fbo.privacy.release import Release, ReleaseSettings

# 0.9998 at delta = 1e-3, q = 0.35 by dp-accounting's PLD.
EPSILON, NOISE_MULTIPLIER = 1.0, 1.43

# Agents, sub-regions and fault. The faults of the last need what they stand with.
CASES = {
    "correct": (2, 1, None),
    **{name: (2, 1, name) for name in FAULTS},
    "bare-empty-sample": (1, 1, "bare-empty-sample"),
    "correct-4-regions": (8, 4, None),
    "uniform-sensitivity": (8, 4, "uniform-sensitivity"),
}


def one_audit(case: str, draws: int, seed: int) -> tuple[float, float]:
    """Return the lower bound found, and the seconds it took."""
    num_agents, num_sub_regions, fault = CASES[case]
    settings = ReleaseSettings(
        num_agents, num_sub_regions, noise_multiplier=NOISE_MULTIPLIER
    )
    plan = AuditPlan(settings, delta=1e-3, num_draws=draws)
    build = Release if fault is None else FAULTS[fault]
    start = time.perf_counter()
    found = audit(plan, StreamEntropy(seed), build).epsilon_lower
    return found, time.perf_counter() - start


def main() -> None:
    """Audit, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--audits", type=int, default=20)
    parser.add_argument("--draws", type=int, default=200_000, help="a side")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    row = "{:20} {:>7} {:>7} {:>7}  {:>9} {:>8}"
    heading = ("case", "lowest", "mean", "highest", "exceeding", "seconds")
    print(row.format(*heading), flush=True)
    workers = Parallel(n_jobs=options.jobs)
    for case in options.cases or CASES:
        tasks = (
            delayed(one_audit)(case, options.draws, s) for s in range(options.audits)
        )
        found, seconds = np.array(workers(tasks)).T
        exceeding = f"{(found > EPSILON).sum()} of {len(found)}"
        bounds = (f"{x:.3f}" for x in (found.min(), found.mean(), found.max()))
        print(row.format(case, *bounds, exceeding, f"{seconds.mean():.0f}"), flush=True)


if __name__ == "__main__":
    main()
