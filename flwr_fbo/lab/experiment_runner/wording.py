"""The sentences and numbers of tables and verdicts, in words."""

from __future__ import annotations

from flwr_fbo.lab.experiment_runner.estimates import Estimate


def helped(gain: Estimate, control: str) -> str:
    """Say what a gain over a control shows; positive is better."""
    text = {
        "positive": f"does better than {control}",
        "negative": f"does worse than {control}",
        "unclear": f"cannot be told from {control} by these runs",
    }[gain.sign]
    low, high = gain.interval
    return f"{text}: {gain.mean:+.4f} (95% t interval {low:+.4f} to {high:+.4f})."


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
