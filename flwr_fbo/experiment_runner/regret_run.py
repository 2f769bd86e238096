"""What a method did on one seed, where agents play bandits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flwr_fbo.experiment_runner.base import Run


@dataclass(frozen=True, kw_only=True)
class RegretRun(Run):
    """What one method did on one seed.

    Attributes
    ----------
    regret : list of float
        Added up, after each of the experiment's ``iterations``.
    """

    regret: list[float]

    @property
    def curve(self) -> NDArray[np.float64]:
        """The regret, as an array."""
        return np.array(self.regret)
