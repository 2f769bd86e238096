"""A tuning agent in its journal: what was evaluated, and which messages have left.

For each release the journal has its number, and the iteration that the agent's message
for it was made after. The message itself is not there. It is a function of the trials
up to that iteration and of the agent's seed (`Agent.message`), which are, so it is made
again when it is asked for again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.secure import SumIdentity
from flwr_fbo.site.recorded_agent import RecordedAgent
from flwr_fbo.space.search_space import Params
from flwr_fbo.tuning.search.agent import play_round
from flwr_fbo.tuning.search.agent_journal import KIND, load_agent
from flwr_fbo.tuning.search.study import TuningStudy
from flwr_fbo.tuning.search.trial import Objective


class RecordedTuner(RecordedAgent):
    """One tuning agent and its journal, while this process holds that.

    Parameters
    ----------
    journal : Journal
        With `agent_identity`.
    study : TuningStudy
        The study, as the server announced it.
    slot : int
        Slot of the agent, from 0.
    enqueue : sequence of dict
        Known-good settings, evaluated first.
    num_released : int, optional
        Number of releases that the server says it has made.
    identity : SumIdentity, optional
        The site's key and roster in secure sums; by default it has none.

    Raises
    ------
    JournalError
        If it had made more before: its record is an older copy.

    Attributes
    ----------
    agent : Agent
        As its journal has it, or a new one.
    made_after : dict of int to int
        For each release on record, from 1, the iteration of the agent's message.
    identity : SumIdentity
        The site's key and roster in secure sums.
    """

    kind: ClassVar[str] = KIND

    def __init__(
        self,
        journal: Journal,
        study: TuningStudy,
        slot: int,
        enqueue: Sequence[Params] = (),
        num_released: int | None = None,
        identity: SumIdentity | None = None,
    ) -> None:
        super().__init__(journal)
        had = int(self._state.get("num-released", 0))
        if num_released is not None and num_released < had:
            # New noise for the same messages would lay them open.
            raise JournalError(
                f"The server's record has {num_released} releases and had {had}: it is "
                "an older copy. Give the newer one back, or begin another study.",
                public="The server's record is an older copy.",
            )
        if num_released is not None and num_released > had:
            self._put({"num-released": np.array(num_released)})
        self.agent = load_agent(journal, study, slot, enqueue, self._state)
        pairs = self._state.get("made-after", np.empty((0, 2), dtype=np.int64))
        self.made_after = {int(release): int(t) for release, t in pairs}
        self.identity = SumIdentity() if identity is None else identity

    def take(self, vectors: FloatArray | None, made_after: int) -> None:
        """Keep what the server released, shape (P, M), and play nothing."""
        if vectors is not None:
            self.agent.receive(vectors, made_after)
            self._put(self.agent.state_dict())

    def play(
        self,
        objective: Objective,
        iteration: int,
        vectors: FloatArray | None,
        release: int,
        made_after: int = 0,
    ) -> None:
        """Play a round, and record its message for ``release`` unless that is 0.

        The ``vectors`` are of messages that were ``made_after`` an iteration.

        Raises
        ------
        JournalError
            If a later iteration, or the message for a later release, is on record.
        """
        played = max(self.agent.iterations, default=0)
        if iteration < played:  # else a message that has left would change
            raise JournalError(
                f"Round {iteration + 1} comes too late: {played + 1} is on record. The "
                "server's record is an older copy.",
                public="The server's record is an older copy.",
            )
        last = max(self.made_after, default=0)
        if 0 < release < last:
            raise JournalError(
                f"Release {release} comes too late: {last} is on record.",
                public="A later release is on record.",
            )
        play_round(
            self.agent,
            objective,
            iteration,
            vectors,
            send_message=False,
            journal=self._journal,
            made_after=made_after,
        )
        if release:
            self.made_after[release] = iteration
            pairs = np.array([*self.made_after.items()])
            self._journal.put({"made-after": pairs})

    def message(self, release: int) -> FloatArray:
        """Return the message for a release that is on record, shape (M,)."""
        return self.agent.message(self.made_after[release])
