import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    DiscreteUniformDistribution,
    FloatDistribution,
    IntDistribution,
    IntLogUniformDistribution,
    IntUniformDistribution,
    LogUniformDistribution,
    UniformDistribution,
)

from flwr_fbo.lab.tasks.har import HarTask
from flwr_fbo.space.search_space import SearchSpace

finite = st.floats(-1e12, 1e12, allow_nan=False, allow_subnormal=False)


@st.composite
def float_distributions(draw: st.DrawFn) -> FloatDistribution:
    if draw(st.booleans()):
        low = draw(st.floats(1e-12, 1e6))
        return FloatDistribution(low, low * draw(st.floats(1.001, 1e9)), log=True)
    low = draw(finite)
    high = low + draw(st.floats(1e-3, 1e6)) * max(1.0, abs(low) * 1e-6)
    return FloatDistribution(low, high)


@st.composite
def stepped_distributions(draw: st.DrawFn) -> FloatDistribution:
    step = draw(st.sampled_from([0.1, 0.25, 0.05, 3.0]))
    first = draw(st.integers(-1000, 1000))
    last = first + draw(st.integers(1, 500))
    return FloatDistribution(round(first * step, 9), round(last * step, 9), step=step)


@st.composite
def int_distributions(draw: st.DrawFn) -> IntDistribution:
    if draw(st.booleans()):
        low = draw(st.integers(1, 1000))
        return IntDistribution(low, low + draw(st.integers(1, 10**6)), log=True)
    low, step = draw(st.integers(-1000, 1000)), draw(st.integers(1, 7))
    return IntDistribution(low, low + step * draw(st.integers(1, 10**6)), step=step)


choices = st.lists(
    st.one_of(st.none(), st.text(max_size=3), st.integers(2, 99)),
    min_size=2,
    max_size=6,
    unique=True,
)
distributions = st.one_of(
    float_distributions(),
    stepped_distributions(),
    int_distributions(),
    choices.map(CategoricalDistribution),
).filter(lambda d: not d.single())


@pytest.mark.filterwarnings("ignore:The distribution is specified by")
@settings(max_examples=100)
@given(distributions, st.floats(0, 1))
def test_what_the_space_gives_comes_back_exactly(
    distribution: BaseDistribution, u: float
) -> None:
    space = SearchSpace({"x": distribution})
    params = space.from_unit(np.array([u]))
    if not isinstance(distribution, CategoricalDistribution):
        assert isinstance(distribution, FloatDistribution | IntDistribution)
        assert distribution.low <= params["x"] <= distribution.high
    point = space.to_unit(params)
    assert 0 <= point[0] <= 1
    assert space.from_unit(point) == params
    tried = space.snap(point)
    np.testing.assert_array_equal(space.snap(tried), tried)
    if not space.continuous[0]:
        np.testing.assert_array_equal(tried, point)


def test_what_is_tried_does_not_depend_on_last_digits() -> None:
    space = SearchSpace({"x": FLOAT, "n": IntDistribution(1, 9)})
    x = np.random.default_rng(0).random((100, 2))
    tried = np.array([space.snap(point) for point in x])
    np.testing.assert_array_equal(tried, [space.snap(point + 1e-13) for point in x])
    np.testing.assert_allclose(tried[:, 0], x[:, 0], rtol=0, atol=2.0**-20)
    assert np.ptp(tried[:, 0]) > 0.9


@settings(max_examples=40)
@given(st.lists(distributions, min_size=1, max_size=3), st.integers(0, 99))
@pytest.mark.filterwarnings("ignore:The distribution is specified by")
def test_discrete_axes_snap_as_one_and_as_many(
    some: list[BaseDistribution], seed: int
) -> None:
    space = SearchSpace({str(d): one for d, one in enumerate(some)})
    x = np.random.default_rng(seed).random((20, space.dim))
    snapped = space.snap_discrete(x)
    np.testing.assert_array_equal(snapped[:, space.continuous], x[:, space.continuous])
    discrete = ~space.continuous
    one_by_one = np.array([space.snap(point) for point in x])
    np.testing.assert_allclose(
        snapped[:, discrete], one_by_one[:, discrete], atol=1e-12
    )


@given(int_distributions(), st.data())
def test_integers_survive_exactly(
    distribution: IntDistribution, data: st.DataObject
) -> None:
    count = (distribution.high - distribution.low) // distribution.step
    value = distribution.low + distribution.step * data.draw(st.integers(0, count))
    space = SearchSpace({"x": distribution})
    back = space.from_unit(space.to_unit({"x": value}))["x"]
    assert back == value
    assert isinstance(back, int)


