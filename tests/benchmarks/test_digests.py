"""The comparison of two versions sees what differs, and plays without defaults."""

from typing import Any

import numpy as np
import pytest
from scipy.linalg import cho_solve

from benchmarks import digests
from benchmarks.digest_studies import STUDIES, explicit
from benchmarks.digests import compare, digest_of, first_difference, played
from benchmarks.instruction_sets import differ
from flwr_fbo.tuning import FedVoteSettings

SOME = ("votes", "FedUCB", "FedGOUCB, private", "experiment, transfer")


@pytest.mark.parametrize("name", SOME)
def test_a_study_has_the_same_digests_twice(name: str) -> None:
    steps = played(name)
    assert len(steps) > 20
    assert first_difference(steps, played(name)) is None


@pytest.mark.slow
def test_every_study_is_played_without_defaults() -> None:
    """`explicit` refuses what is left out; every study gets past it."""
    for name, play in STUDIES.items():
        assert next(play())[0], name


def test_a_setting_that_is_left_out_is_named() -> None:
    settings = {k: v for k, v in vars(FedVoteSettings()).items() if k != "max_tries"}
    with pytest.raises(TypeError, match=r"defaults: \['max_tries'\]"):
        explicit(FedVoteSettings, **settings)


def test_the_first_difference_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    before = played("DP-FTS")
    module = "flwr_fbo.models.thompson_gp.cho_solve"
    monkeypatch.setattr(module, lambda *a: cho_solve(*a) * (1 + 1e-15))
    (line,) = compare({"DP-FTS": before}, {"DP-FTS": played("DP-FTS")})
    assert line.startswith("DP-FTS: round 1, reply of node 1001, array 0: ")
    assert " against " in line


def test_studies_that_one_has_and_steps_that_one_lacks_are_named() -> None:
    steps = [("a", "1"), ("b", "2")]
    assert compare({"x": steps}, {"y": steps}) == [
        "x: only in one of the two",
        "y: only in one of the two",
    ]
    assert first_difference(steps, steps[:1]) == "2 steps against 1"
    assert first_difference(steps, [("a", "1"), ("c", "2")]) == "step 'b' is 'c' there"


def test_a_digest_sees_the_last_bit_the_type_and_the_shape() -> None:
    one = np.array([1.0, 2.0])
    others = [np.nextafter(one, 2), one.astype(np.float32), one[:, None]]
    assert digest_of(one) == digest_of(one.copy())
    assert len({digest_of(value) for value in (one, *others)}) == 4
    assert digest_of({"b": 1, "a": [0.1] * 50}) != digest_of({"b": 1, "a": [0.2] * 50})


def test_two_versions_are_compared_on_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = {"A": {"x": [("a", "1")]}, None: {"x": [("a", "2")]}}
    monkeypatch.setattr(digests, "_recorded", lambda commit, jobs: recorded[commit])
    for arguments, status in (("A",), 1), (("A", "A"), 0):
        monkeypatch.setattr("sys.argv", ["digests", *arguments])
        with pytest.raises(SystemExit) as stopped:
            digests.main()
        assert stopped.value.code == status
    assert capsys.readouterr().out.splitlines() == [
        "x: a: 1 against 2",
        "1 studies, 1 steps: all are equal.",
    ]


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        ([1.0, 2.0], [1.0, 2.5], 0.2),
        ({"a": 1.0}, {"a": 1.0}, 0.0),
        ({"a": 1.0}, {"b": 1.0}, np.inf),
        (["x", None, 3], ["x", None, 3], 0.0),
        (["x"], ["y"], np.inf),
        ([1.0], [1.0, 1.0], np.inf),
        (0.0, 1e-9, 1e-9),
    ],
)
def test_how_far_two_results_are_apart(one: Any, other: Any, apart: float) -> None:
    assert differ(one, other) == pytest.approx(apart)
    assert differ(other, one) == pytest.approx(apart)
