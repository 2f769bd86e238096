"""What a server's step costs, against N, P, and what receiving costs anyway."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import product

import numpy as np
from flwr.app import RecordDict

from benchmarks.measure import Bar, Row, Section, alternate, compare
from flwr_fbo._common.arrays import FloatArray, one_blas_thread
from flwr_fbo._compat import reply_arrays, to_array_record
from flwr_fbo.privacy.accounting import Method, ReleaseAccountant
from flwr_fbo.privacy.noise import OsEntropy, SeededEntropy
from flwr_fbo.privacy.release import Release, ReleaseSettings
from flwr_fbo.privacy.sampling import Sampling
from flwr_fbo.tuning.dp_fts_de.server import DPFTSDEServer

M, NUM_AGENTS = 100, (30, 300, 3000, 30_000, 100_000)
SUB_REGIONS, N_OF_REGIONS = (1, 2, 4, 8, 16), 1000
BAR, N_OF_BAR = 1.5, 10_000
# Secure noise for so many numbers, in so many milliseconds.
NUMBERS, NOISE_BAR = 512, 8.0
# Looks at epsilon after each of so many releases: the published setting's, with each
# accountant, and FedVote's; and what one may take, in milliseconds.
LOOKS, LOOK_BAR = 20, 0.3
ACCOUNTANTS: dict[str, tuple[float, Method]] = {
    "DPFTSDE, pld": (0.35, "pld"),
    "DPFTSDE, moments": (0.35, "moments"),
    "DPFTSDE, rdp": (0.35, "rdp"),
    "FedVote, pld": (1.0, "pld"),
}


def measure(quick: bool) -> list[Section]:
    """Return the section."""
    repeats = 3 if quick else 9
    growing = {f"N = {n:,}": step(n, 4) for n in NUM_AGENTS}
    split = {f"P = {p}": step(N_OF_REGIONS, p) for p in SUB_REGIONS}
    first, *more = growing
    seconds = alternate(growing, repeats)
    rows = [compare("server step, P = 4", seconds, name, first) for name in more]
    first, *more = split
    seconds = alternate(split, 3 * repeats)
    what = f"server step, N = {N_OF_REGIONS:,}"
    rows += [compare(what, seconds, name, first) for name in more]
    rows += _releases(repeats)
    rows += _looks(repeats)
    text = (
        f"CPU time with one BLAS thread, M = {M}. A step is a release of decoded "
        "messages, its ledger and its accounting. *Decode and sum* is the least that "
        "any strategy does with N replies: NumPy bytes of Flower records, added up. *A "
        f"look at epsilon* comes after each of {LOOKS} releases, whose noise no study "
        "before had; the time is the median of these, and *all* their mean."
    )
    return [Section("The server", text, rows)]


def step(num_agents: int, num_sub_regions: int) -> Callable[[], None]:
    """Return a round of the server half, for the next iteration at each call."""
    release = Release(ReleaseSettings(num_agents, num_sub_regions), SeededEntropy(0))
    server = DPFTSDEServer(release, M, delta=1e-6)
    messages = dict(enumerate(np.random.default_rng(0).random((num_agents, M))))

    def receive() -> None:
        server.receive(server.step(len(server.ledger)), messages)

    return receive


class WithoutNoise(OsEntropy):
    """The real sampler; the noise is measured apart."""

    def add_noise(
        self, iteration: int, rows: FloatArray, std: FloatArray
    ) -> FloatArray:
        """Return the rows as they are."""
        return rows


def _releases(repeats: int) -> list[Row]:
    rng, P = np.random.default_rng(0), 8
    replies = [
        RecordDict({"arrays": to_array_record([rng.standard_normal(M)])})
        for _ in range(N_OF_BAR)
    ]

    def decode() -> list[FloatArray]:
        return [reply_arrays(reply)[0] for reply in replies]

    messages = dict(enumerate(decode()))

    def release(sampling: Sampling) -> Callable[[], object]:
        settings = ReleaseSettings(N_OF_BAR, P, sampling=sampling)
        return partial(Release(settings, WithoutNoise()).release, 0, messages, M)

    @one_blas_thread
    def baseline() -> None:
        np.sum(decode(), axis=0)

    works: dict[str, Callable[[], object]] = {
        "release": release("poisson"),
        "release, fixed sample size": release("fixed-size"),
        "decode and sum": baseline,
    }
    seconds = alternate(works, repeats)
    settings = ReleaseSettings(30, P)
    entropy: tuple[OsEntropy | SeededEntropy, ...] = (OsEntropy(), SeededEntropy(0))
    few = {slot: messages[slot] for slot in range(30)}
    noises: dict[str, Callable[[], object]] = {
        name: partial(Release(settings, one).release, 0, few, M)
        for name, one in zip(("secure noise", "seeded noise"), entropy, strict=True)
    }
    rows, std = np.zeros((P, NUMBERS // P)), np.full(P, 3.7)
    draws: dict[str, Callable[[], object]] = {
        name: partial(one.add_noise, 0, rows, std)
        for name, one in zip(("secure noise", "seeded noise"), entropy, strict=True)
    }
    what = f"N = {N_OF_BAR:,}, P = {P}, without noise"
    return [
        *(
            compare(
                what,
                seconds,
                name,
                "decode and sum",
                bar=lambda row: Bar.at_most(row.ratio, BAR),
            )
            for name in list(works)[:2]
        ),
        compare(f"release, N = 30, P = {P}", alternate(noises, 5 * repeats), *noises),
        compare(
            f"{NUMBERS} numbers",
            alternate(draws, 5 * repeats),
            *draws,
            bar=lambda row: Bar.at_most(1e3 * row.seconds[0], NOISE_BAR, " ms by A"),
        ),
    ]


def _looks(repeats: int) -> list[Row]:
    """Return what it takes to know epsilon after a release, by accountant."""
    seconds = {name: np.zeros((repeats, LOOKS)) for name in ACCOUNTANTS}
    for repeat, (name, (q, method)) in product(range(repeats), ACCOUNTANTS.items()):
        # Noise that has not been accounted for yet.
        z = float(np.random.default_rng(repeat).uniform(1.0, 1.1))
        accountant = ReleaseAccountant(q, 1e-3, method)
        for k in range(LOOKS):
            accountant.charge(z)
            began = time.process_time()
            accountant.epsilon()
            seconds[name][repeat, k] = time.process_time() - began
    usual, *others = ACCOUNTANTS
    medians = {name: np.median(each, axis=1) for name, each in seconds.items()}
    means = {name: each.mean(axis=1) for name, each in seconds.items()}
    return [
        *(
            compare(
                "a look at epsilon",
                medians,
                usual,
                other,
                bar=lambda row: Bar.at_most(1e3 * row.seconds[0], LOOK_BAR, " ms by A"),
            )
            for other in others
        ),
        *(compare("all looks", means, usual, other) for other in others),
    ]
