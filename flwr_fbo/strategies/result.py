"""What a study gives back: Flower's result, and what a study adds to it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from flwr.serverapp.strategy import Result

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.conversion import frame_of
from flwr_fbo._common.text import counted
from flwr_fbo.privacy.accounting import PrivacySpent
from flwr_fbo.privacy.conditions import after_epsilon
from flwr_fbo.space.search_space import Params
from flwr_fbo.study.callbacks import Round
from flwr_fbo.tuning.search.recommendation import Recommendation


@dataclass(repr=False)
class StudyResult(Result):
    """The result of a study.

    Attributes
    ----------
    privacy_spent : PrivacySpent or None
        Epsilon at delta of all releases; None where the method releases nothing.
    rounds : list of Round
        How the agents answered in each round.
    condition : str
        Under which epsilon holds, such as "for a finished table"; empty without one.
    """

    privacy_spent: PrivacySpent | None = None
    rounds: list[Round] = field(default_factory=list)
    condition: str = ""

    @property
    def found(self) -> dict[str, Any]:
        """What came out, by what it is: for trackers. Empty unless it is settings."""
        return {}

    def to_dataframe(self) -> Any:
        """Return the rounds as a ``pandas.DataFrame``: one row a round.

        Its columns are the attributes of `Round`. Epsilon is NaN where there is none.

        Raises
        ------
        ImportError
            If pandas is not installed; the message names the extra.
        """
        columns = [column.name for column in fields(Round)]
        frame = frame_of([asdict(finished) for finished in self.rounds], columns)
        return frame.astype({"epsilon": float})

    def __repr__(self) -> str:
        """Say what came out; Flower's own records stay in their attributes."""
        return "\n".join(self._lines())

    def _lines(self) -> list[str]:
        answers = sum(finished.answered for finished in self.rounds)
        lines = [f"{len(self.rounds)} rounds, {answers} answers of agents"]
        if self.privacy_spent is not None:
            spent = self.privacy_spent
            lines.append(
                f"Privacy spent: epsilon = {spent.epsilon:.3f} at delta = "
                f"{spent.delta:.3g}, {counted(spent.num_releases, 'release')}"
                f"{after_epsilon(self.condition)}"
            )
        return lines


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


@dataclass(repr=False)
class BanditResult(StudyResult):
    """The result of a bandit.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fbo import (
    ...     ContinualSettings, FedUCB, InProcessGrid, LinearUCBSettings,
    ...     linear_bandit_app,
    ... )
    >>> class Ward:
    ...     def contexts(self, t):
    ...         return np.eye(3)  # the actions of trial t
    ...     def reward(self, x):
    ...         return float(x @ [0.2, 0.3, 0.8])
    >>> app = linear_bandit_app(make_environment=lambda context: Ward())
    >>> releases = ContinualSettings(
    ...     num_releases=2, dimension=3, epsilon=4.0, delta=1e-5
    ... )
    >>> settings = LinearUCBSettings(releases, local_data="own")
    >>> strategy = FedUCB(settings, num_agents=4, schedule=[10, 20])
    >>> result = strategy.start(InProcessGrid(app, num_nodes=4))
    >>> result.estimate.shape
    (3,)
    >>> print(result)
    3 rounds, 12 answers of agents
    Privacy spent: epsilon = 4.000 at delta = 1e-05, 2 releases, for a finished table

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
