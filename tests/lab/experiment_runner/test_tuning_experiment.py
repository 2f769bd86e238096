"""Experiments with our own strategies: what counts, who plays when, and controls."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.lab.experiment_runner.base import Claim
from flwr_fbo.lab.experiment_runner.claims import findings
from flwr_fbo.lab.experiment_runner.config import load_experiment
from flwr_fbo.lab.experiment_runner.curves import summarize
from flwr_fbo.lab.experiment_runner.tuning_experiment import (
    TuningExperiment,
    TuningPrivacy,
    _make_lie,
    last_iteration,
    run_one,
)
from flwr_fbo.lab.experiment_runner.tuning_table import Seeds, TuningRun
from flwr_fbo.lab.tasks.digits import DigitsTask
from flwr_fbo.lab.tasks.synthetic import SyntheticTask
from flwr_fbo.privacy.release import Release
from flwr_fbo.space.search_space import SearchSpace
from flwr_fbo.strategies.fed_vote import FedVote
from flwr_fbo.strategies.fed_warm_start import FedWarmStart
from flwr_fbo.strategies.presets import Preset, private_strategies
from flwr_fbo.strategies.privacy_options import Privacy
from flwr_fbo.strategies.seeds import Seeds as StudySeeds
from flwr_fbo.tuning.fed_vote.settings import FedVoteSettings
from flwr_fbo.tuning.fed_vote.vote_schedule import GUIDING
from flwr_fbo.tuning.fed_warm_start.settings import FedWarmStartSettings
from flwr_fbo.tuning.fed_warm_start.shared_function import rank_vector
from flwr_fbo.tuning.registry import ALGORITHMS, Algorithm
from flwr_fbo.tuning.search.agent import play_round
from flwr_fbo.tuning.search.own_search import LeanAgent
from flwr_fbo.tuning.search.settings import SearchSettings
from flwr_fbo.tuning.search.study import create_agent

WARM = TuningExperiment(
    name="warm",
    task=SyntheticTask(),
    num_agents=20,
    num_evaluations=12,
    strategy="FedWarmStart",
    privacy=TuningPrivacy(1e-3, epsilon=2.0),
)
VOTES = replace(WARM, name="votes", strategy="FedVote", methods=("usual",))


@cache
def _played(name: str, method: str) -> TuningRun:
    """Return a run of "warm" or "votes" that several tests read."""
    return run_one({"warm": WARM, "votes": VOTES}[name], method, 1)


class OtherVote(FedVote):
    """Somebody else's strategy: it knows its own clip norm, and takes no list."""

    presets: ClassVar = {
        "": Preset(
            FedVoteSettings(),
            Privacy(sampling_probability=1.0, release_after=GUIDING),
        )
    }

    def __init__(
        self,
        space: Any,
        direction: Any,
        num_agents: int,
        *,
        epsilon: float | None,
        delta: float | None,
        agent: FedVoteSettings,
        privacy: Privacy,
        seeds: StudySeeds,
    ) -> None:
        assert privacy.clip_norm is None
        super().__init__(
            space,
            direction,
            num_agents,
            epsilon=epsilon,
            delta=delta,
            agent=agent,
            privacy=replace(privacy, clip_norm=1.0),
            seeds=seeds,
        )


@pytest.fixture
def other_vote(monkeypatch: pytest.MonkeyPatch) -> Iterator[TuningExperiment]:
    """Register it; yield an experiment with it."""
    path = f"{__name__}:OtherVote"
    algorithm = Algorithm("other-vote", FedVoteSettings, "", strategy=path)
    monkeypatch.setitem(ALGORITHMS, "other-vote", algorithm)
    private_strategies.cache_clear()
    yield replace(VOTES, strategy="OtherVote", num_agents=4)
    private_strategies.cache_clear()


def test_any_registered_private_strategy_can_be_run(
    other_vote: TuningExperiment,
) -> None:
    other_vote.check()
    fed_vote = replace(other_vote, strategy="FedVote")
    theirs, ours = (run_one(plan, "private", 1) for plan in (other_vote, fed_vote))
    assert theirs.best_so_far == ours.best_so_far
    assert theirs.epsilon == ours.epsilon
    labels = {name: other_vote.label_of(name) for name in other_vote.methods}
    assert labels["private"] == "OtherVote"
    assert (labels["alone"], labels["open"]) == ("alone", "open")
    for name in ("private", "open"):
        built = other_vote.known_methods[name].build(other_vote, Seeds.of_run(0))
        assert built.releases is not None
        assert built.releases.server.release.settings.clip_norm == 1.0
    words = "list_first=True is not allowed: False, with OtherVote, which has no"
    with pytest.raises(ValueError, match=words):
        replace(other_vote, list_first=True)


