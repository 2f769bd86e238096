"""FedWarmStart from what earlier studies have released."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from flwr.serverapp.exception import AggregationError
from optuna.distributions import FloatDistribution
from typer.testing import CliRunner

from flwr_fbo import FedVote, InProcessGrid, Limits, Privacy, Seeds, tuning_app
from flwr_fbo.cli import app as cli
from flwr_fbo.integrations import FederatedSampler
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.privacy.spending_ledger import Charge, SpendingLedger, composed_epsilon
from flwr_fbo.strategies.fed_warm_start import FedWarmStart
from flwr_fbo.tuning import FedWarmStartSettings, Knowledge
from flwr_fbo.tuning.fed_warm_start.head_start import head_start
from flwr_fbo.tuning.fed_warm_start.settings import Cohorts, WarmStartFacts
from flwr_fbo.tuning.search.agent import Agent, play_round
from flwr_fbo.tuning.search.study import create_agent
from tests.support.fed_warm_start import SPACE, make_objective, objective_of
from tests.support.grouped import hosted
from tests.support.ledgers import ledger_charges

AGENT = FedWarmStartSettings(num_candidates=60, share_after=4, num_led=2)
N, ROUNDS = 7, 10
CENTRE = {"x": 0.5, "y": 0.5}


def study_of(*, private: bool = False, **options: Any) -> FedWarmStart:
    defaults: dict[str, Any] = {
        "space": SPACE,
        "direction": "maximize",
        "num_agents": N,
        "agent": AGENT,
        "cohorts": (3, 2),
        "privacy": Privacy(noise_multiplier=0.02),
        "delta": 1e-3,
        "seeds": Seeds(study=1, features=2, noise=None if private else 3),
    }
    return hosted(FedWarmStart, **{**defaults, **options})


def grid_of(folder: Path | None = None) -> InProcessGrid:
    config: Any = {} if folder is None else {"fbo-folder": str(folder)}
    return InProcessGrid(tuning_app(make_objective), N, run_config=config)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[FedWarmStart, Path]:
    """A study that has released twice, and the folder of its server."""
    folder = tmp_path_factory.mktemp("first") / "server"
    study = study_of(folder=folder)
    study.start(grid_of(), num_rounds=ROUNDS)
    return study, folder


@pytest.fixture(scope="module")
def known(first: tuple[FedWarmStart, Path]) -> Knowledge:
    return first[0].knowledge


def test_another_study_starts_from_it_at_no_epsilon(
    first: tuple[FedWarmStart, Path], known: Knowledge
) -> None:
    study = study_of(
        known=known, cohorts=(), seeds=Seeds(study=8, features=9, noise=10)
    )
    grid = grid_of()
    result = study.start(grid, num_rounds=4)
    assert study.privacy_spent.epsilon == 0.0
    assert study.study.promise.charges == ()
    # Which of h's largest places is found depends on public draws.
    best = result.warm_start
    assert best is not None
    assert objective_of(0)(best) > objective_of(0)(CENTRE) + 0.1
    for agent in grid.agents(study.study):
        assert agent.space.from_unit(agent.points[0]) == best
        assert len(agent.values) == 4
    same = study_of(known=known, cohorts=(), seeds=Seeds(study=8, features=2, noise=10))
    assert same.recommendation.params == first[0].recommendation.params


def test_all_start_from_it_and_those_who_send_are_led_as_well(known: Knowledge) -> None:
    study, grid = study_of(known=known), grid_of()
    study.start(grid, num_rounds=ROUNDS)
    assert len(study.server.ledger) == 2
    told, agents = study.study, grid.agents(study.study)
    start = head_start(AGENT, Cohorts(N), told.space, told.feature_seed, b"", known)
    for agent in agents[:3]:
        np.testing.assert_array_equal(agent.points[0], told.space.snap(start.tops[0]))
    # A follower hears all four releases.
    vectors = study.server.vectors
    assert vectors is not None
    cohorts = study.server.cohorts
    about = AGENT, cohorts, told.space, told.feature_seed, vectors.tobytes()
    both = head_start(*about, known)
    np.testing.assert_array_equal(agents[6].points[0], told.space.snap(both.tops[0]))
    ids = [release.release_id for release in study.knowledge.releases]
    old = [release.release_id for release in known.releases]
    assert ids == [*old, f"{told.study_id}/1", f"{told.study_id}/2"]
    assert study.knowledge.points == known.points


def test_releases_of_two_studies_count_as_those_of_one(
    first: tuple[FedWarmStart, Path], known: Knowledge
) -> None:
    """Whichever study a release is of, it is combined by its precision."""
    study, server = first[0].study, first[0].server
    vectors = server.vectors
    assert vectors is not None
    about = study.space, study.feature_seed
    one = head_start(AGENT, server.cohorts, *about, vectors.tobytes())
    early = Knowledge(known.space, "maximize", known.points, known.releases[:1])
    late = Cohorts(N, (2,), server.cohorts.noise_multiplier)
    for cohorts, rows, before in (
        (late, vectors[1:].tobytes(), early),
        (Cohorts(N), b"", known),
    ):
        other = head_start(AGENT, cohorts, *about, rows, before)
        np.testing.assert_array_equal(other.tops, one.tops)
        places = np.random.default_rng(1).random((20, 2))
        np.testing.assert_allclose(other(places), one(places), atol=1e-12)
        assert other.null_probability == pytest.approx(one.null_probability)


def test_a_narrower_space_is_tuned_from_it(known: Knowledge) -> None:
    space = {"y": FloatDistribution(0.0, 0.6), "x": FloatDistribution(0.3, 1.0)}
    study = study_of(known=known, space=space)
    facts = study.study.facts
    assert isinstance(facts, WarmStartFacts)
    m = len(facts.known.points if facts.known else ())
    assert 8 <= m < 64
    grid = grid_of()
    result = study.start(grid, num_rounds=ROUNDS)
    assert result.warm_start is not None
    assert abs(result.warm_start["y"] - 0.2) < 0.2
    assert study.server.ledger[0].vectors.shape == (1, m)
    with pytest.raises(ValueError, match=r"space\['z'\]"):
        study_of(known=known, space={**SPACE, "z": FloatDistribution(0, 1)})
    with pytest.raises(ValueError, match="direction='minimize'"):
        study_of(known=known, direction="minimize")


def test_who_sends_again_pays_again(tmp_path: Path) -> None:
    """And the site's ledger adds it up, and its limits hold for both studies."""
    sites, z = tmp_path / "sites", 2.0
    privacy = Privacy(noise_multiplier=z)
    study = study_of(private=True, privacy=privacy)
    study.start(grid_of(sites), num_rounds=ROUNDS)
    again = study_of(private=True, privacy=privacy, known=study.knowledge)
    again.start(grid_of(sites), num_rounds=ROUNDS)
    quiet = study_of(private=True, cohorts=(), known=again.knowledge)
    quiet.start(grid_of(sites), num_rounds=3)
    with SpendingLedger.held(sites) as ledger:
        for slot in range(N):
            sends = slot < 5
            assert ledger_charges(ledger, owner=slot) == (
                [Charge(z)] * 2 if sends else []
            )
    twice = composed_epsilon([Charge(z)] * 2, 1e-3)
    once = again.privacy_spent.epsilon  # of this study alone
    assert once == pytest.approx(composed_epsilon([Charge(z)], 1e-3), rel=1e-3)
    assert twice > 1.3 * once
    limits = Limits(max_epsilon_per_client=1.01 * twice, max_delta=1e-3)
    app = tuning_app(make_objective, limits=limits)
    config: Any = {"fbo-folder": str(sites)}
    third = study_of(private=True, privacy=privacy, known=again.knowledge)
    with pytest.raises(AggregationError, match="its limits"):
        third.start(InProcessGrid(app, N, run_config=config), num_rounds=ROUNDS)


