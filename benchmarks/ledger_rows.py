"""CPU time of a site's message against the number of charges in its ledger.

    python -m benchmarks.ledger_rows

A site with limits and a folder of its own is asked for 15 messages of one study. Its
ledger has 0, 100, 1,000 and 5,000 charges of studies that ended before, 25 of each; of
every fifth study with sampling. Printed is the median CPU time of a message, with the
receipt of its server, and that of an enrolment, in the same run.

Written down before the runs: a message takes at most 50 ms more with 5,000 charges than
with none.
"""

from __future__ import annotations

import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, RecordDict, UserConfig
from optuna.distributions import FloatDistribution

from flwr_fbo import Limits
from flwr_fbo._common.arrays import one_blas_thread
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy.spending_ledger import (
    MARK,
    Charge,
    Promise,
    SpendingLedger,
    charge_facts,
)
from flwr_fbo.site.proofs import FolderNote, newest_of
from flwr_fbo.site.receipts import Mark, ReceiptBook, fresh_head, read_mark
from flwr_fbo.space.search_space import SearchSpace
from flwr_fbo.study.codec import RECEIPT_ENTRY
from flwr_fbo.tuning.dp_fts_de.settings import DPFTSDESettings
from flwr_fbo.tuning.search.study import TuningInstruction, TuningStudy
from flwr_fbo.tuning.site.tuning_site import TuningSite

NUM_CHARGES = (0, 100, 1_000, 5_000)
NUM_MESSAGES, NUM_RELEASES = 15, 25
MOST_MORE = 0.05
LIMITS = Limits(max_epsilon_per_client=1e3, max_delta=1e-3)
AGENT = DPFTSDESettings(num_initial=2, num_features=10, num_candidates=20)
SPACE = SearchSpace({"x": FloatDistribution(0, 1)})


def fill(folder: Path, num_charges: int) -> None:
    """Charge a site for so many releases of studies that ended."""
    rows = []
    for number in range(num_charges):
        study, release = divmod(number, NUM_RELEASES)
        charge = Charge(40.0, 0.5) if study % 5 == 0 else Charge(40.0)
        promised = [replace(charge, num_releases=NUM_RELEASES)]
        key = TuningInstruction.kind, f"study-{study}"
        facts = charge_facts(key, release + 1, charge, 0, 1e-3, promised)
        facts[MARK] = [release + 1, fresh_head()]
        rows.append(LedgerRow(number, facts, np.zeros(0)))
    with SpendingLedger.held(folder) as ledger:
        ledger.journal.change_state({}, [], rows)
    with SpendingLedger.held(folder) as ledger:
        FolderNote(folder).keep(newest_of(ledger))


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the CPU time of some work, and what it gave."""
    began = time.process_time()
    found = work()
    return time.process_time() - began, found


@one_blas_thread
def reading(folder: Path, num_charges: int) -> tuple[float, float]:
    """Return the CPU seconds of a message and of an enrolment."""
    fill(folder, num_charges)
    promise = Promise((Charge(60.0, 1.0, NUM_MESSAGES),), private=True, delta=1e-3)
    study = TuningStudy(SPACE, "maximize", AGENT, 1, 2, "now", promise)
    site = TuningSite(
        lambda _: lambda trial: trial.suggest_float("x", 0, 1), limits=LIMITS
    )
    node: UserConfig = {"agent-id": 0, "fbo-folder": str(folder)}

    def ask(config: dict[str, Any]) -> Any:
        return site.answer(Context(1, 1, {**node}, RecordDict(), {}), [], config)

    key = TuningInstruction.kind, study.study_id
    enrolment, _ = seconds(lambda: ask(study.enrolment()))
    book, messages = ReceiptBook(key, promise), []
    for release in range(1, NUM_MESSAGES + 1):
        asked = TuningInstruction(
            "round", study, 0, release - 1, release=release
        ).to_config()
        if receipt := book.receipt(0):
            asked[RECEIPT_ENTRY] = receipt
        spent, answer = seconds(partial(ask, asked))
        assert answer.arrays
        mark = read_mark(answer.metrics)
        assert mark != Mark()
        book.note(0, mark, [release])
        book.commit()
        messages.append(spent)
    return statistics.median(messages), enrolment


def main() -> int:
    """Print both times for each number of charges; return whether the bar failed."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    found = {}
    print("charges   message   enrolment")
    for num_charges in NUM_CHARGES:
        with tempfile.TemporaryDirectory() as folder:
            found[num_charges], enrolment = reading(Path(folder), num_charges)
        message, first = found[num_charges] * 1e3, enrolment * 1e3
        print(f"{num_charges:7,}{message:7.1f} ms{first:9.1f} ms")
    more = found[max(NUM_CHARGES)] - found[0]
    most = f"at most {MOST_MORE * 1e3:g}"
    print(f"{more * 1e3:.1f} ms more with {max(NUM_CHARGES):,} ({most})")
    return int(more > MOST_MORE)


if __name__ == "__main__":
    sys.exit(main())
