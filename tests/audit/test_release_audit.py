"""The audit: no false alarm, every planted fault, and the command."""

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binomtest, norm
from typer.testing import CliRunner

from flwr_fbo.audit import release_audit as audit_module
from flwr_fbo.audit.planted_faults import FAULTS
from flwr_fbo.audit.release_audit import AuditPlan, AuditTest, StreamEntropy, audit
from flwr_fbo.cli import app
from flwr_fbo.privacy.noise import OsEntropy
from flwr_fbo.privacy.release import Release, ReleaseSettings

DELTA = 1e-3
# Epsilon = 1 for q = 0.35.
Z = 1.43
REGIONS = (8, 4)


def plan(num_agents: int = 2, num_sub_regions: int = 1, **more: Any) -> AuditPlan:
    of_plan = {"num_draws", "absence", "iteration", "num_features"} & set(more)
    chosen = {"num_draws": 2000, **{key: more.pop(key) for key in of_plan}}
    settings = {"noise_multiplier": Z, **more}
    return AuditPlan(
        ReleaseSettings(num_agents, num_sub_regions, **settings), DELTA, **chosen
    )


def test_the_noise_multiplier_gives_epsilon_one() -> None:
    dp_accounting = pytest.importorskip("dp_accounting")
    pld = pytest.importorskip("dp_accounting.pld")
    accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    event = dp_accounting.PoissonSampledDpEvent(0.35, dp_accounting.GaussianDpEvent(Z))
    assert accountant.compose(event).get_epsilon(DELTA) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(
    "audited",
    [
        plan(),
        plan(*REGIONS, num_features=3),
        plan(*REGIONS, calibration="published-per-region", iteration=30),
        plan(1, sampling_probability=1.0, absence="zeros"),
    ],
)
def test_a_correct_release_is_not_flagged(audited: AuditPlan) -> None:
    result = audit(audited, StreamEntropy(1))
    assert not result.violated
    assert result.verdict == "no violation"
    assert 0 <= result.epsilon_lower < result.promised.epsilon
    assert result.num_counted == 1000


def test_a_gaussian_is_bounded_as_closely_as_theory_allows() -> None:
    """Without sampling the best test is a threshold, and its rates are known."""
    result = audit(
        plan(1, sampling_probability=1.0, num_draws=10_000), StreamEntropy(2)
    )
    thresholds = np.linspace(-3, 5, 801)
    present, absent = norm.sf(thresholds - 1 / Z), norm.sf(thresholds)
    best = np.log(np.maximum(present - DELTA, 1e-300) / absent).max()
    assert 0.4 * best < result.epsilon_lower < result.promised.epsilon


def test_the_real_entropy_passes() -> None:
    result = audit(plan(num_draws=1000), OsEntropy())
    assert not result.violated


@pytest.mark.parametrize("fault", ["no-clip", "noise-by-replies"])
def test_a_gross_fault_needs_few_draws(fault: str) -> None:
    result = audit(plan(), StreamEntropy(3), FAULTS[fault])
    assert result.violated
    assert result.verdict == "VIOLATION: lower bound exceeds the accountant's"


def test_who_answers_shows_only_if_the_absent_do_not() -> None:
    audited = plan(absence="zeros")
    assert not audit(audited, StreamEntropy(3), FAULTS["noise-by-replies"]).violated


def test_an_undefined_release_is_told_from_a_defined_one() -> None:
    """A clip that divides by the norm of a message of zeros."""

    class DividesByZero(Release):
        def release(
            self, iteration: int, messages: Mapping[int, Any], num_features: int
        ) -> NDArray[np.float64]:
            lost = math.nan if not np.any(messages[0]) else 0.0
            return np.full((1, num_features), lost)

    audited = plan(absence="zeros")
    found = audit(audited, StreamEntropy(0), DividesByZero)
    assert found.violated
    assert found.false_positives == 0


# With as many draws as each needs.
BAR = [
    (2, 1, "half-noise", 20_000),
    (2, 1, "noise-by-replies", 20_000),
    (2, 1, "noise-by-sampled", 50_000),
    (2, 1, "no-clip", 20_000),
    (1, 1, "bare-empty-sample", 100_000),
    (2, 1, "counted-twice", 50_000),
    (*REGIONS, "uniform-sensitivity", 20_000),
]


@pytest.mark.slow
@pytest.mark.parametrize(("num_agents", "num_sub_regions", "fault", "num_draws"), BAR)
def test_the_bar(
    num_agents: int, num_sub_regions: int, fault: str, num_draws: int
) -> None:
    """Once; `benchmarks/audit_bar.py` does it 20 times, with 200,000 draws."""
    audited = plan(num_agents, num_sub_regions, num_draws=num_draws)
    assert audit(audited, StreamEntropy(7), FAULTS[fault]).violated


