"""The loop of every strategy: it starts a study, or goes on with a recorded one.

Once a round the server half decides what it does, in a `Step`; all else follows from
that and from who answers. Round r of Flower is iteration t = r - 1 of the server half,
in the run that begins a study; in one that goes on with it iterations are counted on.
People read and give rounds; algorithms, messages and ledger rows have iterations.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from flwr_fbo._common.conversion import takes_plain
from flwr_fbo._common.errors import RefusedError
from flwr_fbo._common.validation import (
    check_folder,
    require,
    require_instance,
    require_int,
    require_positive,
)
from flwr_fbo._compat import instruction_content, message_type, to_array_record
from flwr_fbo.privacy.accounting import PrivacySpent, terms_of
from flwr_fbo.site.receipts import ReceiptBook
from flwr_fbo.site.size_limits import check_config, check_steps, size_limits
from flwr_fbo.strategies.enrolment import (
    Enrolment,
    one_array,
)
from flwr_fbo.strategies.host import Host
from flwr_fbo.strategies.open_round import OpenRound
from flwr_fbo.strategies.result import StudyResult
from flwr_fbo.strategies.round_progress import RoundLog, ToldGrid
from flwr_fbo.strategies.secure_rounds import SecureRounds, SumPost
from flwr_fbo.strategies.study_record import (
    StudyProgress,
    StudyRecord,
    refuse_twin,
    tell_of_resuming,
)
from flwr_fbo.study.callbacks import Round, Started, tell, tell_of_end
from flwr_fbo.study.codec import RECEIPT_ENTRY, Instruction, Study, kind_of
from flwr_fbo.study.kinds import JournalKind, require_registered
from flwr_fbo.study.server import Server, Step

_log = logging.getLogger("flwr.fbo")

ResultT = TypeVar("ResultT", bound=StudyResult)


class StudyStrategy(Strategy, Generic[ResultT]):
    """Runs one server half over Flower's Message API.

    Who holds which slot is kept by an `Enrolment`, what must outlive the run by a
    `StudyRecord`, and what is said of the rounds by a `RoundLog`.

    Parameters
    ----------
    server : Server
        The algorithm's server half.
    study : Study
        The study's settings, which all agents are told.
    """

    # Of the results, and of the server's record.
    result_type: type[ResultT]
    record_kind: JournalKind
    # Metrics that clients can be asked to report.
    metrics: ClassVar[tuple[str, ...]] = ()

    def __init__(self, server: Server, study: Study) -> None:
        self.server = server
        self.study = study
        self._has_started = False
        # Of this run:
        self._host = Host()
        self._folder: Path | None = None
        self._grid: ToldGrid | None = None  # while `start` runs
        self._timeout = 3600.0
        self._enrolment = Enrolment(server.num_agents, self._host)
        self._record = StudyRecord(None, {})
        self._log = RoundLog("", 0, 1)
        self._rounds: list[Round] = []  # of the whole study
        self._up_to_date: set[int] = set()  # nodes that have the last release
        self._round = OpenRound(Step(-1))
        self._sums = SecureRounds()  # none, unless a strategy has them

    @takes_plain
    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        *,
        folder: str | Path | None = None,
        host: Host | None = None,
    ) -> ResultT:
        """Run the study.

        Parameters
        ----------
        grid : Grid
            Grid of Flower, with the nodes of the sites.
        initial_arrays : ArrayRecord, optional
            Must be empty: the server itself releases the first vectors.
        num_rounds : int, optional
            Number of Flower's rounds, >= 2: iterations 0 to ``num_rounds - 1``. See
            `default_rounds`.
        timeout : float
            Seconds, > 0, to wait for the replies of a round. A missing reply counts as
            zero.
        train_config : ConfigRecord, optional
            Extra config that is sent to the clients.
        evaluate_config : ConfigRecord, optional
            Not used: there is no model for clients to evaluate.
        evaluate_fn : callable, optional
            Called by Flower with the released vectors after each round.
        folder : str or Path, optional
            Absolute path of the folder with the server's durable record, one folder a
            study. If the run is killed, a new run with the same folder and settings
            continues after the last completed round.
        host : Host, optional
            How the study is hosted: which agents it waits for, when it gives up, and
            which callbacks are told.

        Raises
        ------
        ValueError
            If an argument is not allowed; before any client is asked.
        AggregationError
            If too few agents enrol, or ``max_empty_rounds`` rounds in a row have no
            result: no reply, or only errors.
        JournalError
            If the folder cannot be used, is used by another run, or holds a study of
            other settings; the message names the difference.

        Returns
        -------
        StudyResult
            Result of the whole study. If the folder holds a complete study, its result
            is returned again without any message.
        """
        num_rounds = self.default_rounds() if num_rounds is None else num_rounds
        require_int("num_rounds", num_rounds, 2)
        none_yet = "empty (the server releases the first vectors itself)"
        require(not initial_arrays, "initial_arrays", initial_arrays, none_yet)
        require_positive("timeout", timeout)
        host = Host() if host is None else host
        require_instance("host", host, Host)
        folder = check_folder("folder", folder)
        is_recorded = folder is not None or not host.authenticated
        kept = "an absolute path, with authenticated=True: without a record a run that "
        kept += "starts again is another study, and is charged again"
        require(is_recorded, "folder", folder, kept)
        if folder is not None:
            require_registered(self.record_kind)
        if self._has_started:
            raise ValueError("This strategy has run already: make a new one.")
        self._has_started, self._timeout = True, timeout
        self._open(num_rounds, folder, host)
        warn_of_refusal(self.study)
        identity = self._identity(num_rounds)
        if folder is not None and host.authenticated and not host.new:
            refuse_twin(folder, identity)
        with StudyRecord(folder, identity, host.patience) as self._record:
            self._resume(num_rounds)
            self._resumed()
            name, num_done = self.study.study_id, len(self._rounds)
            _log.info("study %s, as the ledger of each site has it", name)
            self._log = RoundLog(name, num_rounds, host.max_empty_rounds)
            about = type(self).__name__, _public(identity), num_done
            started = Started(name, *about, terms_of(self._spent()))
            tell(host.callbacks, "on_start", started)
            # Slots are given while it runs: the grid asks for them at each send.
            self._grid = ToldGrid(grid, lambda: self._enrolment.slots)
            post = SumPost(self._grid, self._enrolment, host.client_api, timeout)
            self._sums.begin(post, keep=partial(self._commit, is_round_done=False))
            try:
                if num_done == num_rounds:  # a study that was complete
                    arrays = arrays_record(self.server) or ArrayRecord()
                    result = self.result_type(arrays=arrays, rounds=self._rounds)
                else:
                    flower = super().start(
                        cast(Grid, self._grid),  # registered as one
                        ArrayRecord(),
                        num_rounds=num_rounds - num_done,
                        timeout=timeout,
                        train_config=train_config,
                        evaluate_config=evaluate_config,
                        evaluate_fn=evaluate_fn,
                    )
                    result = self.result_type(**vars(flower), rounds=self._rounds)
            except BaseException as error:
                tell_of_end(host.callbacks, name, folder, error)
                raise
            finally:
                self._grid = None
        self._end(result)
        tell(host.callbacks, "on_end", result)
        return result

    def _spent(self) -> PrivacySpent | None:
        """Return what was spent so far; None where nothing private is released."""

    def _open(self, num_rounds: int, folder: Path | None, host: Host) -> None:
        """Take note of where a run is hosted, and plan its rounds."""
        asked_for = set(host.metrics) - set(self.metrics)
        method = type(self).__name__
        require(not asked_for, "metrics", host.metrics, f"empty, with {method}")
        self._enrolment = Enrolment(self.server.num_agents, host)
        self._host, self._folder = host, folder
        self.plan(num_rounds - 1)

    def _identity(self, num_rounds: int) -> dict[str, Any]:
        """Return the settings that may not change while a study goes on, as JSON."""
        fields = self.study.to_dict()
        for name in self.study.own:  # those of the study that goes on count
            del fields[name]
        return {
            "kind": self.record_kind.name,
            "num_rounds": num_rounds,
            "num_agents": self.server.num_agents,
            **fields,
        }

    def _resume(self, num_rounds: int) -> None:
        """Go on with what the folder holds, if it holds anything."""
        progress = self._record.load(self.study)
        if progress is None:
            key = kind_of(self.study.enrolment()), self.study.study_id
            self._enrolment.book = ReceiptBook(key, self.study.promise)
            # Before a client hears of the study: one that keeps its journal of it
            # would refuse a new run that had begun another.
            self._commit()
            return
        self.server.resume(progress.ledger)
        self.server.load_state_dict(self._sums.resume(progress.state))
        self.study, self._rounds = progress.study, progress.rounds
        self._enrolment.resume(progress.slots, progress.journals)
        self._enrolment.book = ReceiptBook.from_json(progress.receipts)
        tell_of_resuming(self._folder, len(self._rounds), num_rounds)

    def _resumed(self) -> None:
        """Take note of where the study goes on, or that it begins."""

    def _commit(self, is_round_done: bool = True) -> None:
        """Put all that a new run would need on disk."""
        book = self._enrolment.book
        num_rounds = len(self._rounds) if is_round_done else len(self._rounds) - 1
        progress = StudyProgress(
            self.study,
            self.server.ledger,
            self._enrolment.slots,
            self._enrolment.journals,
            self._rounds[:num_rounds],
            self.server.state_dict() | self._sums.state_dict(),
            book.to_json(),
        )
        self._record.save(progress)
        book.commit()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Enrol nodes that are new, and ask every agent for what comes next.

        ``arrays`` is what `aggregate_train` returned, which the server half holds too.
        It is sent to an agent until that has answered; then the agent keeps it.

        Raises
        ------
        ValueError
            If it is not `start` of this strategy that asks: a strategy around it, such
            as Flower's ``DifferentialPrivacy...``, leaves out what fixes the noise and
            counts epsilon.
        """
        if self._grid is None:
            raise ValueError(
                f"Call start() of {type(self).__name__} itself. Other strategies, such "
                "as Flower's DifferentialPrivacy wrappers, cannot wrap it. It does not "
                "need them: set its own noise and epsilon."
            )
        # Those before are of an earlier run, and Flower counts from 1 again.
        is_first = server_round == 1
        step = self._decide(len(self._rounds))
        self._round = OpenRound(step)
        if step.is_over:
            return []
        self._before_round(step)
        # Once the study has begun an absent agent contributes zero; after a restart the
        # nodes still need time to come back.
        wanted = self._enrolment.min_agents if is_first else 1
        needed = 1 if self._rounds else wanted
        question = self.study.enrolment()
        slots = self._enrolment.update(
            grid, question, wanted, needed, self._timeout, self.server.plays
        )
        if not self._record.has(self._enrolment.slots, self._enrolment.journals):
            self._commit()  # before an agent hears of the slot that it was given
        outgoing = self._outgoing(slots, step)
        client_api = self._host.client_api
        kind = message_type(client_api)
        number = step.iteration + 1
        playing = filter(self.server.plays, range(self.server.num_agents))
        self._round.absent = sorted(set(playing) - set(slots.values()))
        for node, slot in slots.items():
            if not self.server.plays(slot):
                continue
            instruction = self.instruction(node, slot, step)
            self._round.charged[slot] = instruction.releases_charged
            entries = instruction.to_config()
            if receipt := self._enrolment.book.receipt(slot):
                entries[RECEIPT_ENTRY] = receipt
            record = ConfigRecord({**config, "server-round": number, **entries})
            content = instruction_content(outgoing[node], record, client_api)
            message = Message(content, node, kind, group_id=str(number))
            self._round.asked.append(message)
        self._grid.send_name = self._log.name_of(number)
        return self._round.asked

    def _decide(self, iteration: int) -> Step:
        """Return what the server half does in an iteration."""
        return self.server.step(iteration)

    def _before_round(self, step: Step) -> None:
        """Say, refuse or put off what has been decided about a round.

        Before it is seen who is there, which may change while it waits.
        """

    @abstractmethod
    def instruction(self, node: int, slot: int, step: Step) -> Instruction:
        """Return what the agent of ``slot`` is asked."""

    def _outgoing(self, slots: Mapping[int, int], step: Step) -> dict[int, ArrayRecord]:
        """Return the arrays for each node: the vectors, where it has not got them."""
        full = empty = ArrayRecord()
        if not self._up_to_date.issuperset(slots):
            full = arrays_record(self.server) or empty
        return {node: empty if node in self._up_to_date else full for node in slots}

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Hand the agents' messages to the server half; return its vectors.

        Failed and unreadable replies count as zero contributions. What is returned has
        been committed: no other vectors can leave for this round.
        """
        step, num_before = self._round.step, len(self.server.ledger)
        if step.is_over:
            self._rounds.append(Round(step.iteration + 1, 0, 0, 0, 0))
            self._commit()
            tell(self._host.callbacks, "on_round", self._rounds[-1])
            return None, None
        slots, book = self._enrolment.slots, self._enrolment.book
        found = self._round.sort_replies(replies, slots, book)
        answers = found.answers
        self._up_to_date |= {node for node, slot in slots.items() if slot in answers}
        self._rounds.append(self._round.finished(found))
        assert self._grid is not None
        self._log.end_round(
            self._rounds[-1],
            self._grid.seconds,
            self._sums.exchanges_after(num_before),
            failures=found.failures,
            late=found.late,
            absent=self._round.absent,
        )
        try:
            self._take(step, answers)
            self._after_round(step, answers)
            self._commit()
        except BaseException:
            # What is not on disk must not be seen: a new run would draw it again.
            self.server.resume(self.server.ledger[:num_before])
            raise
        # Once it is on disk: a new run would report this round again.
        tell(self._host.callbacks, "on_round", self._rounds[-1])
        if len(self.server.ledger) > num_before:
            self._up_to_date.clear()
        return arrays_record(self.server), self._reported(answers)

    def _take(self, step: Step, answers: Mapping[int, Message]) -> None:
        """Hand what agents have answered to the server half.

        Who answers is public: nobody's silence is worth a release.
        """
        messages = {s: self._read(s, reply, step) for s, reply in answers.items()}
        if messages:
            self.server.receive(step, messages)

    def _read(self, slot: int, reply: Message, step: Step) -> Any:
        """Return what the server half takes of a reply."""
        return one_array(slot, reply, step.release > 0)

    def _after_round(self, step: Step, answers: Mapping[int, Message]) -> None:
        """Take note of a round, before it is committed."""

    def _reported(self, answers: Mapping[int, Message]) -> MetricRecord | None:
        """Return what Flower logs of the agents' answers, by slot."""
        return None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return no messages: there is no model to evaluate."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return nothing."""
        return None

    @abstractmethod
    def default_rounds(self) -> int:
        """Return how many rounds there are unless `start` is told."""

    def plan(self, horizon: int) -> None:
        """Fix what depends on the number of rounds, or refuse it; `start` does it.

        Parameters
        ----------
        horizon : int
            T >= 1, the last iteration.
        """

    def _end(self, result: ResultT) -> None:
        """Add what the method knows, after the last round."""

    def summary(self) -> None:
        """Log the settings, and what is not private about them."""
        for line in (*self.server.summary(), *self._lines()):
            is_warning = line.startswith(("WARNING", "NOT PRIVATE"))
            _log.log(logging.WARNING if is_warning else logging.INFO, "\t├──> %s", line)

    def _lines(self) -> list[str]:
        """Return what else `summary` logs: the plan, whom to trust, what is lost."""
        return []


def _public(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a study that callbacks are told: no seeds."""
    return {
        name: value
        for name, value in identity.items()
        if name != "kind" and "seed" not in name
    }


def warn_of_refusal(study: Study) -> None:
    """Say now what sites would refuse that have set no limits of their own."""
    sizes = size_limits(())
    try:
        check_config(sizes, study.enrolment(), type(study))
        check_steps(sizes, study)
    except RefusedError as error:
        _log.warning(
            "Sites refuse this study, but for those that allow more: %s",
            str(error).removeprefix("This site takes no part: "),
        )


def num_asked_for(rounds: Iterable[Round]) -> int:
    """Return 1 if agents have been asked for a release, arrived or not; else 0."""
    return int(any(finished.release for finished in rounds))


def arrays_record(server: Server) -> ArrayRecord | None:
    """Return what the server half has released, as Flower sends it."""
    return to_array_record(server.arrays) if server.arrays else None
