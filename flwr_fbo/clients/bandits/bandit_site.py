"""A site of bandit studies: one agent, and perhaps an environment that it plays in."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from flwr.app import Context

from flwr_fbo.algorithms.search.trial import AppFailedError, OutOfTimeError
from flwr_fbo.clients.bandits.bandit_files import bandit_journal, note_last_study
from flwr_fbo.clients.bandits.environment import BanditEnvironment
from flwr_fbo.clients.recorded_agent import (
    NO_SLOT,
    RecordedBanditAgent,
    of_another_slot,
)
from flwr_fbo.clients.site import Metrics, Site
from flwr_fbo.clients.site_charges import SiteCharges
from flwr_fbo.clients.site_journal import configured_slot, held_journal, record_name
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.study.codec import Instruction

MakeEnvironment = Callable[[Context], BanditEnvironment]
MadeT = TypeVar("MadeT")
AskedT = TypeVar("AskedT", bound=Instruction)
BanditT = TypeVar("BanditT", bound=RecordedBanditAgent)

# Seconds to wait while a policy of the site has the journal: for the time of one call.
_PATIENCE = 30.0


class BanditSite(Site[AskedT, BanditT]):
    """Base of the sites of bandits: one journal a study.

    Attributes
    ----------
    recorded : type
        Type of the agent that it keeps.
    """

    @property
    @abstractmethod
    def recorded(self) -> type[BanditT]:
        """The type of the agent that it keeps; loaded when it is asked for."""

    def uniform_share(self, study: Any) -> float:
        """Return the largest share of decisions that have no regard to rewards."""
        share: float = study.largest_uniform_share
        return share

    def check(self, context: Context, study: Any, charges: SiteCharges) -> None:
        """Raise `RefusedError` where sums are wanted, and there is no noise."""
        charges.check_no_sums(study.promise)

    def claim(
        self, context: Context, study: Any, folder: Path | None, charges: SiteCharges
    ) -> Metrics:
        """Return the slot of the node config, else the one played in this study, or -1.

        And the journal's number, where releases are in it that must not be lost.
        """
        with self._held(context, study, folder, may_begin=True) as agent:
            slot = configured_slot(context)
            claim: Metrics = {"agent-id": agent.slot if slot < 0 else slot}
            if not agent.must_be_kept(study):
                return claim
            agent.entropy()  # without which it could release nothing
            return {**claim, "journal": agent.number}

    @contextmanager
    def agent(
        self,
        context: Context,
        instruction: Any,
        folder: Path | None,
        charges: SiteCharges,
    ) -> Iterator[BanditT]:
        """Hold the site's agent, as the one that the server names."""
        study, known = instruction.study, configured_slot(context)
        if known not in (NO_SLOT, instruction.slot):
            raise of_another_slot(known, instruction.slot)
        may_begin = not self.recorded.must_be_kept(study)
        with self._held(context, study, folder, may_begin) as agent:
            agent.join(instruction.slot, instruction.journal)
            yield agent

    @contextmanager
    def _held(
        self, context: Context, study: Any, folder: Path | None, may_begin: bool
    ) -> Iterator[BanditT]:
        kind = self.recorded.kind
        with held_journal(
            context,
            self.recorded.identity_of(study),
            folder and bandit_journal(folder, kind, study.study_id),
            record=record_name(kind),
            may_begin=may_begin,
            patience=_PATIENCE,
        ) as journal:
            if folder is not None:
                note_last_study(folder, kind, study.study_id)
            yield self.agent_in(journal, study, context)

    def agent_in(self, journal: Journal, study: Any, context: Context) -> BanditT:
        """Return the agent of a study's journal."""
        made: Any = self.recorded
        agent: BanditT = made(journal, study)
        return agent


@contextmanager
def playing(make: Callable[[Context], MadeT], context: Context) -> Iterator[MadeT]:
    """Make an environment; what goes wrong while it is played may quote trials."""
    try:
        yield make(context)
    except (JournalError, OutOfTimeError):
        raise
    except Exception as error:
        raise AppFailedError.told(
            f"The environment failed: {type(error).__name__}."
        ) from error