@settings(max_examples=150)
@given(st.integers(1, 999), st.integers(-3, 2), st.booleans())
def test_values_as_people_write_them_come_back_exactly(
    mantissa: int, exponent: int, log: bool
) -> None:
    value = float(f"{mantissa}e{exponent}")
    low, high = (1e-3, 1e5) if log else (-1e5, 1e5)
    space = SearchSpace({"x": FloatDistribution(low, high, log=log)})
    assert space.from_unit(space.to_unit({"x": value})) == {"x": value}


def test_the_last_step_is_the_upper_end() -> None:
    space = SearchSpace({"x": FloatDistribution(0.0, 0.3, step=0.1)})
    assert space.from_unit(np.array([1.0]))["x"] == 0.3
    assert space.to_unit({"x": 0.3})[0] == 0.875


@pytest.mark.parametrize(("high", "step"), [(1.0, 0.1), (10.0, 0.05), (0.7, 0.01)])
def test_a_step_comes_back_as_it_was_written(high: float, step: float) -> None:
    space = SearchSpace({"x": FloatDistribution(0.0, high, step=step)})
    for number in range(round(high / step) + 1):
        value = float(f"{number * step:.2f}")
        assert space.from_unit(space.to_unit({"x": value})) == {"x": value}


def test_log_scale_and_ends() -> None:
    space = SearchSpace({"C": FloatDistribution(1e-3, 1e3, log=True)})
    assert space.from_unit(np.array([0.5]))["C"] == pytest.approx(1.0)
    assert space.from_unit(np.array([0.0]))["C"] == 1e-3
    assert space.from_unit(np.array([1.0]))["C"] == 1e3
    assert space.to_unit({"C": 1e3})[0] == 1.0


def test_json_keeps_everything() -> None:
    space = SearchSpace(
        {
            "b": FloatDistribution(0, 1, step=0.25),
            "a": IntDistribution(1, 64, log=True),
            "c": CategoricalDistribution(["rbf", None, 3]),
        }
    )
    again = SearchSpace.from_json(space.to_json())
    assert again == space
    assert list(again.distributions) == ["b", "a", "c"]
    assert hash(again) == hash(space)
    assert "IntDistribution" in repr(space)


FLOAT = FloatDistribution(0.0, 1.0)


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({}, "space={}"),
        ({"x": 3}, "space['x']=3"),
        ({"x": FloatDistribution(1.0, 1.0)}, "two values"),
        ({"x": CategoricalDistribution([1, True])}, "differ"),
        ({"x": FloatDistribution(-1.7e308, 1.7e308)}, "finite"),
        ({"x": FloatDistribution(1.0, 1.7e308, log=True)}, "finite"),
        ({"x": IntDistribution(0, 10**400)}, "finite"),
        ({"x": IntDistribution(0, 2**50)}, "2**40"),
        ({"": FLOAT}, "names"),
    ],
)
def test_bad_spaces_are_named(space: Any, words: str) -> None:
    with pytest.raises(ValueError, match="is not allowed") as error:
        SearchSpace(space)
    assert words in str(error.value)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"x": 0.5, "y": 1},
        {"x": math.nan, "n": 2, "k": "a"},
        {"x": 0.5, "n": 2.5, "k": "a"},
        {"x": 0.5, "n": 2, "k": "z"},
    ],
)
def test_bad_settings_are_named(params: dict[str, Any]) -> None:
    space = SearchSpace(
        {
            "x": FLOAT,
            "n": IntDistribution(1, 8, log=True),
            "k": CategoricalDistribution(["a", "b"]),
        }
    )
    with pytest.raises(ValueError, match=r"params.* is not allowed"):
        space.to_unit(params)


@pytest.mark.parametrize("x", [[1.5], [0.1, 0.2], [math.nan]])
def test_bad_points_are_named(x: list[float]) -> None:
    with pytest.raises(ValueError, match="x="):
        SearchSpace({"x": FLOAT}).from_unit(np.array(x))


