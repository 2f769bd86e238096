"""Public lists of good settings for common learners, to begin a search with.

>>> from optuna.distributions import FloatDistribution
>>> from flwr_fbo.tuning import Portfolio
>>> space = {
...     "C": FloatDistribution(1e-2, 1e4, log=True),
...     "gamma": FloatDistribution(1e-5, 10, log=True),
... }
>>> settings = Portfolio.of("svc").settings_in(space, num_features=9)
>>> len(settings)
3

A list is made from tables of other people's results. Its first setting is the best one
on average over their data sets; each next one adds most to those before it.
``print(Portfolio.of("svc"))`` says which tables, and what the list gives on data sets
that it was not made from. `benchmarks.make_portfolios` writes ``portfolios.json``.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from flwr_fbo._common.validation import (
    refuse,
    require_instance,
    require_int,
    require_known,
)
from flwr_fbo.space.axes import nearest_number
from flwr_fbo.space.search_space import Params, SearchSpace
from flwr_fbo.tuning.search.study_portfolio import StudyPortfolio

_log = logging.getLogger("flwr.fbo")

# Settings of a list that are taken unless one asks for another number.
SIZE = 3


@dataclass(frozen=True)
class _Learner:
    """Names of a learner's parameters, and a range for each.

    Attributes
    ----------
    title : str
        The learner, in words.
    space : mapping of str to Optuna distribution
        By the list's own names.
    aliases : mapping of str to tuple of str
        Other names of the same parameters, in other libraries.
    per_feature : tuple of str
        Parameters whose listed value is divided by the number of features.
    constants : mapping of str to value
        Values that all listed settings have besides: the library's defaults.
    """

    title: str
    space: Mapping[str, BaseDistribution]
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    per_feature: tuple[str, ...] = ()
    constants: Mapping[str, Any] = field(default_factory=dict)

    def name_of(self, parameter: str) -> str | None:
        """Return the list's name of a user's parameter, or None for a strange one."""
        plain = _plain(parameter)
        for name in (*self.space, *self.constants):
            if plain in map(_plain, (name, *self.aliases.get(name, ()))):
                return name
        return None


def _plain(name: str) -> str:
    """Return a name without a pipeline's prefix, and with one kind of separator."""
    return re.sub(r"[-.]", "_", re.split(r"__|:", name)[-1]).lower()


def _log_float(low: float, high: float) -> FloatDistribution:
    return FloatDistribution(low, high, log=True)


def _log_int(low: int, high: int) -> IntDistribution:
    return IntDistribution(low, high, log=True)


def _choices(*values: Any) -> CategoricalDistribution:
    return CategoricalDistribution(values)


_BOOSTING_NAMES: dict[str, tuple[str, ...]] = {
    "learning_rate": ("eta", "shrinkage"),
    "max_iter": ("n_estimators", "num_boost_round", "nrounds", "iterations"),
    "max_leaf_nodes": ("num_leaves", "max_leaves"),
    "min_samples_leaf": ("min_child_samples", "min_data_in_leaf"),
    "l2_regularization": ("reg_lambda", "lambda", "lambda_l2", "l2_leaf_reg"),
}
LEARNERS: dict[str, _Learner] = {
    "svc": _Learner(
        "support vector machine with an RBF kernel, on standardised features",
        {"C": _log_float(0.03, 33_000.0), "gamma": _log_float(1e-3, 100.0)},
        {"C": ("cost",)},
        ("gamma",),
        {"kernel": "rbf", "coef0": 0.0, "shrinking": True},
    ),
    "random_forest": _Learner(
        "random forest",
        {
            "bootstrap": _choices(False, True),
            "criterion": _choices("gini", "entropy"),
            "max_features": FloatDistribution(0.1, 0.9),
            "min_samples_leaf": IntDistribution(1, 20),
            "min_samples_split": IntDistribution(2, 20),
        },
        constants={"max_depth": None, "n_estimators": 100},
    ),
    "extra_trees": _Learner(
        "extremely random trees",
        {
            "min_samples_split": _log_int(2, 1024),
            "criterion": _choices("gini", "entropy"),
        },
    ),
    "gradient_boosting": _Learner(
        "gradient boosting of small data sets: HistGradientBoosting, LightGBM",
        {
            "learning_rate": _log_float(0.01, 1.0),
            "max_iter": _log_int(10, 100),
            "max_leaf_nodes": _log_int(2, 128),
            "min_samples_leaf": _log_int(1, 100),
            "l2_regularization": _log_float(1e-6, 100.0),
        },
        _BOOSTING_NAMES,
    ),
    "xgboost": _Learner(
        "gradient boosting: XGBoost",
        {
            "learning_rate": _log_float(1e-3, 1.0),
            "max_depth": IntDistribution(1, 15),
            "subsample": FloatDistribution(0.1, 1.0),
            "lambda": _log_float(1e-3, 1000.0),
        },
        {
            "learning_rate": _BOOSTING_NAMES["learning_rate"],
            "subsample": ("bagging_fraction",),
            "lambda": ("l2_regularization", *_BOOSTING_NAMES["l2_regularization"]),
            "colsample_bytree": ("feature_fraction",),
        },
        constants={
            "colsample_bytree": 1.0,
            "max_features": None,
            "min_child_weight": 1.0,
        },
    ),
    "mlp": _Learner(
        "network with one hidden layer, trained by Adam, on standardised features",
        {
            "learning_rate_init": _log_float(1e-4, 0.1),
            "alpha": _log_float(1e-6, 1.0),
            "hidden_layer_sizes": _log_int(8, 256),
            "batch_size": _log_int(8, 128),
        },
        {"hidden_layer_sizes": ("hidden_size", "hidden_units", "width")},
        constants={"solver": "adam", "activation": "relu"},
    ),
    "network": _Learner(
        "network of several layers, trained by SGD with momentum",
        {
            "batch_size": _log_int(16, 512),
            "learning_rate": _log_float(1e-4, 0.1),
            "dropout": FloatDistribution(0.0, 1.0),
            "hidden_units": _log_int(64, 1024),
            "momentum": FloatDistribution(0.1, 0.99),
            "num_layers": IntDistribution(1, 5),
            "weight_decay": FloatDistribution(1e-5, 0.1),
        },
        {
            "learning_rate": ("lr",),
            "dropout": ("max_dropout", "dropout_rate"),
            "hidden_units": ("max_units", "hidden_size", "width"),
            "num_layers": ("n_layers",),
        },
    ),
    "logistic_regression": _Learner(
        "logistic regression",
        {
            "C": _log_float(0.25, 4.0),
            "penalty": _choices("l1", "l2"),
            "solver": _choices("liblinear", "saga"),
        },
    ),
}


