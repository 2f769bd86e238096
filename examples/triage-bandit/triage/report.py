"""What a site's decisions were worth: ``python -m triage.report FOLDER``."""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from flwr_fbo import LinearBanditPolicy
from flwr_fbo.bandits import Decision, evaluate_policy
from flwr_fbo.bandits.off_policy.policies import from_function
from triage.site import load_patients
from triage.study import ARMS, BIOPSY, COSTS, FOLLOW_UP


def by_radius(context: Any, arms: Any, features: Any) -> str:
    """Return the arm that another policy would choose."""
    return BIOPSY if context["worst radius"] > 17 else FOLLOW_UP


RULE = from_function(by_radius, "biopsy if worst radius > 17")


def outcomes(decisions: Sequence[Decision]) -> tuple[Any, Any]:
    """Return what each arm would have given, (n, K), and what the chosen ones gave.

    Only a simulation knows the first.
    """
    # The log has no names of patients: a context tells whose it is.
    known = {tuple(context.values()): one for context, one in load_patients()}
    found = [known[tuple((decision.context or {}).values())] for decision in decisions]
    of_arms = np.array([[1 - COSTS[arm][one] for arm in ARMS] for one in found])
    chosen = [decision.chosen for decision in decisions]
    return of_arms, of_arms[np.arange(len(chosen)), chosen]


def learning_curve(decisions: Sequence[Decision]) -> str:
    """Return mean rewards and shares of arms by hundred decisions, as a table."""
    of_arms, own = outcomes(decisions)
    best = int(of_arms.mean(axis=0).argmax())
    chosen = np.eye(len(ARMS))[[decision.chosen for decision in decisions]]
    columns = [own, of_arms.mean(axis=1), of_arms[:, best], *chosen.T]
    names = ("decisions", "reward", "uniform", f"always {ARMS[best]}", *ARMS)
    lines = ["  ".join(names)]
    for end in range(100, len(decisions) + 1, 100):
        cells = [f"{end}", *(f"{one[end - 100 : end].mean():.2f}" for one in columns)]
        pairs = zip(cells, names, strict=True)
        lines.append("  ".join(cell.rjust(len(name)) for cell, name in pairs))
    return "\n".join(lines)


def report(folder: str) -> str:
    """Return curve, value of the other policy and privacy of a site."""
    policy = LinearBanditPolicy.open(folder)
    decisions, spent = policy.decisions(settled=True), policy.summary()
    releases = spent.settings.releases
    value = evaluate_policy(decisions, RULE, reward_range=releases.reward_range)
    truth = outcomes(decisions)[0] * [RULE.probabilities(one) for one in decisions]
    return (
        f"{learning_curve(decisions)}\n\n{value}\n"
        f"True value: {truth.sum(axis=1).mean():.4g}\n\n"
        f"Privacy: {dict(spent.facts)['Spent']}; {spent.num_releases} releases"
    )


if __name__ == "__main__":
    print(report(sys.argv[1]))
