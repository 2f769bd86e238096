"""A DecentralizedFedUCB agent with its journal: what it hears and passes on.

Dubey & Pentland, *Differentially-Private Federated Linear Bandits* (NeurIPS 2020), the
peer-to-peer algorithm. At a synchronisation an agent sends its private sums to its
neighbours. Whoever hears a message for the first time passes it on, until it has gone
gamma hops, and keeps it if it is of its pool (`PeerGraph.pools`). Once all have arrived
that can, the agent adds up the newest ones of its pool, its own among them, and
believes the sum.

What the listing leaves open: here all estimators of an agent are released at once; and
with a trigger whoever hears of a synchronisation that it has not made makes it then, so
that all is there after 2 gamma trials, where a public schedule needs gamma.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.validation import require
from flwr_fbo.algorithms.decentralized_fed_ucb.peer_message import Bytes, PeerMessage
from flwr_fbo.algorithms.linear_bandit.confidence import Confidence
from flwr_fbo.algorithms.linear_bandit.study import LinearBanditStudy
from flwr_fbo.clients.bandits.recorded_bandit import RecordedBandit
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalError

_log = logging.getLogger("flwr.fbo")


class RecordedPeer(RecordedBandit):
    """One agent that has peers, and its journal, while this process holds that.

    Besides what `RecordedBandit` keeps, the journal has

        pool        whose sums it adds up
        alpha       its pool's share
        heard       the newest synchronisation heard of, by slot, its own among them
        heard-in    in which iteration of the server that was
        peer-j      what agent j released then, of those in its pool
        release     which of its own releases its newest synchronisation has
        synchronised-at, synchronised-in    after how many trials, and in which
                    iteration, it made that
        believed    the last synchronisation whose sum is believed

    Parameters
    ----------
    journal : Journal
        With `identity_of` a study that has a graph.
    study : LinearBanditStudy, optional
        That one, where it is known.
    """

    def __init__(
        self, journal: Journal, study: LinearBanditStudy | None = None
    ) -> None:
        super().__init__(journal, study)
        assert self.study.graph is not None
        self._graph = self.study.graph

    def _facts_of(self, slot: int) -> dict[str, NDArray[Any]]:
        own = self._graph.confidence_of(slot, self.study.settings)
        return {"pool": np.array(self._graph.pools[slot]), "alpha": np.array(own.alpha)}

    def _confidence(self) -> Confidence:
        if "pool" not in self._state:  # it has no slot yet
            return super()._confidence()
        # Recorded, as a graph's pools take long to find.
        alpha = float(self._state["alpha"])
        return Confidence(self.study.settings, len(self._pool), alpha)

    def deliver(self, mail: Iterable[Any], iteration: int, newest: int) -> list[Bytes]:
        """Take what neighbours have sent; return what is to be passed on.

        What was heard before is neither kept nor passed on; nor is what is no message,
        or comes from farther away than it says, or is of a synchronisation after the
        ``newest`` that there can be: else one lie would silence an agent for ever. An
        iteration that was cut off is repeated with what is passed on in it.
        """
        heard, heard_in = self._heard.copy(), self._heard_in.copy()
        kept: dict[str, FloatArray] = {}
        onward: dict[int, PeerMessage] = {}
        for content in mail:
            try:
                message = self._read(content, newest)
            except ValueError as error:
                _log.warning("\t> a neighbour's message was dropped: %s", error)
                continue
            origin = message.origin
            again = message.number == heard[origin] and heard_in[origin] == iteration
            is_new = message.number > heard[origin] or again
            if origin == self.slot or origin in onward or not is_new:
                continue
            heard[origin], heard_in[origin] = message.number, iteration
            if origin in self._pool:
                kept[f"peer-{origin}"] = message.release
            onward[origin] = message
        self._put({"heard": heard, "heard-in": heard_in, **kept})
        return [
            replace(message, hops=message.hops - 1).to_bytes()
            for message in onward.values()
            if message.hops > 0
        ]

    def synchronise(self, number: int, iteration: int) -> Bytes:
        """Return the message with this agent's sums for a synchronisation.

        The same for the same ``number``: made once, and recorded.

        Raises
        ------
        JournalError
            If it has made later ones.
        ValueError
            If there are not so many.
        """
        self._check(number)
        heard = self._heard
        if number < heard[self.slot]:
            raise JournalError(
                f"Synchronisation {number} is asked for, and this agent has made "
                f"{heard[self.slot]}: the server's record is an older copy.",
                public="The server's record is an older copy.",
            )
        if number > heard[self.slot]:
            # Before the release, so that this one is asked for again, and no next one.
            heard = heard.copy()
            heard[self.slot] = number
            release = np.array(self.num_releases + 1)
            self._put(
                {
                    "heard": heard,
                    "release": release,
                    "synchronised-at": np.array(self.num_trials),
                    "synchronised-in": np.array(iteration),
                }
            )
        released = self.release(int(self._state["release"]))
        farther = self._graph.hops - 1
        return PeerMessage(self.slot, number, farther, released).to_bytes()

    def believe(self, number: int) -> None:
        """Believe the sum of what has arrived, once for each synchronisation."""
        self._check(number)
        if number <= self._believed:
            return
        state = self._journal.load_state()
        total = np.zeros(self.study.settings.releases.sum_shape)
        for slot in self._pool:
            total += self._newest_of(slot, state)
        heard = sum(bool(self._heard[slot]) for slot in self._pool)
        self.receive(total, self.num_releases, heard)
        self._put({"believed": np.array(number)})

    def _check(self, number: int) -> None:
        planned = self.study.settings.releases.max_releases
        ok = 0 <= number <= planned
        require(ok, "synchronisation", number, f"0 to {planned}, those planned")

    def step(self, iteration: int) -> list[Bytes]:
        """Do what a trigger says after a trial; return the message, if there is one.

        An agent begins no synchronisation while it waits for one, and makes none that
        has not been planned: then it goes on without.
        """
        trigger = self.study.trigger
        assert trigger is not None
        releases = self.study.settings.releases
        trigger = trigger.among_peers(releases.max_action_norm)
        made = int(self._heard[self.slot])
        if made > self._believed:
            since = self.num_trials - int(self._state["synchronised-at"])
            if since >= 2 * self._graph.hops:
                self.believe(made)
        if self._state.get("synchronised-in") == iteration:  # cut off, and repeated
            return [self.synchronise(made, iteration)]
        number = int(max(self._heard[slot] for slot in self._pool))
        if made == self._believed and self.wants_synchronisation(trigger):
            number = max(number, made + 1)
        if number == made or number > releases.max_releases:
            return []
        return [self.synchronise(number, iteration)]

    def _read(self, content: Any, newest: int) -> PeerMessage:
        releases = self.study.settings.releases
        message = PeerMessage.from_bytes(content, releases, self._graph)
        require(message.number <= newest, "number", message.number, f"to {newest}")
        farthest = self._graph.hops - int(
            self._graph.distances[message.origin, self.slot]
        )
        require(message.hops <= farthest, "hops", message.hops, f"to {farthest}")
        return message

    def _newest_of(self, slot: int, state: dict[str, NDArray[Any]]) -> FloatArray:
        """Return the newest release of an agent that is here; zero without one.

        ``state`` are all arrays of the journal.
        """
        if slot == self.slot and self.num_releases:
            return self.release(self.num_releases)
        zero = np.zeros(self.study.settings.releases.sum_shape)
        return state.get(f"peer-{slot}", zero)

    @property
    def _pool(self) -> list[int]:
        return [int(slot) for slot in self._state["pool"]]

    @property
    def _heard(self) -> NDArray[np.int64]:
        nobody = np.zeros(self._graph.num_agents, dtype=np.int64)
        return self._state.get("heard", nobody)

    @property
    def _heard_in(self) -> NDArray[np.int64]:
        never = np.full(self._graph.num_agents, -1)
        return self._state.get("heard-in", never)

    @property
    def _believed(self) -> int:
        return int(self._state.get("believed", 0))


def recorded_bandit(
    journal: Journal, study: LinearBanditStudy | None = None
) -> RecordedBandit:
    """Return the agent of a journal: one that has peers, where there is a graph."""
    study = study or LinearBanditStudy.from_dict(journal.identity)
    made = RecordedBandit if study.graph is None else RecordedPeer
    return made(journal, study)
