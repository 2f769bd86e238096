"""Choose each study after the last one was read, so as to learn most within a limit.

    python -m tests.adversaries.adaptive_servers [--depth 3] [--steps 800] [--size 3]

The best adversary, exactly: a server that knows one site's data but for one agent's
part, and tells from the releases whether that is in. After each study it knows the
privacy loss so far. It then chooses the next one, of a family, among those that the
limit still admits, goes on with one that it has begun, or stops. Dynamic programming
over a grid of the loss gives the largest delta, at the limit's epsilon, that any such
server reaches: an upper bound and a lower bound of it, as the grid rounds losses.

For each limit it prints both bounds, over the limit's delta, under the site's rule
(`Spent`) and under two that are wrong: one adds up all charges as if they had been
fixed in advance, the other lets the server say late how much of delta its studies with
sampling take. The exit status is 1 if the site's rule lets any server above a limit,
or a wrong one lets none above any.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
from scipy.signal import fftconvolve
from scipy.special import ndtr

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.privacy.accounting import calibrate_noise_multiplier
from flwr_fbo.privacy.filters import Spent, _entries, _gaussian_parameter
from flwr_fbo.privacy.gaussian import gaussian_delta, gaussian_mu
from flwr_fbo.privacy.loss_distribution import LossDistribution
from flwr_fbo.privacy.spending_ledger import Charge, composed_epsilon

Group = tuple[Charge, ...]
# A limit admits all that a server has charged, in order, or not.
Rule = Callable[[tuple[Group, ...], float, float], bool]

# What is left of epsilon is looked at from minus this to this above it: below, almost
# all is told (1 - exp(-12) at least), and above almost nothing can be any more.
_RANGE = 12.0
# How much finer the lower bound's grid is while releases are added up.
_FINER = 16
LIMITS = ((0.5, 1e-2), (1.0, 1e-3), (2.0, 1e-3), (2.0, 1e-5), (3.0, 1e-2), (4.0, 1e-6))


@dataclass(frozen=True)
class Study:
    """A study: parts that are read one after another, each of some releases.

    Attributes
    ----------
    parts : tuple of tuple of Charge
        With sampling, all are charged before the first is read.
    """

    parts: tuple[Group, ...]

    @property
    def whole(self) -> Group:
        """All charges."""
        return tuple(charge for part in self.parts for charge in part)


@cache
def by_filter(groups: tuple[Group, ...], epsilon: float, delta: float) -> bool:
    """Return whether a site admits the charges."""
    return not Spent(groups).exceeds(epsilon, delta)


@cache
def as_if_fixed(groups: tuple[Group, ...], epsilon: float, delta: float) -> bool:
    """Return whether the charges fit, had they been fixed in advance."""
    return composed_epsilon([c for group in groups for c in group], delta) <= epsilon


@cache
def chosen_late(groups: tuple[Group, ...], epsilon: float, delta: float) -> bool:
    """Return whether the sums fit, where nothing was set aside before the first."""
    squares = taken = 0.0
    for group in groups:
        entries = _entries(group)
        if all(q == 1 for q, _, _ in entries):
            squares += sum(count / z**2 for _, z, count in entries)
            continue
        costs = []
        for share in (0.9 * delta, 0.3 * delta, 0.05 * delta, 0.01 * delta):
            after = squares + _gaussian_parameter(entries, share, False) ** 2
            costs.append((share + _delta(epsilon, after), share, after))
        _, share, squares = min(costs)
        taken += share
    return taken + _delta(epsilon, squares) <= delta


def _delta(epsilon: float, squares: float) -> float:
    return gaussian_delta(epsilon, math.sqrt(squares)) if squares > 0 else 0.0


RULES: dict[str, Rule] = {
    "filter": by_filter,
    "as if fixed": as_if_fixed,
    "chosen late": chosen_late,
}


def rounded_up(steps: int) -> float:
    """Return what the upper bound is at most, over the limit, where that holds.

    What a grid rounds up falls by the square of its step; measured it is less.
    """
    return 1 + 64 / steps**2


def family(epsilon: float, delta: float, size: int = 3) -> list[Study]:
    """Return studies that a server may choose from.

    Parameters
    ----------
    epsilon, delta : float
        The limit: each study by itself costs a share of it, or all of it.
    size : int
        From 1: more shares and shapes.
    """
    # Shares of the budget, without sampling.
    mu = gaussian_mu(epsilon, delta)
    studies = [
        Study(((Charge(1 / (mu * math.sqrt(share))),),))
        for share in (0.5, 0.25, 0.8)[:size]
    ]
    # A rare accident: with probability q almost all is told.
    studies += [Study(((Charge(0.25, q * delta),),)) for q in (0.9, 0.3)[:size]]
    shapes = ((0.3, (1,)), (0.02, (5, 5)), (0.35, (20, 20)), (0.5, (2,)), (0.005, (1,)))
    for q, parts in shapes[: size + 2]:
        for share in (0.5, 1.0, 0.25)[:size]:
            z = calibrate_noise_multiplier(share * epsilon, delta, q, sum(parts))
            studies.append(Study(tuple((Charge(z, q, n),) for n in parts)))
    return studies


class Adversary:
    """The best server, for one limit, one rule and one direction.

    Parameters
    ----------
    rule : callable
    epsilon, delta : float
        The limit.
    studies : list of Study
    added : bool
        Whether its first world is the one without the agent.
    upper : bool
        Whether what it reaches is rounded up, or else down.
    steps : int
        Of the grid, about so many to the deviation of the loss at the limit.
    depth : int
        Most studies that it charges.
    """

    def __init__(
        self,
        rule: Rule,
        epsilon: float,
        delta: float,
        studies: list[Study],
        *,
        added: bool,
        upper: bool,
        steps: int,
        depth: int,
    ) -> None:
        self._rule, self._studies, self._depth = rule, studies, depth
        self._epsilon, self._delta = epsilon, delta
        self._added, self._upper = added, upper
        # So that epsilon, where it begins, is on the grid.
        self._step = epsilon / math.ceil(epsilon * steps / gaussian_mu(epsilon, delta))
        num = math.ceil(_RANGE / self._step)
        # What is left of epsilon: it falls by each loss.
        self._begin = num + round(epsilon / self._step)
        places = np.arange(-num, self._begin + 1, dtype=np.float64)
        self._left: FloatArray = self._step * places
        self._value = cache(self._best)

    def delta(self) -> float:
        """Return the delta that it reaches at the limit's epsilon."""
        return float(self._value((), ())[self._begin])

    def _best(self, charged: tuple[Group, ...], open_parts: Group) -> FloatArray:
        """Return the best mean of (1 - exp(what is left in the end))+, by what is left.

        Parameters
        ----------
        charged : tuple of tuple of Charge
            In order.
        open_parts : tuple of Charge
            Releases that are charged, and not read yet.
        """
        best: FloatArray = np.maximum(0.0, -np.expm1(np.minimum(self._left, 0.0)))
        if mu := self._rest(charged):  # all that is left, without sampling
            best = np.maximum(best, _gaussian_deltas(self._left, mu))
        for i, part in enumerate(open_parts):
            rest = open_parts[:i] + open_parts[i + 1 :]
            best = np.maximum(best, self._read((part,), charged, rest))
        for study, after, later in self._choices(charged):
            opened = tuple(sorted(open_parts + later, key=repr))
            best = np.maximum(best, self._read(study, after, opened))
        return best

    def _choices(
        self, charged: tuple[Group, ...]
    ) -> Iterator[tuple[Group, tuple[Group, ...], Group]]:
        """Yield what is read next, what is charged then, and what may be read later."""
        if len(charged) == self._depth:
            return
        for study in self._studies:
            after = (*charged, study.whole)
            if self._rule(after, self._epsilon, self._delta):
                yield study.parts[0], _in_order(after), sum(study.parts[1:], ())

    def _read(
        self, part: Group, charged: tuple[Group, ...], open_parts: Group
    ) -> FloatArray:
        """Return the mean value after some releases, by what was left before."""
        loss = _loss(part, self._step, self._added, self._upper)
        value = self._value(charged, open_parts)
        most, least = (1.0, value[-1]) if self._upper else (value[0], 0.0)
        padded = (
            np.full(max(loss.highest, 0), most),
            value,
            np.full(max(-loss.lowest, 0), least),
        )
        assert loss.lowest <= 0 <= loss.highest
        mean = fftconvolve(np.concatenate(padded), loss.masses, "valid")
        return np.asarray(mean + loss.infinite)

    def _rest(self, charged: tuple[Group, ...]) -> float:
        """Return mu of the largest Gaussian release that the rule still admits."""
        low, high = 0.0, gaussian_mu(self._epsilon, self._delta) * 1.001
        while high - low > 1e-3 * high:
            middle = (low + high) / 2
            group = (Charge(max(1e-3, 1 / middle)),)
            fits = self._rule((*charged, group), self._epsilon, self._delta)
            low, high = (middle, high) if fits else (low, middle)
            if high < 1e-3:
                return 0.0
        return low


