"""What the release of an agent's running sum costs, in time and memory.

The peer is jax-privacy's privatiser by a streaming matrix, compiled, with a buffered
linear Toeplitz factor that it optimises for the horizon; it adds noise to what it is
given, and neither checks nor rounds nor remembers.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.measure import Bar, Row, Section, alternate, compare, figure
from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.privacy.continual import ContinualRelease
from flwr_fbo.privacy.continual_settings import ContinualSettings
from flwr_fbo.privacy.noise import Entropy, OsEntropy, SeededEntropy

DIMENSION, HORIZON, BAR = 10, 10_000, 1000.0
HORIZONS = (100, 1000)
OURS = "flwr_fbo"


def measure(quick: bool) -> list[Section]:
    """Return the section."""
    repeats, horizon = (1, 2000) if quick else (5, HORIZON)
    ours = settings(horizon)
    works: dict[str, Callable[[], object]] = {
        OURS: lambda: run(ours, SeededEntropy(1)),
        "tree": lambda: run(settings(horizon, "tree"), SeededEntropy(1)),
        "tree-honaker": lambda: run(
            settings(horizon, "tree-honaker"), SeededEntropy(1)
        ),
        "jax-privacy": jax_privacy(horizon),
    }
    seconds = {k: v / horizon for k, v in alternate(works, repeats).items()}
    what = f"a release, T = {horizon:,}"
    blt = _largest_error(horizon)
    rows = [
        _row(what, seconds, "jax-privacy", blt, ours, bar=True),
        *(
            _row(what, seconds, name, settings(horizon, name), ours)
            for name in ("tree", "tree-honaker")
        ),
    ]
    for shorter in HORIZONS:
        other = settings(shorter)
        growth: dict[str, Callable[[], object]] = {
            f"T = {horizon:,}": works[OURS],
            f"T = {shorter:,}": partial(run, other, SeededEntropy(1)),
        }
        times = alternate(growth, repeats)
        times[f"T = {horizon:,}"] /= horizon
        times[f"T = {shorter:,}"] /= shorter
        memory = [kilobytes(settings(n)) for n in (horizon, shorter)]
        quality = f"memory {memory[0]:,.0f} kB, {memory[1]:,.0f} kB"
        rows.append(compare("a release, by horizon", times, *growth, quality=quality))
    few = settings(200)
    noises: dict[str, Callable[[], object]] = {
        "secure noise": lambda: run(few, OsEntropy()),
        "seeded noise": lambda: run(few, SeededEntropy(1)),
    }
    times = {k: v / 200 for k, v in alternate(noises, 3 * repeats).items()}
    rows.append(compare("a release, T = 200", times, *noises))
    size = DIMENSION + 1
    text = (
        f"CPU time of a release of a {size} x {size} matrix, averaged over the whole "
        "horizon T, with seeded noise and without a journal. Quality: the largest "
        "standard deviation of an entry among the releases, at unit sensitivity and "
        f"noise, of A, of B. The bar: {BAR:,.0f} releases a second by B."
    )
    return [Section("Private running sums", text, rows)]


def settings(horizon: int, mechanism: Any = "toeplitz") -> ContinualSettings:
    """Return those of a horizon."""
    return ContinualSettings(
        horizon, DIMENSION, epsilon=1.0, delta=1e-3, mechanism=mechanism
    )


def run(chosen: ContinualSettings, entropy: Entropy) -> ContinualRelease:
    """Make all releases of a horizon."""
    release = ContinualRelease(chosen, entropy)
    total = np.zeros(chosen.sum_shape)
    for k in range(1, chosen.max_releases + 1):
        release.release(k, total)
    return release


def kilobytes(chosen: ContinualSettings) -> float:
    """Return what is in use after the last release."""
    run(chosen, SeededEntropy(1))  # what is made once for all horizons
    tracemalloc.start()
    kept = run(chosen, SeededEntropy(1))
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept.num_released == chosen.num_releases
    return used / 1e3


def _factor(horizon: int) -> Any:
    import jax

    jax.config.update("jax_enable_x64", True)
    from jax_privacy.matrix_factorization import buffered_toeplitz

    return buffered_toeplitz.optimize(n=horizon)


def jax_privacy(horizon: int) -> Callable[[], object]:
    """Return all releases of a horizon by jax-privacy."""
    import jax
    import jax.numpy as jnp
    from jax_privacy.matrix_factorization import streaming_matrix
    from jax_privacy.noise_addition import matrix_factorization_privatizer

    factor = _factor(horizon)
    matrix = streaming_matrix.multiply_streaming_matrices(
        streaming_matrix.prefix_sum(), factor.inverse_as_streaming_matrix()
    )
    privatizer = matrix_factorization_privatizer(matrix, stddev=1.0, prng_key=1)
    size = DIMENSION + 1
    zeros = jnp.zeros(size * (size + 1) // 2)
    update = jax.jit(privatizer.update)

    def work() -> None:
        state = privatizer.init(zeros)
        for _ in range(horizon):
            released, state = update(zeros, state)
            np.asarray(released)

    return work


def _largest_error(horizon: int) -> float:
    from jax_privacy.matrix_factorization import buffered_toeplitz

    return float(np.sqrt(buffered_toeplitz.max_loss(_factor(horizon), horizon)))


def _row(
    what: str,
    seconds: dict[str, FloatArray],
    name: str,
    peer: ContinualSettings | float,
    ours: ContinualSettings,
    bar: bool = False,
) -> Row:
    theirs = peer if isinstance(peer, float) else peer.factorisation.max_error()
    quality = f"error {figure(theirs)}, {figure(ours.factorisation.max_error())}"
    held = (
        (lambda row: Bar.at_least(1 / row.seconds[1], BAR, " a second"))
        if bar
        else None
    )
    return compare(what, seconds, name, OURS, quality=quality, bar=held)