def test_it_goes_on_with_the_same_knowledge_alone(
    tmp_path: Path, known: Knowledge
) -> None:
    path = tmp_path / "known.json"
    known.save(path)
    study = study_of(known=str(path), cohorts=(), folder=tmp_path / "server")
    result = study.start(grid_of(), num_rounds=3)
    again = study_of(known=known, cohorts=(), folder=tmp_path / "server")
    assert again.start(grid_of(), num_rounds=3).warm_start == result.warm_start
    without = study_of(cohorts=(), folder=tmp_path / "server")
    with pytest.raises(JournalError, match="'known'"):
        without.start(grid_of(), num_rounds=3)


def test_a_control_has_nothing_to_give() -> None:
    study = study_of(privacy=Privacy(noise_multiplier=1.0, noise_only=True))
    with pytest.raises(ValueError, match=r"releases=\[\] is not allowed: one at least"):
        _ = study.knowledge
    study.start(grid_of(), num_rounds=ROUNDS)
    with pytest.raises(ValueError, match="noise_only=True"):
        _ = study.knowledge


@pytest.mark.parametrize("wrong", [3, {}])
def test_what_is_no_knowledge_is_named(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"known=.*the path of its file"):
        study_of(known=wrong)


def test_the_log_says_what_all_start_from(
    known: Knowledge, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flwr.fbo")
    study = study_of(known=known, cohorts=())
    study.plan(3)
    study.summary()
    assert "all start from 2 releases of earlier studies, at no epsilon" in caplog.text
    assert "searches alone" not in caplog.text


# --- The command


def _export(*arguments: Any) -> Any:
    return CliRunner().invoke(cli, ["export", *map(str, arguments)])


def test_the_command_exports_what_the_server_released(
    first: tuple[FedWarmStart, Path], known: Knowledge, tmp_path: Path
) -> None:
    file = tmp_path / "known.json"
    done = _export(first[1], "--knowledge", file)
    assert done.exit_code == 0, done.output
    assert Knowledge.load(file) == known
    nowhere = tmp_path / "none" / "known.json"
    assert (
        f"--knowledge='{nowhere}' is not"
        in _export(first[1], "--knowledge", nowhere).output
    )
    assert "3 sites, epsilon" in done.output
    assert "2 releases in" in done.output
    assert "NOT PRIVATE" in done.output  # the noise was seeded
    assert "NOT PRIVATE" in json.loads(file.read_text())["about"]


def test_the_command_refuses_other_folders(tmp_path: Path) -> None:
    votes = FedVote(SPACE, "maximize", 3, epsilon=8.0, delta=1e-3)
    grid = InProcessGrid(tuning_app(make_objective), 3)
    votes.start(grid, num_rounds=3, folder=tmp_path)
    done = _export(tmp_path, "--knowledge", tmp_path / "file")
    assert done.exit_code == 1
    assert "that of FedWarmStart" in done.output
    for arguments in ([tmp_path], [tmp_path, "sqlite:///a.db", "--knowledge", "b"]):
        done = _export(*arguments)
        assert done.exit_code == 2
        assert "one of STORAGE and --knowledge" in done.output
    assert not (tmp_path / "file").exists()


# --- One site alone


def test_one_site_alone_starts_from_a_file(known: Knowledge, tmp_path: Path) -> None:
    path = tmp_path / "known.json"
    known.save(path)
    sampler = FederatedSampler.from_knowledge(path, seed=4)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    evaluate = objective_of(1)

    def objective(trial: optuna.Trial) -> float:
        return float(evaluate({n: trial.suggest_float(n, 0.0, 1.0) for n in SPACE}))

    study.optimize(objective, n_trials=5)
    agent = create_agent_of(known, 4)
    for iteration in range(5):
        play_round(agent, evaluate, iteration, None, False)
    np.testing.assert_array_equal([t.value for t in study.trials], agent.values)
    assert agent.values[0] > evaluate(CENTRE) + 0.1
    narrow = {n: FloatDistribution(0.1, 0.9) for n in SPACE}
    one = FederatedSampler.from_knowledge(known, narrow)
    assert one.agent.space.distributions == narrow
    with pytest.raises(ValueError, match=r"space\['y'\]"):
        FederatedSampler.from_knowledge(known, {"x": FloatDistribution(0, 1)})


def create_agent_of(known: Knowledge, seed: int) -> Agent:
    """Return the agent of a study that starts from it, as its sites have it."""
    seeds = Seeds(study=seed, features=seed)
    agent = FedWarmStartSettings()
    study = study_of(known=known, agent=agent, cohorts=(), seeds=seeds, private=True)
    return create_agent(study.study, 0, seed)
