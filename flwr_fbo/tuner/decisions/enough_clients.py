"""The gain that is lost by noise, before any trial: enough clients, enough epsilon."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np

from flwr_fbo.privacy.accounting import calibrate_noise_multiplier
from flwr_fbo.privacy.guarantee import CLIENT, Guarantee
from flwr_fbo.tuner.decisions.drawn_tuners import drawn_tuners
from flwr_fbo.tuner.private_choice import PrivateChoice

# So much of the gain, lost although all clients agree, is worth a warning; and so much
# may be lost where epsilon, or the number of clients, is called enough.
_TOO_MUCH, LITTLE = 0.1, 0.05
# Proposed are round numbers: these, times powers of ten.
_ROUND_NUMBERS, _MOST_TIMES = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0), 50.0


def lost_if_all_agree(
    sizes: tuple[int, ...], num_agents: int, privacy: PrivateChoice
) -> tuple[float, float]:
    """Return what of the gain is lost by noise although all clients agree.

    All clients order the trials alike, and the app's defaults are the last. The gain
    is how many trials the best one is ahead of the defaults: clients send ranks. On
    real trials about the same part of the gain in accuracy is lost, and as often the
    defaults are chosen (`python -m benchmarks.how_sure`).

    Parameters
    ----------
    sizes : tuple of int
        Number of trials of each rung.
    num_agents : int
        N >= 1, all of which give a ballot.
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
    noise_std = noise_multiplier / num_agents
    plans = tuple((num_trials, num_agents, noise_std) for num_trials in sizes)
    chosen, _ = drawn_tuners(plans, num_agents, agree=True)
    return 1 - float(chosen.mean()) / (sizes[0] - 1), float(np.mean(chosen == 0))


@lru_cache(maxsize=16)
def too_few_clients(
    sizes: tuple[int, ...], num_agents: int, privacy: PrivateChoice
) -> str:
    """Return a warning if much of the gain is lost even if all clients agree.

    Parameters are those of `lost_if_all_agree`.

    Returns
    -------
    str
        What would be enough, too; empty where there is nothing to warn of.
    """
    lost, kept = lost_if_all_agree(sizes, num_agents, privacy)
    if lost <= _TOO_MUCH:
        return ""
    enough = enough_to_gain(sizes, num_agents, privacy)
    would_do, told = "", Guarantee(CLIENT).text(privacy.epsilon, privacy.delta)
    if enough:
        would_do = (
            f" With {' or '.join(enough)} at most {100 * LITTLE:.0f} % would be lost."
        )
    return (
        f"Too few clients for {told}: even if all {num_agents} "
        "agree, and rank the app's defaults last, about "
        f"{100 * lost:.0f} % of what the best trial gains over them is lost, and they "
        f"are chosen in about {100 * kept:.0f} of 100 tuners.{would_do}"
    )


def enough_to_gain(
    sizes: tuple[int, ...], num_agents: int, privacy: PrivateChoice
) -> list[str]:
    """Return which epsilon, and how many clients, lose little if all agree.

    Parameters are those of `lost_if_all_agree`; little is at most `LITTLE`.
    """
    enough = []
    for epsilon in _round_numbers_above(privacy.epsilon):
        more = replace(privacy, epsilon=epsilon)
        if lost_if_all_agree(sizes, num_agents, more)[0] <= LITTLE:
            enough.append(Guarantee(CLIENT).text(epsilon, privacy.delta))
            break
    for number in _round_numbers_above(num_agents):
        if number.is_integer() and (
            lost_if_all_agree(sizes, int(number), privacy)[0] <= LITTLE
        ):
            enough.append(f"{number:g} clients")
            break
    return enough


def _round_numbers_above(value: float) -> Iterator[float]:
    """Yield larger round numbers, up to 50 times the value."""
    power = 10.0 ** math.floor(math.log10(value))
    for scale in (power, 10 * power, 100 * power):
        for number in _ROUND_NUMBERS:
            found = float(f"{scale * number:.2g}")
            if value < found <= _MOST_TIMES * value:
                yield found
