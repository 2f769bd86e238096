"""The server of DecentralizedFedUCB, which only forwards messages; and a message.

Dubey & Pentland, *Differentially-Private Federated Linear Bandits* (NeurIPS 2020):
agents talk along a graph. Flower has one server, to which everybody is connected; here
it carries what an agent sends to that agent's neighbours, one hop a round, and never
looks into it, nor adds anything up.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.validation import require
from flwr_fbo.bandits.fed_ucb.server import facts_of, lines_of, num_releases_in
from flwr_fbo.bandits.linear.peer_graph import PeerGraph
from flwr_fbo.bandits.linear.study import LinearBanditStudy
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy.continual_settings import ContinualSettings
from flwr_fbo.study.codec import is_bytes, is_release
from flwr_fbo.study.server import Server, Step

Bytes = NDArray[np.uint8]

_log = logging.getLogger("flwr.fbo")


# What an agent gave to the server to forward: messages, each for all of its neighbours,
# which are arrays of bytes, shape (L,), if the agent is honest, and not encrypted; and
# how many releases of its own it has made so far, as it says.
PeerReply = tuple[Sequence[Any], int]


class DecentralizedFedUCBServer(Server):
    """Carries messages along the edges of a graph.

    Parameters
    ----------
    study : LinearBanditStudy
        With a graph.

    Attributes
    ----------
    num_releases : list of int
        Number of releases of each agent, as it says.
    ledger : list of LedgerRow
        One per round in which anything was sent: its sender, and its digest.

    Notes
    -----
    *Formal guarantees.* None of its own, and none needed: what passes has been made
    private by those who sent it (`ContinualRelease`). Nothing is signed or encrypted:
    the server, and every agent on the way, could read or change what it carries, as
    whoever it is for could. Reading costs nobody's privacy; a change, or a message in
    another's name, can spoil the estimates of those that hear it, and keeps them from
    hearing the true one: of that synchronisation, or, with a trigger, of all.
    """

    def __init__(self, study: LinearBanditStudy) -> None:
        assert study.graph is not None
        self.study, self.num_agents, self.ledger = study, study.num_agents, []
        self.num_releases = [0] * study.num_agents
        self.graph = study.graph
        self._mail: dict[int, list[Bytes]] = {}
        self._length = message_length(study.settings.releases)

    def resume(self, ledger: Sequence[LedgerRow]) -> None:
        """Go on after what an earlier run released."""
        super().resume(ledger)
        self.num_releases = num_releases_in(ledger, self.num_agents)

    @property
    def vectors(self) -> None:
        """Nothing is for all agents."""

    def step(self, iteration: int) -> Step:
        """Decide to forward: agents may always have something to pass on."""
        return Step(iteration)

    def mail_for(self, slot: int) -> list[Bytes]:
        """Return what an agent's neighbours sent in the last round, in slot order."""
        neighbours = self.graph.neighbours(slot)
        return [
            message for sender in neighbours for message in self._mail.get(sender, ())
        ]

    def forget(self) -> None:
        """Forget the mail, which is handed out: it is not handed out twice."""
        self._mail = {}

    def receive(self, step: Step, messages: Mapping[int, PeerReply]) -> None:
        """Take what is to be carried.

        An honest agent passes on at most one message of each agent, and all are of one
        length. Whatever else it sends is dropped, so that it cannot fill the disk.

        Parameters
        ----------
        step : Step
            The step that asked for these messages.
        messages : mapping of int to PeerReply
            By slot, of who has answered: what others carried is lost.
        """
        self._mail = {}
        for slot, (mail, _) in messages.items():
            # The form of a message is looked at; the numbers in it are not read.
            whole = [m for m in mail[: self.num_agents] if is_bytes(m, self._length)]
            if len(whole) < len(mail):
                _log.warning("\t> agent %d: not all that it sent are messages", slot)
            self._mail[slot] = whole
        counts = list(self.num_releases)
        for slot, (_, num_releases) in messages.items():
            counts[slot] = max(counts[slot], num_releases)
        sent = [
            (slot, message) for slot, mail in self._mail.items() for message in mail
        ]
        if not sent and counts == self.num_releases:
            return
        self.num_releases = counts
        facts = {
            **facts_of(self.study, counts),
            "senders": [slot for slot, _ in sent],
            "digests": [
                hashlib.sha256(message.tobytes()).hexdigest() for _, message in sent
            ],
        }
        # Not the mail itself: most of it is passed on again and again.
        row = LedgerRow(step.iteration, facts, np.zeros(0, dtype=np.uint8))
        self.ledger.append(row)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return what is under way, by sender: (messages, bytes)."""
        return {f"mail-{slot}": np.array(m) for slot, m in self._mail.items() if m}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take up what was under way."""
        self._mail = {
            int(name.removeprefix("mail-")): [*rows] for name, rows in state.items()
        }

    def summary(self) -> list[str]:
        """Describe the settings, a line each."""
        graph = self.graph
        sizes = sorted(map(len, graph.pools))
        return [
            *lines_of(self.study),
            f"no centre: {len(graph.edges)} edges, messages travel {graph.hops} of at "
            f"most {graph.diameter} hops, {graph.streams} estimators an agent",
            f"an agent adds up the sums of its {graph.pooling}, {sizes[0]} to "
            f"{sizes[-1]} agents; {len(graph.cliques)} cliques cover the graph: the "
            f"paper's bound on regret is {graph.regret_factor:.3g} times a centre's",
        ]


