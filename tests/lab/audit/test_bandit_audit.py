"""The audit of running bandits: the law of its test, no false alarm, every fault."""

import math
from types import SimpleNamespace
from typing import Any, cast, get_args

import numpy as np
import pytest

from flwr_fbo.bandits.linear.agent import LinearUCBAgent, OwnPart
from flwr_fbo.bandits.linear.confidence import Confidence
from flwr_fbo.bandits.linear.settings import LinearUCBSettings, LocalData
from flwr_fbo.lab.audit import bandit_audit
from flwr_fbo.lab.audit.bandit_audit import BanditAuditPlan
from flwr_fbo.lab.audit.planted_faults import CONTINUAL_FAULTS
from flwr_fbo.lab.audit.study_audit import StreamEntropy, audit
from flwr_fbo.privacy.conditions import FINISHED_TABLE
from flwr_fbo.privacy.continual import ContinualRelease
from flwr_fbo.privacy.continual_settings import ContinualSettings
from flwr_fbo.privacy.factorisation import Mechanism
from flwr_fbo.privacy.gaussian import gaussian_delta
from flwr_fbo.privacy.noise import Entropy, OsEntropy, SeededEntropy

ARMS = ((1.0, 0.0), (0.0, 1.0))
MECHANISMS = get_args(Mechanism)
PAPER = {"mechanism": "tree", "calibration": "paper", "epsilon": 16.0}
# Both arms always pay the same: only the flipped reward tells one from the other.
RAW = {"local_data": "raw", "rewards": (1.0, 1.0), "window": 10}
OWN = {**RAW, "local_data": "own"}
LOG = {"num_logged": 10, "position": -5}


def plan(**changes: Any) -> BanditAuditPlan:
    """Return the plan of 1000 runs with two releases; ``changes`` are of any part."""
    releases: dict[str, Any]
    releases = {"num_releases": 2, "dimension": 2, "epsilon": 2.0, "delta": 0.1}
    for field in ContinualSettings.__dataclass_fields__:
        if field in changes:
            releases[field] = changes.pop(field)
    local_data = changes.pop("local_data", "released")
    settings = LinearUCBSettings(ContinualSettings(**releases), local_data=local_data)
    default: dict[str, Any]
    default = {"actions": ARMS, "rewards": (1.0, -1.0), "num_draws": 1000}
    return BanditAuditPlan(settings, **{**default, **changes})


def _runs(audited: BanditAuditPlan, num_runs: int) -> Any:
    """Return releases and sums of seeded runs, in the two worlds in turn."""
    releases = audited.settings.releases
    mechanisms = [
        ContinualRelease(releases, SeededEntropy(5, run)) for run in range(num_runs)
    ]
    return bandit_audit._play(audited, mechanisms, np.arange(num_runs) % 2)[:2]


# --- The running bandit


