"""Secure aggregation over Flower: what is released, what leaves a site, and who counts.

What goes wrong is in the other ``test_secure_*`` files.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context
from flwr.clientapp import ClientApp
from scipy.stats import chi2

from flwr_fbo import Limits, Privacy, Seeds, add_tuning, tuning_app, with_tuning
from flwr_fbo._compat import ClientApi, NumPyClient
from flwr_fbo.privacy.spending_ledger import SpendingLedger
from flwr_fbo.secure import SecureAggregation
from flwr_fbo.secure.roster import Roster, SigningKey
from tests.support.federation import numpy_app
from tests.support.ledgers import ledger_charges
from tests.support.secure_studies import (
    AGGREGATION,
    APP,
    PRIVACY,
    Contributions,
    Private,
    SumGrid,
    dp_fts_de,
    fed_vote,
    fed_warm_start,
    logged_errors,
    make_keys,
    make_objective,
    node_configs,
)

Make = Callable[..., Private]
STRATEGIES = pytest.mark.parametrize("make", [fed_vote, fed_warm_start, dp_fts_de])
# Both cohorts of a warm start release in these rounds.
ROUNDS, TWO_RELEASES = 6, 3


@dataclass(frozen=True)
class Played:
    """A study of two releases without noise, and all that the server heard."""

    make: Make
    strategy: Private
    grid: SumGrid
    contributions: Contributions


@pytest.fixture(scope="module", params=[fed_vote, fed_warm_start, dp_fts_de])
def played(request: pytest.FixtureRequest) -> Played:
    with pytest.MonkeyPatch.context() as patch:
        contributions, strategy = Contributions(patch), request.param()
        grid = SumGrid(node_configs(strategy.server.num_agents))
        strategy.start(grid, num_rounds=ROUNDS)
    assert len(strategy.server.ledger) == 2
    return Played(request.param, strategy, grid, contributions)


def test_the_sum_of_the_sites_messages_is_released(played: Played) -> None:
    played.contributions.assert_right(played.strategy)
    # One share of noise a release and site.
    summed = [len(row.facts["summed"]) for row in played.strategy.server.ledger]
    assert played.contributions.num_shares == sum(summed)


def test_so_it_is_where_sites_sign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contributions, keys = Contributions(monkeypatch), make_keys(tmp_path)
    strategy = fed_vote(aggregation=replace(AGGREGATION, roster=keys.roster_path))
    strategy.start(SumGrid(keys.node_configs()), num_rounds=TWO_RELEASES)
    assert len(strategy.server.ledger) == 2
    contributions.assert_right(strategy)
    assert contributions.num_shares == 2 * 5


def test_it_is_what_a_trusted_server_releases(played: Played) -> None:
    """But for noise and rounding: both are left out here."""
    make, secure = played.make, played.strategy
    settings = secure.server.release.settings
    q = settings.sampling_probability if make is dp_fts_de else None
    after = None if make is fed_warm_start else range(1, 3)
    seeds = Seeds(study=1, features=2, noise=3)
    silent = Privacy(noise_multiplier=1e-9, release_after=after, sampling_probability=q)
    trusted = make(aggregation=None, privacy=silent, seeds=seeds)
    configs = node_configs(secure.server.num_agents)
    trusted.start(SumGrid(configs), num_rounds=ROUNDS)
    first, same = secure.server.ledger[0].vectors, trusted.server.ledger[0].vectors
    assert np.linalg.norm(same) > 0
    assert np.linalg.norm(first - same) <= 5e-3 * settings.clip_norm


def _nothing(context: Context) -> NumPyClient:
    return NumPyClient()


@pytest.mark.parametrize(
    ("app", "client_api"),
    [
        (APP, "message"),
        (numpy_app(make_objective), "numpy"),
        (ClientApp(with_tuning(_nothing, make_objective, None)), "numpy"),
        (add_tuning(ClientApp(), make_objective, None), "action"),
    ],
)
def test_it_works_with_either_client_api(
    app: ClientApp, client_api: ClientApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    contributions = Contributions(monkeypatch)
    strategy = fed_vote(client_api=client_api)
    strategy.start(SumGrid(node_configs(), app), num_rounds=2)
    assert len(strategy.server.ledger) == 1
    contributions.assert_right(strategy)


@STRATEGIES
def test_the_ledger_says_over_whom_was_summed_and_with_what_noise(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    contributions = Contributions(monkeypatch, noisy=True)
    strategy = make()
    num_sites = strategy.server.num_agents
    strategy.start(SumGrid(node_configs(num_sites)), num_rounds=ROUNDS)
    secure, release = strategy.study.secure, strategy.server.release
    assert secure is not None
    noise, planned = [], []
    for row in strategy.server.ledger:
        facts = row.facts
        group = secure.groups[secure.group_of(facts["summed"][0])]
        assert facts["aggregation"] == "secure"
        assert facts["summed"] == list(group.slots)
        assert facts["honest"] == group.honest
        [std, *others] = facts["noise_std"]
        assert set(others) <= {std}
        sensitivity = release.sensitivity(row.iteration)
        z = release.settings.noise_multiplier * sensitivity
        ratio = std / z
        assert 1.0 <= ratio <= group.excess
        noise += list((row.vectors - contributions.sum_of(strategy, row)).ravel() / std)
        planned.append(z)
    # The noise has the variance in the ledger, a chi-square's: each of six bounds fails
    # by chance once in 10 million runs.
    total = chi2(len(noise)).cdf(float(np.sum(np.square(noise))))
    assert 1e-7 < total < 1 - 1e-7
    spent = strategy.privacy_spent
    assert spent.num_releases == (1 if make is fed_warm_start else 2)  # a site's
    assert 0 < spent.epsilon < np.inf


def test_each_site_counts_by_itself(tmp_path: Path) -> None:
    keys = make_keys(tmp_path)
    configs = keys.node_configs()
    for slot, config in enumerate(configs):
        config["fbo-folder"] = str(tmp_path / f"folder-{slot}")
        (tmp_path / f"folder-{slot}").mkdir()
    strategy = fed_vote(aggregation=replace(AGGREGATION, roster=keys.roster_path))
    strategy.start(SumGrid(configs), num_rounds=TWO_RELEASES)
    assert len(strategy.server.ledger) == 2
    for slot in range(len(configs)):
        with SpendingLedger.held(tmp_path / f"folder-{slot}") as ledger:
            charges = ledger_charges(ledger, owner=slot)
        [promised] = strategy.study.promise.charges
        assert charges == [replace(promised, num_releases=1)] * 2


def test_no_message_leaves_a_site_but_masked(played: Played) -> None:
    strategy, grid = played.strategy, played.grid
    assert not any(heard.replies for heard in grid.of("round"))
    assert all(
        reply.dtype == np.uint8
        for heard in grid.heard
        for reply in heard.replies
        if heard.phase == "sum"
    )
    secure = strategy.study.secure
    assert secure is not None
    masked = grid.of("sum", 3)
    assert len(masked) == sum(len(r.facts["summed"]) for r in strategy.server.ledger)
    for heard in masked:
        noise = secure.noise(secure.group_of(heard.slot))
        planned = int(heard.config["fbo-planned"])
        numbers = noise.encode(played.contributions.given[planned, heard.slot])
        given = noise.wrapped(numbers)
        width = noise.num_bits // 8
        sent = heard.replies[0][: noise.length * width].reshape(-1, width)
        plain = given.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width]
        for order in (plain, plain[:, ::-1]):
            assert not np.any(np.all(sent == order, axis=1))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"colluding": -1}, "colluding=-1"),
        ({"colluding": 1.5}, "colluding=1.5"),
        ({"threshold": 0}, "threshold=0"),
        ({"honest": 0}, "honest=0"),
        ({"roster": "relative.json"}, "roster='relative.json' .* an absolute path"),
    ],
)
def test_what_does_not_fit_any_study_is_named(
    options: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=f"^{text}.* is not allowed|^{text}"):
        SecureAggregation(**options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"aggregation": "secure"}, "aggregation='secure' is not allowed: a Secure"),
        ({"aggregation": SecureAggregation(threshold=6)}, "threshold=6 is not"),
        ({"aggregation": SecureAggregation(colluding=4)}, "colluding=4 is not"),
        (
            {"aggregation": SecureAggregation(threshold=4, honest=6)},
            "honest=6 is not allowed: at most 5",
        ),
        (
            {"aggregation": SecureAggregation(roster="/nowhere/roster.json")},
            "roster='/nowhere/roster.json' is not allowed: a file",
        ),
        ({"seeds": Seeds(noise=1)}, "seeds.noise=1 is not allowed: None"),
        ({"privacy": Privacy(noise_multiplier=0.0)}, "noise_multiplier=0.0"),
        ({"privacy": replace(PRIVACY, noise_only=True)}, "noise_only=True"),
        ({"privacy": replace(PRIVACY, sampling_probability=0.5)}, "sampling_prob"),
        ({"privacy": replace(PRIVACY, calibration="published")}, "calibration="),
    ],
)
def test_what_does_not_fit_the_study_is_named_before_it_starts(
    options: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(text)}"):
        fed_vote(**options)


def test_the_summary_says_who_is_trusted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "flwr")
    keys = make_keys(tmp_path)
    for roster, warned in ((keys.roster_path, False), (None, True)):
        caplog.clear()
        strategy = fed_vote(aggregation=replace(AGGREGATION, roster=roster))
        strategy.plan(ROUNDS - 1)
        strategy.summary()
        assert "the server learns the noisy sum, and who answered" in caplog.text
        assert "the server with at most 0 colluding agents" in caplog.text
        assert ("WARNING: no roster" in caplog.text) == warned
        assert "the server is trusted" not in caplog.text


# A site's files and node config, and what the server is told of its refusal.
def _without_key(config: dict[str, Any], folder: Path) -> None:
    del config["fbo-key"]


def _readable(config: dict[str, Any], folder: Path) -> None:
    Path(config["fbo-key"]).chmod(0o644)


def _of_another(config: dict[str, Any], folder: Path) -> None:
    other = make_keys(folder / "other")
    config["fbo-key"] = str(other.key_path(2))


def _of_a_neighbour(config: dict[str, Any], folder: Path) -> None:
    config["fbo-key"] = str(Path(config["fbo-key"]).with_name("site-1.key"))


def _other_roster(config: dict[str, Any], folder: Path) -> None:
    other = make_keys(folder / "other")
    config |= {"fbo-key": str(other.key_path(2)), "fbo-roster": str(other.roster_path)}


def _unpinned(config: dict[str, Any], folder: Path) -> None:
    del config["fbo-key"], config["fbo-roster"]


@pytest.mark.parametrize(
    ("change", "public", "logged"),
    [
        (_without_key, "fbo-roster and fbo-key are given together", "together"),
        (_readable, "fbo-key cannot be used", "chmod 600"),
        (_of_another, "fbo-key cannot be used", "a key of the roster"),
        (_of_a_neighbour, "its slot is 2, and the roster", "its key for slot 1"),
        (_other_roster, "does not have the roster that it pins", "that it pins"),
        (_unpinned, "the study has a roster", "fbo-roster"),
    ],
)
def test_a_site_with_other_files_takes_no_part(
    change: Callable[[dict[str, Any], Path], None],
    public: str,
    logged: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The others' sum goes on without it."""
    contributions = Contributions(monkeypatch)
    (tmp_path / "other").mkdir()
    keys = make_keys(tmp_path)
    configs = keys.node_configs()
    change(configs[2], tmp_path)
    strategy = fed_vote(
        aggregation=replace(AGGREGATION, roster=keys.roster_path),
        min_agents=4,
        max_empty_rounds=1,
    )
    grid = SumGrid(configs)
    strategy.start(grid, num_rounds=2)
    assert [row.facts["summed"] for row in strategy.server.ledger] == [[0, 1, 3, 4]]
    contributions.assert_right(strategy)
    refusals = [h.refusal for h in grid.heard if h.refusal]
    assert refusals
    assert all(public in refusal for refusal in refusals)
    assert logged in logged_errors(caplog)
    assert str(tmp_path) not in "".join(refusals)


