"""What a linear bandit would be worth to its sites, for ``flwr-fbo privacy``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr_fbo._common.validation import require, require_int
from flwr_fbo.bandits.linear.worth_of_sums import SharingPlan
from flwr_fbo.privacy.conditions import FINISHED_TABLE
from flwr_fbo.privacy.continual_settings import ContinualSettings
from flwr_fbo.privacy.guarantee import EXAMPLE, Guarantee, of_group, profile_text
from flwr_fbo.study.report.plan import StudyPlan

# Beyond these only memory and patience of whoever asks would end.
_MOST_AGENTS, _MOST_TRIALS = 10**6, 10**6
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
    sums = ContinualSettings(
        num_releases, dimension, epsilon, delta, reward_range=(0, 1)
    )
    plan = SharingPlan(sums, num_agents, num_trials)
    terms = Guarantee(EXAMPLE, "local", (FINISHED_TABLE,))
    groups = {size: of_group(epsilon, delta, size) for size in _GROUPS}
    values = {
        "strategy": strategy,
        "epsilon": epsilon,
        **terms.facts(delta),
        "epsilon_of_group": groups,
        "agents": num_agents,
        "trials": num_trials,
        "schedule": plan.times,
        "noise_over_signal": plan.noise,
        "worth_in_own_trials": plan.worth,
        "promised_saving": plan.promised_saving,
        "pays": plan.pays,
        "needed_epsilon": plan.needed_epsilon,
        "needed_agents": plan.needed_agents,
    }
    of_groups = ", ".join(
        f"{size} trials has {other:.3g}" for size, other in groups.items()
    )
    shown = ", ".join(map(str, plan.times[:4]))
    lines = [
        f"{num_agents} sites, rewards in [0, 1], encoded actions of dimension "
        f"{dimension}; synchronisations after {shown}"
        f"{', ...' if len(plan.times) > 4 else ''} trials.",
        f"Noise over signal in the others' last sum: {plan.noise:.2g}.",
        *(f"{line}." for line in plan.lines()),
        f"Each site spends {terms.text(epsilon, delta)}: local_data='own'. It holds "
        f"{terms.against}.",
        f"A patient with {of_groups}. {profile_text(epsilon, delta)}.",
    ]
    return StudyPlan(values, lines)
