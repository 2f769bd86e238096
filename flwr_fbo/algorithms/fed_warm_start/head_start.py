"""What all releases of FedWarmStart say together, the same for server and sites.

The posterior mean h of what sites share (`shared_function`), and where it is large.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.random import Purpose, generator, sobol_points
from flwr_fbo.algorithms.fed_warm_start.knowledge import Knowledge
from flwr_fbo.algorithms.fed_warm_start.settings import Cohorts, FedWarmStartSettings
from flwr_fbo.space.search_space import SearchSpace

if TYPE_CHECKING:
    from flwr_fbo.algorithms.fed_warm_start.shared_function import SharedFunction

# A release is followed up to this p0: then sites with unrelated Gaussian functions
# follow in at most one release in ten (`test_shared_function`).
MOST_NULL = 0.18
# And if the shared function's maximum is this likely above a setting that is given.
LEAST_ABOVE = 0.95
# And if h varies by at least this, in units of a site's own variance.
_LEAST_VARIANCE = 0.03
# 2**10 points that h's mean and maximisers are looked for among, and as many again,
# moved to faces of the cube; places that are candidates of each led search.
_GRID_EXPONENT, _NUM_TOPS = 10, 40
_MOVED = 0.4


@dataclass(frozen=True, eq=False)
class HeadStart:
    """What released vectors say, the same for all sites; public.

    Attributes
    ----------
    shared : SharedFunction
        h.
    tops : ndarray of shape (k, D)
        Places where h is largest, the largest first.
    """

    shared: SharedFunction
    tops: FloatArray

    @property
    def is_followed(self) -> bool:
        """Whether enough is shared for agents to start from it."""
        certain = self.shared.null_probability <= MOST_NULL
        return certain and self.shared.variance >= _LEAST_VARIANCE

    def is_above(self, given: FloatArray) -> bool:
        """Whether the maximum is clearly above all given settings, shape (k, D)."""
        above = self.shared.probability_above(self.tops[0], given)
        return bool(np.all(above >= LEAST_ABOVE))


@lru_cache(maxsize=8)  # a process may be host to many agents of one study
def head_start(
    settings: FedWarmStartSettings,
    cohorts: Cohorts,
    space: SearchSpace,
    feature_seed: int,
    vectors: bytes,
    known: Knowledge | None = None,
) -> HeadStart:
    """Return what all releases so far say together.

    Parameters
    ----------
    vectors : bytes
        What the server released: K m float64 numbers, a row a cohort.
    known : Knowledge, optional
        Of earlier studies.
    """
    from flwr_fbo.algorithms.fed_warm_start.shared_function import shared_function

    rows = np.frombuffer(vectors).reshape(-1, settings.num_features)
    sizes = np.array(cohorts.cohort_sizes[: len(rows)])
    # Of N agents only a cohort has sent.
    means = rows * (cohorts.num_agents / sizes)[:, None]
    noise_std = cohorts.noise_multiplier / sizes
    pool = settings.pool(space, feature_seed) if known is None else known.pool
    if known is not None:
        means = np.vstack([known.means, means])
        noise_std = np.append(known.noise_std, noise_std)
        sizes = np.append(known.sizes, sizes)
    rng = generator(feature_seed, Purpose.FOLLOW)
    sobol = sobol_points(space.dim, _GRID_EXPONENT, rng)
    moved = np.where(rng.random(sobol.shape) < _MOVED, np.round(sobol), sobol)
    grid = space.snap_discrete(np.vstack([sobol, moved]))
    shared = shared_function(pool, means, noise_std, sizes, grid[: len(sobol)], rng)
    order = np.argsort(-shared(grid), kind="stable")
    return HeadStart(shared, grid[order[:_NUM_TOPS]])