@cache
def _stored() -> dict[str, dict[str, Any]]:
    text = files(__package__).joinpath("portfolios.json").read_text("utf-8")
    stored: dict[str, dict[str, Any]] = json.loads(text)
    return stored


@dataclass(frozen=True)
class Portfolio:
    """A public list of settings for one learner, the best ones first.

    Examples
    --------
    >>> from flwr_fbo.tuning import Portfolio
    >>> forest = Portfolio.of("random_forest")
    >>> sorted(forest.space())  # ranges that suit the learner
    ['bootstrap', 'criterion', 'max_features', 'min_samples_leaf', 'min_samples_split']
    >>> len(forest.settings_in(forest.space()))
    3

    Attributes
    ----------
    learner : str
        See `known`.
    settings : sequence of dict
        All that are listed, by the list's own names. A value of ``per_feature`` is for
        one standardised feature: with d features it is divided by d, which makes 1 what
        scikit-learn calls ``gamma="scale"``.
    per_feature : tuple of str
        Names of the parameters whose values are divided by the number of features.
    sources : sequence of str
        The tables that the list is made from, with their licences.
    num_data_sets : int
        Data sets of these tables.
    gain : float
        Mean over data sets, each left out of the list in turn: the list's first three
        settings and then the own search, less the own search alone. Both are the best
        value so far, from 0 to 1 between a data set's worst and best, averaged over
        evaluations 1 to 15.
    gain_bound : float
        Lower 95 % bound of the gain, by a bootstrap over data sets.
    """

    learner: str
    settings: Sequence[Params]
    per_feature: tuple[str, ...]
    sources: Sequence[str]
    num_data_sets: int
    gain: float
    gain_bound: float

    @staticmethod
    def known() -> list[str]:
        """Return the learners that there is a list for."""
        return list(_stored())

    @classmethod
    def of(cls, learner: str) -> Portfolio:
        """Return the list of a learner.

        Raises
        ------
        ValueError
            If there is none.
        """
        require_known("learner", learner, cls.known())
        per_feature = LEARNERS[learner].per_feature
        return cls(learner, per_feature=per_feature, **_stored()[learner])

    @classmethod
    def for_names(cls, names: Sequence[str]) -> Portfolio:
        """Return the list of the learner that has parameters of these names.

        It is the one that knows the most of them, and at least half.

        Raises
        ------
        ValueError
            If no learner has, or several do.
        """
        counts = {
            learner: sum(LEARNERS[learner].name_of(name) is not None for name in names)
            for learner in cls.known()
        }
        most = max(counts.values())
        found = [learner for learner, count in counts.items() if count == most]
        if len(found) > 1 or 2 * most < len(names):
            several = len(found) > 1 and 2 * most >= len(names)
            expected = f"a learner out of {found if several else cls.known()}"
            refuse(
                "portfolio",
                "auto",
                f"{expected}, since the names {list(names)} do not decide it",
            )
        return cls.of(found[0])

    def space(self, num_features: int | None = None) -> dict[str, BaseDistribution]:
        """Return a search space that suits the learner.

        Parameters
        ----------
        num_features : int, optional
            Number of features; needed where there is a parameter ``per_feature``.

        Raises
        ------
        ValueError
            If ``num_features`` is needed and not given, or below 1.
        """
        space = dict(LEARNERS[self.learner].space)
        for name in self.per_feature:
            d, whole = self._divisor(name, num_features), space[name]
            assert isinstance(whole, FloatDistribution)
            space[name] = FloatDistribution(whole.low / d, whole.high / d, whole.log)
        return space

    def settings_in(
        self,
        space: Mapping[str, BaseDistribution] | SearchSpace,
        num_features: int | None = None,
        size: int = SIZE,
    ) -> list[Params]:
        """Return the first settings of the list that fit a user's own space.

        Parameters are found by their names, aliases of other libraries included. Some
        that the list does not vary have the library's default. Any other parameter is
        at the centre of its range, and so is one whose choices lack the listed one, or
        whose numbers a default such as None: the log names it. A number out of range is
        moved to the nearest end. Settings that are then the same count once.

        Parameters
        ----------
        space : mapping of str to Optuna distribution
            Optuna distribution of each parameter, by name.
        num_features : int, optional
            Number of features; needed where the space has a numeric parameter
            ``per_feature``.
        size : int
            Number of settings, >= 1.

        Raises
        ------
        ValueError
            If ``num_features`` is needed and not given, or an argument is out of range.
        """
        require_int("size", size, 1)
        whole = space if isinstance(space, SearchSpace) else SearchSpace(space)
        learner = LEARNERS[self.learner]
        names = {name: learner.name_of(name) for name in whole.distributions}
        middle = whole.from_unit(whole.center)
        found: list[Params] = []
        left_out = {name for name, listed in names.items() if listed is None}
        for listed in self.settings:
            params = dict(middle)
            known = {**learner.constants, **listed}
            for name, entry in names.items():
                if entry not in known:
                    continue
                distribution, value = whole.distributions[name], known[entry]
                if isinstance(distribution, CategoricalDistribution):
                    choice = "scale" if entry in self.per_feature else value
                    if choice in distribution.choices:
                        params[name] = choice
                    else:
                        left_out.add(name)
                    continue
                if not isinstance(value, int | float):  # a default such as None
                    left_out.add(name)
                    continue
                if entry in self.per_feature:
                    value /= self._divisor(name, num_features)
                params[name] = nearest_number(distribution, value)
            if params not in found and len(found) < size:
                found.append(params)
        if left_out:
            text = "%s: not in the list of %s, at the centre"
            _log.info(text, sorted(left_out), self.learner)
        return found

    def _divisor(self, name: str, num_features: int | None) -> int:
        if num_features is None:
            expected = (
                f"a number of features: the list's {name!r} is for one standardised "
                f'feature, Portfolio.of("{self.learner}").settings_in(space, '
                "num_features=...) divides it"
            )
            refuse("num_features", None, expected)
        require_int("num_features", num_features, 1)
        return num_features

    def __str__(self) -> str:
        lines = [
            f"{self.learner}: {LEARNERS[self.learner].title}",
            *(f"{k}. {params}" for k, params in enumerate(self.settings, start=1)),
            f"from {self.num_data_sets} data sets: {'; '.join(self.sources)}",
            f"gain on a data set that is left out: {self.gain:+.4f}, lower 95 % bound "
            f"{self.gain_bound:+.4f} (evaluations 1 to 15)",
        ]
        return "\n".join(lines)


