"""What it costs not to know how many releases there will be.

    python -m benchmarks.unknown_horizon

prints the variance of release k, with the sensitivity in it, over that of the square
root factorisation for exactly k releases (Henzinger, Upadhyay & Upadhyay, 2023), and
how many draws of noise release k takes from memory:

- ``toeplitz for k``: ours, its columns scaled, for exactly k;
- ``unknown horizon``: ours, for any number up to 2**20;
- ``toeplitz for 2^20``: the square root, planned for 2**20 releases;
- ``BLT for 2^20``: jax-privacy's buffered linear Toeplitz factor, optimised for 2**20
  releases, which take no more from memory than its buffers. It is there where
  jax-privacy is installed: ``make .venv/bench``.

Written down before: at most 1.5 times, at every k up to 2**20.
"""

import importlib.util

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.privacy.factorisation import Stationary, Toeplitz

MOST = Stationary.max_releases
STEPS = (1, 3, 10, 30, 100, 300, 1_000, 10_000, 100_000, MOST)


def root_squares() -> FloatArray:
    """Return the sums of the first squared coefficients of (1 - z)^(-1/2)."""
    i = np.arange(1, MOST)
    root = np.cumprod(np.concatenate([[1.0], (2 * i - 1) / (2 * i)]))
    return np.asarray(np.cumsum(np.square(root)))


def buffered() -> tuple[FloatArray, int]:
    """Return the variances of jax-privacy's factor, with its sensitivity; its size."""
    import jax

    jax.config.update("jax_enable_x64", True)
    from jax_privacy.matrix_factorization import buffered_toeplitz

    factor = buffered_toeplitz.optimize(n=MOST)
    coefficients = np.asarray(factor.toeplitz_coefs(MOST))
    inverse = np.asarray(factor.inverse().toeplitz_coefs(MOST))
    sensitivity = np.sum(np.square(coefficients))
    variances = sensitivity * np.cumsum(np.square(np.cumsum(inverse)))
    return np.asarray(variances), len(factor.buf_decay)


def main() -> None:
    """Print the table."""
    known = root_squares()
    unknown = Stationary()
    own = unknown.sensitivity**2 * unknown.variances()
    memory = "Draws in memory at release k: k"
    columns = {
        "unknown horizon": own / known**2,
        "toeplitz for 2^20": known[-1] / known,
    }
    if importlib.util.find_spec("jax_privacy"):
        variances, num_buffers = buffered()
        columns["BLT for 2^20"] = variances / known**2
        memory += f"; BLT: {num_buffers}, its buffers"
    names = ["toeplitz for k", *columns]
    print(" " * 9, *(f"{name:>18s}" for name in names))
    for k in STEPS:
        scaled = "-"
        if k <= 10_000:
            scaled = f"{Toeplitz(k).variance(k) / known[k - 1] ** 2:.2f}"
        values = [scaled, *(f"{ratio[k - 1]:.2f}" for ratio in columns.values())]
        print(f"{k:9,d}", *(f"{value:>18s}" for value in values))
    worst = columns["unknown horizon"]
    later = np.flatnonzero(worst > 1.5)[-1] + 2
    print(f"At most 1.5 times from k = {later:,d} on; {worst.max():.2f} at most.")
    print(f"{memory}.")


if __name__ == "__main__":
    main()
