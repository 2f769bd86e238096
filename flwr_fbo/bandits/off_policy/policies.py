"""Target policies, and their evaluation on the log of a site's bandit."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from flwr_fbo._common.arrays import FloatArray, first_best
from flwr_fbo._common.conversion import float_array, plain
from flwr_fbo._common.text import printable
from flwr_fbo._common.validation import nearest, refuse, require, require_known
from flwr_fbo.bandits.off_policy.estimators import (
    PolicyValue,
    all_estimates,
    by_name,
    logged_mean,
    of_arms,
)
from flwr_fbo.bandits.off_policy.tables import TableLog
from flwr_fbo.bandits.site.decision import Decision

_FORMS = ("uniform", "always:NAME", "greedy", "python:MODULE:FUNCTION")
# A user's own policy takes the context, the arms' names and their features.
PolicyFunction = Callable[[Mapping[str, Any] | None, tuple[str, ...], FloatArray], Any]


@dataclass(frozen=True)
class TargetPolicy:
    """A policy that a log is evaluated for.

    Parameters
    ----------
    name : str
        Name for tables.
    probabilities : callable
        Takes a `Decision` and returns the probabilities of its eligible arms, shape
        (K,). It must not look at what was chosen, nor at the reward.
    arm : str, optional
        Name of an arm that must be eligible in at least one decision.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fbo.bandits import Decision
    >>> from flwr_fbo.bandits.off_policy.policies import uniform
    >>> decision = Decision(0, 0.0, None, ("ward", "home"), np.eye(2), 1, 0.8, 0.4)
    >>> uniform.probabilities(decision)
    array([0.5, 0.5])
    """

    name: str
    probabilities: Callable[[Decision], ArrayLike]
    arm: str | None = None


def _uniform(decision: Decision) -> FloatArray:
    return np.full(len(decision.arms), 1 / len(decision.arms))


#: Chooses every eligible arm with the same probability.
uniform = TargetPolicy("uniform", _uniform)


def always(name: str) -> TargetPolicy:
    """Return the policy that chooses one arm wherever it is eligible.

    Elsewhere it chooses every eligible arm with the same probability. `from_function`
    makes a policy that does otherwise.

    Parameters
    ----------
    name : str
        Name of the arm.
    """

    def probabilities(decision: Decision) -> FloatArray:
        if name not in decision.arms:
            return _uniform(decision)
        return _sure(decision.arms.index(name), decision)

    return TargetPolicy(f"always:{name}", probabilities, name)


def greedy(theta: ArrayLike) -> TargetPolicy:
    """Return the policy that chooses the arm with the largest estimated reward.

    Among several such arms it chooses the first one. An estimate from the
    evaluated log itself makes the policy look better than it is: take it from earlier
    decisions, or from other sites.

    Parameters
    ----------
    theta : array of shape (d,)
        Estimate of the bandit's parameter, such as `LinearPolicySummary.estimate`.
    """
    theta = float_array("theta", theta)
    require(theta.ndim == 1, "theta", theta.shape, "shape (d,)")
    require(bool(np.isfinite(theta).all()), "theta", theta, "finite numbers")

    def probabilities(decision: Decision) -> FloatArray:
        d = np.shape(decision.features)[-1]
        expected = f"shape ({d},), as the features of decision {decision.number}"
        require(len(theta) == d, "theta", theta.shape, expected)
        return _sure(int(first_best(decision.features @ theta)), decision)

    return TargetPolicy("greedy", probabilities)


def from_function(function: PolicyFunction, name: str = "") -> TargetPolicy:
    """Return the policy of a function of your own.

    Parameters
    ----------
    function : callable
        Takes ``context``, ``arms`` and ``features`` as in `Decision`, and returns the
        index of an arm, the name of an arm, or the probabilities of all eligible arms:
        in their order, or by name.
    name : str
        Name for tables; by default the function's.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fbo.bandits import Decision
    >>> from flwr_fbo.bandits.off_policy.policies import from_function
    >>> def old_patients_stay(context, arms, features):
    ...     return "ward" if context["age"] > 80 else "home"
    >>> policy = from_function(old_patients_stay)
    >>> context, arms = {"age": 71}, ("ward", "home")
    >>> policy.probabilities(Decision(0, 0.0, context, arms, np.eye(2), 1, 0.8, 0.4))
    array([0., 1.])
    """

    def probabilities(decision: Decision) -> ArrayLike:
        answer = function(decision.context, decision.arms, decision.features)
        answer = plain(answer)
        where = f"answer of {label} for decision {decision.number}"
        if isinstance(answer, str):
            if answer not in decision.arms:
                nearest_arm = nearest(answer, decision.arms)
                refuse(where, answer, f"an eligible arm, {nearest_arm}")
            return _sure(decision.arms.index(answer), decision)
        if by_name(answer) or np.ndim(answer):
            return of_arms(answer, decision)
        k = len(decision.arms)
        is_int = isinstance(answer, int) and not isinstance(answer, bool)
        expected = f"an index from 0 to {k - 1}, an arm's name, or {k} probabilities"
        require(is_int and 0 <= answer < k, where, answer, expected)
        return _sure(int(answer), decision)

    label = name or getattr(function, "__name__", type(function).__name__)
    return TargetPolicy(label, probabilities)


def _sure(index: int, decision: Decision) -> FloatArray:
    """Return the probabilities of a policy that chooses one arm for sure."""
    probabilities = np.zeros(len(decision.arms))
    probabilities[index] = 1.0
    return probabilities


def parse_policy(text: str, theta: ArrayLike | None = None) -> TargetPolicy:
    """Return the policy that a command line names.

    Parameters
    ----------
    text : str
        "uniform", "always:NAME", "greedy", or "python:MODULE:FUNCTION" for a function
        as `from_function` takes it. The module may be in the current folder.
    theta : array of shape (d,), optional
        Estimate that "greedy" needs.

    Raises
    ------
    ValueError
        If the policy, module or function is unknown, or the estimate is missing.

    Examples
    --------
    >>> from flwr_fbo.bandits.off_policy.policies import parse_policy
    >>> parse_policy("always:home").name
    'always:home'
    """
    kind, _, rest = text.partition(":")
    if text == "uniform":
        return uniform
    if kind == "always" and rest:
        return always(rest)
    if text == "greedy":
        if theta is None:
            refuse("theta", theta, "an estimate, which greedy needs")
        return greedy(theta)
    module, _, function = rest.partition(":")
    if not (kind == "python" and module and function):
        refuse("policy", text, f"one of {', '.join(_FORMS)}")
    return from_function(_imported(module, function), text)


def _imported(module: str, function: str) -> PolicyFunction:
    """Import a function, also from the current folder."""
    field = "module of the policy"
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        found = import_module(module)
    except ModuleNotFoundError as error:
        # A module that the user's own module lacks is the user's to read about.
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        expected = f"one that Python finds, also in {folder}"
        raise ValueError(f"{field}={module!r} is not allowed: {expected}.") from error
    finally:
        sys.path.remove(folder)
    choice: PolicyFunction | None = getattr(found, function, None)
    if choice is None or not callable(choice):
        refuse("function of the policy", function, f"a function of {module}")
    return choice


_WEIGHTS = ("eff. sample", "mean weight", "max.")


@dataclass(frozen=True)
class PolicyEvaluation:
    """Estimates of a target policy's value; ``print`` shows them as a table.

    Attributes
    ----------
    policy : str
        Name of the target policy.
    confidence : float
        Confidence of each interval.
    logged : PolicyValue
        Mean reward of the log's own policy.
    ips, snips, doubly_robust : PolicyValue
        Estimates for the target policy, by each estimator.
    propensities : str
        How the log's propensities were estimated; empty if they are on record.
    """

    policy: str
    confidence: float
    logged: PolicyValue
    ips: PolicyValue
    snips: PolicyValue
    doubly_robust: PolicyValue
    propensities: str = ""

    @property
    def estimates(self) -> dict[str, PolicyValue]:
        """The estimates for the target policy, by the estimator's name in tables."""
        return {
            "IPS": self.ips,
            "SNIPS": self.snips,
            "doubly robust": self.doubly_robust,
        }

    def __str__(self) -> str:
        """Return the evaluation as a table for a terminal of 100 columns."""
        logged = self.logged
        awaited = f"{logged.num_awaited} left out without a reward"
        interval = f"{100 * self.confidence:g} % interval"
        rows = [
            ("", "value", "std. error", interval, *_WEIGHTS),
            ("logged policy", *cells_of(logged)),
            *((label, *cells_of(value)) for label, value in self.estimates.items()),
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            f"Policy: {printable(self.policy)}",
            f"Decisions: {logged.num_decisions} with a reward, {awaited}",
        ]
        for first, *others in rows:
            cells = map(str.rjust, others, widths[1:])
            lines.append("  ".join([first.ljust(widths[0]), *cells]))
        return "\n".join([*lines, *self.warnings])

    @property
    def warnings(self) -> list[str]:
        """Reasons why intervals may not hold, the log's own included; each once."""
        found = [self.logged, *self.estimates.values()]
        reasons = [value.warning for value in found if value.warning]
        if self.propensities:
            reasons.append(
                f"Propensities are estimated by {self.propensities}. Intervals do not "
                "cover the error of that."
            )
        return list(dict.fromkeys(reasons))


