"""The command ``flwr-fbo privacy``: what a study costs, and what is refused."""

import json
import re

import numpy as np
import pytest
from optuna.distributions import FloatDistribution

from flwr_fbo import DPFTSDE, FedVote
from flwr_fbo.privacy.release import Release
from tests.support.command import invoke, one_line_error


def test_privacy_prints_published_and_exact_side_by_side() -> None:
    options = (
        "privacy",
        "--strategy=DPFTSDE",
        "--agents=29",
        "--releases=60",
        "--q=.35",
        "--z=4",
        f"--delta={29**-1.1}",
        "--rdp",
    )
    result = invoke(*options)
    assert result.exit_code == 0, result.output
    assert "delta = 0.0246;" in result.output
    assert "Warning: delta 0.025 is not" in result.stderr
    split = [line.split() for line in result.output.splitlines()]
    rows = {words[0]: words for words in split if words}
    assert rows["moments"][1:] == ["2.161", "1.507", "2.161"]
    assert rows["pld"][1:] == ["1.135", "0.7025", "1.135"]
    assert rows["rdp"][1] == rows["rdp"][3] == "1.458"
    assert max(len(line) for line in result.stdout.splitlines()) <= 80
    for words in ("Fixed throughout", "z phi_max S / q", "1 to 2 times z", "0.5 to 1"):
        assert words in result.output.replace("\n", " ")


BANDIT = (
    *("privacy", "--strategy=FedUCB", "--releases=10", "--trials=500"),
    *("--dimensions=22", "--delta=1e-5"),
)


def test_privacy_says_whether_a_bandit_pays() -> None:
    result = invoke(*BANDIT, "--agents=50", "--epsilon=4")
    assert result.exit_code == 0, result.output
    assert "Synchronisations after 44, 56, 72, 91, ... trials" in result.output
    assert "It pays: sites gain about 0.4 points; alone they lose 2.2" in result.output
    result = invoke(*BANDIT, "--agents=50", "--epsilon=.5")
    assert result.output.count("Let each site play alone") == 3
    assert "; it takes epsilon 2 per example " in result.output
    assert " or 1,000 sites" in result.output
    plan = json.loads(invoke(*BANDIT, "--agents=50", "--epsilon=4", "--json").output)
    pays = {name: each["pays"] for name, each in plan["promises"].items()}
    assert pays == {"own": True, "one_noise": True, "released": False}
    assert plan["promises"]["own"]["points_gained"] == pytest.approx(0.36, abs=0.05)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "--epsilon must be given: with FedUCB"),
        (("--epsilon=4", "--z=1"), "--z=1.0 is not allowed: left out, with FedUCB"),
        (("--epsilon=-1",), "--epsilon=-1.0"),
        (("--epsilon=4", "--trials=9"), "Error: --trials=9"),
        (("--epsilon=4", "--releases=0"), "Error: --releases=0"),
        (("--epsilon=4", "--dimensions=0"), "Error: --dimensions=0"),
    ],
)
def test_privacy_names_what_it_refuses_of_a_bandit(
    arguments: tuple[str, ...], words: str
) -> None:
    result = invoke(*BANDIT, "--agents=20", *arguments)
    assert result.exit_code != 0
    assert words in result.output


def test_privacy_leaves_out_an_accountant_that_cannot_count_so_little() -> None:
    plan = "--strategy=FedVote", "--agents=20", "--releases=2", "--delta=1e-3"
    result = invoke("privacy", *plan, "--epsilon=.1")
    assert result.exit_code == 0, result.output
    assert re.search(r"moments +- *\n", result.stdout)
    assert "-: by this accountant no noise is enough" in result.stdout
    found = json.loads(invoke("privacy", *plan, "--epsilon=.1", "--json").stdout)
    answers = {name: row["default"] for name, row in found["accountants"].items()}
    assert answers["moments"] is None
    assert answers["pld"] == pytest.approx(24.62, rel=2e-3)