@dataclass(frozen=True)
class PlaceSettings(SearchSettings):
    """Agents that send where they have their best value."""


class PlaceAgent(LeanAgent):
    """One of them."""

    def message(self, iteration: int) -> FloatArray:
        """Return its best setting."""
        assert self.iterations
        return np.asarray(self.points[int(np.argmax(self.values))])

    def _follow(self, vectors: FloatArray, iteration: int) -> None:
        return None


@pytest.mark.parametrize("conspiring", [False, True])
def test_a_liar_of_any_strategy_praises_a_place_that_has_nothing_to_do_with_its_data(
    conspiring: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = Algorithm("place", PlaceSettings, PlaceAgent)
    monkeypatch.setitem(ALGORITHMS, "place", algorithm)
    study = VOTES.study(PlaceSettings(num_features=1), Seeds.of_run(0))
    sent = []
    for slot, best in ((0, 0.25), (1, 0.75)):
        agent = create_agent(study, slot, 0)
        agent.tell(0, np.array([best]), 1.0)
        _make_lie(agent, study, 5, conspiring)
        sent += [agent.message(iteration).item() for iteration in (3, 4)]
        assert agent.points.tolist() == [[best]]
    assert len(set(sent)) == (1 if conspiring else 4)
    assert not {0.25, 0.75} & set(sent)


def _sizes(experiment: TuningExperiment, method: str) -> tuple[int, ...]:
    built = experiment.known_methods[method].build(experiment, Seeds.of_run(0))
    assert isinstance(built, FedWarmStart)
    return built.cohort_sizes


def _made(method: str, seed: int, best_so_far: list[list[float]]) -> TuningRun:
    return TuningRun(
        method=method,
        seed=seed,
        best_so_far=best_so_far,
        epsilon=1.0,
        private=False,
        failed_trials=0,
        seconds=1.0,
    )


def test_every_evaluation_counts_the_first_one_too() -> None:
    """By hand: two agents, four evaluations, two seeds."""
    methods = ("alone", "random", "noise-only", "private")
    claims = (
        Claim("a", "private", "alone", by="mean"),
        Claim("b", "private", "alone"),
    )
    plan = replace(
        VOTES, num_agents=2, num_evaluations=4, methods=methods, claims=claims
    )
    alone = [[0.0, 0.4, 0.4, 0.8], [0.2, 0.2, 0.6, 0.8]]
    private = [[0.4, 0.4, 0.8, 0.8], [0.2, 0.6, 0.8, 0.8]]
    curves = dict.fromkeys(methods, alone) | {"private": private}
    shifted = {
        name: [[v + 0.1 for v in row] for row in curve]
        for name, curve in curves.items()
    }
    shifted["private"] = [[v + 0.1 for v in row] for row in shifted["private"]]
    runs = [_made(n, s, c[n]) for s, c in enumerate((curves, shifted)) for n in methods]
    rows = summarize(plan, runs)
    # Seed 0: alone .1 .3 .5 .8, private .3 .5 .8 .8; seed 1: .1 more, and .1 again.
    assert rows["alone"].estimates["mean"].mean == pytest.approx(0.425 + 0.05)
    assert rows["private"].estimates["mean"].mean == pytest.approx(0.6 + 0.1)
    assert rows["private"].estimates["final"].mean == pytest.approx(0.8 + 0.1)
    gain = rows["private"].estimates["over_alone"]
    assert gain is not None
    assert gain.mean == pytest.approx((0.175 + 0.275) / 2)
    assert gain.standard_error == pytest.approx(0.05)
    early = summarize(plan, runs, 1)["private"].estimates["over_alone"]
    assert early is not None
    assert early.mean == pytest.approx((0.2 + 0.3) / 2)
    found = [one.gain.mean for one in findings(plan, runs)]
    assert found == pytest.approx([0.225, 0.05])
    np.testing.assert_allclose(runs[0].curve, [0.1, 0.3, 0.5, 0.8])
    assert plan.steps.tolist() == [1, 2, 3, 4]
    assert plan.axes[0] == "evaluation"


def test_what_an_agent_alone_does_first_is_the_same_in_all_methods() -> None:
    """Lean ones start at the centre, whatever is shared later."""
    names = ("open", "private", "noise-only", "blind")
    runs = {name: _played("votes", name) for name in ("alone", *names)}
    for name in names:
        ours = np.array(runs[name].best_so_far)
        np.testing.assert_array_equal(
            ours[:, :6], np.array(runs["alone"].best_so_far)[:, :6]
        )
    assert runs["noise-only"].best_so_far == runs["alone"].best_so_far
    assert all(np.shape(run.best_so_far) == (20, 12) for run in runs.values())


def test_all_agents_of_all_cohorts_make_their_evaluations() -> None:
    first, second = _sizes(WARM, "private")
    assert first >= 6
    names = ("alone", "open", "private", "noise-only", "blind")
    runs = {name: _played("warm", name) for name in names}
    for run in runs.values():
        assert np.shape(run.best_so_far) == (20, 12)
        assert WARM.run_of(json.loads(run.to_json())).best_so_far == run.best_so_far
    alone = np.array(runs["alone"].best_so_far)
    for name in ("private", "noise-only", "blind"):  # pioneers know of nothing
        ours = np.array(runs[name].best_so_far)
        np.testing.assert_array_equal(ours[:first], alone[:first])
    assert runs["noise-only"].best_so_far == runs["alone"].best_so_far
    assert 1.9 < runs["private"].epsilon <= 2.0
    assert math.isinf(runs["open"].epsilon)
    built = WARM.known_methods["private"].build(WARM, Seeds.of_run(0))
    assert last_iteration(WARM, built) == 10 + 10 + 12 - 1
    assert second == (20 - first) // 2


def test_who_waits_is_not_asked_and_who_is_done_neither(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[int, int, bool]] = []

    def spy(
        agent: Any,
        objective: Any,
        iteration: int,
        vectors: Any,
        send: bool,
        **more: Any,
    ) -> Any:
        asked.append((agent.slot, iteration, send))
        return play_round(agent, objective, iteration, vectors, send, **more)

    monkeypatch.setattr("flwr_fbo.lab.simulation.loop.play_round", spy)
    run_one(WARM, "private", 0)
    first, second = _sizes(WARM, "private")
    begins = [0] * first + [10] * second + [20] * (20 - first - second)
    for slot, begin in enumerate(begins):
        mine = [iteration for who, iteration, _ in asked if who == slot]
        assert mine == list(range(begin, begin + 12))
    sent = sorted((slot, iteration) for slot, iteration, send in asked if send)
    assert sent == [
        *((slot, 9) for slot in range(first)),
        *((slot, 19) for slot in range(first, first + second)),
    ]


def test_a_site_sends_once() -> None:
    first, second = _sizes(WARM, "private")
    # Followers get what is released before their first evaluation: a row a cohort.
    received = 64 * (second + 2 * (20 - first - second))
    assert WARM.num_sent("private", []) == received + 64 * (first + second)
    assert WARM.num_sent("alone", []) == 0
    assert WARM.num_sent("noise-only", []) > 0


def test_votes_are_sent_twice() -> None:
    each = 20 * 512
    # After the sixth and the tenth evaluation; the vectors are there for the next one.
    assert VOTES.num_sent("private", []) == 2 * each + 2 * each


def _messages(
    monkeypatch: pytest.MonkeyPatch, experiment: TuningExperiment, method: str
) -> list[dict[int, FloatArray]]:
    """Return the messages of each release of a run."""
    seen: list[dict[int, FloatArray]] = []
    release = Release.release

    def spy(self: Release, t: int, messages: Any, num_features: int) -> FloatArray:
        seen.append(dict(messages))
        return release(self, t, messages, num_features)

    monkeypatch.setattr(Release, "release", spy)
    run_one(experiment, method, 0)
    return seen


def test_a_third_of_the_pioneers_collude(monkeypatch: pytest.MonkeyPatch) -> None:
    methods = ("alone", "random", "noise-only", "liars", "private")
    plan = replace(WARM, methods=methods)
    first, _ = _sizes(plan, "liars")
    honest = _messages(monkeypatch, plan, "private")
    lied = _messages(monkeypatch, plan, "liars")
    liars = math.ceil(first / 3)
    assert liars >= 2
    for slot in range(first):
        alike = np.array_equal(lied[0][slot], honest[0][slot])
        assert alike == (slot >= liars)
    for slot in range(1, liars):
        np.testing.assert_array_equal(lied[0][slot], lied[0][0])
    # They praise one place, by ranks, with the norm that is allowed.
    message = lied[0][0]
    assert np.linalg.norm(message) == pytest.approx(1.0)
    pool = FedWarmStartSettings().pool(
        SearchSpace(plan.task.space), Seeds.of_run(0).features
    )
    top = pool[np.argmax(message)]
    distances = np.abs(pool - top)[:, 0]
    assert np.corrcoef(message, rank_vector(-distances))[0, 1] > 0.9


def test_blind_messages_are_each_of_another_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for sent in _messages(monkeypatch, WARM, "blind"):
        vectors = np.array(list(sent.values()))
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0)
        # Places that lie close together rank the pool alike.
        assert len(np.unique(vectors, axis=0)) > len(vectors) / 2


