"""What an agent of DecentralizedFedUCB hears from its peers, and passes on.

Dubey & Pentland, *Differentially-Private Federated Linear Bandits* (NeurIPS 2020), the
peer-to-peer algorithm. At a synchronisation an agent sends its private sums to its
neighbours. Whoever hears a message for the first time passes it on, until it has gone
gamma hops, and keeps it if it is of its pool (`PeerGraph.pools`). Once all have arrived
that can, the agent adds up the newest ones of its pool, its own among them, and
believes the sum.

Where it differs from Algorithm 3: all estimators of an agent are released at once, and
not the one alone whose turn it is (lines 7 to 20). What the listing leaves open: with a
trigger whoever hears of a synchronisation that it has not made makes it then, so that
all is there after 2 gamma trials, where a public schedule needs gamma.
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
from flwr_fbo.bandits.decentralized_fed_ucb.server import Bytes, PeerMessage
from flwr_fbo.bandits.site.recorded_bandit import RecordedBandit
from flwr_fbo.journal.journal_file import JournalError

_log = logging.getLogger("flwr.fbo")


class PeerMail:
    """The messages of one agent that has peers.

    In the agent's journal there are

        heard       the newest synchronisation heard of, by slot, its own among them
        heard-in    in which iteration of the server that was
        peer-j      what agent j released then, of those in its pool
        release     which of its own releases its newest synchronisation has
        synchronised-at, synchronised-in    after how many trials, and in which
                    iteration, it made that
        believed    the last synchronisation whose sum is believed

    Parameters
    ----------
    agent : RecordedBandit
        With a slot, of a study with a graph.
    """

    def __init__(self, agent: RecordedBandit) -> None:
        assert agent.study.graph is not None
        self._agent, self._graph = agent, agent.study.graph
        self._state = agent.state
        self._releases = agent.study.settings.releases

    def deliver(self, mail: Iterable[Any], iteration: int, newest: int) -> list[Bytes]:
        """Take what neighbours have sent; return what is to be passed on.

        A message that was heard before is neither kept nor passed on. The same holds
        for what is malformed, comes from farther away than it says, or belongs to a
        synchronisation after the ``newest`` possible one: otherwise one lie would
        silence an agent for ever. An iteration that was cut off is repeated, with the
        messages that were passed on in it.
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
            if origin == self._agent.slot or origin in onward or not is_new:
                continue
            heard[origin], heard_in[origin] = message.number, iteration
            if origin in self._pool:
                kept[f"peer-{origin}"] = message.release
            onward[origin] = message
        self._agent.put({"heard": heard, "heard-in": heard_in, **kept})
        return [
            replace(message, hops=message.hops - 1).to_bytes()
            for message in onward.values()
            if message.hops > 0
        ]

    def _read(self, content: Any, newest: int) -> PeerMessage:
        message = PeerMessage.from_bytes(content, self._releases, self._graph)
        require(message.number <= newest, "number", message.number, f"to {newest}")
        # A message with more hops left than that would travel farther than gamma.
        distance = int(self._graph.distances[message.origin, self._agent.slot])
        farthest = self._graph.hops - distance
        require(message.hops <= farthest, "hops", message.hops, f"to {farthest}")
        return message

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
        agent, heard = self._agent, self._heard
        made = heard[agent.slot]
        if number < made:
            raise JournalError(
                f"Synchronisation {number} is asked for, and this agent has made "
                f"{made}: the server's record is an older copy.",
                public="The server's record is an older copy.",
            )
        if number > made:
            # Before the release, so that this one is asked for again, and no next one.
            heard = heard.copy()
            heard[agent.slot] = number
            agent.put(
                {
                    "heard": heard,
                    "release": np.array(agent.num_releases + 1),
                    "synchronised-at": np.array(agent.num_trials),
                    "synchronised-in": np.array(iteration),
                }
            )
        released = agent.release(int(self._state["release"]))
        return PeerMessage(
            agent.slot, number, self._graph.hops - 1, released
        ).to_bytes()

    def believe(self, number: int) -> None:
        """Believe the sum of what has arrived, once for each synchronisation."""
        self._check(number)
        if number <= self._believed:
            return
        agent, zero = self._agent, np.zeros(self._releases.sum_shape)
        state, total = agent.journal.load_state(), zero.copy()
        for slot in self._pool:
            if slot == agent.slot and agent.num_releases:
                total += agent.release(agent.num_releases)
            else:
                total += state.get(f"peer-{slot}", zero)
        heard = sum(bool(self._heard[slot]) for slot in self._pool)
        agent.receive(total, agent.num_releases, heard, number)
        agent.put({"believed": np.array(number)})

    def _check(self, number: int) -> None:
        planned = self._releases.max_releases
        ok = 0 <= number <= planned
        require(ok, "synchronisation", number, f"0 to {planned}, those planned")

    def step(self, iteration: int) -> list[Bytes]:
        """Do what a trigger says after a trial; return the message, if there is one.

        An agent begins no synchronisation while it waits for one, and makes none that
        has not been planned: then it goes on without.
        """
        made = int(self._heard[self._agent.slot])
        if made > self._believed:
            since = self._agent.num_trials - int(self._state["synchronised-at"])
            if since >= 2 * self._graph.hops:
                self.believe(made)
        if self._state.get("synchronised-in") == iteration:  # cut off, and repeated
            return [self.synchronise(made, iteration)]
        number = int(max(self._heard[slot] for slot in self._pool))
        if made == self._believed and self._agent.belief.wants_synchronisation():
            number = max(number, made + 1)
        if number == made or number > self._releases.max_releases:
            return []
        return [self.synchronise(number, iteration)]

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
