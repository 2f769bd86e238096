"""What a release of a secure bandit costs a site and the server, beside today's.

    python -m benchmarks.secure_blocks [RESULTS] [--repeats 3]

*In clear*: each of 50 sites adds the whole noise to its own running sum and sends it,
8 bytes a number; the server adds them up. *Secure*: each site adds its share to its
block, five signed exchanges sum them under masks, and the server sees the total. A
site's figures are those of the median site. Times are CPU times of one process, the two
ways in turn; bytes are those of arrays, in both directions. Journals are in memory.
RESULTS is a file of JSON lines, one a dimension. It takes about two minutes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.rows import add_rows
from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.journal.journal import Journal
from flwr_fbo.privacy.continual import ContinualRelease
from flwr_fbo.privacy.continual_settings import ContinualSettings
from flwr_fbo.privacy.noise import OsEntropy
from flwr_fbo.secure import (
    Roster,
    SecureAggregation,
    SigningKey,
    SumIdentity,
    SumRequest,
)
from flwr_fbo.secure.collector import SecureCollector

ROWS = Path(__file__).with_suffix(".jsonl")
DIMENSIONS, NUM_SITES, NUM_TRIALS, NUM_RELEASES = (10, 50, 100), 50, 250, 8
# Sites of the first way that are timed: the others would take as long.
NUM_TIMED = 10
FIGURES = ("site_ms", "site_kb", "server_ms")


def in_clear(sums: Sequence[FloatArray]) -> list[float]:
    """Return what a release costs where each site adds its own noise."""
    settings = ContinualSettings(NUM_RELEASES, len(sums[0]) - 1, 4.0, 1e-5)
    entropy, site, sent = OsEntropy(), [], []
    for total in sums[:NUM_TIMED]:
        mechanism = ContinualRelease(settings, entropy)
        began = time.process_time()
        sent.append(mechanism.release(1, total))
        site.append(time.process_time() - began)
    sent += [sent[0]] * (len(sums) - len(sent))
    began = time.process_time()
    np.sum(sent, axis=0)
    server = time.process_time() - began
    return [_ms(np.median(site)), sent[0].nbytes / 1e3, _ms(server)]


class SecureSites:
    """Sites with keys and a roster, and a server that has them sum blocks."""

    def __init__(self, dimension: int) -> None:
        settings = ContinualSettings(
            NUM_RELEASES, dimension, 4.0, 1e-5, mechanism="blocks"
        )
        keys = [SigningKey.draw() for _ in range(NUM_SITES)]
        roster = Roster.draw({slot: key.public for slot, key in enumerate(keys)})
        self._who = [SumIdentity(key, roster) for key in keys]
        self._journals = [Journal({"slot": slot}) for slot in range(NUM_SITES)]
        groups = SecureAggregation().collector([range(NUM_SITES)]).groups
        self._server = SecureCollector(groups, roster)
        self._sums = self._server.block_sums(settings, NUM_TRIALS)
        self._release = 0

    def release(self, blocks: Sequence[FloatArray]) -> list[float]:
        """Return what a release costs."""
        self._release += 1
        site, size = np.zeros(NUM_SITES), np.zeros(NUM_SITES)

        def ask(requests: Sequence[SumRequest]) -> dict[int, Any]:
            replies = {}
            for one in requests:
                slot, began = one.slot, time.process_time()
                replies[slot] = self._who[slot].reply(
                    self._journals[slot],
                    self._sums,
                    one,
                    partial(blocks.__getitem__, slot),
                )
                site[slot] += time.process_time() - began
                size[slot] += one.payload.nbytes + replies[slot].nbytes
            return replies

        began = time.process_time()
        summed = self._server.collect(
            self._sums, "study", self._release, ask=ask, keep=lambda: None
        )
        assert summed is not None, self._server.failure
        self._sums.noise(0).decode(summed.total)
        server = time.process_time() - began - site.sum()
        return [_ms(np.median(site)), float(np.median(size)) / 1e3, _ms(server)]


def _ms(seconds: Any) -> float:
    return 1e3 * float(seconds)


def row_of(dimension: int, repeats: int) -> dict[str, Any]:
    """Return the medians of both ways, measured in turn, and their ratios."""
    rng = np.random.default_rng(0)
    blocks = []
    settings = ContinualSettings(8, dimension, 4.0, 1e-5, mechanism="blocks")
    for _ in range(NUM_SITES):
        actions = rng.standard_normal((NUM_TRIALS, dimension))
        actions /= np.linalg.norm(actions, axis=1, keepdims=True)
        blocks.append(settings.gram(actions, rng.uniform(-1, 1, NUM_TRIALS)))
    sites = SecureSites(dimension)
    found: dict[str, list[list[float]]] = {"clear": [], "secure": []}
    for _ in range(repeats + 1):
        found["clear"].append(in_clear(blocks))
        found["secure"].append(sites.release(blocks))
    # Without the first one, which warms up.
    clear, secure = (np.median(costs[1:], axis=0) for costs in found.values())
    row: dict[str, Any] = {"dimension": dimension, "sites": NUM_SITES}
    for i, name in enumerate(FIGURES):
        row |= {
            f"clear_{name}": round(float(clear[i]), 3),
            f"secure_{name}": round(float(secure[i]), 3),
            f"ratio_{name}": round(float(secure[i] / clear[i]), 2),
        }
    return row


def main() -> None:
    """Measure, add the rows, and print them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("results", type=Path, nargs="?", default=ROWS)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    rows = [row_of(dimension, options.repeats) for dimension in DIMENSIONS]
    options.results.unlink(missing_ok=True)
    add_rows(options.results, rows)
    table = Table("d", *FIGURES)
    for row in rows:
        cells = (
            f"{row[f'secure_{n}']:.3g} of {row[f'clear_{n}']:.3g}, "
            f"x {row[f'ratio_{n}']:.3g}"
            for n in FIGURES
        )
        table.add_row(str(row["dimension"]), *cells)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
