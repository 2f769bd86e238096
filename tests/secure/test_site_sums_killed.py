"""A site in secure sums, killed anywhere: the same share again, or none."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from flwr_fbo._common.errors import RefusedError
from flwr_fbo.journal.journal import Journal
from flwr_fbo.privacy.release import ReleaseSettings
from flwr_fbo.secure.aggregator import Aggregator
from flwr_fbo.secure.integer_noise import IntegerNoise
from flwr_fbo.secure.site_sums import SumIdentity
from flwr_fbo.secure.sum_settings import SecureSums, SumGroup
from flwr_fbo.secure.terms import Exchange, SumRequest
from flwr_fbo.space.search_space import SearchSpace
from flwr_fbo.tuning.fed_vote.settings import FedVoteSettings
from flwr_fbo.tuning.search.study import TuningStudy
from tests.support.federation import SPACE

NUM_SITES, NUM_FEATURES = 4, 6
SETTINGS = ReleaseSettings(
    num_agents=NUM_SITES,
    clip_norm=1.0,
    noise_multiplier=1.0,
    sampling_probability=1.0,
)
SECURE = SecureSums(SETTINGS, NUM_FEATURES, (SumGroup(0, NUM_SITES, 3, 0, 3),))
AGENT = FedVoteSettings(num_features=NUM_FEATURES)
STUDY = TuningStudy(SearchSpace(SPACE), "maximize", AGENT, 1, 2, "s", secure=SECURE)
KILLED = 2
EXCHANGES = pytest.mark.parametrize("exchange", [1, 2, 3, 4, 5])

Arrays = dict[str, NDArray[Any]]


class Killed(BaseException):
    """SIGKILL of a site, as a test has it."""


class Site:
    """A site with its journal, and what it contributes."""

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.journal: Arrays = {}
        self.contribution = np.full(NUM_FEATURES, 0.1 * (slot + 1))
        self.dies = ""

    def load_unnumbered(self) -> Arrays:
        return dict(self.journal)

    def put(self, arrays: Arrays) -> None:
        if self.dies == "before":
            raise Killed
        self.journal |= arrays
        if self.dies == "after":
            raise Killed

    def answer(
        self, exchange: int, request: NDArray[np.uint8], release: int, attempt: int
    ) -> NDArray[np.uint8]:
        """Answer in a new process, which has the journal alone."""
        asked = SumRequest(STUDY.text, release, self.slot, attempt, exchange, request)
        journal = cast(Journal, self)
        return SumIdentity().reply(journal, SECURE, asked, lambda: self.contribution)


class Sum:
    """One attempt at a sum over all sites."""

    def __init__(self, sites: list[Site], release: int = 1, attempt: int = 7) -> None:
        self.sites, self._about = sites, (release, attempt)
        terms = SECURE.terms(STUDY.text, release, 0, attempt)
        self.aggregator = Aggregator(terms, None)

    def ask(self, slot: int, requests: dict[int, Any]) -> NDArray[np.uint8]:
        exchange = int(self.aggregator.exchange)
        return self.sites[slot].answer(exchange, requests[slot], *self._about)

    def play(self, until: int = Exchange.DONE) -> None:
        while self.aggregator.exchange != until:
            requests = self.aggregator.requests()
            replies = {slot: self.ask(slot, requests) for slot in requests}
            self.aggregator.receive(replies)

    def assert_right(self) -> None:
        """Assert that it is the sum of all contributions: noise is left out here."""
        assert self.aggregator.summed == tuple(range(NUM_SITES))
        decoded = SECURE.noise(0).decode(self.aggregator.total)
        np.testing.assert_allclose(decoded, 1.0, atol=NUM_SITES * 1e-3)


@pytest.fixture
def shares(monkeypatch: pytest.MonkeyPatch) -> list[NDArray[np.int64]]:
    """Return a list of all shares that are drawn; they sum up to nearly nothing."""
    drawn: list[NDArray[np.int64]] = []

    def draw(noise: IntegerNoise) -> NDArray[np.int64]:
        drawn.append(np.full(noise.length, len(drawn) % 2, np.int64))
        return drawn[-1]

    monkeypatch.setattr(IntegerNoise, "draw_share", draw)
    return drawn


def sites() -> list[Site]:
    return [Site(slot) for slot in range(NUM_SITES)]


def killed_in(the_sum: Sum, dies: str) -> dict[int, Any]:
    """Kill a site in the present exchange; return the requests."""
    requests = the_sum.aggregator.requests()
    site = the_sum.sites[KILLED]
    site.dies = dies
    with pytest.raises(Killed):
        the_sum.ask(KILLED, requests)
    site.dies = ""
    return requests


@EXCHANGES
def test_a_site_that_is_killed_after_its_journal_knows_repeats_its_reply(
    exchange: int, shares: list[Any]
) -> None:
    """Crash between the journal and the reply, in each exchange."""
    the_sum = Sum(sites())
    the_sum.play(until=exchange)
    requests = killed_in(the_sum, "after")
    known = {k: v.tobytes() for k, v in the_sum.sites[KILLED].journal.items()}
    first, second = (the_sum.ask(KILLED, requests) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    now = {k: v.tobytes() for k, v in the_sum.sites[KILLED].journal.items()}
    assert now == known
    the_sum.play()
    the_sum.assert_right()
    assert len(shares) == NUM_SITES


@EXCHANGES
def test_a_site_that_is_killed_before_its_journal_knows_has_given_nothing(
    exchange: int, shares: list[Any]
) -> None:
    """Its second share is its only one: the first is in no reply, and in no file."""
    the_sum = Sum(sites())
    the_sum.play(until=exchange)
    before = dict(the_sum.sites[KILLED].journal)
    killed_in(the_sum, "before")
    assert the_sum.sites[KILLED].journal == before
    the_sum.play()
    the_sum.assert_right()
    assert len(shares) == NUM_SITES + (exchange == Exchange.MASK)


@pytest.mark.parametrize("exchange", [4, 5])
def test_the_share_of_a_release_is_the_same_in_each_attempt(
    exchange: int, shares: list[Any]
) -> None:
    all_sites = sites()
    Sum(all_sites).play(until=exchange)
    another = Sum(all_sites, attempt=8)
    another.play()
    another.assert_right()
    assert len(shares) == NUM_SITES
    Sum(all_sites, release=2).play()
    assert len(shares) == 2 * NUM_SITES


def test_after_an_unmasking_there_is_no_other(shares: list[Any]) -> None:
    all_sites = sites()
    Sum(all_sites).play()
    with pytest.raises(RefusedError, match="release 1 was unmasked"):
        Sum(all_sites, attempt=8).play()
    Sum(all_sites, release=2, attempt=9).play(until=2)
    with pytest.raises(RefusedError, match="The sum of release 1 is over"):
        Sum(all_sites, attempt=7).play()


def test_an_attempt_that_was_given_up_does_not_go_on(shares: list[Any]) -> None:
    all_sites = sites()
    first = Sum(all_sites)
    first.play(until=4)
    Sum(all_sites, attempt=8).play(until=3)
    with pytest.raises(RefusedError, match="this attempt was given up"):
        first.play()
    with pytest.raises(RefusedError, match="of an attempt that did not begin"):
        all_sites[0].answer(3, first.aggregator.requests()[0], 1, 9)


def test_what_is_no_longer_needed_is_not_in_the_journal(shares: list[Any]) -> None:
    """Neither noise nor keys, once the sum was unmasked."""
    all_sites = sites()
    the_sum = Sum(all_sites)
    the_sum.play(until=Exchange.UNMASK)
    assert all(site.journal["sum-share"].size for site in all_sites)
    the_sum.play()
    for site in all_sites:
        assert not site.journal["sum-share"].size
        state = site.journal["sum-member"].tobytes()
        assert not any(word in state for word in (b"seed", b"encryption", b"shares"))
