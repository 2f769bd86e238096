"""Epsilon of a patient with several records, of training and choice together.

    python -m benchmarks.records_of_a_patient

All k records of a patient are at one site. In the training they are there or not: of
them a Poisson batch has a binomial number, and each adds a gradient of the clip norm at
most. That is a mixture of Gaussians (Ganesh, 2024), which dp-accounting composes. In
the choice each of them is replaced by another, at k times the distance of one. The
training is that of `benchmarks.private_training`: 27 rounds of 5 steps, sampling
probability 0.2, and a choice with a quarter of the total. It takes seconds.

The last column is for one record: how often the best guess is right between two worlds
that are equally likely, (1 + delta) / 2 with delta at epsilon 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from scipy.stats import binom

from benchmarks.private_training import (
    CHOICE_SHARE,
    DELTA,
    EPSILONS,
    NUM_ROUNDS,
    SAMPLING,
    STEPS,
    planned,
)
from flwr_fbo import PrivateChoice
from flwr_fbo.privacy.gaussian import gaussian_mu

RECORDS = (2, 3, 10)
# Coarser than dp-accounting's own, and as fast: epsilon can only be too large.
_INTERVAL = 1e-3


def of_records(
    num_records: int, noise_multiplier: float, num_steps: int, choice_mu: float
) -> PLDAccountant:
    """Return what a training and a choice cost all records of a patient.

    Parameters
    ----------
    num_records : int
        k >= 1.
    noise_multiplier : float
        Of the training's steps.
    num_steps : int
    choice_mu : float
        Of the choice's Gaussian mechanism, for one record; 0 without a choice.
    """
    counts = range(num_records + 1)
    shares = [float(share) for share in binom.pmf(counts, num_records, SAMPLING)]
    step = dp_event.MixtureOfGaussiansDpEvent(
        noise_multiplier, [float(count) for count in counts], shares
    )
    accountant = PLDAccountant(value_discretization_interval=_INTERVAL)
    accountant.compose(dp_event.SelfComposedDpEvent(step, num_steps))
    if choice_mu > 0:
        noise = 1 / (num_records * choice_mu)
        accountant.compose(dp_event.GaussianDpEvent(noise))
    return accountant


def table(records: Sequence[int] = RECORDS) -> list[str]:
    """Return the lines of the table."""
    columns = " | ".join(f"{num} records" for num in records)
    lines = [
        f"| total for one record | {columns} | the best guess is right |",
        "| --- |" + " --: |" * (len(records) + 1),
    ]
    for epsilon in EPSILONS:
        choice = PrivateChoice(CHOICE_SHARE * epsilon, DELTA, protects="example")
        z = planned(epsilon, choice).training.noise_multiplier
        mu = gaussian_mu(choice.epsilon, DELTA)
        steps = NUM_ROUNDS * STEPS
        spent = [of_records(num, z, steps, mu) for num in records]
        cells = [f"{each.get_epsilon(DELTA):.1f}" for each in spent]
        right = (1 + of_records(1, z, steps, mu).get_delta(0.0)) / 2
        cells.append(f"{100 * right:.1f} times in a hundred")
        lines.append(f"| {epsilon:g} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Print the table."""
    print(*table(), sep="\n")


if __name__ == "__main__":
    main()
