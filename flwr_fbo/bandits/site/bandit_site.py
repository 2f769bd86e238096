"""A site of bandit studies: one agent, and perhaps an environment that it plays in."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from flwr.app import Context

from flwr_fbo._common.errors import AppFailedError, NodeConfigError, OutOfTimeError
from flwr_fbo._common.validation import check_folder, require_function
from flwr_fbo.bandits.site.environment import BanditEnvironment
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalError, has_journal
from flwr_fbo.privacy.spending_ledger import StudyKey
from flwr_fbo.site.gate import Gate
from flwr_fbo.site.recorded_agent import (
    NO_SLOT,
    RecordedBanditAgent,
    of_another_slot,
)
from flwr_fbo.site.site import Metrics, Site
from flwr_fbo.site.site_journal import configured_slot, held_journal, record_name
from flwr_fbo.site.study_journals import (
    has_begun,
    note_last_study,
    study_journal,
)
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
    folder : str or Path, optional
        Folder of the site's journals; by default that of the node or run config.
    make_environment : callable, optional
        Environment that the client plays in. Without one the site decides by itself,
        through a policy, and the client only synchronises.
    """

    folder: str | Path | None = None
    make_environment: MakeEnvironment | None = None

    @property
    @abstractmethod
    def recorded(self) -> type[BanditT]:
        """The type of the agent that it keeps; loaded when it is asked for."""

    def check_fields(self) -> None:
        """Raise ValueError if an attribute is not allowed."""
        check_folder("folder", self.folder)
        require_function("make_environment", self.make_environment, optional=True)
        self.check_limits()

    def folder_of(self, context: Context) -> Path | None:
        """Return where the site's journal is, if that is a folder."""
        own = self.folder
        return super().folder_of(context) if own is None else Path(own)

    @property
    def only_private(self) -> bool:
        """Whether it takes part in private studies only, without limits too.

        So does a site that decides by itself, unless it has a limit on epsilon.
        """
        limited = self.limits is not None and (
            self.limits.max_epsilon_per_example is not None
        )
        return self.make_environment is None and not limited

    def check_place(self, context: Context, advice: str) -> None:
        """Raise `NodeConfigError` if there is neither folder nor environment."""
        if self.make_environment is None and self.folder_of(context) is None:
            raise NodeConfigError.told(
                f"This site has no folder for its policy: give {advice} one, or its "
                "node config an fbo-folder."
            )

    def uniform_share(self, study: Any) -> float:
        """Return the largest share of decisions that have no regard to rewards.

        That is the study's ``largest_uniform_share``; all of them where it says none.
        """
        share: float = getattr(study, "largest_uniform_share", 1.0)
        return share

    def check(self, context: Context, study: Any, gate: Gate) -> None:
        """Raise `RefusedError` where sums are wanted, and there is no noise."""
        gate.check_no_sums(study.promise)

    def slot_of(self, context: Context, study: Any) -> int:
        """Return the slot that the site knows it holds, or -1."""
        return configured_slot(context)

    def claim(
        self, context: Context, study: Any, folder: Path | None, gate: Gate
    ) -> Metrics:
        """Return the slot of the node config, else the one played in this study, or -1.

        And the journal's number, where releases will be in it that must not be lost. A
        file is begun with the first round: a server may enrol without end.
        """
        with self._looked_at(context, study, folder, gate) as agent:
            slot = self.slot_of(context, study)
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
        gate: Gate,
    ) -> Iterator[BanditT]:
        """Hold the site's agent, as the one that the server names."""
        study = instruction.study
        known = self.slot_of(context, study)
        if known not in (NO_SLOT, instruction.slot):
            raise of_another_slot(known, instruction.slot)
        may_begin = not self.recorded.must_be_kept(study)
        key = self.recorded.kind, study.study_id
        # Without a folder it was begun while the site enrolled.
        if folder is not None and not has_journal(study_journal(folder, *key)):
            is_known = instruction.journal == gate.number("journal", *key)
            is_lost = _is_lost(folder, key, gate)
            may_begin = may_begin or (is_known and not is_lost)
        with self._held(context, study, folder, gate, may_begin) as agent:
            agent.join(instruction.slot, instruction.journal)
            yield agent

    @contextmanager
    def _looked_at(
        self, context: Context, study: Any, folder: Path | None, gate: Gate
    ) -> Iterator[BanditT]:
        """Hold the agent of a study, or one that could be; no file is begun."""
        kind = self.recorded.kind
        path = folder and study_journal(folder, kind, study.study_id)
        if path is None or has_journal(path):
            with self._held(context, study, folder, gate, True) as agent:
                yield agent
            return
        with Journal(self.recorded.identity_of(study)) as journal:
            agent, key = self.agent_in(journal, study, context), (kind, study.study_id)
            assert folder is not None
            if not _is_lost(folder, key, gate):  # else it says another number
                agent.take_number(lambda: gate.number("journal", *key))
            yield agent

    @contextmanager
    def _held(
        self,
        context: Context,
        study: Any,
        folder: Path | None,
        gate: Gate,
        may_begin: bool,
    ) -> Iterator[BanditT]:
        kind = self.recorded.kind
        with held_journal(
            context,
            self.recorded.identity_of(study),
            folder and study_journal(folder, kind, study.study_id),
            record=record_name(kind),
            may_begin=may_begin,
            patience=_PATIENCE,
        ) as journal:
            agent = self.agent_in(journal, study, context)
            key = kind, study.study_id
            if folder is not None and not has_begun(folder, *key):
                # A journal that has begun has its number: an empty one is another.
                agent.take_number(lambda: gate.number("journal", *key))
            if folder is not None:
                note_last_study(folder, *key)
            yield agent

    def agent_in(self, journal: Journal, study: Any, context: Context) -> BanditT:
        """Return the agent of a study's journal."""
        made: Any = self.recorded
        agent: BanditT = made(journal, study)
        return agent


def _is_lost(folder: Path, key: StudyKey, gate: Gate) -> bool:
    """Return whether a study's journal that is not there had been begun."""
    return has_begun(folder, *key) or gate.has_charged(key)


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
