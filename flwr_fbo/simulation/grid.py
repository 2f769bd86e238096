"""A Flower `Grid` whose nodes live in this process: no SuperLink, no Ray.

For tests, experiments and a first run. Every message is answered by the `ClientApp` at
once; the payloads are the bytes that would travel.
"""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Iterable, Sequence

import numpy as np
from flwr.app import Context, Error, Message, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from flwr_fbo._compat import CLIENT_APP_RAISED, Run, ensure_task_identity
from flwr_fbo._validation import require_int
from flwr_fbo.agents.base import Agent
from flwr_fbo.agents.record import load_agent
from flwr_fbo.agents.study import Study
from flwr_fbo.clients.session import open_journal, taken_slot

_FIRST_NODE_ID = 1001


class InProcessGrid(Grid):
    """Nodes 0 to N - 1 in one process, with ``partition-id`` as in Flower's engine.

    Parameters
    ----------
    client_app : ClientApp
    num_nodes : int
        N >= 1.
    run_config : dict, optional
        ``context.run_config`` of every client.
    node_configs : sequence of dict, optional
        One a node, in place of ``partition-id`` and ``num-partitions``.
    shuffle_seed : int, optional
        Shuffles the replies, which no result may depend on.

    Attributes
    ----------
    contexts : dict of int to Context
        Each node's context, state included, by node id.
    """

    def __init__(
        self,
        client_app: ClientApp,
        num_nodes: int,
        *,
        run_config: UserConfig | None = None,
        node_configs: Sequence[UserConfig] | None = None,
        shuffle_seed: int | None = None,
    ) -> None:
        require_int("num_nodes", num_nodes, 1)
        ensure_task_identity()
        if node_configs is None:
            node_configs = [
                {"partition-id": i, "num-partitions": num_nodes}
                for i in range(num_nodes)
            ]
        self.contexts = {
            _FIRST_NODE_ID + i: Context(
                run_id=1,
                node_id=_FIRST_NODE_ID + i,
                node_config=dict(node_config),
                state=RecordDict(),
                run_config=dict(run_config or {}),
            )
            for i, node_config in enumerate(node_configs)
        }
        self._client_app = client_app
        self._shuffle = None
        if shuffle_seed is not None:
            self._shuffle = np.random.default_rng(shuffle_seed)
        self._numbers = itertools.count(1)
        self._replies: dict[str, Message] = {}
        self._run = Run.create_empty(1)

    def set_run(self, run: Run) -> None:
        """Set the run, for completeness: nothing here depends on it."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Return a new message."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all nodes."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Have each message answered; return the messages' ids."""
        ids = []
        for message in messages:
            message_id = f"message-{next(self._numbers)}"
            message.metadata.__dict__["_message_id"] = message_id
            self._replies[message_id] = self._answer(message)
            ids.append(message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies, once each."""
        wanted = list(message_ids)
        replies = [self._replies.pop(i) for i in wanted if i in self._replies]
        if self._shuffle is not None:
            order = self._shuffle.permutation(len(replies))
            replies = [replies[i] for i in order]
        return replies

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Return the replies to ``messages``; they are there at once."""
        return self.pull_messages(self.push_messages(messages))

    def agents(self, study: Study) -> list[Agent]:
        """Return the agents of ``study`` as they are now, in slot order.

        Only an experiment can do this: in a deployment nobody but the client sees its
        agent.
        """
        agents = []
        for context in self.contexts.values():
            slot = taken_slot(context, study)
            if slot >= 0:
                with open_journal(context, study, slot) as journal:
                    agents.append(load_agent(journal, study, slot))
        return sorted(agents, key=lambda agent: agent.slot)

    def _answer(self, message: Message) -> Message:
        context = self.contexts[message.metadata.dst_node_id]
        # The client's own copy of the records: a fault of one stays with one.
        copy = Message(
            RecordDict(dict(message.content)),
            message.metadata.dst_node_id,
            message.metadata.message_type,
            ttl=message.metadata.ttl,
            group_id=message.metadata.group_id,
        )
        copy.metadata.__dict__["_message_id"] = message.metadata.message_id
        try:
            return self._client_app(copy, context)
        except Exception:
            error = Error(CLIENT_APP_RAISED, traceback.format_exc())
            return Message(error, reply_to=copy)
