"""The sentences and numbers of tables and verdicts, in words."""

from __future__ import annotations

import math

from flwr_fbo.experiment_runner.estimates import Estimate

_UNITS = ((1e9, " G"), (1e6, " M"), (1e3, " k"))


def counted(number: int, noun: str) -> str:
    """Return a number and its noun: 1 release, 2 releases."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def helped(gain: Estimate, control: str) -> str:
    """Say what a gain over a control shows; positive is better."""
    text = {
        "positive": f"does better than {control}",
        "negative": f"does worse than {control}",
        "unclear": f"cannot be told from {control} by these runs",
    }[gain.sign]
    low, high = gain.interval
    return f"{text}: {gain.mean:+.4f} (95% t interval {low:+.4f} to {high:+.4f})."


def humanised(value: float, error: float = math.nan, sign: str = "") -> str:
    """Return a count by three digits and a unit: 81.5 M, or with an error 81.5 ± 1.2 M.

    Parameters
    ----------
    value : float
    error : float
        Left out where it is NaN.
    sign : str
        ``"+"`` for differences.
    """
    factor, unit = next((one for one in _UNITS if abs(value) >= one[0]), (1.0, ""))
    digits = max(3 - len(f"{abs(value) / factor:.0f}"), 0) if unit else 0
    number = f"{value / factor:{sign}.{digits}f}"
    if math.isfinite(error):
        number += f" ± {error / factor:.{digits}f}"
    return number + unit


def carried(label: str, signal: Estimate) -> str:
    """Say whether agents' messages carried something through the noise."""
    if signal.sign == "positive":
        return (
            f"{label} beats its noise-only control: the agents' messages carried "
            "something through the noise."
        )
    return (
        f"These runs cannot show that {label} does better than noise-only, its "
        "control with every message zeroed "
        f"({signal.mean:+.4f} ± {signal.standard_error:.4f}): no gain of the "
        "federation is shown."
    )


ONE_SEED = "One seed shows no standard error, and so allows no verdict."
