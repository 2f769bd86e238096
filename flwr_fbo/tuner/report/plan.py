"""What a tuner's private choice spends, for ``flwr-fbo privacy``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from flwr_fbo._common.text import counted
from flwr_fbo._common.validation import (
    require,
    require_choice,
    require_int,
    require_number,
)
from flwr_fbo.privacy.accounting import (
    ReleaseAccountant,
    calibrate_noise_multiplier,
)
from flwr_fbo.privacy.conditions import WITHOUT_TRAINING
from flwr_fbo.privacy.gaussian import gaussian_epsilon
from flwr_fbo.privacy.guarantee import (
    CLIENT,
    EXAMPLE,
    Guarantee,
    Protects,
    default_delta,
    delta_warning,
    profile_text,
)
from flwr_fbo.study.report.plan import StudyPlan
from flwr_fbo.tuner.decisions.enough_voices import enough_examples
from flwr_fbo.tuner.private_choice import PrivateChoice

_TAKEN = ("num_releases", "epsilon", "delta", "noise_multiplier", "protects")
# Beyond these only memory and patience of whoever asks would end.
_MOST_AGENTS, _MOST_RUNGS = 10**6, 10**4
_NUM_TRIALS = 16


def plan_choice(
    strategy: str, num_agents: int, options: Mapping[str, Any]
) -> StudyPlan:
    """Return what the rungs of a tuner spend, or the noise for an epsilon."""
    for name, value in options.items():
        if name not in _TAKEN:
            require(value is None, name, value, f"left out, with {strategy}")
    num, epsilon, delta, z, protects = (options[name] for name in _TAKEN)
    if protects is not None:
        require_choice("protects", protects, Protects)
    unit = EXAMPLE if protects == "example" else CLIENT
    require_int("num_agents", num_agents, 1, _MOST_AGENTS)
    require(num is not None, "num_releases", num, "given: the rungs of the tuner")
    require_int("num_releases", num, 1, _MOST_RUNGS)
    delta = default_delta(num_agents, unit.protects) if delta is None else delta
    if epsilon is None:
        z = 1.0 if z is None else z
        require_number("noise_multiplier", z, 1e-3, 1e6)
    else:
        require(z is None, "epsilon", epsilon, "only without --z, which decides it")
        z = calibrate_noise_multiplier(epsilon, delta, 1.0, num)
    accountant = ReleaseAccountant(1.0, delta)
    accountant.charge(z, num)
    spent = accountant.spent(Guarantee(unit, "server", (WITHOUT_TRAINING,)))
    values = {
        "strategy": strategy,
        "agents": num_agents,
        "releases": num,
        "noise_multiplier": z,
        **spent.to_json(),
    }
    lines = [
        f"{num_agents} clients, {counted(num, 'rung')}: noise multiplier {z:.4g} in "
        "each rung.",
        f"Privacy spent: {spent.text()}. It holds {spent.guarantee.against}; with "
        "aggregation=SecureAggregation(...) against the server too.",
        f"{profile_text(math.sqrt(num) / z, delta)}.",
    ]
    if unit == EXAMPLE:
        lines += _examples_needed(math.sqrt(num) / z, delta, num)
    elif warning := delta_warning(delta, num_agents, CLIENT):
        lines.append(f"Warning: {warning}.")
    return StudyPlan(values, lines)


def _examples_needed(mu: float, delta: float, num_rungs: int) -> list[str]:
    """Say how many examples a choice needs, as the default race has its rungs."""
    epsilon = gaussian_epsilon(delta, mu)
    lines = [
        "It is one validation example that is protected, whose value is in a public "
        "range: the metric is a mean over num-examples. See PrivateChoice.",
    ]
    if 1e-3 <= epsilon <= 1e3:
        # A third of the trials goes on in each rung, and two at least.
        sizes = tuple(max(-(-_NUM_TRIALS // 3**n), 2) for n in range(num_rungs))
        choice = PrivateChoice(epsilon, delta, "example", allow_large_delta=True)
        needed = enough_examples(sizes, choice)
        lines.append(
            f"About {needed:,.0f} validation examples in all are enough for "
            f"{sizes[0]} trials that differ by a tenth of the metric's range."
        )
    return lines
