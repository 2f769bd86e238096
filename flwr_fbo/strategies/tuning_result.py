"""What a tuning study gives back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from flwr_fbo.space.search_space import Params
from flwr_fbo.strategies.result import StudyResult
from flwr_fbo.tuning.search.recommendation import Recommendation


@dataclass(repr=False)
class TuningResult(StudyResult):
    """The result of tuning.

    Examples
    --------
    >>> from flwr_fbo import FedVote, InProcessGrid, tuning_app
    >>> from optuna.distributions import FloatDistribution
    >>> app = tuning_app(lambda context: lambda trial: -abs(trial["x"] - 0.7))
    >>> strategy = FedVote(
    ...     space={"x": FloatDistribution(0, 1)},
    ...     direction="maximize",
    ...     num_agents=20,
    ...     epsilon=8.0,
    ...     delta=1e-3,
    ... )
    >>> result = strategy.start(InProcessGrid(app, num_nodes=20), num_rounds=21)
    >>> round(result.recommended["x"], 1)
    0.7
    >>> len(result.rounds), result.privacy_spent.num_releases
    (21, 3)

    Attributes
    ----------
    recommendation : Recommendation
        One setting for the federation, or with `FedWarmStart` a start for new sites,
        and how sure it is. It is computed from released vectors alone, and so costs no
        privacy.
    verdict : str
        Whether sites that started from releases did better or worse than those that
        searched alone. Only `FedWarmStart` with ``Host(metrics=["best-value"])`` can
        tell, of two sites of each kind or more; else it is empty.
    """

    recommendation: Recommendation = field(default_factory=Recommendation)
    verdict: str = ""

    @property
    def recommended(self) -> Params | None:
        """The recommended setting; None where none can be recommended."""
        found = self.recommendation
        return None if found.is_start else found.params

    @property
    def warm_start(self) -> Params | None:
        """Where a new site should start; None where nothing says so.

        Only `FedWarmStart` gives one.
        """
        found = self.recommendation
        return found.params if found.is_start else None

    @property
    def found(self) -> dict[str, Any]:
        """The setting, by what it is: ``"recommended"`` or ``"warm-start"``."""
        recommendation = self.recommendation
        if recommendation.params is None:
            return {}
        name = "warm-start" if recommendation.is_start else "recommended"
        return {name: recommendation.params}

    def _lines(self) -> list[str]:
        told = [self.verdict] if self.verdict else []
        return [str(self.recommendation), *told, *super()._lines()]
