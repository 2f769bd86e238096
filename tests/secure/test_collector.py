"""A caller of its own: vectors that are summed without any study, node or message.

It uses only the names that `flwr_fbo.secure` shows to others.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.errors import RefusedError
from flwr_fbo.journal.journal import Journal
from flwr_fbo.privacy.release import ReleaseSettings
from flwr_fbo.secure import (
    Roster,
    SecureAggregation,
    SecureSums,
    SigningKey,
    SumIdentity,
    SumRequest,
)
from flwr_fbo.secure.collector import SecureCollector

NUM_SITES, LENGTH = 5, 8
OPTION = SecureAggregation(threshold=4, honest=3, colluding=1)
SETTINGS = ReleaseSettings(
    num_agents=NUM_SITES,
    clip_norm=1.0,
    # So little noise that the sum can be told from others.
    noise_multiplier=1e-3,
    sampling_probability=1.0,
)
ABOUT = '{"what": "vectors"}'
VECTORS = np.eye(NUM_SITES, LENGTH)


class Killed(Exception):  # noqa: N818
    """Stands for whatever ends a server."""


class Sites:
    """All sites, each with a journal; some lose their replies.

    Attributes
    ----------
    asked : list of (int, int, int)
        Attempt, exchange and slot of each request.
    lost : callable
        Takes a request; returns whether its reply is lost.
    """

    def __init__(self, who: Sequence[SumIdentity] = (SumIdentity(),) * NUM_SITES):
        self._who = who
        self._journals = [
            Journal({"kind": "vector", "slot": n}) for n in range(len(who))
        ]
        self.asked: list[tuple[int, int, int]] = []
        self.refused: list[str] = []
        self.lost: Callable[[SumRequest], bool] = lambda _: False

    def ask(self, sums: SecureSums, requests: Sequence[SumRequest]) -> dict[int, Any]:
        replies: dict[int, Any] = {}
        for one in requests:
            self.asked.append((one.attempt, one.exchange, one.slot))
            who, journal = self._who[one.slot], self._journals[one.slot]
            try:
                reply = who.reply(journal, sums, one, partial(_vector, one.slot))
            except RefusedError as error:
                self.refused.append(error.public)
                continue
            if not self.lost(one):
                replies[one.slot] = reply
        return replies


def _vector(slot: int) -> FloatArray:
    return np.asarray(VECTORS[slot])


def collector(option: SecureAggregation = OPTION) -> SecureCollector:
    return option.collector([range(NUM_SITES)])


def collected(
    server: SecureCollector, sites: Sites, release: int = 1, keep: Any = lambda: None
) -> Any:
    sums = server.sums(SETTINGS, LENGTH)

    def ask(requests: Sequence[SumRequest]) -> Mapping[int, Any]:
        return sites.ask(sums, requests)

    summed = server.collect(sums, ABOUT, release, ask=ask, keep=keep)
    if summed is None:
        return None
    row = sums.row(7, 0, summed.slots, summed.total)
    assert row.iteration == 7
    assert row.facts["summed"] == list(summed.slots)
    return row


def assert_sum(row: Any, slots: Sequence[int]) -> None:
    assert row.facts["summed"] == list(slots)
    weights = row.vectors[0] / row.vectors[0].max()
    expected = VECTORS[list(slots)].sum(axis=0)
    np.testing.assert_allclose(weights, expected, atol=0.05)


def test_the_names_of_the_package_are_enough_for_a_sum(tmp_path: Path) -> None:
    keys = [SigningKey.draw() for _ in range(NUM_SITES)]
    roster = Roster.draw({slot: key.public for slot, key in enumerate(keys)})
    roster.save(tmp_path / "roster.json")
    configs = []
    for slot, key in enumerate(keys):
        key.save(tmp_path / f"{slot}.pem")
        assert SigningKey.load(tmp_path / f"{slot}.pem").public == key.public
        configs.append(
            {
                "fbo-roster": str(tmp_path / "roster.json"),
                "fbo-key": str(tmp_path / f"{slot}.pem"),
            }
        )
    pinned = [*map(SumIdentity.of, configs)]
    assert [one.slot for one in pinned] == list(range(NUM_SITES))
    option = SecureAggregation(1, 4, 3, roster=tmp_path / "roster.json")
    server, sites = collector(option), Sites(pinned)
    for one in pinned:
        one.check(server.sums(SETTINGS, LENGTH), one.slot)
    assert_sum(collected(server, sites), range(NUM_SITES))
    assert [exchange for _, exchange, slot in sites.asked if slot == 0] == [
        *range(1, SumRequest.num_exchanges + 1)
    ]
    assert (server.open_sum, server.failure, server.warning) == (b"", "", "")


def test_a_sum_that_fails_can_be_tried_with_other_sites() -> None:
    server, sites = collector(), Sites()
    sites.lost = lambda one: one.exchange == 3 and one.slot > 2
    assert collected(server, sites) is None
    assert "has 3 valid replies and needs 4" in server.failure
    assert server.open_sum == b""
    sites.lost = lambda one: one.slot == 4
    assert_sum(collected(server, sites), range(4))
    assert server.failure == ""
    assert len({attempt for attempt, *_ in sites.asked}) == 2


def test_what_may_have_been_unmasked_is_kept_first_and_asked_again() -> None:
    """A server that is killed as the last exchange begins, and loses all but that."""
    server, sites = collector(), Sites()
    kept: list[dict[str, Any]] = []

    def keep() -> None:
        assert all(exchange < 5 for _, exchange, _ in sites.asked)
        kept.append(server.state_dict())
        raise Killed

    with pytest.raises(Killed):
        collected(server, sites, keep=keep)
    again = collector()
    other = np.arange(3)
    assert again.resume({**kept[0], "of-another": other}) == {"of-another": other}
    before = len(sites.asked)
    assert_sum(collected(again, sites), range(NUM_SITES))
    assert {exchange for _, exchange, _ in sites.asked[before:]} == {5}
    assert len({attempt for attempt, *_ in sites.asked}) == 1
    assert again.state_dict() == {}


def test_an_open_sum_stays_open_until_it_is_there() -> None:
    server, sites = collector(), Sites()
    sites.lost = lambda one: one.ends and one.slot > 0
    for _ in range(2):
        assert collected(server, sites) is None
        assert server.open_sum != b""
    sites.lost = lambda _: False
    assert_sum(collected(server, sites), range(NUM_SITES))
    assert len({attempt for attempt, *_ in sites.asked}) == 1


def test_a_server_that_forgets_an_open_sum_gets_no_other() -> None:
    sites = Sites()
    assert collected(collector(), sites) is not None
    assert collected(collector(), sites) is None
    assert set(sites.refused) == {
        "A sum of release 1 was unmasked: there can be no other."
    }
    assert_sum(collected(collector(), sites, release=2), range(NUM_SITES))


@pytest.mark.parametrize(("num_pinned", "fits"), [(51, False), (52, True), (53, False)])
def test_over_fifty_sites_are_those_of_the_whole_roster(
    num_pinned: int, fits: bool, tmp_path: Path
) -> None:
    """Else the server could choose them by their places on the ring."""
    keys = {slot: SigningKey.draw().public for slot in range(num_pinned)}
    Roster.draw(keys).save(tmp_path / "roster.json")
    option = SecureAggregation(roster=tmp_path / "roster.json")
    assert len(option.collector([range(50)]).groups) == 1  # of fifty it may be a part
    if fits:
        option.collector([range(52)])
        return
    with pytest.raises(ValueError, match=r"^roster='.* is not allowed"):
        option.collector([range(52)])


def test_an_option_that_does_not_fit_is_named() -> None:
    with pytest.raises(ValueError, match=r"^threshold=6 is not allowed"):
        SecureAggregation(threshold=6).collector([range(NUM_SITES)])
    with pytest.raises(ValueError, match=r"^length="):
        collector().sums(SETTINGS, 2**21)
