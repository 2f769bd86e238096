"""Hypothesis strategies of encoders, contexts and arms, and a slow encoder."""

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
from hypothesis import strategies as st

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.bandits import Category, FeatureEncoder, Number

Arm = tuple[str, dict[str, Any]]

# No " x ", "=" or ": ", so that no two features have one name.
NAMES = st.text("abé_", min_size=1, max_size=4)


@st.composite
def numbers(draw: st.DrawFn, largest: float) -> Number:
    """Return a number between bounds as close, or far, as numbers so large may be."""
    bounds = st.floats(-largest, largest)
    low, high = sorted([draw(bounds), draw(bounds)])
    ok = high - low > 1 / largest
    return Number(low, high) if ok else Number(0, 1)


def fields(largest: float) -> st.SearchStrategy[Number | Category]:
    texts = st.lists(st.text("cd ", max_size=3), min_size=2, max_size=4, unique=True)
    return st.one_of(numbers(largest), st.builds(Category, texts))


@st.composite
def encoders(draw: st.DrawFn, largest: float = 1e100) -> FeatureEncoder:
    """Return encoders of numbers whose bounds are at most so large."""
    names = draw(st.lists(NAMES, max_size=5, unique=True))
    split = draw(st.integers(0, len(names)))
    context, arm = (
        draw(st.fixed_dictionaries({name: fields(largest) for name in part}))
        for part in (names[:split], names[split:])
    )
    blocks = draw(st.lists(NAMES, min_size=2, max_size=3, unique=True))
    is_shared = draw(st.booleans())
    if arm and is_shared:
        blocks = []
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    some = st.lists(st.sampled_from(pairs), unique=True) if pairs else st.just([])
    interactions: Any = draw(st.one_of(st.just("all"), some))
    return FeatureEncoder(context, arm, blocks, interactions)


def values(field: Number | Category) -> st.SearchStrategy[Any]:
    """Return values of the field's type, often far outside."""
    if isinstance(field, Category):
        return st.one_of(st.sampled_from(field.values), st.text(max_size=3))
    inside = st.floats(field.low, field.high)
    anywhere = st.floats(allow_nan=False) | st.integers(-(10**400), 10**400)
    of_numpy = st.floats(allow_nan=False, width=32).map(np.float32)
    near = st.sampled_from([field.low, field.high]).map(_float32)
    return st.one_of(inside, anywhere, of_numpy, near)


def _float32(value: float) -> np.float32:
    with np.errstate(over="ignore"):
        return np.float32(value)


def inputs_of(given: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({name: values(field) for name, field in given})


@st.composite
def decisions(
    draw: st.DrawFn, encoder: FeatureEncoder
) -> tuple[dict[str, Any], list[Arm]]:
    names = st.sampled_from(encoder.blocks) if encoder.blocks else NAMES
    arm_names = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    arms = [(name, draw(inputs_of(encoder.arm))) for name in arm_names]
    return draw(inputs_of(encoder.context)), arms


def encode_slowly(
    encoder: FeatureEncoder,
    context: Mapping[str, Any],
    arms: list[Arm],
    max_norm: float,
) -> FloatArray:
    """Return the features as they are defined, an arm at a time."""
    context_fields, arm_fields = dict(encoder.context), dict(encoder.arm)
    pairs = encoder.interactions
    if pairs == "all":
        pairs = list(product(context_fields, arm_fields))
    actions = []
    for name, features in arms:
        codes = {
            n: _code(field, {**context, **features}[n])
            for n, field in {**context_fields, **arm_fields}.items()
        }
        groups = [np.ones(1), *codes.values()]
        groups += [np.outer(codes[a], codes[b]).ravel() for a, b in pairs]
        phi = max_norm * np.concatenate(groups) / np.sqrt(len(groups))
        blocks = encoder.blocks or [name]
        parts = [phi if block == name else np.zeros_like(phi) for block in blocks]
        actions.append(np.concatenate(parts))
    return np.array(actions)


def _code(field: Number | Category, value: Any) -> FloatArray:
    if isinstance(field, Category):
        return np.array([1.0 if value == known else 0.0 for known in field.values])
    value = value if isinstance(value, int) else float(value)
    if value <= field.low or value >= field.high:
        return np.array([-1.0 if value <= field.low else 1.0])
    middle, half = (field.low + field.high) / 2, (field.high - field.low) / 2
    return np.array([(float(value) - middle) / half])