def _in_order(groups: tuple[Group, ...]) -> tuple[Group, ...]:
    """Return groups so that histories of one cost are one: the first, then by kind."""
    first, *others = groups
    sampled = [g for g in others if any(c.sampling_probability < 1 for c in g)]
    gaussian = [g for g in others if g not in sampled]
    return (first, *sampled, *sorted(gaussian, key=repr))


def _gaussian_deltas(left: FloatArray, mu: float) -> FloatArray:
    """Return delta at epsilons of either sign."""
    second = np.exp(left) * ndtr(-mu / 2 - left / mu)
    return np.asarray(ndtr(mu / 2 - left / mu) - second)


@lru_cache(maxsize=256)
def _loss(part: Group, step: float, added: bool, upper: bool) -> LossDistribution:
    """Return a bound on the loss of some releases, on a grid."""
    fine = step if upper else step / _FINER
    total = LossDistribution.nothing(fine)
    for charge in part:
        q, z = charge.sampling_probability, charge.noise_multiplier
        one = (
            LossDistribution.of_release(q, z, fine, "ADD" if added else "REMOVE")
            if upper
            else _rounded_down(q, z, fine, added)
        )
        for _ in range(charge.num_releases):
            total = total.compose(one)
    if upper:
        return total
    places = (total.lowest + np.arange(len(total.masses))) // _FINER
    lowest = min(0, int(places[0]))
    masses = np.zeros(max(int(places[-1]), 0) - lowest + 1)
    np.add.at(masses, places - lowest, total.masses)
    return LossDistribution(step, lowest, masses, total.infinite)


