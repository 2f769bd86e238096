"""Fields of contexts and arms: what stands for a missing value."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flwr_fbo.bandits import Category, FeatureEncoder, Number
from tests.support.feature_spaces import Arm

ARRIVAL = Category(("walk-in", "ambulance"))


CONTEXT: dict[str, Number | Category] = {"age": Number(0, 110), "arrival": ARRIVAL}


SHARED = FeatureEncoder(CONTEXT, {"price": Number(0, 100)})


PATIENT = {"age": 55, "arrival": "walk-in"}


ARMS: list[Arm] = [("ward", {"price": 75}), ("home", {"price": 0})]


@pytest.mark.parametrize("given", [None, math.nan, np.float64("nan"), "left out"])
def test_a_missing_value_is_what_was_declared(given: Any) -> None:
    declared: dict[str, Number | Category] = {
        "age": Number(0, 110, missing=55),
        "arrival": Category(ARRIVAL.values, missing="unknown"),
    }
    encoder = replace(SHARED, context=declared)
    expected = encoder.encode({"age": 55, "arrival": "unknown"}, ARMS)[0]
    context = {} if given == "left out" else dict.fromkeys(declared, given)
    encoded = encoder.encode(context, ARMS)
    np.testing.assert_array_equal(encoded[0], expected)
    assert encoded[1] == {"arrival": 1}  # a text that is no category
    [logged] = encoder.encode_log([context, PATIENT], ["ward", "home"], ARMS)
    np.testing.assert_array_equal(logged[0][0], expected[0])
    with pytest.raises(ValueError, match="missing=111"):
        Number(0, 110, missing=111)
    with pytest.raises(ValueError, match="missing=''"):
        Category(ARRIVAL.values, missing="")
