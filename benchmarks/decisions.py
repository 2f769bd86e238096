"""Memory of a site's decisions, and turns of several workers on one folder.

    OMP_NUM_THREADS=1 python -m benchmarks.decisions [--decisions 100000] [--workers 2]

The first row is what reading all decisions one after another adds to the peak of a
fresh process that has opened the policy (bar: 50 MB). The second is how many decisions
each of some workers has recorded in five seconds on that folder, and the longest that
one of them took: with workers that take turns the numbers are about equal.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from flwr_fbo import LinearBanditPolicy
from flwr_fbo.bandits import ContinualSettings, LinearUCBSettings
from flwr_fbo.bandits.kind import LINEAR_SITE
from flwr_fbo.bandits.linear.feature_encoder import FeatureEncoder
from flwr_fbo.bandits.linear.feature_fields import Number
from flwr_fbo.bandits.linear.study import LinearBanditStudy
from flwr_fbo.bandits.site.recorded_bandit import RecordedBandit
from flwr_fbo.journal.journal import Journal
from flwr_fbo.site.study_journals import last_journal

AT_ONCE, SECONDS, MOST_MB = 2000, 5.0, 50.0
ENCODER = FeatureEncoder({"age": Number(0, 100)}, blocks=("ward", "home", "clinic"))


def fill(folder: Path, num_decisions: int) -> None:
    """Write a journal of rewarded decisions, each of a request with a key."""
    releases = ContinualSettings(10, ENCODER.dimension, epsilon=4.0, delta=1e-5)
    settings = LinearUCBSettings(releases, "own", encoder=ENCODER)
    study = LinearBanditStudy(settings, 10, study_id="decisions")
    path = last_journal(folder, LINEAR_SITE.name)
    with Journal(RecordedBandit.identity_of(study), path) as journal:
        bandit = RecordedBandit(journal, study)
        bandit.join(0, bandit.number)
    policy, rng = LinearBanditPolicy.open(folder), np.random.default_rng(0)
    for first in range(0, num_decisions, AT_ONCE):
        count = min(AT_ONCE, num_decisions - first)
        contexts = [{"age": float(age)} for age in rng.uniform(0, 100, count)]
        keys = [f"visit-{first + i}" for i in range(count)]
        choices = policy.choose_many(contexts, keys=keys)
        policy.reward_many({choice.ticket: 0.5 for choice in choices})


def read(folder: Path, results: Any) -> None:
    """Read all decisions; report how many, and the megabytes and seconds it took."""
    policy = LinearBanditPolicy.open(folder)
    policy.choose({"age": 50.0})
    before, began = _peak(), time.perf_counter()
    count = sum(1 for _ in policy.decisions())
    results.put((count, _peak() - before, time.perf_counter() - began))


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def work(folder: Path, start: float, results: Any) -> None:
    """Decide for some seconds; report how often, and the longest wait."""
    policy, count, longest = LinearBanditPolicy.open(folder), 0, 0.0
    policy.choose({"age": 50.0})
    time.sleep(max(0.0, start - time.time()))
    while time.time() < start + SECONDS:
        began = time.perf_counter()
        policy.choose({"age": 50.0})
        longest = max(longest, time.perf_counter() - began)
        count += 1
    results.put((count, longest))


def main() -> None:
    """Fill a folder, read it, and let workers take turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--decisions", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")  # each with a peak of its own
    with tempfile.TemporaryDirectory() as parent:
        folder, results = Path(parent) / "site", context.Queue()
        folder.mkdir()
        fill(folder, options.decisions)
        size = last_journal(folder, LINEAR_SITE.name).stat().st_size / 1e6
        print(f"journal: {size:.0f} MB")
        reader = context.Process(target=read, args=(folder, results))
        reader.start()
        count, megabytes, seconds = results.get()
        reader.join()
        verdict = "met" if megabytes <= MOST_MB else "MISSED"
        print(
            f"decisions(): {count:,} in {seconds:.0f} s, {megabytes:.1f} MB "
            f"(bar {MOST_MB:g} MB: {verdict})"
        )
        start = time.time() + 5.0
        workers = [
            context.Process(target=work, args=(folder, start, results))
            for _ in range(options.workers)
        ]
        for worker in workers:
            worker.start()
        found = [results.get() for _ in workers]
        for worker in workers:
            worker.join()
        counts = ", ".join(f"{count}" for count, _ in found)
        longest = max(longest for _, longest in found)
        print(f"workers: {counts} decisions, longest {1e3 * longest:.0f} ms")


if __name__ == "__main__":
    main()
