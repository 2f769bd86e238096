"""A site's budget outlives a study, whatever the server says.

These are sites with a ledger, asked by servers; `test_limits.py` has the values.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, UserConfig
from flwr.serverapp.exception import AggregationError

from flwr_fbo import InProcessGrid, Limits, tuning_app
from flwr_fbo._common.errors import RefusedError
from flwr_fbo.bandits import Network
from flwr_fbo.bandits.fed_go_ucb.study import FedGOUCBStudy
from flwr_fbo.bandits.linear.settings import LinearUCBSettings
from flwr_fbo.bandits.linear.study import (
    LinearBanditInstruction,
    LinearBanditStudy,
)
from flwr_fbo.bandits.site.linear_bandit_site import LinearBanditSite
from flwr_fbo.bandits.site.neural_bandit_site import NeuralBanditSite
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.privacy.filters import Spent
from flwr_fbo.privacy.guarantee import EXAMPLE
from flwr_fbo.privacy.spending_ledger import (
    Charge,
    SpendingLedger,
    composed_epsilon,
)
from flwr_fbo.site.recorded_agent import RecordedAgent
from flwr_fbo.tuning.search.study import TuningInstruction, TuningStudy
from flwr_fbo.tuning.site.tuning_site import TuningSite
from tests.support.federation import (
    NUM_AGENTS,
    charges_in,
    make_objective,
    objective_of,
    strategy,
)
from tests.support.ledgers import ledger_charges
from tests.support.private_agent import PRIVACY
from tests.support.private_agent import SETTINGS as NEURAL_SETTINGS
from tests.support.site_budget import (
    CHARGES,
    FOLDERS,
    LIMITS,
    OF_EXAMPLES,
    RELEASES,
    Environment,
    Node,
    asked_of,
    node_of,
    site_of,
    study_of,
)


def _play(node: Node, site: TuningSite, study: TuningStudy) -> None:
    node.ask(site, study.enrolment())
    for iteration in range(study.promise.num_releases):
        assert node.ask(site, asked_of(study, iteration, iteration + 1)).arrays


@FOLDERS
def test_the_third_study_in_a_row_is_refused(tmp_path: Path, in_folder: bool) -> None:
    """By what all three together would spend, before its first trial."""
    node = node_of(tmp_path, in_folder)
    for name in ("one", "two"):
        _play(node, site_of(), study_of(study_id=name))
    third = study_of(study_id="three")
    epsilon = composed_epsilon(CHARGES * 3, 1e-3)
    assert composed_epsilon(CHARGES * 2, 1e-3) < 3 < epsilon
    with pytest.raises(
        RefusedError,
        match=rf"epsilon {epsilon:.4g} per client \(.* delta 0.001\), and "
        "max_epsilon_per_client=3",
    ):
        node.ask(site_of(), third.enrolment())
    # One that was begun before is not another one.
    node.ask(site_of(), study_of(study_id="two").enrolment())


@FOLDERS
def test_a_server_that_understates_is_stopped_in_time(
    tmp_path: Path, in_folder: bool
) -> None:
    """It never enrols, and asks for all it can: its promise comes with each message."""
    node, played = node_of(tmp_path, in_folder), []

    def objective(trial: Any) -> float:
        played.append(1)
        return objective_of(0)(trial)

    site = TuningSite(lambda _: objective, limits=LIMITS)
    for name in ("one", "two"):
        _play(node, site, study_of(study_id=name))
    third = study_of(study_id="three")
    before = len(played)
    with pytest.raises(RefusedError, match="max_epsilon_per_client=3"):
        node.ask(site, asked_of(third, 0, 1))
    assert len(played) == before, "a trial was played for a message that cannot leave"
    small = study_of((Charge(100.0),), study_id="small")
    node.ask(site, small.enrolment())
    node.ask(site, asked_of(small, 0, 1))
    with pytest.raises(RefusedError, match="2 is asked for, and the study promises 1"):
        node.ask(site, asked_of(small, 1, 2))
    if in_folder:
        with SpendingLedger.held(tmp_path / "site") as ledger:
            assert composed_epsilon(ledger_charges(ledger), 1e-3) <= 3


@FOLDERS
def test_a_study_with_sampling_is_charged_whole_with_its_first_release(
    tmp_path: Path, in_folder: bool
) -> None:
    """When it stops is the server's choice, after it has read releases."""
    node, many = node_of(tmp_path, in_folder), (Charge(6.0, 0.35, 40),)
    alone = Spent((many,))
    assert alone.epsilon(1e-3) < 1.0 < 3.0 < Spent((many,) * 7).epsilon(1e-3)
    begun = 0
    while begun < 7:
        study = study_of(many, study_id=f"begun-{begun}")
        try:
            node.ask(site_of(), study.enrolment())
        except RefusedError as error:
            refusal = str(error)
            break
        node.ask(site_of(), asked_of(study, 0, 1))
        begun += 1
    spent, more = Spent((many,) * begun), Spent((many,) * (begun + 1))
    assert spent.epsilon(1e-3) <= 3 < more.epsilon(1e-3)
    assert f"epsilon {more.epsilon(1e-3):.4g} per client" in refusal
    # All that were begun may go on to their ends, one between the other.
    for iteration in (1, 2, 39):
        for k in reversed(range(begun)):
            study = study_of(many, study_id=f"begun-{k}")
            node.ask(site_of(), study.enrolment())
            assert node.ask(site_of(), asked_of(study, iteration, iteration + 1)).arrays
    with pytest.raises(RefusedError, match="max_epsilon_per_client=3"):
        node.ask(site_of(), asked_of(study_of(many, study_id="another"), 0, 1))


