"""How the messages of a release come to the server: each, or their sum alone."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flwr.app import Message

from flwr_fbo.privacy.release import PlannedRelease
from flwr_fbo.privacy.secure_release import SecureRelease, SecureTotal
from flwr_fbo.protocol.codec import Phase
from flwr_fbo.protocol.secure_sums import SecureSums
from flwr_fbo.protocol.tuning_settings import SearchSettings
from flwr_fbo.protocol.tuning_study import TuningInstruction, TuningStudy
from flwr_fbo.secure_sum.roster import digest_of
from flwr_fbo.secure_sum.terms import SumFailedError
from flwr_fbo.servers.base import Step
from flwr_fbo.servers.dp_fts_de import DistributedExplorationServer
from flwr_fbo.strategies.secure_aggregation import (
    NO_ROSTER,
    SecureAggregation,
    check_pinned,
)
from flwr_fbo.strategies.secure_exchanges import SecureExchanges
from flwr_fbo.strategies.tuning_strategy import TuningStrategy

_log = logging.getLogger("flwr.fbo")


class CollectingStrategy(TuningStrategy):
    """Base of `PrivateTuningStrategy`: collects messages, or has the sites sum them.

    Parameters
    ----------
    server : DistributedExplorationServer
    study : TuningStudy
    aggregation : SecureAggregation or None
        How the sites sum their messages; None: the server reads each.
    min_answers : int or None
        Number of agents that must answer before a release; see `Privacy`.
    **options
        See `TuningStrategy` and `StudyStrategy`.
    """

    server: DistributedExplorationServer

    def __init__(
        self,
        server: DistributedExplorationServer,
        study: TuningStudy,
        aggregation: SecureAggregation | None,
        min_answers: int | None,
        /,
        **options: Any,
    ) -> None:
        super().__init__(server, study, **options)
        self._least_answers = min_answers
        self._aggregation = aggregation
        self._exchanges: SecureExchanges | None = None
        if aggregation is not None:
            roster = aggregation.load_roster()
            for slots in self._groups():  # so that what does not fit is said at once
                aggregation.group(slots)
                check_pinned(roster, slots)
            self._exchanges = SecureExchanges(server, roster, self._ask_in_sum)

    @property
    def _agent(self) -> SearchSettings:
        agent = self.study.agent
        assert isinstance(agent, SearchSettings)
        return agent

    # What the server reads in a message.
    _readable = (
        "what it believes of its objective, and so about where its best setting lies"
    )

    def _groups(self) -> list[range]:
        """Return the slots whose messages are summed together, group by group."""
        return [range(self.server.num_agents)]

    def _plan_sums(self, release: PlannedRelease) -> PlannedRelease:
        """Tell the sites how their messages are summed; return the mechanism."""
        if self._aggregation is None:
            return release
        assert isinstance(release, SecureRelease)
        assert self._exchanges is not None
        groups = tuple(map(self._aggregation.group, self._groups()))
        secure = SecureSums(
            release.settings,
            self._agent.num_features,
            groups,
            digest_of(self._exchanges.roster),
        )
        for group in range(len(groups)):
            secure.noise(group)  # which names what does not fit
        self.study = replace(self.study, secure=secure)
        return release.with_excess(max((g.excess for g in groups), default=1.0))

    def _trust(self) -> list[str]:
        """Return what the server learns of a site."""
        if self._exchanges is None:
            readable = self._readable
            return [
                f"the server is trusted: it reads in each agent's message {readable}"
            ]
        assert self._aggregation is not None
        lines = [
            "secure aggregation: the server learns the noisy sum, and who answered",
            # A site knows its own noise.
            "epsilon holds against the server with at most "
            f"{self._aggregation.colluding} colluding agents",
        ]
        if self._exchanges.roster is None:
            lines.append(f"WARNING: {NO_ROSTER}")
        return lines

    @abstractmethod
    def _is_charged(self, step: Step) -> bool:
        """Record a release that is about to leave; return whether it may."""

    def _contributions(
        self, step: Step, answers: Mapping[int, Message]
    ) -> Mapping[int, Any] | SecureTotal | None:
        """Return all messages of the open release, once enough agents have answered.

        Or their sum, where the agents sum them.
        """
        if not step.release:
            return None
        for slot, reply in answers.items():
            if slot not in self._collected:
                self._collected[slot] = self._read(slot, reply, step)
        needed, answered = self._min_answers, len(self._collected)
        if answered < needed:
            _log.warning(
                "Release %d is postponed, at no epsilon: %d agents have answered, and "
                "min_answers=%d are needed.",
                step.release,
                answered,
                needed,
            )
            return None
        self._warn_of_few(step, answered)
        if not self._is_charged(step):
            return None
        if self._exchanges is not None:
            sums, about = self.study.secure, self.study.text
            assert sums is not None
            try:
                summed = self._exchanges.sum_of(sums, about, *self._named_sum(step))
            except SumFailedError as error:
                _log.warning("The release is postponed, at no epsilon: %s", error)
                return None
            self._collected = {}
            return summed
        collected, self._collected = self._collected, {}
        return dict(sorted(collected.items()))

    def _warn_of_few(self, step: Step, num_answered: int) -> None:
        """Say what a release of fewer agents than planned costs, and can tell."""
        planned = self._num_senders
        share = num_answered / planned
        if share < self._min_agents / self.server.num_agents:
            _log.warning(
                "Release %d is of %d of the %d agents that it was planned for: it "
                "costs as much epsilon as planned, and what it says stands out of the "
                "noise %.2g times as much. Privacy(min_answers=...) postpones such a "
                "release, at no epsilon.",
                step.release,
                num_answered,
                planned,
                share,
            )

    @property
    def _num_senders(self) -> int:
        """Number of agents that the open release is planned for."""
        return self.server.num_agents

    def _read(self, slot: int, reply: Message, step: Step) -> Any:
        """Return the message in a reply; there is none where the sites sum them."""
        return None if self._exchanges is not None else super()._read(slot, reply, step)

    def _receive(self, step: Step, contributions: Any) -> None:
        if not isinstance(contributions, SecureTotal):
            super()._receive(step, contributions)
            return
        assert self.study.secure is not None
        _, group = self._named_sum(step)
        noise = self.study.secure.noise(group)
        self.server.receive_sum(step, noise, contributions)

    def _named_sum(self, step: Step) -> tuple[int, int]:
        """Return the number of a step's release at its sites, and their group."""
        return step.release, 0

    def _ask_in_sum(
        self, release: int, exchange: int, attempt: int, requests: Mapping[int, Any]
    ) -> dict[int, Any]:
        """Send one exchange of a secure sum; return the replies by slot.

        What could be unmasked is on disk first.
        """
        if self.server.open_sum:
            self._commit(is_round_done=False)
        step = self._step
        planned = self.server.iterations[step.release - 1]
        configs = {
            slot: TuningInstruction(
                phase=Phase.SUM,
                study=self.study,
                slot=slot,
                iteration=step.iteration,
                release=release,
                num_released=len(self.server.ledger),
                exchange=exchange,
                attempt=attempt,
                planned=planned,
            ).to_config()
            for slot in requests
        }
        return self._exchange(requests, configs)

    @property
    def _min_answers(self) -> int:
        if self.study.secure is not None:
            _, group = self._named_sum(self._step)
            return self.study.secure.groups[group].min_summed
        least = self._least_answers
        return -(-len(self._enrolment.slots) // 2) if least is None else least
