"""What is known from earlier studies: its file, and another space."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from flwr_fbo.privacy.gaussian import gaussian_epsilon
from flwr_fbo.tuning import FedWarmStartSettings, Knowledge, SearchSpace
from flwr_fbo.tuning.fed_warm_start.knowledge import KnownRelease
from flwr_fbo.tuning.fed_warm_start.settings import WarmStartFacts
from flwr_fbo.tuning.search.settings import Direction
from flwr_fbo.tuning.search.study import TuningStudy

SPACE: dict[str, BaseDistribution] = {
    "C": FloatDistribution(1e-3, 1e3, log=True),
    "depth": IntDistribution(1, 10),
    "kind": CategoricalDistribution(["a", "b", "c"]),
}
M, Z = 64, 1.5


def known(direction: Direction = "maximize") -> Knowledge:
    space = SearchSpace(SPACE)
    pool = FedWarmStartSettings().pool(space, 3)
    rng = np.random.default_rng(1)
    releases = tuple(
        KnownRelease(f"s/{k}", n, Z, Z, 1e-3, True, M, tuple(rng.standard_normal(M)))
        for k, n in ((1, 9), (2, 5))
    )
    return Knowledge(space, direction, tuple(map(tuple, pool.tolist())), releases)


def test_a_file_gives_back_what_was_saved(tmp_path: Path) -> None:
    path = tmp_path / "known.json"
    one = known()
    one.save(path)
    assert Knowledge.load(path) == one
    np.testing.assert_array_equal(Knowledge.load(path).pool, one.pool)
    assert [p.name for p in tmp_path.iterdir()] == ["known.json"]
    document = json.loads(path.read_text())
    assert "differentially private" in document["about"]
    epsilon = gaussian_epsilon(1e-3, 1 / 1.5)
    assert document["epsilons"] == pytest.approx([epsilon] * 2)
    seeded = replace(one.releases[0], private=False)
    replace(one, releases=(seeded,)).save(path)
    assert "NOT PRIVATE" in json.loads(path.read_text())["about"]
    assert "differentially private" not in path.read_text()


def test_a_file_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "known.json"
    known().save(path)
    before = path.read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        known("minimize").save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["known.json"]


def _set(*keys: Any, value: Any) -> Callable[[Any], None]:
    def change(document: Any) -> None:
        for key in keys[:-1]:
            document = document[key]
        document[keys[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_set("releases", 1, "num_sites", value=50), "releases is not allowed: it is"),
        (_set("releases", 0, "vector", 3, value=0.5), "changed by hand"),
        (_set("points", 7, 0, value=0.123), "points is not allowed: it is"),
        (_set("direction", value="minimize"), "direction is not allowed: it is"),
        (_set("epsilons", 0, value=0.1), r"epsilons=\[0.1, "),
        (_set("releases", 1, "num_sites", value=0), r"releases\[1\]: num_sites=0"),
        (_set("releases", 1, "num_sites", value=10**20), r"\[1\]: num_sites=10"),
        (_set("releases", 1, "num_sites", value=100_001), r"\[1\]: num_sites=10"),
        (
            _set("releases", 0, "noise_multiplier", value=10**30),
            "a number from 0 to 1e6",
        ),
        (_set("releases", 0, "noise_std", value=1.4), "noise_std=1.4 is not allowed"),
        (_set("releases", 0, "vector", value=[1.0]), r"releases\[0\]: len\(vector\)=1"),
        (_set("releases", 0, "vector", 0, value="a"), r"releases\[0\]: vector="),
        (_set("releases", 0, "delta", value=1.5), r"releases\[0\]: delta=1.5"),
        (_set("releases", 0, "noise", value=1), r"releases\[0\] has 'noise'"),
        (_set("releases", value=[]), r"releases=\(\) is not allowed: one at least"),
        (_set("points", 0, value=[0.1]), r"points\[0\]=\(0.1,\) is not allowed"),
        (_set("points", 0, 0, value=1.5), r"points\[0\]=.*from 0 to 1"),
        (_set("space", value="[]"), "space is not what was written"),
        (_set("direction", value="up"), "direction='up'"),
        (_set("digests", value=None), "digests=None"),
        (lambda document: document.pop("points"), "knowledge has no points"),
        (lambda document: document["releases"][0].pop("delta"), r"\[0\] has no delta"),
    ],
)
def test_a_changed_file_is_refused_by_the_field(
    tmp_path: Path, change: Callable[[Any], None], words: str
) -> None:
    path = tmp_path / "known.json"
    known().save(path)
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(ValueError, match=f"known.json cannot be used: .*{words}"):
        Knowledge.load(path)


@pytest.mark.parametrize(
    "content", [b"{", b"\xff\x00", b'{"format": NaN}', b"[" * 10**5]
)
def test_what_is_no_such_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "known.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"known\.json cannot be used: "):
        Knowledge.load(path)


def test_every_truncated_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "known.json"
    known().save(path)
    content = path.read_bytes()
    for length in (0, 1, len(content) // 2, len(content) - 2):
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match="cannot be used"):
            Knowledge.load(path)


def test_the_same_space_changes_nothing() -> None:
    one = known()
    assert one.onto(SearchSpace(SPACE), "maximize") is one


def test_another_order_of_parameters_is_the_same_knowledge() -> None:
    order = ("kind", "C", "depth")
    other = SearchSpace({name: SPACE[name] for name in order})
    moved = known().onto(other, "maximize")
    columns = [list(SPACE).index(name) for name in order]
    np.testing.assert_allclose(moved.pool, known().pool[:, columns], atol=2.0**-40)
    np.testing.assert_array_equal(moved.means, known().means)


def test_points_are_translated_and_those_outside_are_left_out() -> None:
    narrow: dict[str, BaseDistribution] = {
        "C": FloatDistribution(1e-1, 1e5, log=True),
        "depth": IntDistribution(3, 12),
        "kind": CategoricalDistribution(["c", "a"]),
    }
    one, space = known(), SearchSpace(narrow)
    moved = one.onto(space, "maximize")
    settings = [one.space.from_unit(point) for point in one.pool]
    inside = [
        i
        for i, setting in enumerate(settings)
        if setting["C"] >= 0.1 and setting["depth"] >= 3 and setting["kind"] != "b"
    ]
    assert 8 <= len(inside) < M
    translated = [space.from_unit(point) for point in moved.pool]
    for setting, i in zip(translated, inside, strict=True):
        assert setting.pop("C") == pytest.approx(settings[i].pop("C"), rel=1e-10)
        assert setting == settings[i]
    # The same numbers, in units of a message about the points that are left.
    factor = np.sqrt(M / len(inside))
    np.testing.assert_allclose(moved.means, factor * one.means[:, inside], rtol=1e-15)
    np.testing.assert_allclose(moved.noise_std, factor * one.noise_std, rtol=1e-15)
    assert [r.num_points for r in moved.releases] == [M, M]
    # Mapped once more, it is as if it were mapped at once.
    narrower = SearchSpace({**narrow, "depth": IntDistribution(4, 12)})
    again = moved.onto(narrower, "maximize")
    np.testing.assert_allclose(again.means, one.onto(narrower, "maximize").means)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"C": IntDistribution(1, 9)}, r"space\['C'\]=IntDistribution.*a FloatDist"),
        ({"gamma": FloatDistribution(0, 1)}, r"space\['gamma'\].*a parameter of what"),
        ({"C": FloatDistribution(2e3, 1e4)}, r"space\['C'\].*0 of 64 points are in"),
        ({"kind": CategoricalDistribution(["d", "e"])}, r"space\['kind'\]"),
    ],
)
def test_a_space_that_nothing_is_known_of_is_refused(
    change: dict[str, Any], words: str
) -> None:
    changed = {**SPACE, **change}
    space = SearchSpace({n: d for n, d in changed.items() if d is not None})
    with pytest.raises(ValueError, match=words):
        known().onto(space, "maximize")


def test_another_direction_is_refused() -> None:
    with pytest.raises(ValueError, match="direction='minimize' is not allowed"):
        known().onto(SearchSpace(SPACE), "minimize")


def test_a_release_counts_once() -> None:
    one = known()
    with pytest.raises(ValueError, match="each release once"):
        replace(one, releases=(one.releases[0], one.releases[0]))


def test_it_travels_with_its_study() -> None:
    one = known()
    facts = WarmStartFacts(known=one)
    study = TuningStudy(one.space, "maximize", FedWarmStartSettings(), facts=facts)
    again = TuningStudy.from_dict(json.loads(study.text))
    assert again.facts == facts
    assert again == study
    # What it takes to learn from it is counted by a site.
    bare = replace(study, facts=None)
    assert sum(study.steps(0).values()) == sum(bare.steps(2).values())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"space": SearchSpace({"x": FloatDistribution(0, 1)})}, "known.space="),
        ({"direction": "minimize"}, "known.direction='maximize'"),
        ({"agent": FedWarmStartSettings(num_features=32)}, "num_features=64, as many"),
    ],
)
def test_a_study_and_what_is_known_fit(change: dict[str, Any], words: str) -> None:
    one = known()
    facts = WarmStartFacts(known=one)
    study = TuningStudy(one.space, "maximize", FedWarmStartSettings(), facts=facts)
    with pytest.raises(ValueError, match=words):
        replace(study, **change)


def test_a_release_without_noise_is_not_private() -> None:
    about = ("study/1", 4, 0.0, 0.0, 1e-3)
    vector = (0.0,) * 8
    assert KnownRelease(*about, False, 8, vector).epsilon == math.inf
    with pytest.raises(ValueError, match=r"^private=True"):
        KnownRelease(*about, True, 8, vector)