@FOLDERS
def test_a_study_that_is_all_of_the_limit_fits_a_new_site(
    tmp_path: Path, in_folder: bool
) -> None:
    """It was chosen before anything was read; after it, nothing fits."""
    charges = (Charge(3.36, 0.35, 40),)
    most = composed_epsilon(charges, 1e-3)
    site = site_of(Limits(max_epsilon_per_client=most, max_delta=1e-3))
    assert Spent((charges,) * 2).epsilon(1e-3) > most
    node, study = node_of(tmp_path, in_folder), study_of(charges)
    node.ask(site, study.enrolment())
    for iteration in (0, 1, 39):
        assert node.ask(site, asked_of(study, iteration, iteration + 1)).arrays
    tiny = study_of((Charge(1e5),), study_id="tiny")
    for asked in (tiny.enrolment(), asked_of(tiny, 0, 1)):
        with pytest.raises(RefusedError, match="max_epsilon_per_client"):
            node.ask(site, asked)


@FOLDERS
def test_a_study_of_another_promise_is_another_study(
    tmp_path: Path, in_folder: bool
) -> None:
    """The same name does not make it cheaper, nor another slot, nor coming back."""
    node = node_of(tmp_path, in_folder)
    _play(node, site_of(), study_of())
    with pytest.raises(JournalError):
        node.ask(site_of(), asked_of(study_of((Charge(50.0),) * 9), 2, 2))
    with pytest.raises(JournalError, match="journal of agent 0, not 1"):
        node.ask(site_of(), asked_of(study_of(), 0, 1, slot=1))
    node.ask(site_of(), asked_of(study_of(study_id="two"), 0, 1))
    again = asked_of(study_of(), 0, 1)
    if in_folder:  # the same message
        assert node.ask(site_of(), again).arrays
    else:  # only the last journal is kept: another message would leave
        with pytest.raises(JournalError, match="lacks release 1 of this site"):
            node.ask(site_of(), again)


def test_a_site_that_lost_its_journal_sends_no_second_message(tmp_path: Path) -> None:
    node = Node(tmp_path)
    _play(node, site_of(None), study_of())
    (tmp_path / "study-one-agent-0.sqlite").unlink()
    with pytest.raises(JournalError, match="lacks release 2 of this site"):
        node.ask(site_of(None), asked_of(study_of(), 1, 2))


@pytest.mark.parametrize(
    ("owner", "write"), [(RecordedAgent, "note_charge"), (SpendingLedger, "add")]
)
def test_a_site_that_ends_while_it_is_charged_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, write: str
) -> None:
    """Whichever of its two records was not written: it is charged once, and sends."""

    def ends(*arguments: Any) -> None:
        raise KeyboardInterrupt

    node, asked = Node(tmp_path), asked_of(study_of(), 0, 1)
    with monkeypatch.context() as patch:
        patch.setattr(owner, write, ends)
        with pytest.raises(KeyboardInterrupt):
            node.ask(site_of(), asked)
    assert node.ask(site_of(), asked).arrays
    with SpendingLedger.held(tmp_path) as ledger:
        assert len(ledger.rows) == 1


@FOLDERS
def test_the_number_of_releases_is_limited(tmp_path: Path, in_folder: bool) -> None:
    node, site = node_of(tmp_path, in_folder), site_of(Limits(max_releases=3))
    _play(node, site, study_of(private=False))
    second = study_of(study_id="two")
    for asked in (second.enrolment(), asked_of(second, 0, 1)):
        with pytest.raises(RefusedError, match="is 4 releases, and max_releases=3"):
            node.ask(site, asked)
    node.ask(site, asked_of(second, 1, 0))  # without a message