def _tried(
    monkeypatch: pytest.MonkeyPatch, experiment: TuningExperiment, method: str
) -> dict[int, list[float]]:
    """Return the settings that each agent of a task of one variable has tried."""
    tried: dict[int, list[float]] = {}

    def spy(agent: Any, *others: Any, **more: Any) -> Any:
        message = play_round(agent, *others, **more)
        tried[agent.slot] = agent.points[:, 0].tolist()
        return message

    with monkeypatch.context() as patched:
        patched.setattr("flwr_fbo.lab.simulation.loop.play_round", spy)
        run_one(experiment, method, 0)
    return tried


def test_the_portfolio_is_public(monkeypatch: pytest.MonkeyPatch) -> None:
    """One list, whoever and whatever: here a Sobol design, begun at the centre."""
    tried = _tried(monkeypatch, VOTES, "portfolio")
    assert len({tuple(points) for points in tried.values()}) == 1
    assert tried[0][:7] == [0.5, 0.75, 0.25, 0.375, 0.875, 0.625, 0.125]
    assert len(tried[0]) == 12
    digits = replace(VOTES, task=DigitsTask(), num_evaluations=6)
    first = digits.known_methods["portfolio"].first
    assert first is not None
    listed = [first(digits, Seeds.of_run(s), n) for s, n in ((0, 0), (5, 3))]
    assert listed[0] == listed[1]
    assert listed[0][:2] == DigitsTask().customary
    assert len(listed[0]) == 6
    assert listed[0][2]["C"] == pytest.approx(1.0)