@pytest.mark.slow
@pytest.mark.no_cover  # faster; others run the same lines
@pytest.mark.parametrize(("num_agents", "num_sub_regions"), [(2, 1), REGIONS])
def test_the_bar_of_a_correct_release(num_agents: int, num_sub_regions: int) -> None:
    audited = plan(num_agents, num_sub_regions, num_draws=100_000)
    result = audit(audited, StreamEntropy(7))
    assert not result.violated
    assert 0.5 <= result.epsilon_lower <= 1.0


def test_every_fault_has_a_bar() -> None:
    assert {fault for _, _, fault, _ in BAR} == {*FAULTS}


@pytest.mark.parametrize(("hits", "false_alarms"), [(0, 0), (40, 3), (1000, 1000)])
def test_the_bound_is_clopper_and_pearsons(hits: int, false_alarms: int) -> None:
    def interval(count: int) -> Any:
        # Two-sided at 99.8 % is one-sided at 99.9 %.
        return binomtest(count, 1000).proportion_ci(0.998, "exact")

    rate = (interval(hits).low - DELTA) / interval(false_alarms).high
    bound = audit_module._epsilon_lower(
        np.array([hits]), np.array([false_alarms]), 1000, DELTA, 1e-3
    )
    assert bound[0] == pytest.approx(math.log(max(rate, 1.0)))


def test_a_test_reads_as_it_counts() -> None:
    low = AuditTest("projection", -1, -0.5, guesses_present=False)
    assert str(low) == "absent if the projection is <= 0.500"
    assert low.count(np.array([-1.0, 0.0, 2.0])) == 2
    high = AuditTest("distance", 1, 6.0, guesses_present=True)
    assert high.count(np.array([5.0, 6.0, 7.0])) == 2


def test_the_same_seed_finds_the_same() -> None:
    one, other = (audit(plan(), StreamEntropy(9)) for _ in range(2))
    assert one == other


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"noise_multiplier": 0.0}, "noise_multiplier=0.0"),
        ({"num_draws": 999}, "num_draws=999"),
        ({"iteration": -1}, "iteration=-1"),
        ({"num_features": 0}, "num_features=0"),
        ({"absence": "gone"}, "absence='gone'"),
    ],
)
def test_bad_plans_are_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match="is not allowed") as error:
        plan(**change)
    assert words in str(error.value)


def test_bad_delta_is_named() -> None:
    with pytest.raises(ValueError, match=r"delta=1\.0 is not allowed"):
        AuditPlan(ReleaseSettings(2), 1.0)


def _invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["audit", "--draws=1000", *arguments])


def test_the_command_audits_two_sizes() -> None:
    result = _invoke("--seed=1")
    assert result.exit_code == 0, result.output
    assert result.output.count("Verdict   no violation") == 2
    for words in ("2 agents, 1 sub-region, 1 feature", "8 agents, 4 sub-regions"):
        assert words in result.output
    assert "Entropy   seeded" in result.output
    assert max(map(len, result.output.splitlines())) <= 100


def test_the_command_exits_with_1_on_a_violation() -> None:
    options = ("--seed=1", "--agents=2", f"--z={Z}", "--plant=no-clip")
    result = _invoke(*options, "--json")
    assert result.exit_code == 1
    (found,) = json.loads(result.stdout)
    assert found["violated"] is True
    assert found["planted_fault"] == "no-clip"
    assert 0.99 < found["epsilon_promised"] < 1.3  # the tightest, and Renyi's
    assert found["plan"]["settings"]["num_agents"] == 2
    text = _invoke(*options).output
    assert text.splitlines()[-2] == "Planted   no-clip"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--plant=noclip", "--z=1"), "did you mean 'no-clip'"),
        (("--z=0",), "noise_multiplier=0.0 is not allowed"),
        (("--q=0",), "sampling_probability=0.0 is not allowed"),
        (("--epsilon=0",), "epsilon=0.0 is not allowed"),
        (("--delta=1", "--z=1"), "delta=1.0 is not allowed"),
        (("--draws=5", "--z=1"), "num_draws=5 is not allowed"),
        (("--iteration=-1", "--z=1"), "iteration=-1 is not allowed"),
        (("--features=0", "--z=1"), "num_features=0 is not allowed"),
    ],
)
def test_what_the_command_refuses_is_one_line(
    arguments: tuple[str, ...], words: str
) -> None:
    result = _invoke(*arguments)
    assert result.exit_code == 1
    assert "Traceback" not in result.output
    assert words in result.output.splitlines()[-1]