@pytest.mark.parametrize(
    ("local_data", "forget", "num_logged", "position"),
    [
        ("released", None, 0, 2),
        ("released", 1, 3, -2),
        ("released", 2, 0, 2),
        ("raw", None, 3, -2),
        ("raw", 1, 0, 2),
        ("raw", 2, 3, -2),
        ("own", None, 3, -2),
        ("own", 1, 0, 2),
    ],
)
def test_twins_are_agents(
    local_data: LocalData, forget: int | None, num_logged: int, position: int
) -> None:
    """Array by array what `LinearUCBAgent` does, in the world that is played."""
    audited = plan(
        local_data=local_data,
        num_releases=3,
        window=4,
        num_logged=num_logged,
        position=position,
        sliding_window=forget,
    )
    released, sums = _runs(audited, 20)
    for run in range(20):
        agent = LinearUCBAgent(Confidence.of(audited.settings, 1))
        mechanism = ContinualRelease(audited.settings.releases, SeededEntropy(5, run))
        earlier = [agent.running_sum.copy()]
        for t in range(-num_logged, 12):
            arm = t % 2 if t < 0 else agent.choose(ARMS, first_of_equals())[0]
            flipped = -1.0 if run % 2 else 1.0
            agent.tell(ARMS[arm], flipped if t == position else audited.rewards[arm])
            if t >= 0 and t % 4 == 3:
                k, now = t // 4 + 1, agent.running_sum.copy()
                earlier.append(now)
                if forget is not None:
                    now = now - earlier[max(k - forget, 0)]
                since = 0 if forget is None else max(k - forget, 0)
                count = t + 1 + num_logged - (4 * since + num_logged if since else 0)
                total = mechanism.release(k, now)
                np.testing.assert_array_equal(released[run, t // 4], total)
                own = sums[run, run % 2, t // 4]
                np.testing.assert_array_equal(own, now)
                agent.receive(total, k, OwnPart(total, now, count))


def first_of_equals() -> np.random.Generator:
    """Return a generator by which the first of equally good arms is drawn."""
    return cast(np.random.Generator, SimpleNamespace(random=lambda: 0.0))


def test_what_the_agent_does_follows_from_its_releases_alone() -> None:
    """Both arms are played; never more than one trial tells the worlds apart."""
    _, sums = _runs(plan(num_releases=3, window=2), 50)
    of_first_arm = sums[:, 0, -1, 0, 0]
    assert {2.0, 6.0} <= set(of_first_arm)
    flipped = np.array([[0.0, 0.0, -2.0], [0.0, 0.0, 0.0], [-2.0, 0.0, 0.0]])
    differences = sums[:, 1] - sums[:, 0]
    np.testing.assert_array_equal(differences, np.broadcast_to(flipped, (50, 3, 3, 3)))


def test_on_raw_trials_one_flipped_reward_changes_all_that_follow() -> None:
    audited = plan(**{**PAPER, **RAW, "epsilon": 1.0, "window": 100})
    _, sums = _runs(audited, 1)
    first = sums[0, :, 0]
    np.testing.assert_allclose(np.diag(first[0]), [100.0, 0.0, 100.0])
    np.testing.assert_allclose(np.diag(first[1]), [1.0, 99.0, 100.0])
    moved = np.linalg.norm(first[1] - first[0])
    assert moved > 80 * audited.settings.releases.sensitivity


def test_on_own_data_one_flipped_reward_changes_all_that_ever_follow() -> None:
    """A large part of what the bound says: most later trials are other ones."""
    audited = plan(**{**OWN, "num_releases": 3, "window": 100})
    _, sums = _runs(audited, 1)
    moved = np.linalg.norm(sums[0, 1] - sums[0, 0], axis=(-2, -1))
    trials = np.array([100, 200, 300])
    assert np.all(moved > 0.4 * trials * audited.settings.releases.sensitivity)
    assert np.all(moved <= trials * audited.settings.releases.sensitivity)


# --- The test, and what it finds


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "share"),
    [
        ({"mechanism": "toeplitz"}, 1.0),
        ({"mechanism": "toeplitz", "position": 3}, 1.0),
        ({"sliding_window": 2}, 0.9998),  # of the norm of infinitely many releases
        ({"sliding_window": 2, "position": 3}, math.sqrt(math.pi / 4)),  # 1 of its c_i
        ({"mechanism": "tree"}, 1.0),
        ({"mechanism": "tree", "position": 3}, math.sqrt(1 / 3)),  # one node of three
        ({"mechanism": "tree-honaker", "position": 2}, 0.951),  # of the noisy tree
        (PAPER, 1.0),
        # 2 sqrt(2) L B of sqrt(2) (L^2 + B^2), and all of it.
        ({"max_action_norm": 2.0, "actions": ((2.0, 0.0), (0.0, 2.0))}, 0.8),
        ({"max_action_norm": 2.0, "change": "trial"}, 1.0),
        ({**LOG, "max_action_norm": 2.0, "change": "trial"}, 1.0),
    ],
)
def test_the_likelihood_ratio_has_the_law_that_mu_promises(
    change: dict[str, Any], share: float
) -> None:
    """N(-mu^2/2, mu^2) without the change, N(mu^2/2, mu^2) with it: tight."""
    audited = plan(num_releases=4, num_requests=1, **change)
    _assert_law(audited, StreamEntropy(1), share * audited.settings.releases.mu)


@pytest.mark.parametrize("changes", [{}, {"max_action_norm": 2.0, "change": "trial"}])
def test_with_real_entropy_the_law_is_the_same(changes: dict[str, Any]) -> None:
    audited = plan(num_releases=1, num_requests=1, **changes)
    _assert_law(audited, OsEntropy(), audited.settings.releases.mu)


def _assert_law(audited: BanditAuditPlan, entropy: Entropy, mu: float) -> None:
    present, absent = audited.draw(entropy, None, lambda _: None)
    for evidence, sign in ((absent, -1), (present, 1)):
        ratios = evidence.log_ratio
        # Six deviations of each: p < 1e-8 for all four.
        assert ratios.mean() == pytest.approx(sign * mu**2 / 2, abs=6 * mu / 1000**0.5)
        assert ratios.std() == pytest.approx(mu, rel=6 / 2000**0.5)


EXACT = [{"mechanism": mechanism} for mechanism in MECHANISMS]


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        *EXACT,
        {"num_releases": 6, "sliding_window": 2, "position": 1},
        LOG,
        {**LOG, "sliding_window": 1},
    ],
)
def test_the_exact_noise_keeps_its_promise(changes: dict[str, Any]) -> None:
    audited = plan(**changes, num_draws=2000)
    result = audit(audited, StreamEntropy(1))
    assert not result.violated
    assert result.promised.epsilon == pytest.approx(2.0, rel=1e-6)
    promised = result.promised.epsilon
    assert 0.35 * promised < result.epsilon_lower < promised
    assert result.num_counted == 1000


