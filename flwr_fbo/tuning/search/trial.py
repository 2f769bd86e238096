"""Trial of an objective: a dict of parameters that can also be asked for them.

So ``SVC(**trial)``, ``trial["C"]`` and Optuna's ``trial.suggest_float("C", ...)`` all
work, unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flwr_fbo._common.conversion import plain
from flwr_fbo.study.codec import StudyMismatchError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


class UnknownAttributeError(StudyMismatchError, AttributeError):
    """An objective asks a trial for something that it does not have."""


class Trial(dict[str, Any]):
    """The setting to evaluate.

    Examples
    --------
    >>> from optuna.distributions import FloatDistribution
    >>> from flwr_fbo.tuning import Trial
    >>> trial = Trial({"C": 2.0}, {"C": FloatDistribution(1e-3, 1e3, log=True)})
    >>> trial["C"], trial.suggest_float("C", 1e-3, 1e3, log=True)
    (2.0, 2.0)

    Parameters
    ----------
    params : mapping
        All parameters of the space; an objective may use some of them.
    distributions : mapping of str to Optuna distribution
        Distributions that the study declares.
    number : int
        Number of this trial at its agent, from 0.

    Notes
    -----
    A ``suggest_`` method returns the study's value. It raises `StudyMismatchError`
    where the objective's name, range, step, scale or choices are not the declared ones,
    as does ``trial[name]`` of another name: the two cannot disagree silently.
    """

    def __init__(
        self,
        params: Mapping[str, Any],
        distributions: Mapping[str, BaseDistribution],
        number: int = 0,
    ) -> None:
        super().__init__(params)
        self.number = number
        self.distributions = dict(distributions)
        self.user_attrs: dict[str, Any] = {}

    @property
    def params(self) -> dict[str, Any]:
        """The setting as a plain dict."""
        return dict(self)

    def suggest_float(
        self,
        name: str,
        low: float,
        high: float,
        *,
        step: float | None = None,
        log: bool = False,
    ) -> float:
        """Return the value of a float parameter, as in Optuna."""
        from optuna.distributions import FloatDistribution

        return float(self._value(name, FloatDistribution(low, high, log, step)))

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int:
        """Return the value of an integer parameter, as in Optuna."""
        from optuna.distributions import IntDistribution

        return int(self._value(name, IntDistribution(low, high, log, step)))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """Return the value of a categorical parameter, as in Optuna."""
        from optuna.distributions import CategoricalDistribution

        return self._value(name, CategoricalDistribution(list(map(plain, choices))))

    def __getattr__(self, name: str) -> Any:
        # Not a failed trial: all would fail. The app is at fault.
        raise UnknownAttributeError(
            f"The objective asks for trial.{name}, which a federated trial does not "
            "have."
        )

    def __missing__(self, name: str) -> Any:
        raise StudyMismatchError(self._undeclared(name))

    def _undeclared(self, name: str) -> str:
        return (
            f"The objective asks for {name!r}, which the study does not declare: "
            f"its space has {list(self.distributions)}."
        )

    def report(self, value: float, step: int) -> None:
        """Take an intermediate value; nothing is pruned on it."""

    def should_prune(self) -> bool:
        """Return False: an objective may still raise ``optuna.TrialPruned`` itself."""
        return False

    def set_user_attr(self, key: str, value: Any) -> None:
        """Keep a note while the trial runs; it does not leave the objective."""
        self.user_attrs[key] = value

    def _value(self, name: str, asked: BaseDistribution) -> Any:
        declared = self.distributions.get(name)
        if declared is None:
            raise StudyMismatchError(self._undeclared(name))
        if declared != asked:
            raise StudyMismatchError(
                f"The objective asks for {name!r} as {asked}, the study declares "
                f"{declared}."
            )
        return self[name]


Objective = Callable[[Trial], float]