@FOLDERS
def test_the_limits_of_the_node_must_hold_too(tmp_path: Path, in_folder: bool) -> None:
    given = {"fbo-max-epsilon-per-client": "1.0", "fbo-max-delta": "1e-3"}
    node = node_of(tmp_path, in_folder, **given)
    for site in (site_of(), site_of(None)):
        with pytest.raises(RefusedError, match="max_epsilon_per_client=1"):
            node.ask(site, study_of().enrolment())
    with pytest.raises(RefusedError, match=r"max_epsilon_per_client=0\.5"):
        node.ask(
            site_of(Limits(max_epsilon_per_client=0.5, max_delta=1e-3)),
            study_of((Charge(4.0),)).enrolment(),
        )
    _play(node, site_of(), study_of((Charge(20.0),)))
    broken = node_of(tmp_path, in_folder, **{"fbo-max-releases": "few"})
    with pytest.raises(ValueError, match="node config fbo-max-releases='few'"):
        broken.ask(site_of(), study_of().enrolment())


def test_an_unlimited_site_remembers_for_later(tmp_path: Path) -> None:
    """What was not private has spent everything."""
    node = Node(tmp_path)
    _play(node, site_of(None), study_of((Charge(5.0),)))
    _play(node, site_of(), study_of((Charge(4.0),), study_id="two"))
    node.ask(site_of(None), asked_of(study_of((), False, "three"), 0, 1))
    with SpendingLedger.held(tmp_path) as ledger:
        assert ledger_charges(ledger) == [Charge(5.0), Charge(4.0), Charge(0.0)]
    with pytest.raises(RefusedError, match="epsilon infinite per client"):
        node.ask(site_of(), study_of((Charge(9.0),), study_id="four").enrolment())
    _play(node, site_of(None), study_of((Charge(9.0),), study_id="four"))


def test_without_folder_and_limits_there_is_no_ledger() -> None:
    node = Node(None)
    _play(node, site_of(None), study_of())
    assert "flwr-fbo-spending" not in node._state.config_records


def test_a_metric_that_is_not_private_is_refused() -> None:
    asked = TuningInstruction(
        "round", study_of(), 0, release=1, report_best_value=True
    ).to_config()
    with pytest.raises(RefusedError, match="asks for the metric best-value"):
        Node(None).ask(site_of(), asked)
    assert "best-value" in Node(None).ask(site_of(None), asked).metrics


def test_the_ledger_is_held_only_while_it_is_written(tmp_path: Path) -> None:
    """So that studies can run at the same time."""

    def own_objective(context: Context) -> Any:
        with SpendingLedger.held(tmp_path) as ledger:
            assert ledger.has(("tuning", "one"), 1, owner=0)
        return objective_of(0)

    site = TuningSite(own_objective, limits=LIMITS)
    assert Node(tmp_path).ask(site, asked_of(study_of(), 0, 1)).arrays


@pytest.mark.parametrize(
    "lie", [{"fbo-release": -1}, {"fbo-release": 1.0}, {"fbo-slot": "../0"}]
)
def test_what_names_files_and_charges_is_a_number(
    tmp_path: Path, lie: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="an integer >= "):
        Node(tmp_path / "site").ask(site_of(), {**asked_of(study_of(), 0, 1), **lie})
    assert not list(tmp_path.iterdir())


def _bandit(
    node: Node, site: LinearBanditSite, study: LinearBanditStudy, releases: int
) -> None:
    journal = int(node.ask(site, study.enrolment()).metrics["journal"])
    for k in range(releases):
        asked = LinearBanditInstruction(
            "round", study, 0, journal, k, send_release=True, num_trials=k + 1
        )
        for _ in range(2):
            assert node.ask(site, asked.to_config()).arrays


@FOLDERS
def test_bandits_and_tuning_add_up_for_an_example_alone(
    tmp_path: Path, in_folder: bool
) -> None:
    """A client's messages are about its examples; an example's say nothing of it."""
    node, limits = node_of(tmp_path, in_folder), replace(LIMITS, max_delta=1e-3)
    both_limits = replace(limits, max_epsilon_per_example=3.0)
    site = LinearBanditSite(
        make_environment=lambda _: Environment(), limits=both_limits
    )
    study = LinearBanditStudy(
        LinearUCBSettings(RELEASES, local_data="released"), num_agents=2
    )
    _bandit(node, site, study, releases=3)
    mu = study.promise.charges[0]
    assert composed_epsilon([mu], 1e-3) == pytest.approx(1.5, rel=1e-6)
    # Alone it fits both limits; for an example it is twice as far, and with the bandit.
    tuning = study_of((Charge(2.0),))
    for_example = composed_epsilon([Charge(1.0)], 1e-3)
    both = composed_epsilon([mu, Charge(1.0)], 1e-3)
    assert composed_epsilon([Charge(2.0)], 1e-3) < 1.5 < 3.0 < for_example < both
    for asked in (tuning.enrolment(), asked_of(tuning, 0, 1)):
        with pytest.raises(RefusedError, match=rf"epsilon {both:.4g} per example"):
            node.ask(site_of(both_limits), asked)
    # The bandit's charge counts for no client.
    _play(node, site_of(), tuning)
    small = study_of((Charge(1.6),), study_id="two")
    assert composed_epsilon([Charge(2.0), Charge(1.6)], 1e-3) < 3.0
    assert composed_epsilon([Charge(2.0), Charge(1.6), mu], 1e-3) > 3.0
    _play(node, site_of(), small)
    network = Network(6, width=3)
    size = network.num_parameters
    settings = replace(NEURAL_SETTINGS, privacy=replace(PRIVACY, epsilon=2.5))
    neural = FedGOUCBStudy(settings, 2, size, network, seed=1)
    neural_site = NeuralBanditSite(lambda _: Environment(), limits=OF_EXAMPLES)
    with pytest.raises(RefusedError, match="max_epsilon_per_example=3"):
        node.ask(neural_site, neural.enrolment())
    neural_site = NeuralBanditSite(lambda _: Environment(), limits=LIMITS)
    with pytest.raises(RefusedError, match="limits a client alone"):
        node.ask(neural_site, neural.enrolment())