@given(st.integers(1, 60), st.integers(1, 4))
def test_sub_regions_tile_the_cube(num_sub_regions: int, dim: int) -> None:
    space = SearchSpace({f"x{d}": FLOAT for d in range(dim)})
    regions = space.sub_regions(num_sub_regions)
    assert len(regions) == num_sub_regions
    volumes = np.prod(regions.upper - regions.lower, axis=1)
    np.testing.assert_allclose(volumes, 1 / num_sub_regions)
    x = np.random.default_rng(0).random((200, dim))
    index = regions.index(x)
    assert np.all((x >= regions.lower[index]) & (x < regions.upper[index]))
    # A border belongs to the upper box, and the cube's end to the last.
    np.testing.assert_array_equal(regions.index(regions.lower), range(num_sub_regions))
    assert regions.index(np.ones((1, dim))) == num_sub_regions - 1


def test_a_space_may_have_more_parameters_than_an_array_has_axes() -> None:
    space = SearchSpace({f"x{i}": FloatDistribution(0, 1) for i in range(70)})
    regions = space.sub_regions(4)
    points = np.random.default_rng(0).random((20, 70))
    found = regions.index(points)
    assert (points >= regions.lower[found]).all()
    assert (points <= regions.upper[found]).all()
    assert set(found) == {0, 1, 2, 3}


def test_sub_regions_prefer_continuous_axes() -> None:
    space = SearchSpace({"k": CategoricalDistribution(["a", "b"]), "x": FLOAT})
    assert [len(e) - 1 for e in space.sub_regions(4).edges] == [1, 4]


def test_sub_regions_cut_the_axes_that_are_named() -> None:
    """As for HAR: the batch size in two intervals, by two of l2."""
    space = SearchSpace(HarTask(log=False).space)
    cut = space.sub_regions(4, ("batch_size", "l2"))
    assert [len(e) - 1 for e in cut.edges] == [2, 2, 1]
    inside = [
        space.to_unit({"batch_size": b, "l2": r, "learning_rate": 0.7})
        for b, r in ((128, 4.9), (319, 5.1), (321, 4.9), (512, 9.0))
    ]
    assert cut.index(np.array(inside)).tolist() == [0, 1, 2, 3]
    spared = space.sub_regions(4)
    assert [len(e) - 1 for e in spared.edges] == [1, 2, 2]
    first = space.sub_regions(3, ("batch_size", "l2"))
    assert [len(e) - 1 for e in first.edges] == [3, 1, 1]
    words = "sub_region_axes='batch' is not allowed: .*'batch_size'"
    with pytest.raises(ValueError, match=words):
        space.sub_regions(4, ("batch",))


@pytest.mark.parametrize(
    "distribution",
    [
        IntDistribution(1, 9),
        IntDistribution(10, 1000, log=True),
        CategoricalDistribution(list("abcde")),
        FloatDistribution(0.0, 1.0, step=0.1),
    ],
)
def test_discrete_axes_are_cut_between_their_values(
    distribution: BaseDistribution,
) -> None:
    """What a box's points snap to lies in the box."""
    space = SearchSpace({"x": distribution})
    regions = space.sub_regions(4)
    x = np.random.default_rng(0).random((500, 1))
    snapped = np.array([space.snap(point) for point in x])
    np.testing.assert_array_equal(regions.index(x), regions.index(snapped))
    assert set(regions.index(x)) == {0, 1, 2, 3}


def test_values_of_another_type_are_no_numbers() -> None:
    for distribution in (FLOAT, IntDistribution(0, 1), IntDistribution(1, 9, log=True)):
        space = SearchSpace({"x": distribution})
        for value in ("1", None, math.inf, -math.inf, [1]):
            with pytest.raises(ValueError, match=r"params\['x'\]"):
                space.to_unit({"x": value})
        assert space.to_unit({"x": np.int64(1)}).shape == (1,)


def test_large_integers_are_told_apart() -> None:
    space = SearchSpace({"n": IntDistribution(10**9, 10**9 + 5)})
    assert space.from_unit(space.to_unit({"n": 10**9 + 3})) == {"n": 10**9 + 3}
    with pytest.raises(ValueError, match="in steps of 1"):
        space.to_unit({"n": 10**9 + 0.4})


@pytest.mark.filterwarnings("ignore")
def test_what_json_would_change_is_refused() -> None:
    """The clients must tune what the server says, not a neighbour of it."""
    for distribution in (
        FloatDistribution(0, 1, step=1 / 13),
        CategoricalDistribution([(1, 2), (3, 4)]),  # type: ignore[list-item]
    ):
        with pytest.raises(ValueError, match="JSON"):
            SearchSpace({"x": distribution})


