"""Peer-to-peer FedUCB (Dubey & Pentland, NeurIPS 2020) as a Flower strategy."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flwr.app import ArrayRecord, Message

from flwr_fbo._common.conversion import takes_plain
from flwr_fbo._common.validation import require, require_instance
from flwr_fbo._compat import reply_arrays, reply_metrics, to_array_record
from flwr_fbo.bandits.decentralized_fed_ucb.server import (
    DecentralizedFedUCBServer,
    PeerReply,
)
from flwr_fbo.bandits.kind import PEER_SERVER
from flwr_fbo.bandits.linear.peer_graph import PeerGraph
from flwr_fbo.bandits.linear.settings import LinearUCBSettings
from flwr_fbo.bandits.linear.study import LinearBanditStudy
from flwr_fbo.strategies.linear_bandit_strategy import (
    LinearBanditStrategy,
    TrialSchedule,
    check_trigger,
)
from flwr_fbo.study.server import Step

_log = logging.getLogger("flwr.fbo")


class DecentralizedFedUCB(LinearBanditStrategy):
    """Federated linear bandits without a centre: agents talk along a graph.

    Flower's server only forwards messages from neighbour to neighbour, one hop a round;
    nothing is encrypted. Sites by the clock (``interval``), agents with an
    environment (``schedule``), and the paper's trigger are as in `FedUCB`; the clients
    are the same.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fbo import DecentralizedFedUCB, InProcessGrid, linear_bandit_app
    >>> from flwr_fbo.bandits import ContinualSettings, LinearUCBSettings, PeerGraph
    >>> class Ward:
    ...     def contexts(self, t):
    ...         return np.eye(3)  # the actions of trial t
    ...     def reward(self, x):
    ...         return float(x @ [0.2, 0.3, 0.8])
    >>> app = linear_bandit_app(make_environment=lambda context: Ward())
    >>> releases = ContinualSettings(
    ...     num_releases=2, dimension=3, epsilon=4.0, delta=1e-5
    ... )
    >>> strategy = DecentralizedFedUCB(
    ...     LinearUCBSettings(releases, "own"),
    ...     PeerGraph.named("ring", 6),
    ...     schedule=[10, 20],
    ... )
    >>> result = strategy.start(InProcessGrid(app, num_nodes=6))
    >>> strategy.server.num_releases
    [2, 2, 2, 2, 2, 2]

    Parameters
    ----------
    settings : LinearUCBSettings
        Settings of all agents. ``releases`` are those of each agent; the strategy sets
        their streams.
    graph : PeerGraph
        The graph of the agents, and how far messages travel: gamma hops.
    interval : float, optional
        Seconds before each synchronisation, from 0 to ten years. The gamma rounds after
        it carry its messages. There are (gamma + 1) n + 1 rounds; the first one enrols
        the sites.
    schedule : sequence of int, or DeterminantTrigger, optional
        Numbers of trials after which agents send their sums, at least gamma apart.
        There is one round for each of them and for each of the gamma trials after it. A
        last round plays on up to ``num_trials``. Or the paper's trigger, with one trial
        a round and the threshold D / (1 + L^2): *not private*.
    num_trials : int, optional
        Number T of trials of an agent; by default, and at least, gamma after the last
        synchronisation. Only with a list as ``schedule``.
    noise_seed : int, optional
        Seed, >= 0, of the agents' noise, *for experiments only*: the study is then not
        private. By default the operating system draws the noise.
    allow_large_delta : bool
        Whether delta may be 0.01 and more where the noise is real: for experiments.

    Raises
    ------
    ValueError
        If an argument is not allowed; the message names it.

    Notes
    -----
    *Formal guarantees*: those of `FedUCB`, for one trial of one agent replaced by
    another, against the server, all other agents, and whoever reads what passes. The
    estimators of an agent learn from different trials, so that they share one epsilon.
    Who can hear whom, and when, is public. Messages are not signed: whoever carries
    one can change it, which spoils estimates, not privacy. A message that is lost, with
    an agent that is away in the round, is not sent again: the next one takes its place.
    """

    server: DecentralizedFedUCBServer
    record_kind = PEER_SERVER

    @takes_plain
    def __init__(
        self,
        settings: LinearUCBSettings,
        graph: PeerGraph,
        *,
        interval: float | None = None,
        schedule: TrialSchedule | None = None,
        num_trials: int | None = None,
        noise_seed: int | None = None,
        allow_large_delta: bool = False,
    ) -> None:
        trigger = check_trigger(settings, schedule)
        require_instance("graph", graph, PeerGraph)
        releases = replace(settings.releases, num_streams=graph.streams)
        settings = replace(settings, releases=releases)
        study = LinearBanditStudy(
            settings, graph.num_agents, trigger, noise_seed, graph
        )
        self._hops = graph.hops
        server = DecentralizedFedUCBServer(study)
        super().__init__(
            server,
            study,
            interval=interval,
            schedule=schedule,
            num_trials=num_trials,
            allow_large_delta=allow_large_delta,
        )
        # After how many trials there is a round, where there is a schedule.
        after = {t + hop for t in self._times for hop in range(self._hops + 1)}
        self._played = sorted(after | {self._num_trials}) if self._times else []

    def default_rounds(self) -> int:
        """Return as many as all planned synchronisations take.

        Raises
        ------
        ValueError
            If there is a trigger: its times are not known in advance.
        """
        require(self.study.trigger is None, "num_rounds", None, "given, with a trigger")
        planned = self.study.settings.releases.max_releases
        return len(self._played) if self._times else (self._hops + 1) * planned + 1

    def plan(self, horizon: int) -> None:
        """Refuse a number of rounds that leaves messages under way.

        Parameters
        ----------
        horizon : int
            T >= 1, the last iteration.
        """
        if self._times:
            wanted = len(self._played)
            require(horizon + 1 == wanted, "num_rounds", horizon + 1, f"{wanted}")
        elif self.study.trigger is None:
            rounds = self._hops + 1  # of a synchronisation
            most = rounds * self.study.settings.releases.max_releases
            is_whole = horizon % rounds == 0 and horizon <= most
            whole = f"1 more than a multiple of {rounds}, at most {most + 1}"
            require(is_whole, "num_rounds", horizon + 1, whole)

    def _decide(self, iteration: int) -> Step:
        return Step(iteration, self._asked_in(iteration)["synchronisation"])

    def _fields_for(self, step: Step) -> dict[str, Any]:
        return self._asked_in(step.iteration)

    def _asked_in(self, iteration: int) -> dict[str, int]:
        """Return what agents are asked in an iteration: the fields of an instruction.

        How many trials they have played then, if they have environments; which sums
        they send; and the last synchronisation whose messages have all arrived.
        """
        played = number = believed = 0
        if self._times:
            played = self._played[iteration]
            number = self._times.index(played) + 1 if played in self._times else 0
            believed = sum(t + self._hops <= played for t in self._times)
        elif self.study.trigger is not None:
            played = iteration + 1
        elif iteration > 0:
            number, hop = divmod(iteration - 1, self._hops + 1)
            believed = number + (hop == self._hops)
            number = 0 if hop else number + 1
        return {
            "num_trials": played,
            "synchronisation": number,
            "believed": believed,
        }

    def _outgoing(self, slots: Mapping[int, int], step: Step) -> dict[int, ArrayRecord]:
        """Return for each node what its neighbours have sent."""
        mail = {node: self.server.mail_for(slot) for node, slot in slots.items()}
        self.server.forget()
        return {node: to_array_record(arrays) for node, arrays in mail.items()}

    def _read(self, slot: int, reply: Message, step: Step) -> PeerReply:
        """Return the mail of a reply, unopened."""
        count: Any = reply_metrics(reply.content).get("num-releases")
        planned = self.study.settings.releases.max_releases
        is_count = type(count) is int and 0 <= count <= planned
        return _arrays_of(slot, reply), count if is_count else 0


def _arrays_of(slot: int, reply: Message) -> list[Any]:
    """Return what a reply has in place of arrays, whatever that is."""
    try:
        return list(reply_arrays(reply.content))
    except Exception as error:  # bytes of a stranger can fail in any way
        reason = type(error).__name__  # its text may quote them
        _log.warning("\t> agent %d: its messages are dropped: %s", slot, reason)
        return []
