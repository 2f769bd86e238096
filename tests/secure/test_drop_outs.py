"""Sites that drop out of secure sums: the right sum is released, or none."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from tests.support.secure_studies import (
    AGGREGATION,
    PRIVACY,
    Contributions,
    Heard,
    Private,
    SumGrid,
    fed_vote,
    make_keys,
    node_configs,
)

ROUNDS = 4
# Where a message is lost, and whether the site answers it or never gets it. The slow
# cases leave a site in a state in which another one leaves it, too.
EXCHANGES = pytest.mark.parametrize(
    ("exchange", "arrives_there"),
    [
        pytest.param(
            exchange,
            arrives_there,
            marks=()
            if (exchange, arrives_there) in ((2, False), (3, True), (5, True))
            else pytest.mark.slow,
        )
        for exchange in range(1, 6)
        for arrives_there in (True, False)
    ],
)


def lossy(rng: random.Random, exchanges: set[int], arrives_there: bool) -> SumGrid:
    """Return a grid that loses 30 % of the messages of some exchanges."""

    def kept(heard: Heard) -> bool:
        is_lossy = heard.phase == "sum" and heard.exchange in exchanges
        return not is_lossy or rng.random() >= 0.3

    def tamper(heard: Heard, message: Message) -> bool:
        return arrives_there or kept(heard)

    def arrives(heard: Heard) -> bool:
        return not arrives_there or kept(heard)

    return SumGrid(node_configs(), tamper=tamper, arrives=arrives)


def played(grid: SumGrid, num_rounds: int = ROUNDS) -> Private:
    # A release after each round: each round tries to make the next one.
    privacy = replace(PRIVACY, release_after=range(1, num_rounds))
    strategy = fed_vote(privacy=privacy)
    strategy.start(grid, num_rounds=num_rounds)
    return strategy


def assert_asked_once(grid: SumGrid) -> None:
    """Assert that a site has unmasked one attempt a release, always alike."""
    unmasked: dict[tuple[int, int], set[Any]] = {}
    for heard in grid.of("sum", 5):
        if heard.replies:
            of_site = heard.slot, int(heard.config["fbo-release"])
            reply = heard.config["fbo-attempt"], heard.replies[0].tobytes()
            unmasked.setdefault(of_site, set()).add(reply)
    assert all(len(replies) == 1 for replies in unmasked.values())


@pytest.mark.parametrize(
    ("exchange", "arrives_there"), [(2, False), (3, True), (5, True)]
)
def test_sites_that_drop_out_of_an_exchange(
    exchange: int, arrives_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    contributions = Contributions(monkeypatch)
    rng = random.Random(exchange)
    grid = lossy(rng, {exchange}, arrives_there)
    strategy = played(grid)
    contributions.assert_right(strategy)
    assert_asked_once(grid)


@pytest.mark.parametrize(
    ("num_studies", "num_rounds"),
    [(2, 6), pytest.param(20, 11, marks=pytest.mark.slow, id="slow")],
)
def test_sites_that_drop_out_anywhere(
    num_studies: int, num_rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some releases are made, and some rounds make none."""
    made = rounds = 0
    for seed in range(num_studies):
        with monkeypatch.context() as patch:
            contributions = Contributions(patch)
            rng = random.Random(seed)
            exchanges = {1 + seed % 5} if seed % 2 else set(range(1, 6))
            grid = lossy(rng, exchanges, arrives_there=bool(rng.getrandbits(1)))
            strategy = played(grid, num_rounds)
            contributions.assert_right(strategy)
            assert_asked_once(grid)
            made += len(strategy.server.ledger)
            rounds += num_rounds
    assert 0 < made < rounds


