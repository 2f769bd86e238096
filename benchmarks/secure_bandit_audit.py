"""Audit of whole bandit studies with secure sums, at epsilon 1, 2 and 4.

    python -m benchmarks.secure_bandit_audit [RESULTS] [--draws 10000] [--seed 0]

Correct studies must stay within what is promised, and each planted fault must exceed
it; see `flwr_fbo.lab.audit.secure_bandit_audit`. RESULTS is a file of JSON lines, one
an audit: what is in it is not done again. It takes about ten minutes. A row a case:
promised epsilon, lower bound found, and whether that exceeds the promise.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.rows import add_rows, read_rows
from flwr_fbo.lab.audit.default_studies import secure_fed_ucb
from flwr_fbo.lab.audit.secure_bandit_audit import BLOCK_FAULTS
from flwr_fbo.lab.audit.study_audit import StreamEntropy, audit

ROWS = Path(__file__).with_suffix(".jsonl")
EPSILONS = (1.0, 2.0, 4.0)
CASES = ("correct", *BLOCK_FAULTS)


def one_audit(case: str, epsilon: float, draws: int, seed: int) -> dict[str, Any]:
    """Return what was found, and the CPU seconds it took."""
    plan = replace(secure_fed_ucb(epsilon), num_draws=draws)
    start = time.process_time()
    found = audit(plan, StreamEntropy(seed), BLOCK_FAULTS.get(case))
    return {
        "case": case,
        "epsilon": epsilon,
        "draws": draws,
        "seed": seed,
        "promised": round(found.promised.epsilon, 4),
        "at_least": round(found.epsilon_lower, 4),
        "exceeds": found.violated,
        "seconds": round(time.process_time() - start, 1),
    }


def main() -> None:
    """Audit what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("results", type=Path, nargs="?", default=ROWS)
    parser.add_argument("--draws", type=int, default=10_000, help="in either world")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    about = options.draws, options.seed
    for epsilon in EPSILONS:
        for case in CASES:
            if not _find(options.results, case, epsilon, *about):
                add_rows(options.results, [one_audit(case, epsilon, *about)])
    table = Table()
    table.add_column("case", no_wrap=True)
    for epsilon in EPSILONS:
        table.add_column(f"at least, of {epsilon:g}", justify="right")
    for case in CASES:
        cells = []
        for epsilon in EPSILONS:
            (row,) = _find(options.results, case, epsilon, *about)
            exceeds = " exceeds" if row["exceeds"] else ""
            cells.append(f"{row['at_least']:.2f}{exceeds}")
        table.add_row(case, *cells)
    Console().print(table)


def _find(
    results: Path, case: str, epsilon: float, draws: int, seed: int
) -> list[dict[str, Any]]:
    wanted = {"case": case, "epsilon": epsilon, "draws": draws, "seed": seed}
    return [row for row in read_rows(results) if wanted.items() <= row.items()]


if __name__ == "__main__":
    main()