# What a ``portfolio`` argument may be.
Listed = Sequence[Params] | str | Path | StudyPortfolio


def listed_settings(
    portfolio: Listed,
    space: Mapping[str, BaseDistribution],
    field: str = "portfolio",
) -> list[Params]:
    """Return the settings that a ``portfolio`` argument stands for.

    Parameters
    ----------
    portfolio : sequence of dict, str, Path or StudyPortfolio
        Settings of the space; ``"auto"``; a learner of `Portfolio.known`; a
        `StudyPortfolio`; or the path of its file, which ends in ``.json``.
    space : mapping of str to Optuna distribution
        Optuna distribution of each parameter, by name.
    field : str
        Its name in errors.

    Raises
    ------
    ValueError
        If the learner is unknown or undecided, or the list needs ``num_features``; if a
        file cannot be used, or has other parameters.
    OSError
        If a file cannot be read.
    """
    if isinstance(portfolio, str) and portfolio.endswith(".json"):
        portfolio = Path(portfolio)
    if isinstance(portfolio, Path):
        portfolio = StudyPortfolio.load(portfolio)
    if isinstance(portfolio, StudyPortfolio):
        settings, whose = portfolio.settings_in(space), "earlier studies"
    elif isinstance(portfolio, str):
        names = ["auto", *Portfolio.known()]
        require_known(field, portfolio, names)
        is_auto = portfolio == "auto"
        found = Portfolio.for_names(list(space)) if is_auto else Portfolio.of(portfolio)
        settings, whose = found.settings_in(space), found.learner
    else:
        expected = "a list of settings, a learner's name, or a file of listed settings"
        require_instance(field, portfolio, Sequence, allowed=expected)
        return list(portfolio)
    _log.info("%d settings of the list of %s come first", len(settings), whose)
    return settings
