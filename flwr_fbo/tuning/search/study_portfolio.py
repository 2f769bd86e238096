"""A list of settings from finished studies, as a file: where other studies begin.

The file has the settings in order, their space, and for each study what kind it was and
what it cost. It has no scores. Whoever has it begins with these settings at no epsilon:
that is post-processing of what the studies have released.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution

from flwr_fbo._common.fields import (
    check_fields,
    flag,
    fraction,
    from_json,
    holds,
    instance,
    integer,
    number,
    ruled,
    text,
    to_json,
)
from flwr_fbo._common.text import write_whole
from flwr_fbo._common.validation import refuse, require, require_all
from flwr_fbo.privacy.conditions import WITHOUT_TRAINING
from flwr_fbo.privacy.guarantee import CLIENT, Guarantee
from flwr_fbo.space.axes import nearest_number
from flwr_fbo.space.search_space import Params, SearchSpace
from flwr_fbo.study.codec import read_json

# A server decides how many trials a site begins with.
MOST_LISTED = 100
# Settings that are listed unless one asks for another number: see
# `benchmarks.listed_trials`.
SIZE = 5
_MOST_AGENTS = 100_000_000
_FORMAT = "flwr_fbo portfolio, version 1"
_ABOUT = (
    "Settings for other studies to begin with, the most promising ones first: what "
    "finished studies have chosen, and their runners-up. The file has no scores. "
)
_PRIVATE = (
    "It is computed from what these studies have released under differential privacy, "
    "and costs no further epsilon. A client that was in several of them has spent the "
    "epsilon of each."
)
_NOT_PRIVATE = (
    "NOT PRIVATE: in a study that is marked so the order of the settings depends on "
    "exact scores of clients, or on noise that can be predicted."
)


def _check_settings(name: str, values: Any) -> None:
    require_all(name, values, Mapping, allowed="a list of settings, each a dict")
    expected = f"1 to {MOST_LISTED} settings"
    require(1 <= len(values) <= MOST_LISTED, f"len({name})", len(values), expected)


@dataclass(frozen=True)
class PortfolioSource:
    """One of the studies that a list is made from.

    Attributes
    ----------
    kind : str
        ``FederationTuner``, or the name of a strategy.
    num_agents : int
        N >= 1, the clients that it asked at most.
    private : bool
        Whether what it has released is differentially private; True as well where no
        client's scores are in it.
    epsilon : float or None
        Epsilon for each client, at ``delta``: 0 where no client's scores are in it,
        None where it was not private.
    delta : float or None
        In (0, 1).

    Raises
    ------
    ValueError
        If a value is not allowed; the message names the field.
    """

    kind: str = field(metadata=text(100))
    num_agents: int = field(metadata=integer(1, _MOST_AGENTS))
    private: bool = field(metadata=flag())
    epsilon: float | None = field(default=None, metadata=number(0, optional=True))
    delta: float | None = field(default=None, metadata=fraction(optional=True))

    def __post_init__(self) -> None:
        check_fields(self)
        is_valid = self.private or self.epsilon is None
        require(is_valid, "epsilon", self.epsilon, "None where private is False")
        is_valid = not self.private or self.epsilon is not None
        require(is_valid, "epsilon", self.epsilon, "a number where private is True")
        is_valid = not self.epsilon or self.delta is not None
        require(is_valid, "delta", self.delta, "a number where there is an epsilon")

    def __str__(self) -> str:
        """Return the study in words."""
        clients = f"{self.kind}, {self.num_agents} clients"
        if not self.private:
            return f"{clients}, NOT PRIVATE"
        if not self.epsilon:
            return f"{clients}, no client's scores"
        assert self.delta is not None
        is_tuner = self.kind == "FederationTuner"
        terms = Guarantee(CLIENT, conditions=(WITHOUT_TRAINING,) if is_tuner else ())
        return f"{clients}, {terms.text(self.epsilon, self.delta, '.2f')}"


@dataclass(frozen=True)
class StudyPortfolio:
    """A list of settings from finished studies, the most promising ones first.

    `FederationTuner` takes it, or its file, as ``enqueue``, and the tuning strategies
    and `FederatedSampler` as ``portfolio``. `portfolio_of_studies` makes it.

    Examples
    --------
    >>> from optuna.distributions import FloatDistribution
    >>> from flwr_fbo.tuning import PortfolioSource, SearchSpace, StudyPortfolio
    >>> space = {"C": FloatDistribution(1e-3, 1e3, log=True)}
    >>> source = PortfolioSource("FedVote", 20, True, epsilon=2.0, delta=1e-3)
    >>> found = StudyPortfolio(SearchSpace(space), ({"C": 200.0},), (source,))
    >>> found.settings_in({"C": FloatDistribution(1e-2, 1e2, log=True)})
    [{'C': 100.0}]

    Attributes
    ----------
    space : SearchSpace
        Search space of all these studies.
    settings : tuple of dict
        1 to 100 settings of this space.
    sources : tuple of PortfolioSource
        The studies, one at least.

    Raises
    ------
    ValueError
        If a value is not allowed; the message names the field.

    Notes
    -----
    *Formal guarantees*: that of its sources, and no more. Each is (epsilon, delta)-DP
    for each of its clients, under the adjacency and the conditions of its kind, if it
    is ``private``: that of a `FederationTuner` is about the clients' scores, given the
    models. The list is a function of their releases. A client that is in several of
    them has spent them all: they add up.
    """

    space: SearchSpace = field(metadata=instance(SearchSpace, part=SearchSpace))
    settings: Sequence[Params] = field(metadata=ruled(_check_settings))
    sources: tuple[PortfolioSource, ...] = field(metadata=holds(PortfolioSource))

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "settings", tuple(map(dict, self.settings)))
        object.__setattr__(self, "sources", tuple(self.sources))
        for i, params in enumerate(self.settings):
            self.space.to_unit(params, f"settings[{i}]")
        require(len(self.sources) > 0, "sources", self.sources, "one at least")

    @property
    def private(self) -> bool:
        """True if all sources are."""
        return all(source.private for source in self.sources)

    def settings_in(
        self, space: Mapping[str, BaseDistribution] | SearchSpace
    ) -> list[Params]:
        """Return the settings in a space with the same parameters.

        A number out of range is moved to the nearest end. Settings that are then the
        same count once.

        Raises
        ------
        ValueError
            If a parameter is missing, or one more is there; if it is of another kind;
            or if its choices lack a listed one. The message names it.
        """
        whole = space if isinstance(space, SearchSpace) else SearchSpace(space)
        require_same_names(self.space, whole, "the list")
        found: list[Params] = []
        for listed in self.settings:
            params = {
                name: _fitting(name, distribution, listed[name])
                for name, distribution in whole.distributions.items()
            }
            if params not in found:
                found.append(params)
        return found

    def save(self, path: str | Path) -> None:
        """Write it to a JSON file, whole or not at all.

        Raises
        ------
        OSError
            If it cannot be written.
        """
        document = {
            "format": _FORMAT,
            "about": _ABOUT + (_PRIVATE if self.private else _NOT_PRIVATE),
            "private": self.private,
            **to_json(self),
        }
        write_whole(Path(path), json.dumps(document, indent=1) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> StudyPortfolio:
        """Return what `save` wrote.

        A forged file is not detected: it can only waste trials.

        Raises
        ------
        ValueError
            If the file is of another format, or damaged; the message names the field.
        OSError
            If it cannot be read.
        """
        try:
            document = read_json(Path(path).read_text("utf-8"))
            found = document.get("format") if isinstance(document, dict) else None
            expected = f"{_FORMAT!r}, as `flwr-fbo portfolio` writes"
            require(found == _FORMAT, "format", found, expected)
            for name in ("format", "about"):
                document.pop(name, None)
            private = document.pop("private", None)
            portfolio: StudyPortfolio = from_json(cls, document)
            expected = f"{portfolio.private}, as its sources are"
            require(private is portfolio.private, "private", private, expected)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            reason = error if isinstance(error, ValueError) else "it is damaged"
            raise ValueError(f"{path} cannot be used: {reason}") from None
        return portfolio


def require_same_names(known: SearchSpace, other: SearchSpace, where: str) -> None:
    """Raise ValueError, naming the parameter, unless two spaces have the same."""
    for name, distribution in known.distributions.items():
        expected = f"{distribution}, as in {where}"
        is_valid = name in other.distributions
        require(is_valid, f"space[{name!r}]", other.distributions.get(name), expected)
    for name, distribution in other.distributions.items():
        expected = f"one of the parameters of {where}, {list(known.distributions)}"
        require(name in known.distributions, f"space[{name!r}]", distribution, expected)


def _fitting(name: str, distribution: BaseDistribution, value: Any) -> Any:
    """Return a listed value, or the nearest number that the parameter has."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and not isinstance(distribution, CategoricalDistribution):
        return nearest_number(distribution, value)
    # 1 is no choice where True is listed.
    choices = getattr(distribution, "choices", ())
    if value not in [choice for choice in choices if type(choice) is type(value)]:
        expected = f"a parameter with the choice {value!r}, as in the list"
        refuse(f"space[{name!r}]", distribution, expected)
    return value
