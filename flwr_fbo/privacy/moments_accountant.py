"""The accountant of the papers: the moments of integer order."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.special import gammaln, logsumexp, xlog1py, xlogy

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.privacy.ledger_accountant import Ledger, LedgerAccountant


class MomentsAccountant(LedgerAccountant):
    """The moments accountant of the papers: integer orders 1 to 32, nothing between.

    epsilon = min over lambda of (sum of alpha(lambda) - ln delta) / lambda, where
    alpha(lambda) is the log moment of a release (Abadi et al., 2016, theorem 2). Kept
    for comparison: its bound is the loosest of the three.
    """

    _method = "moments"

    def _epsilon(self, ledger: Ledger, delta: float) -> float:
        return float(np.min((self._sum(ledger) - math.log(delta)) / _ORDERS))

    def _delta(self, ledger: Ledger, epsilon: float) -> float:
        return float(np.exp(min(0.0, np.min(self._sum(ledger) - _ORDERS * epsilon))))

    def _sum(self, ledger: Ledger) -> FloatArray:
        total = np.zeros(len(_ORDERS))
        for event, count in ledger.items():
            q, z = self._probability(event), event.noise_multiplier
            total += count * _log_moments(q, z)
        return total


_ORDERS = np.arange(1.0, 33.0)


@lru_cache(maxsize=1024)
def _log_moments(q: float, z: float) -> FloatArray:
    """Return alpha(lambda), the log of the binomial sum over k out of lambda + 1."""
    n, k = _ORDERS[:, None] + 1, np.arange(34.0)[None, :]
    binomial = gammaln(n + 1) - gammaln(k + 1) - gammaln(np.maximum(n - k, 0) + 1)
    terms = binomial + xlogy(k, q) + xlog1py(np.maximum(n - k, 0), -q)
    terms += k * (k - 1) / (2 * z**2)
    return np.asarray(logsumexp(np.where(k <= n, terms, -np.inf), axis=1))