def test_a_site_that_knows_no_slot_has_that_of_its_key(tmp_path: Path) -> None:
    keys = make_keys(tmp_path)
    configs = keys.node_configs()[::-1]
    for config in configs:
        del config["agent-id"], config["partition-id"]
    app = tuning_app(lambda context: lambda trial: trial["x"])
    strategy = fed_vote(
        aggregation=replace(AGGREGATION, roster=keys.roster_path),
    )
    strategy.start(SumGrid(configs, app), num_rounds=2)
    slots = list(range(len(configs)))
    assert [row.facts["summed"] for row in strategy.server.ledger] == [slots]


@pytest.mark.parametrize("limit", ["min-agents", "min-honest", "min-noise-multiplier"])
def test_a_site_with_minima_takes_part_in_secure_sums_only(limit: str) -> None:
    strategy = fed_vote(aggregation=None)
    grid = SumGrid(node_configs(**{f"fbo-{limit}": 1}))
    with pytest.raises(Exception, match=r"no secure aggregation, which min_"):
        strategy.start(grid, num_rounds=2)
    assert not grid.of("round")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("min_agents", 6),
        ("min_threshold", 5),
        ("min_honest", 5),
        ("min_colluding", 1),
        ("min_noise_multiplier", 1.01),
    ],
)
def test_each_minimum_holds_in_app_and_node_config(field: str, value: Any) -> None:
    entry = f"fbo-{field.replace('_', '-')}"
    named: dict[str, Any] = {entry: value}
    app = tuning_app(make_objective, limits=Limits(**{field: value}))
    for grid in (
        SumGrid(node_configs(), app),
        SumGrid(node_configs(**named)),
    ):
        with pytest.raises(Exception, match=f"takes no part: {field}"):
            fed_vote().start(grid, num_rounds=2)


