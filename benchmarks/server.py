"""What a release costs the server, against what receiving the messages costs anyway.

    python benchmarks/release.py

Medians of CPU time, measured in turn in one run with one BLAS thread. The baseline
decodes the replies of N agents, Flower records of NumPy bytes, and sums them. The
release starts from the decoded messages: it checks, clips, samples, weights and sums
them. The floating-point-safe noise is timed apart: it does not depend on N.
"""

import time
from collections.abc import Callable, Sequence

import numpy as np
from flwr.app import RecordDict
from rich.console import Console
from rich.table import Table

from flwr_fbo._compat import reply_arrays, to_array_record
from flwr_fbo.models.threads import one_blas_thread
from flwr_fbo.privacy.noise import OsEntropy
from flwr_fbo.privacy.release import FloatArray, Release, ReleaseSettings

N, M, P, REPEATS = 10_000, 100, 8, 11
BAR = 1.5


class WithoutNoise(OsEntropy):
    """The real sampler; the noise is measured apart."""

    def add_noise(
        self, iteration: int, rows: FloatArray, std: FloatArray
    ) -> FloatArray:
        """Return the rows as they are."""
        return rows


def medians(functions: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Return the median CPU seconds of each function, measured in turn."""
    times = np.zeros((repeats, len(functions)))
    for row in times:
        for i, function in enumerate(functions):
            began = time.process_time()
            function()
            row[i] = time.process_time() - began
    return list(np.median(times, axis=0))


def main() -> None:
    """Print the table."""
    rng = np.random.default_rng(0)
    replies = [
        RecordDict({"arrays": to_array_record([rng.standard_normal(M)])})
        for _ in range(N)
    ]

    def decode() -> list[FloatArray]:
        return [reply_arrays(reply)[0] for reply in replies]

    messages = dict(enumerate(decode()))
    large = Release(ReleaseSettings(N, P), WithoutNoise())
    fixed = ReleaseSettings(N, P, sampling="fixed-size")
    large_fixed = Release(fixed, WithoutNoise())

    @one_blas_thread
    def baseline() -> None:
        np.sum(decode(), axis=0)

    def release() -> None:
        large.release(0, messages, M)

    def fixed_size() -> None:
        large_fixed.release(0, messages, M)

    def both() -> None:
        large.release(0, dict(enumerate(decode())), M)

    work = [baseline, release, fixed_size, both]
    medians(work, 1)
    base, *others = medians(work, REPEATS)
    table = Table(f"N = {N}, M = {M}, P = {P}", "ms", f"ratio (bar {BAR})")
    table.add_row("decode and sum: the baseline", f"{1e3 * base:.1f}", "1")
    for name, seconds in zip(
        ("release", "release, fixed sample size", "decode and release"),
        others,
        strict=True,
    ):
        table.add_row(name, f"{1e3 * seconds:.1f}", f"{seconds / base:.2f}")

    secure, zeros, std = OsEntropy(), np.zeros((P, M)), large.noise_std(0)
    small = {0: np.ones(2), 1: np.ones(2)}
    tiny, tiny_bare = (
        Release(ReleaseSettings(2), entropy) for entropy in (secure, WithoutNoise())
    )
    apart: dict[str, Callable[[], object]] = {
        "secure noise for P x M": lambda: secure.add_noise(0, zeros, std),
        "whole release, N = M = 2, P = 1": lambda: tiny.release(0, small, 2),
        "the same without noise": lambda: tiny_bare.release(0, small, 2),
    }
    timed = medians(list(apart.values()), 200)
    for name, seconds in zip(apart, timed, strict=True):
        table.add_row(name, f"{1e3 * seconds:.3f}", "")
    Console().print(table)


if __name__ == "__main__":
    main()