_HEADER = np.dtype([("origin", "<i8"), ("number", "<i8"), ("hops", "<i8")])


@dataclass(frozen=True, eq=False)
class PeerMessage:
    """One agent's private sums, under way.

    Attributes
    ----------
    origin : int
        The slot of the agent that released them.
    number : int
        Number of the synchronisation, from 1.
    hops : int
        Number of hops that it still has to go from where it is now heard.
    release : ndarray of shape ``ContinualSettings.sum_shape``
        Private running sums, as `ContinualRelease.release` returned them.
    """

    origin: int
    number: int
    hops: int
    release: FloatArray

    def to_bytes(self) -> Bytes:
        """Return the message as bytes, shape (L,): numbers are little-endian."""
        header = np.array([(self.origin, self.number, self.hops)], _HEADER).tobytes()
        rows, columns = np.triu_indices(self.release.shape[-1])
        entries = self.release[..., rows, columns].astype("<f8").tobytes()
        return np.frombuffer(header + entries, dtype=np.uint8)

    @classmethod
    def from_bytes(
        cls, content: Any, settings: ContinualSettings, graph: PeerGraph
    ) -> PeerMessage:
        """Return the message that ``to_bytes`` wrote.

        Raises
        ------
        ValueError
            If it is none, or none that an honest agent sends.
        """
        shape, length = settings.sum_shape, message_length(settings)
        rows, columns = np.triu_indices(shape[-1])
        is_valid = isinstance(content, np.ndarray) and content.dtype == np.uint8
        is_valid = is_valid and content.shape == (length,)
        require(is_valid, "message", np.shape(content), f"{length} bytes")
        text = content.tobytes()
        origin, number, hops = map(int, np.frombuffer(text, _HEADER, count=1)[0])
        is_valid = 0 <= origin < graph.num_agents and 0 <= hops < graph.hops
        is_valid = is_valid and 1 <= number <= settings.max_releases
        header = (origin, number, hops)
        require(is_valid, "message", header, "of an agent, a synchronisation, a hop")
        entries = np.frombuffer(text, "<f8", offset=_HEADER.itemsize)
        release = np.zeros(shape)
        entries = entries.reshape(*shape[:-2], len(rows))
        release[..., rows, columns] = release[..., columns, rows] = entries
        is_valid = is_release(release, settings)
        require(
            is_valid, "message", "its numbers", "a sum that an honest agent may release"
        )
        return cls(origin, number, hops, release)


def message_length(settings: ContinualSettings) -> int:
    """Return how many bytes a message has: the same for all, whatever is in it."""
    size = settings.dimension + 1
    return _HEADER.itemsize + 8 * settings.num_streams * size * (size + 1) // 2