@pytest.mark.parametrize("arrives_there", [True, False])
def test_the_same_is_unmasked_in_a_later_round(
    arrives_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nobody's last reply arrives in the first round."""
    contributions = Contributions(monkeypatch)
    silent = {0: True}

    def kept(heard: Heard) -> bool:
        return not (heard.exchange == 5 and silent[0])

    def tamper(heard: Heard, message: Message) -> bool:
        if heard.phase == "round" and int(heard.config["fbo-iteration"]) == 2:
            silent[0] = False
        return arrives_there or kept(heard)

    grid = SumGrid(node_configs(), tamper=tamper, arrives=kept)
    strategy = played(grid)
    assert [row.facts["made_after"] for row in strategy.server.ledger] == [2, 3]
    contributions.assert_right(strategy)
    assert_asked_once(grid)
    # It was masked once, and asked for as often as there were rounds.
    first = [h for h in grid.of("sum", 3) if h.config["fbo-release"] == 1]
    assert len(first) == 5


def test_too_few_sites_postpone_a_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is absent in two rounds comes back in the third."""
    contributions = Contributions(monkeypatch)

    def tamper(heard: Heard, message: Message) -> bool:
        early = heard.phase == "sum" and int(heard.config["fbo-iteration"]) < 2
        return not (early and heard.slot in (1, 3))

    grid = SumGrid(node_configs(), tamper=tamper)
    strategy = played(grid)
    assert [row.facts["made_after"] for row in strategy.server.ledger] == [2, 3]
    contributions.assert_right(strategy)
    assert contributions.num_shares == 2 * 5


class Killed(BaseException):
    """SIGKILL of the server, as a test has it."""


@EXCHANGES
def test_a_server_that_is_killed_makes_the_release_once(
    exchange: int,
    arrives_there: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether the sites have answered, or were not asked: by files alone."""
    contributions = Contributions(monkeypatch)
    keys = make_keys(tmp_path)
    configs = keys.node_configs()
    for slot, config in enumerate(configs):
        folder = tmp_path / f"site-{slot}"
        folder.mkdir()
        config["fbo-folder"] = str(folder)

    def strategy() -> Private:
        return fed_vote(
            aggregation=replace(AGGREGATION, roster=keys.roster_path),
            folder=tmp_path / "server",
        )

    def stop(heard: Heard) -> bool:
        # After the third site, so that sites are in different states.
        if heard.exchange == exchange and heard.slot == 2:
            raise Killed
        return True

    def tamper(heard: Heard, message: Message) -> bool:
        return arrives_there or stop(heard)

    def arrives(heard: Heard) -> bool:
        return not arrives_there or stop(heard)

    grids = [SumGrid(configs, tamper=tamper, arrives=arrives), SumGrid(configs)]
    with pytest.raises(Killed):
        strategy().start(grids[0], num_rounds=3)
    resumed = strategy()
    resumed.start(grids[1], num_rounds=3)
    assert len(resumed.server.ledger) == 2
    contributions.assert_right(resumed)
    # Each site drew its noise for a release once, before and after.
    assert contributions.num_shares == 2 * 5
    grids[0].heard += grids[1].heard
    assert_asked_once(grids[0])


def test_a_server_that_is_killed_after_a_release_sums_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum that is released is open no more: it is not gone on with."""
    contributions = Contributions(monkeypatch)
    configs = node_configs()
    for slot, config in enumerate(configs):
        (tmp_path / f"{slot}").mkdir()
        config["fbo-folder"] = str(tmp_path / f"{slot}")

    def stop(heard: Heard, message: Message) -> bool:
        if heard.exchange == 1 and grids[0].of("sum", 5):
            raise Killed
        return True

    grids = [SumGrid(configs, tamper=stop), SumGrid(configs)]
    with pytest.raises(Killed):
        fed_vote(folder=tmp_path / "server").start(grids[0], num_rounds=3)
    resumed = fed_vote(folder=tmp_path / "server")
    resumed.start(grids[1], num_rounds=3)
    assert [row.iteration for row in resumed.server.ledger] == [0, 1]
    contributions.assert_right(resumed)
    assert contributions.num_shares == 2 * 5
    grids[0].heard += grids[1].heard
    assert_asked_once(grids[0])


def test_a_site_that_restarts_between_exchanges_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps nothing in memory: each message may meet another process."""
    contributions = Contributions(monkeypatch)
    configs = node_configs()
    for slot, config in enumerate(configs):
        (tmp_path / f"{slot}").mkdir()
        config["fbo-folder"] = str(tmp_path / f"{slot}")
    grid = SumGrid(configs)

    def forget(heard: Heard) -> bool:
        for context in grid.contexts.values():
            context.state.config_records.clear()
        return True

    grid._arrives = forget
    strategy = fed_vote(max_empty_rounds=1)
    strategy.start(grid, num_rounds=3)
    assert len(strategy.server.ledger) == 2
    contributions.assert_right(strategy)
