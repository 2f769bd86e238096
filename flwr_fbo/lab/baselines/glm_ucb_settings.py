"""Settings and sums of Fed-GLB-UCB."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.conversion import take_plain
from flwr_fbo._common.validation import require, require_int, require_positive
from flwr_fbo.lab.baselines.glm import IdentityLink, Link, LogisticLink


@dataclass(frozen=True)
class GLMUCBSettings:
    """What all agents of a study have in common.

    Attributes
    ----------
    reward_range : tuple of float, or None
        (low, high), between which mean rewards lie: a logistic link. None: an identity
        link, for rewards of any size.
    ridge : float
        lambda > 0.
    beta : float
        > 0: the squared radius of the ellipsoid.
    threshold : float
        D > 0: the larger, the fewer synchronisations.
    curvature : float
        0 < c_mu <= the largest slope of mu; 1 makes online Newton steps on an identity
        link exact.
    parameter_norm : float
        S > 0.
    accuracy : float
        > 0.
    max_iterations : int
        >= 1: of one descent.
    """

    reward_range: tuple[float, float] | None = None
    ridge: float = 0.1
    beta: float = 0.01
    threshold: float = 1.0
    curvature: float = 1.0
    parameter_norm: float = 100.0
    accuracy: float = 1.0
    max_iterations: int = 1000

    def __post_init__(self) -> None:
        take_plain(self)
        for name in ("ridge", "beta", "threshold", "parameter_norm", "accuracy"):
            require_positive(name, getattr(self, name))
        require_positive("curvature", self.curvature)
        require_int("max_iterations", self.max_iterations, 1)
        given = self.reward_range
        ok = given is None or (isinstance(given, tuple) and len(given) == 2)
        require(ok, "reward_range", given, "two numbers, or None")
        slope = self.link.largest_slope
        ok = self.curvature <= slope
        allowed = f"at most {slope:g}, the largest slope of the link"
        require(ok, "curvature", self.curvature, allowed)

    @property
    def link(self) -> Link:
        """Mu."""
        if self.reward_range is None:
            return IdentityLink()
        return LogisticLink(*self.reward_range)

    def matrix(self, gram: FloatArray) -> FloatArray:
        """Return A of a sum of x x'."""
        return gram + self.ridge / self.curvature * np.eye(len(gram))


@dataclass(frozen=True, eq=False)
class Gram:
    """What an agent sends first in a synchronisation.

    Attributes
    ----------
    num_evaluations : int
        How many there are in it.
    values : ndarray of shape (d, d)
        Sum of x x'.
    """

    num_evaluations: int
    values: FloatArray