@pytest.mark.filterwarnings("ignore")
def test_choices_of_numpy_are_plain_ones() -> None:
    wanted = {"x": CategoricalDistribution([1, 2]), "y": FloatDistribution(0.5, 1.0)}
    space = SearchSpace(
        {
            "x": CategoricalDistribution(np.array([1, 2])),  # type: ignore[arg-type]
            "y": FloatDistribution(np.float32(0.5), np.int64(1)),  # type: ignore[arg-type]
        }
    )
    assert space.distributions == wanted
    assert type(space.from_unit(space.center)["x"]) is int


@pytest.mark.filterwarnings("ignore")
def test_the_older_names_of_distributions_are_the_same() -> None:
    space = SearchSpace(
        {
            "a": UniformDistribution(0, 1),
            "b": LogUniformDistribution(0.1, 1),
            "c": DiscreteUniformDistribution(0, 1, 0.25),
            "d": IntUniformDistribution(1, 5, 2),
            "e": IntLogUniformDistribution(1, 9),
        }
    )
    assert space.distributions == {
        "a": FloatDistribution(0, 1),
        "b": FloatDistribution(0.1, 1, log=True),
        "c": FloatDistribution(0, 1, step=0.25),
        "d": IntDistribution(1, 5, step=2),
        "e": IntDistribution(1, 9, log=True),
    }


@pytest.mark.parametrize(
    ("distribution", "seen"),
    [
        (CategoricalDistribution([math.nan, 1.0]), "there is nan"),
        (CategoricalDistribution([1.0, -math.inf]), "there is -inf"),
        (FloatDistribution(math.nan, 1.0), "there is nan"),
        (FloatDistribution(0.0, math.nan), "there is nan"),
        (FloatDistribution(0.0, math.inf), "there is inf"),
    ],
)
def test_what_is_not_finite_is_refused_where_it_is_declared(
    distribution: BaseDistribution, seen: str
) -> None:
    with pytest.raises(ValueError, match=rf"space\['x'\]=.* {seen}"):
        SearchSpace({"x": distribution})


def test_sub_regions_that_do_not_fit_are_named() -> None:
    space = SearchSpace({"k": CategoricalDistribution(["a", "b"])})
    wrongs: list[Any] = [0, 2.0, 3]
    for num_sub_regions in wrongs:
        with pytest.raises(ValueError, match=f"num_sub_regions={num_sub_regions}"):
            space.sub_regions(num_sub_regions)


def test_the_centre_is_the_middle_of_each_axis_and_the_first_of_two_middles() -> None:
    space = SearchSpace(
        {
            "rate": FloatDistribution(1e-4, 1.0, log=True),
            "share": FloatDistribution(-1.0, 3.0),
            "epochs": IntDistribution(1, 8),
            "width": IntDistribution(1, 64, log=True),
            "odd": IntDistribution(1, 5),
            "kernel": CategoricalDistribution(["rbf", "linear"]),
            "depth": CategoricalDistribution([2, 4, 8]),
        }
    )
    assert space.from_unit(space.center) == {
        "rate": 0.01,
        "share": 1.0,
        "epochs": 4,
        "width": 6,
        "odd": 3,
        "kernel": "rbf",
        "depth": 4,
    }


def test_a_new_point_is_of_a_setting_that_was_not_tried() -> None:
    space = SearchSpace(
        {"a": CategoricalDistribution(["x", "y", "z"]), "b": IntDistribution(1, 4)}
    )
    rng, tried = np.random.default_rng(0), np.empty((0, 2))
    for _ in range(12):
        tried = np.array([*tried, space.new_point(rng, tried)])
    assert len(np.unique(tried, axis=0)) == 12
    assert space.new_point(rng, tried).tolist() in tried.tolist()


def test_a_new_point_of_many_settings_is_one_of_them() -> None:
    space = SearchSpace({"n": IntDistribution(1, 5000), "x": FloatDistribution(0, 1)})
    tried = np.array([space.snap(np.full(2, u)) for u in np.linspace(0, 1, 50)])
    point = space.new_point(np.random.default_rng(0), tried)
    assert point.tolist() not in tried.tolist()
    np.testing.assert_array_equal(space.snap(point), point)


def test_points_are_made_distinct_after_those_that_are_kept() -> None:
    space = SearchSpace({"n": IntDistribution(1, 4)})
    one, two = (space.to_unit({"n": n}) for n in (1, 2))
    rng = np.random.default_rng(0)
    found = space.each_once(np.array([one, one, two, one, two]), 2, rng)
    assert found[:3].tolist() == [one.tolist(), one.tolist(), two.tolist()]
    assert sorted(space.from_unit(x)["n"] for x in found[1:]) == [1, 2, 3, 4]
