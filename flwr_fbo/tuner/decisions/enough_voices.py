"""The gain that is lost by noise: enough clients or examples, enough epsilon.

It is known before any trial where clients are protected. Where one example is, it is
the number of examples in all that counts, which clients tell with their first ballots.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np

from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy.accounting import calibrate_noise_multiplier
from flwr_fbo.privacy.guarantee import Guarantee, delta_warning
from flwr_fbo.tuner.decisions.drawn_tuners import drawn_tuners
from flwr_fbo.tuner.decisions.survivors import ballots_in, voices_in
from flwr_fbo.tuner.private_choice import PrivateChoice

# So much of the gain, lost although all clients agree, is worth a warning; and so much
# may be lost where epsilon, or the number of clients, is called enough.
_TOO_MUCH, LITTLE = 0.1, 0.05
# Proposed are round numbers: these, times powers of ten.
_ROUND_NUMBERS, _MOST_TIMES = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0), 50.0


def lost_if_all_agree(
    sizes: tuple[int, ...], num_voices: int, privacy: PrivateChoice
) -> tuple[float, float]:
    """Return what of the gain is lost by noise although all clients agree.

    All clients order the trials alike, and the app's defaults are the last. The gain is
    how many trials the best one is ahead of the defaults: clients send ranks. Where
    they sum over examples, the trials are spaced evenly, with a standard deviation of a
    tenth of the range. On real trials about the same part of the gain in accuracy is
    lost, and as often the defaults are chosen (`python -m benchmarks.how_sure`).

    Parameters
    ----------
    sizes : tuple of int
        Number of trials of each rung.
    num_voices : int
        Number N >= 1 of clients, all of which give a ballot; or that of all their
        examples, where one is protected.
    privacy : PrivateChoice
        Budget of all rungs together.

    Returns
    -------
    lost : float
        Part of the gain, from 0 to 1, by drawing whole tuners.
    kept : float
        How often the defaults are chosen, from 0 to 1.
    """
    noise_multiplier = calibrate_noise_multiplier(
        privacy.epsilon, privacy.delta, 1.0, len(sizes)
    )
    ballots = type(privacy.ballots)
    plans = tuple(
        (size, num_voices, ballots.noise_std(size, num_voices, noise_multiplier))
        for size in sizes
    )
    chosen, _ = drawn_tuners(plans, num_voices, agree=True, ballots=ballots)
    return 1 - float(chosen.mean()) / (sizes[0] - 1), float(np.mean(chosen == 0))


@lru_cache(maxsize=16)
def too_few_voices(
    sizes: tuple[int, ...], num_voices: int, privacy: PrivateChoice
) -> str:
    """Return a warning if much of the gain is lost even if all clients agree.

    Parameters are those of `lost_if_all_agree`.

    Returns
    -------
    str
        What would be enough, too; empty where there is nothing to warn of.
    """
    lost, kept = lost_if_all_agree(sizes, num_voices, privacy)
    if lost <= _TOO_MUCH:
        return ""
    enough = enough_to_gain(sizes, num_voices, privacy)
    ballots, would_do = privacy.ballots, ""
    told = Guarantee(ballots.unit).text(privacy.epsilon, privacy.delta)
    if enough:
        would_do = (
            f" With {' or '.join(enough)} at most {100 * LITTLE:.0f} % would be lost."
        )
    return (
        f"Too few {ballots.voices} for {told}: even if all {num_voices} "
        "agree, and rank the app's defaults last, about "
        f"{100 * lost:.0f} % of what the best trial gains over them is lost, and they "
        f"are chosen in about {100 * kept:.0f} of 100 tuners.{would_do}"
    )


def examples_needed(sizes: tuple[int, ...], privacy: PrivateChoice) -> str:
    """Return how many examples would be enough: before anything is sent.

    Nobody knows yet how many there are.
    """
    told = Guarantee(privacy.ballots.unit).text(privacy.epsilon, privacy.delta)
    return (
        f"With {told} about {enough_examples(sizes, privacy):,.0f} validation examples "
        "in all are enough, if the trials differ by a tenth of the metric's range."
    )


def after_first_rung(
    row: LedgerRow, sizes: tuple[int, ...], privacy: PrivateChoice
) -> list[str]:
    """Return warnings once the clients have told how many examples they have."""
    if ballots_in(row).voices == "clients":
        return []
    total = voices_in(row)
    too_few = too_few_voices(sizes, max(total, 1), privacy)
    too_large = delta_warning(privacy.delta, max(total, 1), privacy.ballots.unit)
    return [line for line in (too_few, too_large and f"{too_large}.") if line]


@lru_cache(maxsize=16)
def enough_examples(sizes: tuple[int, ...], privacy: PrivateChoice) -> float:
    """Return how many validation examples in all lose little, as a round number."""
    numbers = _round_numbers_above(10.0, most_times=1e8)
    return next(
        (n for n in numbers if lost_if_all_agree(sizes, int(n), privacy)[0] <= LITTLE),
        math.inf,
    )


def enough_to_gain(
    sizes: tuple[int, ...], num_voices: int, privacy: PrivateChoice
) -> list[str]:
    """Return which epsilon, and how many clients or examples, lose little.

    If all agree: parameters are those of `lost_if_all_agree`; little is at most
    `LITTLE`.
    """
    enough, ballots = [], privacy.ballots
    for epsilon in _round_numbers_above(privacy.epsilon):
        more = replace(privacy, epsilon=epsilon)
        if lost_if_all_agree(sizes, num_voices, more)[0] <= LITTLE:
            enough.append(Guarantee(ballots.unit).text(epsilon, privacy.delta))
            break
    for number in _round_numbers_above(num_voices):
        if number.is_integer() and (
            lost_if_all_agree(sizes, int(number), privacy)[0] <= LITTLE
        ):
            enough.append(f"{number:,.0f} {ballots.voices}")
            break
    return enough


def _round_numbers_above(
    value: float, most_times: float = _MOST_TIMES
) -> Iterator[float]:
    """Yield larger round numbers, up to so many times the value."""
    scale = 10.0 ** math.floor(math.log10(value))
    while scale <= most_times * value:
        for number in _ROUND_NUMBERS:
            found = float(f"{scale * number:.2g}")
            if value < found <= most_times * value:
                yield found
        scale *= 10
