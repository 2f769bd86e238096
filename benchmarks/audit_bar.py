"""The bar of the privacy audit: planted faults found, and promises never exceeded.

    python benchmarks/audit_bar.py RESULTS [--jobs 2] [--draws 10000] [CASE ...]

Each of 13 planted faults in 10 audits, and correct studies of every strategy in 20, all
with the default studies of `flwr-fbo audit` and seeded noise. Those of `flwr-fbo audit
--secure` are named ``secure-STUDY``. RESULTS is a file of JSON lines, one an audit:
what is in it is not done again. Other cases, by name only: all other faults, as
``STUDY:FAULT``, and ``STUDY:system``, correct studies with the system's entropy, as the
command draws them. ``STUDY/1`` is the study with messages that flip, and of `FedUCB` a
finished table. A row a case: the promise, the lower bounds found, in how many audits
they exceed it, and CPU seconds an audit.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from rich.console import Console
from rich.table import Table

from benchmarks.rows import add_rows, read_rows
from flwr_fbo.lab.audit.default_studies import SECURE_STUDIES, STUDIES
from flwr_fbo.lab.audit.secure_audit import SECURE_FAULTS
from flwr_fbo.lab.audit.study_audit import StreamEntropy, audit
from flwr_fbo.privacy.noise import OsEntropy

# The plans of `flwr-fbo audit`; of a study's others, which flip or act on their own
# trials, the names are ``STUDY/1`` and ``STUDY/2``.
ALL_STUDIES = {
    f"{prefix}{name}{f'/{number}' if number else ''}": make
    for prefix, studies in (("", STUDIES), ("secure-", SECURE_STUDIES))
    for name, makes in studies.items()
    for number, make in enumerate(makes)
}
# Each fault where it shows, in the study that is fastest.
FAULTY = (
    "FedVote:reused-noise",
    "FedVote:correlated-noise",
    "FedVote:noise-once",
    "DPFTSDE:mask-in-low-bits",
    "FedVote:presence-in-low-bits",
    "FedVote:sensitivity-over-sqrt-2",
    "FedUCB:reused-noise",
    "FedUCB:drawn-again",
    *(f"secure-FedVote:{fault}" for fault in SECURE_FAULTS),
)
CORRECT = tuple(f"{study}:correct" for study in ALL_STUDIES if "/" not in study)
NUM_AUDITS = {**dict.fromkeys(FAULTY, 10), **dict.fromkeys(CORRECT, 20)}


def one_audit(case: str, draws: int, seed: int) -> dict[str, Any]:
    """Return what was found, and the CPU seconds it took."""
    study, _, kind = case.partition(":")
    plan = replace(ALL_STUDIES[study](), num_draws=draws)
    entropy = OsEntropy() if kind == "system" else StreamEntropy(seed)
    correct = kind in ("correct", "system")
    start = time.process_time()
    found = audit(plan, entropy, None if correct else plan.faults[kind])
    return {
        "case": case,
        "draws": draws,
        "seed": seed,
        "promised": found.promised.epsilon,
        "at_least": found.epsilon_lower,
        "test": str(found.test),
        "seconds": time.process_time() - start,
    }


def main() -> None:
    """Audit what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("results", type=Path, metavar="RESULTS")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(NUM_AUDITS))
    parser.add_argument("--audits", type=int, help="of each case; 10 and 20")
    parser.add_argument("--draws", type=int, default=10_000, help="in either world")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    cases = options.cases or list(NUM_AUDITS)
    counts = {c: options.audits or NUM_AUDITS.get(c, 10) for c in cases}
    done = {
        (row["case"], row["seed"])
        for row in read_rows(options.results)
        if row["draws"] == options.draws
    }
    # Seed by seed, so that a part of the bar has a part of each case.
    wanted = [(c, s) for s in range(max(counts.values())) for c in cases]
    missing = [
        delayed(one_audit)(case, options.draws, seed)
        for case, seed in wanted
        if seed < counts[case] and (case, seed) not in done
    ]
    workers = Parallel(n_jobs=options.jobs, return_as="generator_unordered")
    for row in workers(missing):
        add_rows(options.results, [row])
    rows = [r for r in read_rows(options.results) if r["draws"] == options.draws]
    Console().print(_table(cases, rows))


def _table(cases: list[str], rows: list[dict[str, Any]]) -> Table:
    table = Table()
    table.add_column("case", no_wrap=True)
    for heading in ("promised", "lowest", "mean", "highest", "exceeding", "CPU s"):
        table.add_column(heading, justify="right")
    for case in cases:
        mine = [row for row in rows if row["case"] == case]
        found = np.array([row["at_least"] for row in mine])
        promised = mine[0]["promised"]
        bounds = (promised, found.min(), found.mean(), found.max())
        exceeding = f"{(found > promised).sum()} of {len(found)}"
        seconds = np.mean([row["seconds"] for row in mine])
        figures = (f"{figure:.3f}" for figure in bounds)
        table.add_row(case, *figures, exceeding, f"{seconds:.0f}")
    return table


if __name__ == "__main__":
    main()