@pytest.mark.slow
def test_the_noise_of_the_paper_keeps_more_than_its_promise() -> None:
    audited = plan(**PAPER)
    result = audit(audited, StreamEntropy(1))
    promised = result.promised.epsilon
    assert gaussian_delta(promised, audited.settings.releases.mu) == pytest.approx(0.1)
    assert 0.35 * promised < result.epsilon_lower < promised < 2.0


def test_next_to_nothing_is_promised_as_nothing() -> None:
    result = audit(
        plan(**PAPER | {"epsilon": 1.0, "num_requests": 1}), StreamEntropy(1)
    )
    assert result.promised.epsilon == 0.0
    assert result.epsilon_lower == 0.0
    assert not result.violated


@pytest.mark.slow
@pytest.mark.parametrize("contrived", [RAW, OWN])
def test_nothing_is_promised_for_agents_that_act_on_raw_trials_and_play_on(
    contrived: dict[str, Any],
) -> None:
    """More than twice the epsilon that is promised for a finished table is found."""
    running = plan(**contrived)
    result = audit(running, StreamEntropy(1))
    assert math.isinf(result.promised.epsilon)
    assert result.verdict.startswith("nothing is promised here")
    assert result.epsilon_lower > 2 * running.settings.releases.epsilon


@pytest.mark.parametrize("contrived", [RAW, OWN])
def test_for_a_finished_table_the_promise_holds(contrived: dict[str, Any]) -> None:
    """One trial tells the worlds apart, and the test is as good as is promised."""
    table = plan(**contrived, plays_on=False)
    assert table.promised.guarantee.conditions == (FINISHED_TABLE,)
    _, sums = _runs(table, 4)
    flip = np.array([[0.0, 0.0, -2.0], [0.0, 0.0, 0.0], [-2.0, 0.0, 0.0]])
    np.testing.assert_array_equal(
        sums[:, 1] - sums[:, 0], np.broadcast_to(flip, sums[:, 0].shape)
    )
    result = audit(table, StreamEntropy(1))
    assert 0.35 * 2.0 < result.epsilon_lower < result.promised.epsilon
    fault = CONTINUAL_FAULTS["half-noise"]
    assert audit(table, StreamEntropy(1), fault).violated


