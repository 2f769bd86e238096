"""What a linear bandit would be worth to its sites, for ``flwr-fbo privacy``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flwr_fbo._common.validation import require, require_int
from flwr_fbo.bandits.linear.sharing_plan import SharingPlan
from flwr_fbo.privacy.conditions import FINISHED_TABLE
from flwr_fbo.privacy.continual_settings import ContinualSettings
from flwr_fbo.privacy.gaussian import gaussian_mu
from flwr_fbo.privacy.guarantee import EXAMPLE, Guarantee, of_group, profile_text
from flwr_fbo.study.report.plan import StudyPlan

# Beyond these only memory and patience of whoever asks would end.
_MOST_AGENTS, _MOST_TRIALS = 10**6, 10**6
_HEADINGS = {
    "own": "local_data='own'",
    "one_noise": "local_data='released', sums under one noise (mechanism='blocks')",
    "released": "local_data='released', each site's own noise",
}
_TERMS = {
    "own": Guarantee(EXAMPLE, "local", (FINISHED_TABLE,)),
    "one_noise": Guarantee(EXAMPLE, "sums"),
    "released": Guarantee(EXAMPLE, "local"),
}
_REALISED = (
    "In a running site one outcome changes later actions, and its epsilon may be "
    "larger: there policy.realised_privacy() estimates it."
)
# Trials of one person, whose epsilon is shown.
_GROUPS = (2, 3, 10)
_NEEDED = ("num_releases", "num_trials", "dimension", "epsilon", "delta")


def plan_sharing(
    strategy: str, num_agents: int, options: Mapping[str, Any]
) -> StudyPlan:
    """Return what a bandit of rewards in [0, 1] is worth to its sites."""
    for name, value in options.items():
        if name not in _NEEDED:
            require(value is None, name, value, f"left out, with {strategy}")
    for name in _NEEDED:
        value = options[name]
        require(value is not None, name, value, f"given, with {strategy}")
    num_releases, num_trials, dimension, epsilon, delta = (options[n] for n in _NEEDED)
    require_int("num_agents", num_agents, 1, _MOST_AGENTS)
    require_int("num_trials", num_trials, 1, _MOST_TRIALS)
    settings = num_releases, dimension, epsilon, delta
    own = ContinualSettings(*settings, reward_range=(0, 1))
    blocks = replace(own, mechanism="blocks")
    plans = {
        "own": SharingPlan(own, num_agents, num_trials, "own"),
        "one_noise": SharingPlan(blocks, num_agents, num_trials, "released"),
        "released": SharingPlan(own, num_agents, num_trials, "released"),
    }
    promises = {
        name: {
            **_TERMS[name].facts(delta),
            "schedule": plan.times,
            "noise_over_signal": plan.noise,
            "worth_in_own_trials": plan.worth,
            "points_alone_loses": plan.regret_alone,
            "points_gained": plan.gain,
            "pays": plan.pays,
            "needed_epsilon": plan.needed_epsilon,
            "needed_agents": plan.needed_agents,
        }
        for name, plan in plans.items()
    }
    is_noisy = not math.isinf(epsilon)
    groups = {size: of_group(epsilon, delta, size) for size in _GROUPS}
    values = {
        "strategy": strategy,
        "epsilon": epsilon,
        **Guarantee(EXAMPLE).facts(delta),
        "epsilon_of_group": groups,
        "agents": num_agents,
        "trials": num_trials,
        "promises": promises,
    }
    of_groups = ", ".join(
        f"{size} trials has {other:.3g}" for size, other in groups.items()
    )
    lines = [
        f"{num_agents} sites, rewards in [0, 1], encoded actions of dimension "
        f"{dimension}. A point is a hundredth of the rewards' range, a trial.",
        f"A patient with {of_groups}.",
        *([f"{profile_text(gaussian_mu(epsilon, delta), delta)}."] if is_noisy else []),
    ]
    for name, plan in plans.items():
        terms, shown = _TERMS[name], ", ".join(map(str, plan.times[:4]))
        lines += [
            "",
            f"{_HEADINGS[name]}.",
            f"Each site spends {terms.text(epsilon, delta)}. It holds {terms.against}.",
            f"Synchronisations after {shown}{', ...' if len(plan.times) > 4 else ''} "
            "trials.",
            *(f"{line}." for line in plan.lines()),
        ]
        if terms.conditions:
            lines.append(_REALISED)
    return StudyPlan(values, lines)
