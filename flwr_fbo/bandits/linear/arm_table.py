"""The named arms of one site, which come and go between decisions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from flwr_fbo._common import conversion
from flwr_fbo._common.conversion import plain
from flwr_fbo._common.validation import (
    require,
    require_int,
    require_known,
    require_number,
)
from flwr_fbo.bandits.linear.feature_encoder import FeatureEncoder
from flwr_fbo.bandits.linear.feature_fields import pairs_of

Value = float | str
Features = Mapping[str, Value] | Sequence[tuple[str, Value]]


@dataclass(frozen=True)
class ArmTable:
    """Arms of one site, each with a name and features; a change makes a new table.

    Examples
    --------
    >>> from flwr_fbo.bandits import ArmTable, FeatureEncoder, Number
    >>> table = ArmTable({"day clinic": {"price": 25}, "ward": {"price": 100}})
    >>> table = table.add("home", price=10).change("ward", price=90)
    >>> table.names, table.version
    (('day clinic', 'ward', 'home'), 3)
    >>> table.eligible({"home", "ward"})
    (('ward', {'price': 90}), ('home', {'price': 10}))
    >>> encoder = FeatureEncoder(context={}, arm={"price": Number(0, 100)})
    >>> table.check(encoder)
    >>> encoder.encode({}, table.eligible({"home"}))[0].round(3)
    array([[ 0.707, -0.566]])

    Attributes
    ----------
    arms : mapping of str to mapping of str to float or str
        Features of each arm, by name; kept as tuples of pairs, the arms in their order.
        May be empty. Also a data frame whose index has the names.
    version : int
        Version of the table, from 1. Each change adds 1.

    Raises
    ------
    ValueError
        If a value is not allowed; the message names the arm and the field.

    Notes
    -----
    Tables may differ between sites, and change at any time, where arms share one model.
    With the blocks of a `FeatureEncoder` a site may lack arms, but all names are
    declared for the whole study.
    """

    arms: Mapping[str, Features] | Sequence[tuple[str, Features]]
    version: int = 1

    def __post_init__(self) -> None:
        require_int("version", self.version, 1, 10**9)
        pairs = pairs_of("arms", self.arms)
        arms = tuple((name, _features(name, features)) for name, features in pairs)
        object.__setattr__(self, "arms", arms)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the arms, in order."""
        return tuple(self._features)

    def add(self, name: str, /, **features: Value) -> ArmTable:
        """Return a table with one more arm, the last."""
        expected = "a new name; `change` gives an arm other features"
        require(name not in self.names, "name", name, expected)
        return self._next({**self._features, name: features})

    def remove(self, name: str) -> ArmTable:
        """Return a table without an arm."""
        require_known("name", name, self._features)
        return self._next({n: f for n, f in self._features.items() if n != name})

    def change(self, name: str, /, **features: Value) -> ArmTable:
        """Return a table where an arm has new values of some features."""
        require_known("name", name, self._features)
        changed = {**self._features[name], **features}
        return self._next({**self._features, name: changed})

    def eligible(
        self, names: Collection[str] | None = None
    ) -> tuple[tuple[str, dict[str, Value]], ...]:
        """Return arms with their features, in the table's order.

        Parameters
        ----------
        names : collection of str, optional
            Names of the arms that are possible now, at least one. By default all arms.

        Raises
        ------
        ValueError
            If a name is unknown, or the list of arms is empty.
        """
        wanted = set(self._features)
        if names is not None:
            wanted = set(conversion.names("names", names))
            for name in wanted:
                require_known("name", name, self._features)
        require(len(wanted) > 0, "names", (), "one arm or more")
        return tuple(
            (name, dict(features))
            for name, features in self._features.items()
            if name in wanted
        )

    def check(self, encoder: FeatureEncoder) -> None:
        """Raise ValueError unless the encoder takes all arms of the table.

        An arm must have exactly the arm fields, and a block where there are blocks.
        """
        encoder.check_arms(tuple(self._features.items()))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values. A list of pairs keeps the arms' order."""
        arms = [[name, dict(features)] for name, features in self._features.items()]
        return {"arms": arms, "version": self.version}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> ArmTable:
        """Return the table whose fields went through JSON."""
        return cls(**fields)

    @cached_property
    def _features(self) -> dict[str, dict[str, Value]]:
        return {name: dict(features) for name, features in dict(self.arms).items()}

    def _next(self, arms: Mapping[str, Features]) -> ArmTable:
        return ArmTable(arms, self.version + 1)


def _features(arm: str, given: Any) -> tuple[tuple[str, Value], ...]:
    """Return an arm's features, sorted by name: their order means nothing."""
    where = f"arms[{arm!r}]"
    features = sorted((name, plain(value)) for name, value in pairs_of(where, given))
    for name, value in features:
        if not isinstance(value, str):
            require_number(f"{where}[{name!r}]", value)
    return tuple(features)