DIGITS = replace(
    WARM, task=DigitsTask(), num_evaluations=13, list_first=True, methods=("usual",)
)


def test_the_list_comes_first_in_what_is_compared_to_it() -> None:
    """At digits whose pixels have variance 36.2: C is the list's, gamma is scaled."""
    listed = DigitsTask().listed
    assert [params["C"] for params in listed] == [10.8, 1.16, 93.2]
    assert listed[0]["gamma"] == pytest.approx(0.526 / 2317)
    assert DIGITS.methods == (
        "alone", "random", "list", "private", "noise-only", "blind"
    )  # fmt: skip
    for name, first in (("alone", ()), ("random", ()), ("list", listed)):
        study = DIGITS.known_methods[name].build(DIGITS, Seeds.of_run(0)).study
        assert list(study.portfolio) == list(first)
    built = DIGITS.known_methods["private"].build(DIGITS, Seeds.of_run(0))
    assert list(built.study.portfolio) == listed
    assert DIGITS.label_of("private") == "list + start"
    with pytest.raises(ValueError, match=r"num_evaluations=12 .* at least 13"):
        replace(DIGITS, num_evaluations=12)


def test_a_verdict_sets_the_release_beside_the_list() -> None:
    levels = {"alone": 0.5, "random": 0.4, "list": 0.7, "private": 0.6}
    levels |= {"noise-only": 0.7, "blind": 0.7}
    runs = [
        _made(name, seed, [[level + 0.01 * seed] * 13])
        for name, level in levels.items()
        for seed in (0, 1)
    ]
    first, second, *_ = DIGITS.verdict(summarize(DIGITS, runs))
    assert first.startswith("The public list does better than alone: +0.2000")
    assert "no gain of the federation is shown" in second


def test_a_random_start_is_ten_points_each_agents_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = _tried(monkeypatch, VOTES, "random-start")
    firsts = {tuple(points[:10]) for points in tried.values()}
    assert len(firsts) == 20
    assert all(len(set(points)) == 12 for points in tried.values())
    spread = np.sort(np.concatenate(list(firsts)))
    np.testing.assert_allclose(spread, np.linspace(0, 1, 200), atol=0.12)


def test_a_file_may_name_a_warm_start(tmp_path: Path) -> None:
    text = """
name = "mine"
num_agents = 20
num_evaluations = 10
strategy = "FedWarmStart"
methods = ["usual", "liars"]

[task]
name = "synthetic"

[privacy]
epsilon = 2.0
delta = 1e-3
"""
    path = tmp_path / "mine.toml"
    path.write_text(text)
    plan = load_experiment(path)
    assert plan.methods == (*WARM.methods, "liars")
    plan.check()
    for old, new, words in (
        ("= 10", "= 9", "num_evaluations=9 is not allowed: at least 10"),
        ("WarmStart", "WarmStrat", "did you mean 'FedWarmStart'"),
        ("[task]", 'preset = "paper"\n[task]', "left out, with FedWarmStart"),
        ('"usual", ', "", "liars beside its controls"),
    ):
        path.write_text(text.replace(old, new))
        with pytest.raises(ValueError, match=words):
            load_experiment(path)
    sampled = replace(
        WARM, privacy=TuningPrivacy(1e-3, epsilon=2.0, sampling_probability=0.5)
    )
    with pytest.raises(ValueError, match=r"private: sampling_probability=0\.5 is not"):
        sampled.check()
