"""How many decisions a second a site's policy makes, beside what its disk can do.

    python -m benchmarks.decisions [FOLDER]

One process, one BLAS thread, `EllipsoidSampling`. *Read-only* is `probabilities_many`,
*durable* `choose`, one transaction each, and *in a batch* `choose_many`. The disk's own
limits are a page of a file in FOLDER, written and synchronised, and a transaction of
SQLite that writes a row of 3,200 bytes, the size of a decision among 20 vectors.
A decision with vectors records all K of them; one with an encoder records its context.
"""

import argparse
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from flwr_fbo import (
    ArmTable,
    ContinualSettings,
    EllipsoidSampling,
    FeatureEncoder,
    LinearBanditPolicy,
    LinearUCBSettings,
    Number,
)
from flwr_fbo.agents.durable.bandit_journals import last_journal
from flwr_fbo.agents.durable.fed_ucb import KIND, RecordedBandit
from flwr_fbo.journal.journal import Journal
from flwr_fbo.models.threads import one_blas_thread
from flwr_fbo.protocol.linear_bandit_study import LinearBanditStudy

_INSERT = "INSERT INTO decision VALUES (zeroblob(3200))"
D, SIZES, BATCH, SECONDS = 20, (20, 1000), 200, 3.0
FIELDS = {f"c{i}": Number(0, 1) for i in range(3)}
# An intercept, 3 fields of the context, 4 of an arm and 12 products: d = 20.
ENCODER = FeatureEncoder(
    context=FIELDS, arm={f"a{i}": Number(0, 1) for i in range(4)}, interactions="all"
)


def policy_in(folder: Path, encoder: FeatureEncoder | None) -> LinearBanditPolicy:
    """Return the policy of a site that has enrolled, and received nothing yet."""
    releases = ContinualSettings(16, D, epsilon=1.0, delta=1e-5)
    settings = LinearUCBSettings(
        releases, exploration=EllipsoidSampling(), encoder=encoder
    )
    study = LinearBanditStudy(settings, 100, study_id="decisions")
    with Journal(
        RecordedBandit.identity_of(study), last_journal(folder, KIND)
    ) as journal:
        bandit = RecordedBandit(journal, study)
        bandit.join(0, bandit.number)
    return LinearBanditPolicy.open(folder)


def rate(work: Callable[[], Any], each: int) -> float:
    """Return how many a second, where one call does ``each``."""
    work()
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < SECONDS:
        work()
        done += each
    return done / (time.perf_counter() - began)


def synchronise(file: Any) -> None:
    """Write a page, and wait for the disk."""
    file.seek(0)
    file.write(bytes(4096))
    file.flush()
    os.fsync(file.fileno())


@one_blas_thread
def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="on the disk to measure")
    parent = parser.parse_args().folder
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        with (Path(folder) / "page").open("wb") as file:
            pages = rate(lambda: synchronise(file), 1)
        database = sqlite3.connect(Path(folder) / "plain", isolation_level=None)
        database.execute("PRAGMA synchronous = FULL")
        database.execute("CREATE TABLE decision (content BLOB)")
        plain = rate(lambda: database.execute(_INSERT), 1)
        print(f"the disk: {pages:,.0f} pages, {plain:,.0f} transactions a second")
        print(f"{'d = 20':24}{'read-only':>12}{'durable':>12}{'in a batch':>12}")
        for size in SIZES:
            actions = rng.uniform(-1, 1, (size, D)) / np.sqrt(D)
            arms = {
                str(i): {f"a{j}": float(v) for j, v in enumerate(row)}
                for i, row in enumerate(rng.random((size, 4)))
            }
            context = dict.fromkeys(FIELDS, 0.5)
            forms: dict[str, tuple[FeatureEncoder | None, Any]] = {
                "vectors": (None, actions),
                "an encoder": (ENCODER, context),
            }
            for form, (encoder, given) in forms.items():
                own = Path(folder) / f"{form}-{size}"
                own.mkdir()
                policy = policy_in(own, encoder)
                if encoder is not None:
                    policy.set_arms(ArmTable(arms))
                print(f"{f'K = {size}, {form}':24}{rates(policy, given)}", flush=True)


def rates(policy: LinearBanditPolicy, given: Any) -> str:
    """Return the three rates of one policy, as columns."""
    batch = [given] * BATCH
    found = (
        rate(lambda: policy.probabilities_many(batch), BATCH),
        rate(lambda: policy.choose(given), 1),
        rate(lambda: policy.choose_many(batch), BATCH),
    )
    return "".join(f"{value:12,.0f}" for value in found)


if __name__ == "__main__":
    main()
