"""A Flower `Grid` whose nodes live on this machine: no SuperLink, no Ray.

For tests, experiments and a first run. Every message is answered by the `ClientApp` at
once, in this process or in workers. Messages and replies are copied as Flower's
serialisation does it: no client sees what another, or the server, does to its records.
"""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from flwr.app import Context, Error, Message, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from flwr_fbo._common.conversion import plain
from flwr_fbo._common.validation import require, require_int
from flwr_fbo._compat import CLIENT_APP_RAISED, Run, delivered, ensure_task_identity
from flwr_fbo.tuning.search.agent import Agent
from flwr_fbo.tuning.search.agents_at_once import run_together
from flwr_fbo.tuning.search.study import TuningStudy
from flwr_fbo.tuning.site.tuning_journals import kept_agent

_FIRST_NODE_ID = 1001

# Nodes that a worker answers for at a time: at most so many, and each worker gets a
# few turns, so that one which is done early does not wait for the others.
_LARGEST_BATCH, _TURNS = 100, 4

# A node's context, and messages to it or its replies to them.
_Job = tuple[Context, list[Message]]


class InProcessGrid(Grid):
    """Nodes 0 to N - 1 in one process, with ``partition-id`` as in Flower's engine.

    With workers the nodes' contexts stay here, and travel with the messages: results
    are the same to the last bit, however many workers there are. What a client keeps
    in variables of its own does not come back from a worker.

    Examples
    --------
    >>> from optuna.distributions import FloatDistribution
    >>> from flwr_fbo import FTS, InProcessGrid, tuning_app
    >>> app = tuning_app(lambda context: lambda trial: -abs(trial["x"] - 0.3))
    >>> grid = InProcessGrid(app, num_nodes=4)
    >>> strategy = FTS({"x": FloatDistribution(0, 1)}, "maximize", num_agents=4)
    >>> result = strategy.start(grid, num_rounds=2)
    >>> result.rounds[0].answered
    4

    Parameters
    ----------
    client_app : ClientApp
        App that answers the messages of all nodes.
    num_nodes : int
        Number N >= 1 of nodes.
    run_config : dict, optional
        ``context.run_config`` of every client.
    node_configs : sequence of dict, optional
        Node config of each node; replaces ``partition-id`` and ``num-partitions``.
    num_workers : int
        Number of processes that answer, >= 1, with one BLAS thread each; 1 is this
        process.

    Attributes
    ----------
    contexts : dict of int to Context
        Each node's context, state included, by node id.
    is_complete : bool
        True: no other node will come, and nobody need wait for one.
    """

    is_complete = True

    def __init__(
        self,
        client_app: ClientApp,
        num_nodes: int,
        *,
        run_config: UserConfig | None = None,
        node_configs: Sequence[UserConfig] | None = None,
        num_workers: int = 1,
    ) -> None:
        require(callable(client_app), "client_app", client_app, "a ClientApp")
        num_nodes, num_workers = plain(num_nodes), plain(num_workers)
        require_int("num_nodes", num_nodes, 1)
        require_int("num_workers", num_workers, 1)
        ensure_task_identity()
        if node_configs is None:
            node_configs = [
                {"partition-id": i, "num-partitions": num_nodes}
                for i in range(num_nodes)
            ]
        node_configs = list(node_configs)
        is_valid = len(node_configs) == num_nodes
        require(is_valid, "node_configs", node_configs, f"one a node, {num_nodes}")
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
        self._num_workers = num_workers
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
        asked = list(messages)
        ids = [f"message-{next(self._numbers)}" for _ in asked]
        for message, message_id in zip(asked, ids, strict=True):
            message.metadata.__dict__["_message_id"] = message_id
        by_node: dict[int, list[Message]] = {}
        for message in asked:
            by_node.setdefault(message.metadata.dst_node_id, []).append(message)
        jobs = [(self.contexts[node], sent) for node, sent in by_node.items()]
        for context, replies in self._done(jobs):
            self.contexts[context.node_id] = context
            # By what was asked: a mod such as LocalDpMod answers another message.
            for message, reply in zip(by_node[context.node_id], replies, strict=True):
                self._replies[message.metadata.message_id] = reply
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies, once each."""
        return [self._replies.pop(i) for i in list(message_ids) if i in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Return the replies to ``messages``; they are there at once."""
        return self.pull_messages(self.push_messages(messages))

    def agents(self, study: TuningStudy) -> list[Agent]:
        """Return the agents of ``study`` as they are now, in slot order.

        Only an experiment can do this: in a deployment nobody but the client sees its
        agent.
        """
        found = (kept_agent(context, study) for context in self.contexts.values())
        agents = [agent for agent in found if agent is not None]
        return sorted(agents, key=lambda agent: agent.slot)

    def _done(self, jobs: Sequence[_Job]) -> Iterator[_Job]:
        """Have messages answered, here or by workers; replies take their place."""
        if self._num_workers == 1:
            yield from _answer_all(self._client_app, jobs)
            return
        size = -(-len(jobs) // (_TURNS * self._num_workers))
        size = max(1, min(size, _LARGEST_BATCH))
        batches = (jobs[i : i + size] for i in range(0, len(jobs), size))
        from joblib import Parallel, delayed, parallel_config

        with parallel_config("loky", inner_max_num_threads=1):
            workers = Parallel(self._num_workers, return_as="generator", batch_size=1)
            done = workers(delayed(_answer_batch)(self._client_app, b) for b in batches)
            yield from itertools.chain.from_iterable(done)


def _answer_batch(client_app: ClientApp, jobs: Sequence[_Job]) -> list[_Job]:
    """Have messages answered in a worker."""
    ensure_task_identity()
    return list(_answer_all(client_app, jobs))


def _answer_all(client_app: ClientApp, jobs: Iterable[_Job]) -> Iterator[_Job]:
    """Have messages answered in this process, by nodes that wait for each other."""

    def answers(context: Context, asked: Sequence[Message]) -> _Job:
        return context, [_answer(client_app, message, context) for message in asked]

    return run_together(partial(answers, *job) for job in jobs)


def _answer(client_app: ClientApp, message: Message, context: Context) -> Message:
    """Have one message answered; neither side has records of the other."""
    asked = delivered(message)
    try:
        return delivered(client_app(asked, context))
    except (Exception, SystemExit):  # elsewhere a client is another process
        error = Error(CLIENT_APP_RAISED, traceback.format_exc())
        return Message(error, reply_to=message)