def test_a_server_cannot_say_that_a_study_protects_another_unit(tmp_path: Path) -> None:
    """It would be charged where there is more left."""
    node, study = Node(tmp_path), study_of()
    lie = replace(study, promise=replace(study.promise, unit=EXAMPLE))
    for asked in (lie.enrolment(), asked_of(lie, 0, 1)):
        with pytest.raises(RefusedError, match="that of a tuning study is per client"):
            node.ask(site_of(None), asked)
    assert charges_in(tmp_path) == []


def test_a_bandit_study_is_charged_once_with_its_first_release(tmp_path: Path) -> None:
    node = Node(tmp_path)
    site = LinearBanditSite(
        make_environment=lambda _: Environment(), limits=OF_EXAMPLES
    )
    study = LinearBanditStudy(
        LinearUCBSettings(RELEASES, local_data="released"), num_agents=2
    )
    journal = int(node.ask(site, study.enrolment()).metrics["journal"])
    asked = LinearBanditInstruction("round", study, 0, journal, num_trials=1)
    node.ask(site, asked.to_config())
    assert charges_in(tmp_path) == []
    _bandit(node, site, study, releases=2)
    with SpendingLedger.held(tmp_path) as ledger:
        [row] = ledger.rows
        assert row.facts["study_kind"] == "linear-bandit"
        assert ledger_charges(ledger) == list(study.promise.charges)


def test_what_only_counts_as_true_is_refused(tmp_path: Path) -> None:
    node = Node(tmp_path)
    site = LinearBanditSite(
        make_environment=lambda _: Environment(), limits=OF_EXAMPLES
    )
    study = LinearBanditStudy(
        LinearUCBSettings(RELEASES, local_data="released"), num_agents=2
    )
    journal = int(node.ask(site, study.enrolment()).metrics["journal"])
    asked = LinearBanditInstruction("round", study, 0, journal).to_config()
    for value in (0.5, 1):
        with pytest.raises(ValueError, match="is not allowed: True or False"):
            node.ask(site, {**asked, "fbo-send-release": value})
    assert charges_in(tmp_path) == []


def test_a_bandit_without_a_folder_releases_no_trial_twice() -> None:
    """A server that lies begins another study in between, to have noise drawn anew."""
    node = Node(None)
    site = LinearBanditSite(
        make_environment=lambda _: Environment(), limits=OF_EXAMPLES
    )
    settings = LinearUCBSettings(replace(RELEASES, epsilon=0.5), local_data="released")
    first, second = (LinearBanditStudy(settings, num_agents=2) for _ in range(2))
    for study in (first, second):
        _bandit(node, site, study, releases=1)
    with pytest.raises(JournalError, match="lacks release 1 of this site"):
        _bandit(node, site, first, releases=1)


@FOLDERS
def test_studies_of_a_federation_in_a_row(
    tmp_path: Path, in_folder: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """All its sites refuse the third, whoever runs the server."""

    def study() -> Any:
        return strategy(epsilon=1.8, noise_seed=None, study_seed=None)

    configs: list[UserConfig] = [{"partition-id": i} for i in range(NUM_AGENTS)]
    if in_folder:
        for i, config in enumerate(configs):
            config["fbo-folder"] = str(tmp_path / f"site-{i}")
    app = tuning_app(make_objective, limits=LIMITS)
    grid = InProcessGrid(app, NUM_AGENTS, node_configs=configs)
    for _ in range(2):
        assert study().start(grid, num_rounds=2).privacy_spent.num_releases > 0
    with pytest.raises(AggregationError, match="takes no part: its limits"):
        study().start(grid, num_rounds=2)
    said = "per client (message or zeros, delta 0.001), and max_epsilon_per_client=3"
    assert said in caplog.text  # at the sites
