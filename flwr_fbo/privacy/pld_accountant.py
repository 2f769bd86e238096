"""The tightest accountant: it composes privacy loss distributions."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from flwr.serverapp import PrivacyConfig

from flwr_fbo.privacy.gaussian import gaussian_delta, gaussian_epsilon
from flwr_fbo.privacy.ledger_accountant import Ledger, LedgerAccountant


class PldAccountant(LedgerAccountant):
    """Composes privacy loss distributions, by dp-accounting's connect-the-dots.

    Without sampling all releases are one Gaussian mechanism, and epsilon is exact
    (Dong, Roth & Su, 2022, corollary 2). With it the losses are discretised to a grid
    that fits the releases; whatever its step, the result is an upper bound. Measured
    against a grid eight times as fine it is within 2e-3 of epsilon, or within 1e-3 of
    it relatively, from 1 to 1000 releases, q from 1e-5 to 1, z from 0.3 to 1000 and
    delta from 2e-2 to 1e-8.
    """

    _method = "pld"

    def __init__(self, config: PrivacyConfig) -> None:
        super().__init__(config)
        # All of the ledger but its last entry, which is the one that grows: a study
        # that asks for epsilon each round composes each round once.
        self._head: tuple[_Entries, float, Any] = ((), 0.0, None)

    def _epsilon(self, ledger: Ledger, delta: float) -> float:
        if self._takes_all(ledger):
            return gaussian_epsilon(delta, _mu(ledger))
        return float(self._composed(ledger).get_epsilon_for_delta(delta))

    def _delta(self, ledger: Ledger, epsilon: float) -> float:
        if self._takes_all(ledger):
            return gaussian_delta(epsilon, _mu(ledger))
        return float(self._composed(ledger).get_delta_for_epsilon(epsilon))

    def _takes_all(self, ledger: Ledger) -> bool:
        """Return whether everybody is in every release."""
        return all(self._probability(event) == 1.0 for event in ledger)

    def _composed(self, ledger: Ledger) -> Any:
        entries: _Entries = tuple(
            (self._probability(event), event.noise_multiplier, count)
            for event, count in ledger.items()
        )
        step = _grid_step(entries)
        *head, last = entries
        done, done_step, composed = self._head
        if done_step != step or tuple(head[: len(done)]) != done:
            done, composed = (), None
        for entry in head[len(done) :]:
            composed = _compose(composed, entry, step)
        self._head = (tuple(head), step, composed)
        return _compose(composed, last, step)


# Sampling probability, noise multiplier, number of releases.
_Entries = tuple[tuple[float, float, int], ...]


def entries_epsilon(entries: _Entries, delta: float) -> float:
    """Return epsilon at ``delta`` of releases of any sampling probabilities."""
    if all(q == 1.0 for q, _, _ in entries):
        mu = math.sqrt(sum(count / z**2 for _, z, count in entries))
        return gaussian_epsilon(delta, mu)
    composed, step = None, _grid_step(entries)
    for entry in entries:
        composed = _compose(composed, entry, step)
    assert composed is not None
    return float(composed.get_epsilon_for_delta(delta))


def _mu(ledger: Ledger) -> float:
    """Return sensitivity over noise of all releases together."""
    items = ledger.items()
    squares = (count * (1.0 / event.noise_multiplier) ** 2 for event, count in items)
    return math.sqrt(sum(squares))


def _compose(composed: Any, entry: tuple[float, float, int], step: float) -> Any:
    loss = _self_composed(*entry, step)
    return loss if composed is None else composed.compose(loss)


@lru_cache(maxsize=128)
def _self_composed(q: float, z: float, count: int, step: float) -> Any:
    """Return the loss of ``count`` equal releases, from those of powers of two.

    A study that asks after every release composes two distributions each time; that of
    ``count`` is the same whatever was asked for before.
    """
    if count == 1:
        # Imported here: it takes long, as Flower's own accountant knows.
        from dp_accounting.pld import privacy_loss_distribution

        return privacy_loss_distribution.from_gaussian_mechanism(
            z, sampling_prob=q, value_discretization_interval=step
        )
    low = count & -count
    rest = count - low or low // 2
    return _self_composed(q, z, rest, step).compose(
        _self_composed(q, z, count - rest, step)
    )


def _grid_step(entries: _Entries) -> float:
    """Return the distance of the losses on the grid that all entries share.

    Interpolating between two dots spreads a loss by about their distance, so it should
    be small beside a typical loss; and the rarest loss of a release should be no more
    than some 10^4 dots away. Powers of two, so that few grids are ever made.
    """
    q, z, count = np.array(entries).T
    # A Gaussian loss has deviation 1/z; rare ones, q times the deviation of exp(loss).
    spread = np.minimum(1 / z, q * np.sqrt(np.expm1(np.minimum(z**-2, 500.0))))
    typical = np.sqrt(np.average(spread**2, weights=count))
    # The loss of a draw ten deviations out.
    with np.errstate(divide="ignore"):
        rarest = np.logaddexp(np.log1p(-q), np.log(q) + (10 * z + 0.5) / z**2).max()
    # Finer than 1e-6, rounding errors outweigh what the grid gains.
    step = max(0.01 * float(typical), 2.0**-14 * float(rarest), 1e-6)
    return float(2.0 ** math.floor(math.log2(step)))