def test_with_raw_trials_not_even_the_noise_of_the_paper_is_enough() -> None:
    """Though one trial needs next to none of it: here fifty follow from one."""
    audited = plan(**{**PAPER, **RAW, "epsilon": 1.0, "window": 50})
    assert audit(audited, StreamEntropy(1)).epsilon_lower > 1.5


@pytest.mark.parametrize("contrived", [RAW, OWN])
def test_with_raw_trials_that_are_fixed_the_promise_holds(
    contrived: dict[str, Any],
) -> None:
    """As in the paper's definition 1: with one arm there is nothing to decide."""
    one_arm = {**contrived, "actions": ARMS[:1], "rewards": (1.0,)}
    assert audit(plan(**one_arm), StreamEntropy(1)).epsilon_lower < 2.0


# No larger than each needs to be found.
FAULTY: list[tuple[str, dict[str, Any]]] = [
    ("reused-noise", {"position": 1}),
    ("half-noise", {}),
    ("unit-columns", {"mechanism": "tree", "num_releases": 4}),
    ("drawn-again", {"num_releases": 1, "num_requests": 4}),
    ("synchronised-twice", {}),
    ("log-added-again", LOG),
]
SUBTLE: list[tuple[str, dict[str, Any]]] = [
    ("reused-noise", {"position": 1, "mechanism": "tree", "num_releases": 4}),
    ("unit-columns", {"mechanism": "tree", "num_releases": 4, "num_draws": 2000}),
    ("no-composition", {"num_releases": 4}),
    ("add-or-remove-one", {"num_releases": 1, "num_requests": 1, "num_draws": 5000}),
    ("synchronised-twice", {"num_releases": 3, "num_draws": 2000}),
    ("log-added-again", {**LOG, "num_releases": 3, "num_draws": 2000}),
    ("half-noise", LOG),
]


@pytest.mark.parametrize(
    ("fault", "change"),
    [
        *FAULTY,
        *(pytest.param(*one, marks=pytest.mark.slow) for one in SUBTLE),
    ],
)
def test_faults_are_found(fault: str, change: dict[str, Any]) -> None:
    result = audit(plan(**change), StreamEntropy(1), CONTINUAL_FAULTS[fault])
    assert result.violated


def test_every_fault_is_looked_for() -> None:
    # That of less noise in `test_tuner_audit`, which draws enough.
    faults = set(CONTINUAL_FAULTS) - {"noise-9-percent-less"}
    assert {fault for fault, _ in FAULTY + SUBTLE} == faults


@pytest.mark.slow
@pytest.mark.no_cover  # faster; others run the same lines
@pytest.mark.parametrize(
    "change",
    [
        {"mechanism": "toeplitz"},
        {"mechanism": "tree"},
        # Its releases are a function of the noisy tree that the promise is of.
        {"mechanism": "tree-honaker", "position": 2},
        PAPER,
    ],
)
def test_the_bar(change: dict[str, Any]) -> None:
    """Once; `benchmarks/bandit_audit.py` prints more of it."""
    audited = plan(num_releases=4, num_draws=10_000, **change)
    result = audit(audited, StreamEntropy(7))
    promised = result.promised.epsilon
    assert 0.7 * promised < result.epsilon_lower < promised


# --- Plans


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epsilon": math.inf}, "epsilon=inf"),
        ({"actions": (), "rewards": ()}, "actions=()"),
        ({"actions": ((1.0, 1.0),), "rewards": (0.0,)}, "actions[0]=[1.0, 1.0]"),
        ({"rewards": (0.0, 1.5)}, "rewards[1]=1.5"),
        ({"position": -1}, "position=-1"),
        ({"change": "action"}, "change='action'"),
        ({"change": "trial", "reward_range": (-1.5, 1.5)}, "reward_range=(-1.5, 1.5)"),
        (
            {"change": "trial", "dimension": 1, "actions": ((1.0,), (1.0,))},
            "dimension=1",
        ),
    ],
)
def test_bad_plans_are_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match="is not allowed") as error:
        plan(**change)
    assert words in str(error.value)
