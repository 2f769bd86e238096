"""Turns a context and named arms into the actions of a linear bandit.

FedUCB plays vectors x in R^d with ||x|| <= L. The vectors that an encoder makes are no
longer than that by construction, whatever the values: they are clipped, not refused.

Each number or one-hot vector, and each outer product of two of them, has norm 1 at
most. A vector of G such groups, divided by sqrt(G), has norm 1 at most too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.conversion import mapping, names, plain
from flwr_fbo._common.fields import holds
from flwr_fbo._common.validation import (
    nearest,
    require,
    require_instance,
    require_known,
    require_name,
    require_positive,
)
from flwr_fbo.bandits.linear.feature_fields import (
    Category,
    Encoded,
    Field,
    Fields,
    Number,
    encoded_row,
    encoded_rows,
    field_kind,
    pairs_of,
)
from flwr_fbo.privacy.continual_settings import LARGEST_DIMENSION

Arms = Sequence[tuple[str, Mapping[str, Any]]]

# Decisions of a log that are encoded at once.
_LOG_BLOCK = 8192


# What arms contribute to the features, whatever the context: the index of each arm's
# block, shape (K,); its factor of each feature, shape (K, n); and values outside.
EncodedArms = tuple[NDArray[np.int64], FloatArray, Counter[str]]


@dataclass(frozen=True)
class FeatureEncoder:
    """Encoder of a context and named arms as actions; public, the same at all sites.

    Examples
    --------
    >>> from flwr_fbo.bandits import Category, FeatureEncoder, Number
    >>> encoder = FeatureEncoder(
    ...     context={"age": Number(0, 110)},
    ...     arm={"price": Number(0, 100)},
    ... )
    >>> encoder.feature_names
    ('intercept', 'age', 'price', 'age x price')
    >>> arms = [("day clinic", {"price": 25}), ("ward", {"price": 100})]
    >>> features, outside = encoder.encode({"age": 88}, arms)
    >>> features
    array([[ 0.5 ,  0.3 , -0.25, -0.15],
           [ 0.5 ,  0.3 ,  0.5 ,  0.3 ]])

    With ``blocks`` each arm has parameters of its own, and arms need no features:

    >>> encoder = FeatureEncoder(
    ...     context={"arrival": Category(["walk-in", "ambulance"])},
    ...     blocks=("ward", "home"),
    ... )
    >>> encoder.dimension
    6
    >>> encoder.feature_names[3:]
    ('home: intercept', 'home: arrival=walk-in', 'home: arrival=ambulance')

    Attributes
    ----------
    context : mapping of str to Number or Category
        Fields of a context; kept as a tuple of pairs, whose order is that of the
        features. May be empty.
    arm : mapping of str to Number or Category
        Fields that each arm has; kept in the same way. Empty by default.
    blocks : sequence of str
        Names of all arms of the study, if each has parameters of its own: two or more.
        By default all arms share one model, and may have any names.
    interactions : "all" or sequence of (str, str)
        Pairs of different fields whose products are features. ``"all"``: every context
        field with every arm field.
    spare : sequence of str
        Names of further blocks, for arms that may come later. A site offers them only
        once `LinearBanditPolicy.set_arms` has them. Only with ``blocks``.

    Raises
    ------
    ValueError
        If a value is not allowed; the message names the field.

    Notes
    -----
    The features are an intercept, the fields and the interactions, all divided by
    sqrt(G), where G is one more than the number of fields and interactions. Each
    further group makes the others smaller, and blocks multiply the dimension. Both make
    the noise count for more, so declare only what the reward depends on.

    Without blocks, features of the context alone are the same for all arms. They help
    to predict the reward, but only features of an arm or of interactions rank arms.
    Only interactions, or blocks, let the best arm depend on the context.

    *Formal guarantees.* Every action has norm ``max_norm`` at most, up to rounding of
    some 1e-16 of it, for any context and arms that `encode` takes. So a context or arm
    with unexpected values cannot exceed the sensitivity that `ContinualSettings`
    assumes. This holds only for what is encoded: the encoder itself adds no noise.
    Choose bounds, categories and arm names without looking at private data, such as
    from a law, a price list or a published study. They are sent to everybody, and no
    epsilon covers what they reveal.
    """

    context: Fields = field(metadata=holds(field_kind))
    arm: Fields = field(default=(), metadata=holds(field_kind))
    blocks: Sequence[str] = ()
    interactions: Literal["all"] | Sequence[tuple[str, str]] = "all"
    spare: Sequence[str] = ()

    def __post_init__(self) -> None:
        of_fields = [*self._checked("context"), *self._checked("arm")]
        most = LARGEST_DIMENSION
        are_few = len(set(of_fields)) == len(of_fields) <= most
        expected = f"at most {most} fields, each of another name"
        require(are_few, "context and arm", of_fields, expected)
        object.__setattr__(self, "blocks", tuple(names("blocks", self.blocks)))
        for name in self.blocks:
            require_name("blocks", name)
        are_blocks = len(set(self.blocks)) == len(self.blocks) != 1
        expected = "none, or two or more distinct arm names"
        require(are_blocks, "blocks", self.blocks, expected)
        object.__setattr__(self, "spare", tuple(names("spare", self.spare)))
        for name in self.spare:
            require_name("spare", name)
        are_new = len({*self.blocks, *self.spare}) == len(self._all_blocks)
        is_right = are_new and (not self.spare or bool(self.blocks))
        expected = "distinct names beside those of the blocks, and none without blocks"
        require(is_right, "spare", self.spare, expected)
        expected = "not empty without blocks: the arms could not be told apart"
        require(bool(self.arm or self.blocks), "arm", self.arm, expected)
        self._check_interactions(of_fields)
        expected = f"at most {most}: declare fewer interactions or blocks"
        require(self.dimension <= most, "dimension", self.dimension, expected)
        twice = [name for name, n in Counter(self.feature_names).items() if n > 1]
        expected = "each name once: rename a field, category or block"
        require(not twice, "feature_names", twice, expected)

    def _checked(self, part: str) -> list[str]:
        """Make pairs of the fields of a context or an arm; return their names."""
        pairs = pairs_of(part, getattr(self, part))
        for name, column in pairs:
            require_instance(f"{part}[{name!r}]", column, Number, Category)
        object.__setattr__(self, part, tuple(pairs))
        return [name for name, _ in pairs]

    def _check_interactions(self, of_fields: list[str]) -> None:
        if isinstance(self.interactions, np.ndarray):
            object.__setattr__(self, "interactions", self.interactions.tolist())
        if self.interactions == "all":
            return
        chosen, most = self.interactions, LARGEST_DIMENSION
        expected = "'all', or a list of pairs of different fields, each pair once"
        require(isinstance(chosen, tuple | list), "interactions", chosen, expected)
        count = len(chosen)
        require(count <= most, "len(interactions)", count, f"at most {most}")
        known = set(of_fields)
        for pair in chosen:
            is_pair = isinstance(pair, tuple | list) and len(pair) == 2
            require(is_pair, "interactions", pair, expected)
            for name in pair:
                require_known("interactions", name, known)
        pairs = tuple((first, second) for first, second in chosen)
        differ = {frozenset(pair) for pair in pairs if pair[0] != pair[1]}
        require(len(differ) == len(pairs), "interactions", pairs, expected)
        object.__setattr__(self, "interactions", pairs)

    @property
    def dimension(self) -> int:
        """Dimension d of an action, at most 1000; that of the `ContinualSettings`."""
        sizes = {name: len(part.labels(name)) for name, part in self._fields.items()}
        products = sum(sizes[a] * sizes[b] for a, b in self._interactions)
        return self.num_blocks * (1 + sum(sizes.values()) + products)

    def parameter_norm(self, max_reward: float, max_norm: float = 1.0) -> float:
        """Return a bound S on ||theta||: B sqrt(K G C) / L.

        With K blocks, or 1, and C the largest number of coordinates of a field or an
        interaction. It holds where the mean reward of each arm is a linear function of
        the features that stays within [-B, B] at all values that the fields declare.

        *Proof.* Take an arm, and draw a number's encoding from {-1, 1} and a category
        evenly. The parts of the mean reward that are due to each group of features
        alone (its analysis of variance) are orthogonal, so that their mean squares add
        up to B^2 at most. The sum of squares of a group's coefficients is its mean
        square times its number of categories, C at most. Features are these, times L /
        sqrt(G).

        Parameters
        ----------
        max_reward : float
            B > 0.
        max_norm : float
            L > 0.
        """
        sizes = {name: len(part.labels(name)) for name, part in self._fields.items()}
        products = [sizes[a] * sizes[b] for a, b in self._interactions]
        largest = max([1, *sizes.values(), *products])
        count = self.num_blocks * largest
        return max_reward * math.sqrt(count) / (self._scale * max_norm)

    @cached_property
    def feature_names(self) -> tuple[str, ...]:
        """The d names of the features, such as ``"home: age"`` or ``"age x price"``."""
        labels = self._labels
        names = [
            f"{labels[i]} x {labels[j]}" if i else labels[j]
            for i, j in zip(*self._factors, strict=True)
        ]
        if not self.blocks:
            return tuple(names)
        return tuple(f"{block}: {name}" for block in self._all_blocks for name in names)

    @cached_property
    def scale_groups(self) -> NDArray[np.int64]:
        """Group of each feature, shape (d,), from 0 on.

        Features of a group differ in a category or in a block only, and one of them at
        most is not 0 in an action. So the mean of their summed squares is that of a
        number, or of the product of two, whatever is rare among categories and arms.
        """
        sizes = [1, *(len(field.labels(name)) for name, field in self._fields.items())]
        field = np.repeat(np.arange(len(sizes)), sizes)
        left, right = self._factors
        pairs = field[left] * len(sizes) + field[right]
        groups = np.unique(pairs, return_inverse=True)[1]
        return np.tile(groups, self.num_blocks)

    def encode(
        self, context: Mapping[str, Any], arms: Arms, max_norm: float = 1.0
    ) -> Encoded:
        """Return the actions of one decision.

        The arms' part is kept until the arms change: calls with the same arms are fast.

        Parameters
        ----------
        context : mapping of str to value
            The value of every context field: a number or a text. Also a row of a data
            frame.
        arms : sequence of (str, mapping)
            K >= 1 arms, each a distinct name and the value of every arm field; such as
            `ArmTable.eligible` returns.
        max_norm : float
            Largest norm L > 0 of an action, that of the `ContinualSettings`.

        Returns
        -------
        features : ndarray of shape (K, d)
            One action for each arm, in the order of the arms.
        outside : dict of str to int
            Number of values that were clipped or of an unknown category, by field; only
            fields with such values. It depends on private data: keep it at the site.

        Raises
        ------
        ValueError
            If a field is missing or unknown, a value has the wrong type or is NaN, or
            an arm has no block. Values outside the bounds and unknown categories are
            clipped and counted instead.
        """
        max_norm = plain(max_norm)
        require_positive("max_norm", max_norm)
        given = mapping("context", context)
        values, outside = encoded_row("context", given, self._context)
        blocks, factors, arms_outside = self._encoded_arms(arms)
        require(len(blocks) > 0, "arms", arms, "one arm or more")
        features = self._features(np.array([values]), blocks, factors, max_norm)
        return features, {**dict.fromkeys(outside, 1), **arms_outside}

    def encode_log(
        self,
        contexts: Sequence[Mapping[str, Any]],
        chosen: Sequence[str],
        arms: Arms,
        max_norm: float = 1.0,
    ) -> Iterator[Encoded]:
        """Yield the actions that T decisions chose, some thousands at a time.

        Parameters and errors are those of `encode`, with a context and the name of an
        arm for each decision.
        """
        max_norm = plain(max_norm)
        require_positive("max_norm", max_norm)
        # One by one, for how many of the values of each are outside.
        each = {name: self._encoded_arms([(name, features)]) for name, features in arms}
        require(len(each) > 0, "arms", arms, "one arm or more")
        blocks = np.concatenate([part for part, _, _ in each.values()])
        factors = np.concatenate([part for _, part, _ in each.values()])
        places = {name: i for i, name in enumerate(each)}
        for start in range(0, len(chosen), _LOG_BLOCK):
            names = chosen[start : start + _LOG_BLOCK]
            for i, name in enumerate(names, start):
                if not isinstance(name, str) or name not in places:
                    require(False, f"actions[{i}]", name, nearest(name, places))
            part = contexts[start : start + _LOG_BLOCK]
            values, outside = encoded_rows("contexts", part, self._context, start)
            for name, times in Counter(names).items():
                outside.update(dict.fromkeys(each[name][2], times))
            rows = np.array([places[name] for name in names])
            own = blocks[rows], factors[rows]
            yield self._features(values, *own, max_norm), outside

    def _features(
        self,
        values: FloatArray,
        blocks: NDArray[np.int64],
        factors: FloatArray,
        max_norm: float,
    ) -> FloatArray:
        """Return T actions: of encoded contexts, or of one, and the parts of T arms."""
        z = np.ones((len(values), len(self._labels)))
        z[:, 1 : 1 + values.shape[1]] = values
        left, right = self._factors
        rows = z[:, left] * z[:, right] * (max_norm * self._scale)
        features = np.zeros((len(factors), self.num_blocks, rows.shape[1]))
        features[np.arange(len(factors)), blocks] = rows * factors
        return features.reshape(len(factors), -1)

    def check_arms(self, arms: Arms) -> None:
        """Raise ValueError unless `encode` takes these arms."""
        self._encoded_arms(arms)

    @cached_property
    def _context(self) -> dict[str, Field]:
        return dict(self.context)

    @cached_property
    def _arm(self) -> dict[str, Field]:
        return dict(self.arm)

    @cached_property
    def _fields(self) -> dict[str, Field]:
        return {**self._context, **self._arm}

    @property
    def num_blocks(self) -> int:
        """Number of copies of the parameters: one if all arms share them."""
        return max(1, len(self._all_blocks))

    @property
    def _all_blocks(self) -> tuple[str, ...]:
        """Blocks of arms that are offered, and spare ones."""
        return (*self.blocks, *self.spare)

    @cached_property
    def _interactions(self) -> tuple[tuple[str, str], ...]:
        if self.interactions == "all":
            return tuple(product(self._context, self._arm))
        return tuple(self.interactions)

    @cached_property
    def _scale(self) -> float:
        """1 / sqrt(G)."""
        return 1 / math.sqrt(1 + len(self._fields) + len(self._interactions))

    @cached_property
    def _labels(self) -> list[str]:
        """Names of the coordinates z: the constant 1, then the fields' encodings."""
        fields = self._fields.items()
        return ["intercept", *(s for name, f in fields for s in f.labels(name))]

    @cached_property
    def _arm_size(self) -> int:
        """Number of coordinates of an arm's fields, the last ones."""
        return sum(len(column.labels(name)) for name, column in self._arm.items())

    @cached_property
    def _factors(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The two coordinates whose product is a feature, for each in a block."""
        spans, start = {}, 1
        for name, column in self._fields.items():
            spans[name] = range(start, start + len(column.labels(name)))
            start = spans[name].stop
        pairs = [(0, i) for i in range(start)]
        for first, second in self._interactions:
            pairs += product(spans[first], spans[second])
        left, right = np.array(pairs, dtype=np.int64).T
        return left, right

    @cached_property
    def _last_arms(self) -> list[tuple[list[Any], EncodedArms]]:
        """The arms that were encoded last, and what became of them; empty before."""
        return []

    def _encoded_arms(self, arms: Arms) -> EncodedArms:
        """Return the arms' part, encoded only if they differ from the last ones."""
        try:
            # With types, as True equals 1 but is not allowed.
            named = [(name, dict(mapping("arms", features))) for name, features in arms]
            key = [(name, [*map(type, own.values())], own) for name, own in named]
        except (AttributeError, TypeError, ValueError) as error:
            expected = "a list of names, each with a mapping of its features"
            text = f"arms={arms!r} is not allowed: {expected}."
            raise ValueError(text) from error
        for last, encoded in self._last_arms:
            if last == key:
                return encoded
        names = [name for name, _, _ in key]
        for name in names:
            require_name("arms", name)
            if self.blocks and name not in self._all_blocks:
                known = nearest(name, self._all_blocks)
                require(False, "arms", name, f"a block, {known}")
        require(len(set(names)) == len(names), "arms", names, "each name once")
        rows = [encoded_row(f"arms[{name!r}]", f, self._arm) for name, _, f in key]
        of_arms = np.reshape([row for row, _ in rows], (len(key), self._arm_size))
        others = np.ones((len(key), len(self._labels) - self._arm_size))
        z = np.hstack([others, of_arms])
        left, right = self._factors
        indices = [self._all_blocks.index(name) if self.blocks else 0 for name in names]
        outside = Counter(name for _, clipped in rows for name in clipped)
        made = np.array(indices, dtype=np.int64), z[:, left] * z[:, right], outside
        self._last_arms[:] = [(key, made)]
        return made