def cells_of(estimate: PolicyValue) -> tuple[str, ...]:
    """Return an estimate's value, standard error, interval, and what its weights are.

    The last cells are the effective sample size, the mean and the largest weight.
    """
    has_interval = not math.isnan(estimate.low)
    interval = f"{estimate.low:.4g} to {estimate.high:.4g}"
    return (
        f"{estimate.value:.4g}",
        f"{estimate.standard_error:.2g}",
        interval if has_interval else "too little",
        f"{estimate.effective_sample_size:.1f}",
        f"{estimate.mean_weight:.2f}",
        f"{estimate.largest_weight:.3g}",
    )


def evaluate_policy(
    decisions: Iterable[Decision],
    policy: TargetPolicy | PolicyFunction | Mapping[str, float],
    confidence: float = 0.95,
    reward_range: tuple[float, float] | None = None,
) -> PolicyEvaluation:
    """Estimate what a policy would have earned in the recorded decisions.

    *Formal guarantees*: none. It is computed at the site, and sent nowhere. Estimates
    and intervals are statistics of raw data, without noise: keep them at the site.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fbo.bandits import Decision, evaluate_policy
    >>> from flwr_fbo.bandits.off_policy.policies import always
    >>> arms, features = ("ward", "home"), np.eye(2)
    >>> log = [  # of a policy that sent four of five patients home
    ...     Decision(t, 60.0 * t, None, arms, features, chosen=int(t % 5 > 0),
    ...              propensity=0.8 if t % 5 else 0.2, reward=t % 5 / 4)
    ...     for t in range(100)
    ... ]
    >>> print(evaluate_policy(log, always("home"), reward_range=(0, 1)))
    Policy: always:home
    Decisions: 100 with a reward, 0 left out without a reward
                    value  std. error     95 % interval  eff. sample  mean weight  max.
    logged policy     0.5       0.036  0.4309 to 0.5691        100.0         1.00     1
    IPS             0.625       0.044  0.5386 to 0.7114         80.0         1.00  1.25
    SNIPS           0.625       0.031    0.564 to 0.686         80.0         1.00  1.25
    doubly robust  0.6231       0.032  0.5608 to 0.6855         80.0         1.00  1.25

    Parameters
    ----------
    decisions : iterable of Decision
        The log of one site, or that of `read_table`. At least two decisions need a
        reward.
    policy : TargetPolicy, callable or mapping of str to float
        The policy to evaluate; see `flwr_fbo.bandits.off_policy.policies`. A function
        is one as `from_function` takes it. A mapping has the probability of each arm
        by name, the same in all decisions.
    confidence : float
        Confidence of each interval, between 0 and 1.
    reward_range : (float, float), optional
        Smallest and largest possible reward, as in the study's `ContinualSettings`. By
        default those of the log, and intervals then do not cover rewards that it lacks.

    Returns
    -------
    PolicyEvaluation
        Three estimates beside the mean reward of the log's own policy.

    Raises
    ------
    ValueError
        If the log or the policy is not allowed, or the log cannot tell what the policy
        would have earned.
    """
    propensities = decisions.propensities if isinstance(decisions, TableLog) else ""
    decisions = list(decisions)
    if by_name(policy):
        policy = TargetPolicy("fixed", partial(of_arms, policy))
    elif callable(policy):
        policy = from_function(policy)
    if not isinstance(policy, TargetPolicy):
        expected = "a TargetPolicy, a function or a mapping: see `parse_policy`"
        refuse("policy", policy, expected)
    logged = logged_mean(decisions, confidence, reward_range)
    arms = sorted({arm for decision in decisions for arm in decision.arms})
    if policy.arm is not None:
        require_known("arm", policy.arm, arms)
    # Those without a reward are left out: the policy is not asked.
    probabilities = [
        () if math.isnan(decision.reward) else policy.probabilities(decision)
        for decision in decisions
    ]
    return PolicyEvaluation(
        policy=policy.name,
        confidence=confidence,
        logged=logged,
        propensities=propensities,
        **all_estimates(decisions, probabilities, confidence, reward_range),
    )