def _rounded_down(q: float, z: float, step: float, added: bool) -> LossDistribution:
    """Return the exact law of a release's loss, each one moved down to the grid."""
    # The loss of a draw x, z units from mean 0 or 1: log(1 - q + q exp(..)), or minus.
    most = 10 * z + 1
    ends = np.array([-most, most])
    losses = np.log1p(q * np.expm1(np.minimum((ends - 0.5) / z**2, 4 * _RANGE)))
    low, high = (-losses[1], -losses[0]) if added else (losses[0], losses[1])
    first, last = math.floor(max(low, -2 * _RANGE) / step), math.ceil(high / step)
    dots = step * np.arange(first, last + 1)
    loss = -dots if added else dots
    with np.errstate(invalid="ignore", divide="ignore"):
        x = 0.5 + z**2 * np.log1p(np.expm1(loss) / q)
    x = np.where(np.isnan(x), -np.inf, x)
    with_agent = (1 - q) * ndtr(x / z) + q * ndtr((x - 1) / z)
    below = ndtr(-x / z) if added else with_agent
    # What is above all dots is moved down to the last one, and what is below, away.
    masses = np.append(np.diff(below), 1 - below[-1])
    return LossDistribution(step, first, np.maximum(masses, 0.0), 0.0)


def reached(
    rule: Rule, limit: tuple[float, float], *, steps: int, depth: int, size: int
) -> tuple[float, float]:
    """Return bounds of the best server's delta, over that of the limit."""
    epsilon, delta = limit
    studies = family(epsilon, delta, size)
    found = [
        max(
            Adversary(
                rule,
                epsilon,
                delta,
                studies,
                added=added,
                upper=upper,
                steps=steps,
                depth=depth,
            ).delta()
            for added in (False, True)
        )
        for upper in (False, True)
    ]
    return found[0] / delta, found[1] / delta


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.adversaries.adaptive_servers"
    )
    parser.add_argument("--steps", type=int, default=800, help="of the grid")
    parser.add_argument("--depth", type=int, default=3, help="most studies")
    parser.add_argument("--size", type=int, default=3, help="of the family, 1 to 3")
    given = parser.parse_args()
    is_safe, beaten = True, set()
    print("delta of the best server, over that of the limit: at least and at most")
    for limit in LIMITS:
        texts = []
        for name, rule in RULES.items():
            # Against a wrong rule few kinds are enough, and it takes longer.
            is_right = rule is by_filter
            found = reached(
                rule,
                limit,
                steps=given.steps if is_right else 200,
                depth=given.depth,
                size=given.size if is_right else 1,
            )
            if is_right:
                is_safe &= found[1] <= rounded_up(given.steps)
            elif found[0] > 1.0:
                beaten.add(name)
            texts.append(f"{name} {found[0]:.4f} {found[1]:.4f}")
        title = f"epsilon {limit[0]:g}, delta {limit[1]:g}: "
        print(f"{title:28}{', '.join(texts)}", flush=True)
    sys.exit(not (is_safe and len(beaten) == len(RULES) - 1))


if __name__ == "__main__":
    main()