@pytest.mark.slow
def test_privacy_inverts_and_speaks_json() -> None:
    plan = (
        "privacy",
        "--strategy=DPFTSDE",
        "--agents=20",
        "--releases=12",
        "--delta=1e-3",
        "--rdp",
        "--json",
    )
    inverted = json.loads(invoke(*plan, "--epsilon=2").stdout)
    assert inverted["answer"] == "noise_multiplier"
    assert len(inverted["published_noise_over_default_noise"]) == 12
    z = inverted["accountants"]
    assert z["pld"]["published"] < z["rdp"]["published"] < z["moments"]["published"]
    for method, row in z.items():
        for column in ("published", "exact"):
            spent = json.loads(invoke(*plan, f"--z={row[column]}").stdout)
            epsilon = spent["accountants"][method][column]
            assert epsilon == pytest.approx(2.0, rel=5e-3)
    nothing = json.loads(invoke(*plan, "--z=.001", "--delta=1e-20").stdout)
    assert nothing["accountants"]["pld"]["exact"] is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--z", "nan"), "z=nan"),
        (("--z=1", "--epsilon=2"), "--epsilon=2.0 is not allowed: only without --z"),
        (("--q=3",), "Error: --q=3.0 is not allowed: a number in (0, 1]"),
        (("--releases", "0"), "Error: --releases=0 is not allowed: an integer >= 1"),
        (("--agents=2000000",), "--agents=2000000 is not allowed: at most 1000000"),
        (("--preset", "papers"), "did you mean 'paper'"),
        (("--q", "0.001"), "below sampling_probability=0.001"),
        (("--q", ".2", "--delta", ".2"), "delta=0.2 is not allowed: below sampling"),
        (("--strategy=FedVote", "--q", "0.001"), "below sampling_probability=0.001"),
    ],
)
def test_privacy_names_what_it_refuses(arguments: tuple[str, ...], words: str) -> None:
    result = invoke(
        "privacy", "--strategy=DPFTSDE", "--agents=20", "--releases=2", *arguments
    )
    assert words in one_line_error(result)


def test_many_rounds_are_answered_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    computed = []
    known = Release.effective_noise_multiplier

    def counted(release: Release, iteration: int) -> float:
        computed.append(iteration)
        return known(release, iteration)

    monkeypatch.setattr(Release, "effective_noise_multiplier", counted)
    plan = (
        "privacy",
        "--strategy=DPFTSDE",
        "--agents=20",
        "--releases=1000",
        "--q=1",
        "--delta=1e-3",
    )
    values = json.loads(invoke(*plan, "--json").stdout)
    times = values["published_noise_over_default_noise"]
    assert len(times) == 1000
    assert len(computed) <= 40
    settings = DPFTSDE.presets["paper"]
    uniform = settings.weights.weights(999, 20, settings.agent.num_sub_regions)
    largest = np.linalg.norm(uniform, axis=1).max()
    root = np.sqrt(settings.agent.num_sub_regions)
    assert times[-1] == pytest.approx(uniform.max() * root / largest)
    assert times[0] != pytest.approx(times[-1])


def test_a_study_of_warm_starts_says_how_many_pioneers_it_needs() -> None:
    plan = ("privacy", "--strategy=FedWarmStart", "--epsilon=2", "--delta=1e-3")
    text = " ".join(invoke(*plan, "--agents=30").output.split())
    assert "30 agents, 1 release, q = 1" in text
    assert "Pioneers, who search alone first: 9." in text
    assert "Group 1, the pioneers: 9 sites start in round 1, and each" in text
    assert "sends one message." in text
    assert "Group 2: 10 sites start in round 11, and each sends one message." in text
    assert "Last group: 11 sites start in round 21, and send nothing." in text
    few = " ".join(invoke(*plan, "--agents=9").output.split())
    assert "Pioneers, who search alone first: 9. Too few sites" in few
    found = json.loads(invoke(*plan, "--agents=30", "--json").stdout)
    assert (found["pioneers"], found["cohorts"]) == (9, [9, 10])
    assert found["accountants"]["pld"]["default"] == pytest.approx(1.445, abs=1e-3)
    with_z = ("privacy", "--strategy=FedWarmStart", "--agents=12", "--z=1")
    assert "first: 6." in " ".join(invoke(*with_z, "--delta=1e-3").output.split())
    for wrong, words in (
        ("--releases=2", "--releases=2 is not allowed: left out"),
        ("--q=.5", "--q=0.5 is not allowed: 1"),
        ("--preset=paper", "--preset='paper' is not allowed: left out, with FedW"),
        ("--dimensions=3", "--dimensions=3 is not allowed: left out"),
    ):
        assert words in one_line_error(invoke(*with_z, wrong))
    assert "--releases must be given: how many releases" in one_line_error(
        invoke("privacy", "--strategy=DPFTSDE", "--agents=9")
    )


