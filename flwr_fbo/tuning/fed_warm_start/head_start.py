"""Joint evidence of all releases of FedWarmStart, the same for server and sites.

The posterior mean h of what sites share (`shared_function`), and where it is large.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from flwr_fbo._common.random import Purpose, generator, sobol_points
from flwr_fbo.space.search_space import SearchSpace
from flwr_fbo.tuning.fed_warm_start.knowledge import Knowledge
from flwr_fbo.tuning.fed_warm_start.settings import Cohorts, FedWarmStartSettings

if TYPE_CHECKING:
    from flwr_fbo.tuning.fed_warm_start.shared_function import SharedFunction

# 2**10 points that h's mean and maximisers are looked for among, and as many again,
# moved to faces of the cube.
_GRID_EXPONENT = 10
_MOVED = 0.4


@lru_cache(maxsize=8)  # a process may be host to many agents of one study
def head_start(
    settings: FedWarmStartSettings,
    cohorts: Cohorts,
    space: SearchSpace,
    feature_seed: int,
    vectors: bytes,
    known: Knowledge | None = None,
) -> SharedFunction:
    """Return what all releases so far say together.

    Parameters
    ----------
    vectors : bytes
        Released vectors: K m float64 numbers, one row per cohort.
    known : Knowledge, optional
        Releases of earlier studies.
    """
    from flwr_fbo.tuning.fed_warm_start.shared_function import shared_function

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
    reference = grid[: len(sobol)]
    return shared_function(pool, means, noise_std, sizes, reference, rng=rng, grid=grid)
