"""What agents of DecentralizedFedUCB send to each other, as bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.validation import require
from flwr_fbo.algorithms.linear_bandit.peer_graph import PeerGraph
from flwr_fbo.privacy.continual_settings import ContinualSettings
from flwr_fbo.study.codec import is_release

Bytes = NDArray[np.uint8]


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
        How much farther it goes than to where it is now heard.
    release : ndarray of shape ``ContinualSettings.sum_shape``
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
        ok = isinstance(content, np.ndarray) and content.dtype == np.uint8
        ok = ok and content.shape == (length,)
        require(ok, "message", np.shape(content), f"{length} bytes")
        text = content.tobytes()
        origin, number, hops = map(int, np.frombuffer(text, _HEADER, count=1)[0])
        ok = 0 <= origin < graph.num_agents and 0 <= hops < graph.hops
        ok = ok and 1 <= number <= settings.max_releases
        header = (origin, number, hops)
        require(ok, "message", header, "of an agent, a synchronisation, a hop")
        entries = np.frombuffer(text, "<f8", offset=_HEADER.itemsize)
        release = np.zeros(shape)
        entries = entries.reshape(*shape[:-2], len(rows))
        release[..., rows, columns] = release[..., columns, rows] = entries
        ok = is_release(release, settings)
        require(ok, "message", "its numbers", "a sum that an honest agent may release")
        return cls(origin, number, hops, release)


def message_length(settings: ContinualSettings) -> int:
    """Return how many bytes a message has: the same for all, whatever is in it."""
    size = settings.dimension + 1
    return _HEADER.itemsize + 8 * settings.num_streams * size * (size + 1) // 2
