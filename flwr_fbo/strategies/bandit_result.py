"""What a bandit gives back."""

from __future__ import annotations

from dataclasses import dataclass

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.strategies.result import StudyResult


@dataclass(repr=False)
class BanditResult(StudyResult):
    """The result of a bandit.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fbo import FedUCB, InProcessGrid, linear_bandit_app
    >>> from flwr_fbo.bandits import ContinualSettings, LinearUCBSettings
    >>> class Ward:
    ...     def contexts(self, t):
    ...         return np.eye(3)  # the actions of trial t
    ...     def reward(self, x):
    ...         return float(x @ [0.2, 0.3, 0.8])
    >>> app = linear_bandit_app(make_environment=lambda context: Ward())
    >>> releases = ContinualSettings(
    ...     num_releases=2, dimension=3, epsilon=4.0, delta=1e-5
    ... )
    >>> settings = LinearUCBSettings(releases, "own")
    >>> strategy = FedUCB(settings, num_agents=4, schedule=[10, 20])
    >>> result = strategy.start(InProcessGrid(app, num_nodes=4))
    >>> result.estimate.shape
    (3,)
    >>> print(result)  # doctest: +ELLIPSIS
    3 rounds, 12 answers of agents
    Privacy spent in 2 releases: epsilon 4.000 per example (replaced by another, ...

    Attributes
    ----------
    estimate : ndarray of shape (d,), or None
        Estimate of the shared parameter, from the sum that was synchronised last; of
        `FedGOUCB` the parameters w0 that phase I has found. It is computed from what
        was released alone, and so costs no privacy. None where nothing was released, or
        where nothing can be learned from the sum. Without noise a lying agent can cause
        the latter.
    num_synchronisations : int
        How often sums were shared: by the agent that did so most often.
    """

    estimate: FloatArray | None = None
    num_synchronisations: int = 0