def test_the_sampling_probability_is_the_strategys() -> None:
    plan = (
        "privacy",
        "--strategy=DPFTSDE",
        "--agents=20",
        "--releases=1",
        "--delta=1e-3",
        "--z=2",
    )
    for more, q in (
        ((), 0.35),
        (("--preset=paper-synthetic",), 0.25),
        (("--preset=paper-synthetic", "--q=.5"), 0.5),
    ):
        assert json.loads(invoke(*plan, *more, "--json").stdout)["q"] == q
    plan = (
        "privacy",
        "--strategy=DPFTSDE",
        "--agents=20",
        "--releases=2",
        "--delta=1e-3",
        "--epsilon=2",
    )
    found = json.loads(invoke(*plan, "--strategy=FedVote", "--json").stdout)
    assert found["q"] == 1.0
    study = FedVote(
        {"x": FloatDistribution(0, 1)}, "maximize", 20, epsilon=2, delta=1e-3
    )
    study.plan(11)
    settings = study.server.release.settings
    assert found["accountants"]["pld"]["default"] == pytest.approx(
        settings.noise_multiplier, rel=1e-3
    )


@pytest.mark.parametrize(
    "about",
    [
        "FedVote --agents 20 --releases 2 --q 1 --z 0.01",
        "FedVote --agents 20 --releases 2 --q 1 --epsilon 0.001",
        "FederationTuner --agents 20 --releases 3 --z 0.01",
        "FederationTuner --agents 20 --releases 3 --z 100000",
        "FederationTuner --agents 20 --releases 3 --epsilon 0.001",
        "DPFTSDE --agents 100 --releases 5 --z 0.02",
        "FedUCB --agents 50 --releases 10 --trials 500 --dimensions 8 --epsilon inf "
        "--delta 1e-5",
    ],
)
def test_privacy_answers_for_all_that_it_allows(about: str) -> None:
    result = invoke(*f"privacy --strategy {about}".split())
    assert result.exit_code == 0, result.output
    assert "epsilon" in result.output


TUNER = (
    *("privacy", "--strategy=FederationTuner", "--agents=20", "--releases=3"),
    *("--epsilon=.5", "--delta=1e-5"),
)
TRAINING = ("--total-epsilon=8", "--training-q=.05", "--training-steps=540")


def test_privacy_says_what_training_fits_beside_a_choice() -> None:
    result = invoke(*TUNER, *TRAINING)
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    said = re.search(r"Training: noise multiplier ([\d.]+) in each of 540 steps", text)
    assert said is not None
    for part in ("Training", "Choice", "Together"):
        terms = r"per example \(with or without it, delta 1e-05; .* if replaced by"
        assert re.search(rf"{part}: epsilon [\d.]+ {terms}", text)
    plan = json.loads(invoke(*TUNER, *TRAINING, "--json").output)["with_training"]
    assert plan["noise_multiplier"] <= float(said[1]) < 1.001 * plan["noise_multiplier"]
    assert 7.97 < plan["together"]["epsilon"] <= 8.0
    assert plan["training"]["epsilon"] < plan["together"]["epsilon"]
    # The training's own delta may be smaller than that of the ballots.
    other = json.loads(invoke(*TUNER, *TRAINING, "--total-delta=1e-6", "--json").output)
    assert other["with_training"]["together"]["delta"] == 1e-6
    assert other["with_training"]["noise_multiplier"] > plan["noise_multiplier"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((*TUNER, "--total-epsilon=8"), "--training-q must be given: together with"),
        ((*TUNER, "--training-q=.1"), "--training-q=0.1 is not allowed: given toge"),
        ((*TUNER, "--total-delta=.1"), "--total-delta=0.1 is not allowed: given tog"),
        (
            (*TUNER, *TRAINING[1:], "--total-epsilon=.9"),
            "--total-epsilon=0.9 is not allowed: above",
        ),
        ((*TUNER, *TRAINING[:2], "--training-steps=0"), "--training-steps=0 is not"),
        (
            (*BANDIT, "--agents=9", *TRAINING),
            "--total-epsilon=8.0 is not allowed: left",
        ),
    ],
)
def test_a_training_that_cannot_be_planned_is_named(
    options: tuple[str, ...], said: str
) -> None:
    assert said in one_line_error(invoke(*options))