def test_the_largest_minima_that_a_study_keeps_are_no_hindrance() -> None:
    minima = {"agents": 5, "threshold": 4, "honest": 4, "noise-multiplier": 1.0}
    named: dict[str, Any] = {f"fbo-min-{name}": value for name, value in minima.items()}
    strategy = fed_vote()
    strategy.start(SumGrid(node_configs(**named)), num_rounds=2)
    assert len(strategy.server.ledger) == 1


def test_a_site_reads_its_roster_and_its_key_once_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = make_keys(tmp_path)
    strategy = fed_vote(aggregation=replace(AGGREGATION, roster=keys.roster_path))
    read: list[Path] = []

    def noting(load: Callable[[Path], Any]) -> Callable[[Path], Any]:
        def noted(path: Path) -> Any:
            read.append(path)
            return load(path)

        return noted

    for kind in (Roster, SigningKey):
        monkeypatch.setattr(kind, "load", noting(kind.load))
    grid = SumGrid(keys.node_configs())
    strategy.start(grid, num_rounds=2)
    assert {heard.exchange for heard in grid.heard} == set(range(6))
    own = [path for path in read if path != keys.roster_path]
    pinned = read.count(keys.roster_path)
    assert (len(own), pinned) == (len(grid.heard), len(grid.heard))
