"""A tuning agent in its journal: what was evaluated, and which messages have left.

For each release the journal has its number, and the iteration that the agent's message
for it was made after. The message itself is not there. It is a function of the trials
up to that iteration and of the agent's seed (`Agent.message`), which are, so it is made
again when it is asked for again.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.algorithms.search.agent import Agent, play_round
from flwr_fbo.algorithms.search.study import TuningStudy, create_agent
from flwr_fbo.algorithms.search.trial import Objective
from flwr_fbo.clients.recorded_agent import RecordedAgent
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.space.search_space import Params

if TYPE_CHECKING:
    from flwr_fbo.clients.sum_member import SumMember
    from flwr_fbo.secure_sum.roster import Roster, SigningKey

KIND = "agent"


def agent_identity(study: TuningStudy, slot: int) -> dict[str, Any]:
    """Return whom the journal of an agent belongs to, as JSON values."""
    return {"kind": KIND, **study.fields, "slot": slot}


class RecordedTuner(RecordedAgent):
    """One tuning agent and its journal, while this process holds that.

    Parameters
    ----------
    journal : Journal
        With `agent_identity`.
    study : TuningStudy
    slot : int
    enqueue : sequence of dict
        Known-good settings, evaluated first.
    num_released : int, optional
        How many releases the server says that it has made.
    key : SigningKey, optional
        The site's in secure sums; with a roster.
    roster : Roster, optional
        The one that the site pins.

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
    """

    kind: ClassVar[str] = KIND

    def __init__(
        self,
        journal: Journal,
        study: TuningStudy,
        slot: int,
        enqueue: Sequence[Params] = (),
        num_released: int | None = None,
        key: SigningKey | None = None,
        roster: Roster | None = None,
    ) -> None:
        super().__init__(journal)
        if num_released is not None:
            self._hear(num_released)
        self.agent = self._agent(study, slot, enqueue)
        pairs = self._state.get("made-after", np.empty((0, 2), dtype=np.int64))
        self.made_after = {int(release): int(t) for release, t in pairs}
        self._key, self._roster = key, roster

    @cached_property
    def member(self) -> SumMember:
        """The agent's part in secure sums, which most studies have none of."""
        from flwr_fbo.clients.sum_member import SumMember

        return SumMember(self._state, self._put, self._key, self._roster)

    def _agent(self, study: TuningStudy, slot: int, enqueue: Sequence[Params]) -> Agent:
        seed = study.study_seed
        seed = secrets.randbits(128) if seed is None else seed
        agent = create_agent(study, slot, seed)
        if "points" not in self._state:
            agent.enqueue(enqueue)
            return agent
        agent.load_state_dict(self._state)
        # What was evaluated after the state was saved last, as each round began.
        for trial in self._journal.trials(first=len(agent.values)):
            if trial.state != "running":
                agent.tell(trial.iteration, trial.point, trial.value)
        return agent

    def _hear(self, num_released: int) -> None:
        """Remember how many releases the server has made, and refuse to hear of fewer.

        New noise for the same messages would lay them open.
        """
        had = int(self._state.get("num-released", 0))
        if num_released < had:
            raise JournalError(
                f"The server's record has {num_released} releases and had {had}: it is "
                "an older copy. Give the newer one back, or begin another study.",
                public="The server's record is an older copy.",
            )
        if num_released > had:
            self._put({"num-released": np.array(num_released)})

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
                f"Iteration {iteration} comes too late: {played} is on record. The "
                "server's record is an older copy.",
                public="The server's record is an older copy.",
            )
        last = max(self.made_after, default=0)
        if 0 < release < last:
            raise JournalError(
                f"Release {release} comes too late: {last} is on record.",
                public="A later release is on record.",
            )
        about = iteration, vectors, False, self._journal, made_after
        play_round(self.agent, objective, *about)
        if release:
            self.made_after[release] = iteration
            pairs = np.array([*self.made_after.items()])
            self._journal.put({"made-after": pairs})

    def message(self, release: int) -> FloatArray:
        """Return the message for a release that is on record, shape (M,)."""
        return self.agent.message(self.made_after[release])


def load_agent(
    journal: Journal, study: TuningStudy, slot: int, enqueue: Sequence[Params] = ()
) -> Agent:
    """Return the agent as its journal has it, or a new one."""
    return RecordedTuner(journal, study, slot, enqueue).agent


def recorded_agent(journal: Journal) -> Agent:
    """Return the agent that an existing journal belongs to.

    Raises
    ------
    JournalError
        If the journal is not an agent's.
    """
    journal.require_kind(KIND)
    identity = journal.identity
    return load_agent(journal, TuningStudy.from_dict(identity), identity["slot"])
