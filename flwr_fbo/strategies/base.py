"""The loop of every strategy: it starts a study, or goes on with a recorded one.

Once a round the server half decides what it does, in a `Step`; all else follows from
that and from who answers. Round r of Flower is iteration t = r - 1 of the server half,
in the run that begins a study; in one that goes on with it iterations are counted on.
People read and give rounds; algorithms, messages and ledger rows have iterations.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.exception import AggregationError
from flwr.serverapp.strategy import Strategy

from flwr_fbo._common.conversion import plain
from flwr_fbo._common.errors import RefusedError
from flwr_fbo._common.text import agents_text
from flwr_fbo._common.validation import (
    check_folder,
    require,
    require_choice,
    require_instance,
    require_int,
    require_positive,
)
from flwr_fbo._compat import (
    ClientApi,
    instruction_content,
    message_type,
    reply_metrics,
    to_array_record,
)
from flwr_fbo.site.limits import (
    check_config,
    check_steps,
    size_limits,
)
from flwr_fbo.site.receipts import ReceiptBook, read_mark
from flwr_fbo.strategies.enrolment import (
    Enrolment,
    first_line,
    matched,
    one_array,
)
from flwr_fbo.strategies.options import Durability, documented
from flwr_fbo.strategies.result import StudyResult
from flwr_fbo.strategies.round_progress import Waiting, duration
from flwr_fbo.strategies.study_record import (
    Progress,
    StudyRecord,
    studies_beside,
)
from flwr_fbo.study.callbacks import (
    Callback,
    Round,
    Started,
    check_callbacks,
    tell,
    tell_of_end,
)
from flwr_fbo.study.codec import RECEIPT_ENTRY, Instruction, Study, kind_of
from flwr_fbo.study.kinds import JournalKind
from flwr_fbo.study.server import Server, Step

_log = logging.getLogger("flwr.fbo")

ResultT = TypeVar("ResultT", bound=StudyResult)


class StudyStrategy(Strategy, Generic[ResultT]):
    """Runs one server half over Flower's Message API.

    Parameters
    ----------
    server : Server
    study : Study
        The study's settings, which all agents are told.
    folder, durability, client_api, callbacks
        See `FedVote`.
    """

    # Of the results, and of the server's record.
    result_type: type[ResultT]
    record_kind: JournalKind

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.__doc__ = documented(cls.__doc__)

    def __init__(
        self,
        server: Server,
        study: Study,
        folder: str | Path | None = None,
        durability: Durability | None = None,
        client_api: ClientApi = "both",
        callbacks: Sequence[Callback] = (),
    ) -> None:
        require_choice("client_api", client_api, ClientApi)
        durability = Durability() if durability is None else durability
        require_instance("durability", durability, Durability)
        num_agents, least = server.num_agents, durability.min_agents
        fits = least is None or least <= num_agents
        require(fits, "min_agents", least, f"at most num_agents={num_agents}")
        keys, slots = durability.keys, range(num_agents)
        fits = keys is None or keys.keys() == set(slots)
        require(fits, "keys", keys, f"one for each slot, 0 to {num_agents - 1}")
        self.server = server
        self.study = study
        self._callbacks = check_callbacks(callbacks)
        self._client_api: ClientApi = client_api
        self._durability = durability
        self._enrolment = Enrolment(num_agents, client_api, durability)
        self._min_agents = num_agents if least is None else least
        self._folder = check_folder("folder", folder)
        self._record = StudyRecord(None, {})
        self._started = self._running = False
        self._timeout = 3600.0
        self._num_rounds = 0  # of the whole study
        self._horizon: int | None = None  # T, the last iteration
        self._rounds: list[Round] = []
        # Of this run, and of its open round:
        self._grid: Grid | None = None
        self._step = Step(-1)
        self._asked: list[Message] = []
        self._charged: dict[int, list[int]] = {}  # by slot, what an answer costs
        self._absent: list[int] = []  # slots that the round is for, and are not there
        self._waiting: Waiting | None = None
        self._seconds: list[float] = []  # that each round has taken
        self._num_empty = 0  # rounds in a row without a result
        self._up_to_date: set[int] = set()  # nodes that have the last release

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> ResultT:
        """Run the study.

        Parameters
        ----------
        grid : Grid
        initial_arrays : ArrayRecord, optional
            Must be empty: the server itself releases the first vectors.
        num_rounds : int, optional
            Number of Flower's rounds, >= 2: iterations 0 to ``num_rounds - 1``. See
            `default_rounds`.
        timeout : float
            Seconds to wait for the replies of a round. A missing reply counts as zero.
        train_config : ConfigRecord, optional
            Extra config that is sent to the clients.
        evaluate_config : ConfigRecord, optional
            Not used: there is no model for clients to evaluate.
        evaluate_fn : callable, optional
            Called by Flower with the released vectors after each round.

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
        num_rounds, timeout = plain(num_rounds), plain(timeout)
        if num_rounds is None:
            num_rounds = self.default_rounds()
        require_int("num_rounds", num_rounds, 2)
        allowed = "empty (the server releases the first vectors itself)"
        require(not initial_arrays, "initial_arrays", initial_arrays, allowed)
        require_positive("timeout", timeout)
        ok = self._folder is not None or not self._durability.authenticated
        allowed = "an absolute path, with authenticated=True: without a record a run "
        allowed += "that starts again is another study, and is charged again"
        require(ok, "folder", self._folder, allowed)
        if self._started:
            raise ValueError("This strategy has run already: make a new one.")
        self._started = True
        self._timeout = timeout
        self._num_rounds = num_rounds
        self.plan(num_rounds - 1)
        self._warn_of_refusal()
        identity = self._identity(num_rounds)
        self._check_is_meant(identity)
        patience = self._durability.patience
        with StudyRecord(self._folder, identity, patience) as self._record:
            self._resume(num_rounds)
            name, done = self.study.study_id, len(self._rounds)
            _log.info("study %s, as the ledger of each site has it", name)
            settings = {
                entry: value
                for entry, value in identity.items()
                if entry != "kind" and "seed" not in entry  # seeds are not public
            }
            started = Started(
                name,
                type(self).__name__,
                settings,
                done,
                self.study.promise.condition,
            )
            tell(self._callbacks, "on_start", started)
            self._running = True
            try:
                if done == num_rounds:  # a study that was complete
                    arrays = vectors_record(self.server.vectors) or ArrayRecord()
                    result = self.result_type(arrays=arrays, rounds=self._rounds)
                else:
                    flower = super().start(
                        grid,
                        ArrayRecord(),
                        num_rounds=num_rounds - done,
                        timeout=timeout,
                        train_config=train_config,
                        evaluate_config=evaluate_config,
                        evaluate_fn=evaluate_fn,
                    )
                    result = self.result_type(**vars(flower), rounds=self._rounds)
            except BaseException as error:
                tell_of_end(self._callbacks, name, self._folder, error)
                raise
            finally:
                self._running = False
                self._stop_waiting()
        self._end(result)
        tell(self._callbacks, "on_end", result)
        return result

    def _warn_of_refusal(self) -> None:
        """Say now what sites would refuse that have set no limits of their own."""
        sizes = size_limits(())
        try:
            check_config(sizes, self.study.enrolment(), type(self.study))
            check_steps(sizes, self.study)
        except RefusedError as error:
            _log.warning(
                "Sites refuse this study, but for those that allow more: %s",
                str(error).removeprefix("This site takes no part: "),
            )

    def _check_is_meant(self, identity: Mapping[str, Any]) -> None:
        """Raise ValueError if a new study may be an old one under a misspelled path."""
        folder, durability = self._folder, self._durability
        if folder is None or not durability.authenticated or durability.new:
            return
        for twin, done in studies_beside(folder, identity):
            raise ValueError(
                f"folder={str(folder)!r} has no study, and {twin} has one with the "
                f"same settings, after round {done} of {identity['num_rounds']}. Name "
                "that folder to go on with it. Another study charges the sites again: "
                "if it is meant, give Durability(new=True), or new=true in the run "
                "config of an app that passes it on."
            )

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
            about = kind_of(self.study.enrolment()), self.study.study_id
            self._enrolment.book = ReceiptBook(about, self.study.promise)
            # Before a client hears of the study: one that keeps its journal of it
            # would refuse a new run that had begun another.
            self._commit()
            return
        self.server.resume(progress.ledger)
        self._load_state(progress.state)
        self.study = progress.study
        self._enrolment.resume(progress.slots, progress.journals)
        self._enrolment.book = ReceiptBook.from_json(progress.receipts)
        self._rounds = progress.rounds
        done = len(self._rounds)
        allowed = f"at least {done}, the rounds of the study in {self._folder}"
        require(num_rounds >= done, "num_rounds", num_rounds, allowed)
        if done == num_rounds:
            _log.warning(
                "The study in %s is complete: its result is returned without any "
                "message. A new study needs another folder.",
                self._folder,
            )
            return
        _log.warning(
            "Resuming the study in %s after round %d of %d. Flower counts rounds from "
            "1 again.",
            self._folder,
            done,
            num_rounds,
        )

    def _commit(self, is_round_done: bool = True) -> None:
        """Put all that a new run would need on disk."""
        book = self._enrolment.book
        num_rounds = len(self._rounds) if is_round_done else len(self._rounds) - 1
        self._record.save(
            Progress(
                self.study,
                self.server.ledger,
                self._enrolment.slots,
                self._enrolment.journals,
                self._rounds[:num_rounds],
                self._state(),
                book.to_json(),
            )
        )
        book.commit()

    def _state(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return what the strategy needs besides its ledger to go on, as arrays."""
        return self.server.state_dict()

    def _load_state(self, state: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Continue from what ``_state`` returned."""
        self.server.load_state_dict(state)

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
        if not self._running:
            raise ValueError(
                f"Call start() of {type(self).__name__} itself. Other strategies, such "
                "as Flower's DifferentialPrivacy wrappers, cannot wrap it. It does not "
                "need them: set its own noise and epsilon."
            )
        self._grid = grid
        # Those before are of an earlier run, and Flower counts from 1 again.
        is_first = server_round == 1
        self._step = step = self._decide(len(self._rounds))
        if step.is_over:
            return []
        self._before_round(step)
        # Once the study has begun an absent agent contributes zero; after a restart the
        # nodes still need time to come back.
        wanted = self._min_agents if is_first else 1
        needed = 1 if self._rounds else wanted
        question = self.study.enrolment()
        slots = self._enrolment.update(
            grid, question, wanted, needed, self._timeout, self.server.plays
        )
        if not self._record.has(self._enrolment.slots, self._enrolment.journals):
            self._commit()  # before an agent hears of the slot that it was given
        outgoing = self._outgoing(slots, step)
        kind = message_type(self._client_api)
        number = step.iteration + 1
        self._asked = []
        playing = filter(self.server.plays, range(self.server.num_agents))
        self._absent = sorted(set(playing) - set(slots.values()))
        for node, slot in slots.items():
            if not self.server.plays(slot):
                continue
            instruction = self.instruction(node, slot, step)
            self._charged[slot] = instruction.releases_charged
            entries = instruction.to_config()
            if receipt := self._enrolment.book.receipt(slot):
                entries[RECEIPT_ENTRY] = receipt
            record = ConfigRecord({**config, "server-round": number, **entries})
            content = instruction_content(outgoing[node], record, self._client_api)
            self._asked.append(Message(content, node, kind, group_id=str(number)))
        if self._num_rounds:  # it is `start` that ends the wait
            self._stop_waiting()
            of_agents = [(m, slots[m.metadata.dst_node_id]) for m in self._asked]
            self._waiting = Waiting(grid, self._named(number), of_agents)
        return self._asked

    def _named(self, number: int) -> str:
        """Return how the log names a round."""
        return f"round {number} of {self._num_rounds} of study {self.study.study_id}"

    def _stop_waiting(self) -> float:
        """Stop telling who has answered; return how long it took."""
        if self._waiting is None:
            return 0.0
        seconds = self._waiting.seconds
        self._waiting.close()
        self._waiting = None
        return seconds

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
            full = vectors_record(self.server.vectors) or empty
        return {node: empty if node in self._up_to_date else full for node in slots}

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Hand the agents' messages to the server half; return its vectors.

        Failed and unreadable replies count as zero contributions. What is returned has
        been committed: no other vectors can leave for this round.
        """
        step, before = self._step, len(self.server.ledger)
        if step.is_over:
            self._rounds.append(Round(step.iteration + 1, 0, 0, 0, 0))
            self._commit()
            tell(self._callbacks, "on_round", self._rounds[-1])
            return None, None
        self._seconds.append(self._stop_waiting())
        answers = self._answers(step, replies)
        try:
            self._take(step, answers)
            self._after_round(step, answers)
            self._commit()
        except BaseException:
            # What is not on disk must not be seen: a new run would draw it again.
            self.server.resume(self.server.ledger[:before])
            raise
        # Once it is on disk: a new run would report this round again.
        tell(self._callbacks, "on_round", self._rounds[-1])
        if len(self.server.ledger) > before:
            self._up_to_date.clear()
        return vectors_record(self.server.vectors), self._reported(answers)

    def _take(self, step: Step, answers: Mapping[int, Message]) -> None:
        """Hand what agents have answered to the server half.

        Who answers is public: nobody's silence is worth a release.
        """
        messages = {s: self._read(s, reply, step) for s, reply in answers.items()}
        if messages:
            self.server.receive(step, messages)

    def _answers(self, step: Step, replies: Iterable[Message]) -> dict[int, Message]:
        """Return the first good reply of each slot, in slot order; log the others."""
        late = {message.metadata.dst_node_id for message in self._asked}
        answers: dict[int, Message] = {}
        failures = []
        for node, reply in matched(self._asked, replies):
            if node is None:
                _log.warning("Ignored an unexpected or repeated reply.")
                continue
            late.remove(node)
            slot = self._enrolment.slots[node]
            if reply.has_error():
                failures.append(f"agent {slot}: {first_line(reply.error.reason)}")
            elif not self._note_charges(slot, reply):
                failures.append(f"agent {slot}: its ledger lacks earlier releases")
            else:
                answers[slot] = reply
                self._up_to_date.add(node)
        self._note(step, answers, failures, late)
        return dict(sorted(answers.items()))

    def _note_charges(self, slot: int, reply: Message) -> bool:
        """Note what a site has been charged; return False if it had forgotten some."""
        book, mark = self._enrolment.book, read_mark(reply_metrics(reply.content))
        if mark is not None and book.is_behind(slot, mark):
            return False
        book.note(slot, mark, self._charged[slot])
        return True

    def _note(
        self,
        step: Step,
        answers: Collection[int],
        failures: list[str],
        late: Collection[int],
    ) -> None:
        """Log how a round went, and end the run if nobody is there any more."""
        counts = len(answers), len(failures), len(late), len(self._absent)
        number = step.iteration + 1
        self._rounds.append(Round(number, *counts, release=step.release))
        exchanges = self._num_rounds - number + self._exchanges_of_sums()
        left = exchanges * float(np.mean(self._seconds))
        _log.info(
            "%s: %d of %d agents answered in %s (%d failed, %d late, %d absent), about "
            "%s left",
            self._named(number),
            counts[0],
            sum(counts),
            duration(self._seconds[-1]),
            *counts[1:],
            duration(left),
        )
        slots = sorted(self._enrolment.slots[node] for node in late)
        lines = sorted(failures) + [f"agent {slot}: no reply in time" for slot in slots]
        if self._absent:
            lines.append(f"absent: {agents_text(self._absent)}")
        for line in lines:
            _log.warning("\t> %s", line)
        self._num_empty = 0 if answers else self._num_empty + 1
        if self._num_empty == self._durability.max_empty_rounds:
            first_of_all = min(failures, default="").removesuffix(".")
            failure = f" First failure: {first_of_all}." if failures else ""
            empty = self._num_empty
            rounds = f" (after {empty} such rounds)" if empty > 1 else ""
            raise AggregationError(
                f"Round {number}: none of {sum(counts)} agents gave a result "
                f"({counts[1]} failed, {counts[2]} late, {counts[3]} absent){rounds}."
                f"{failure}"
            )

    def _exchanges_of_sums(self) -> int:
        """Return how many exchanges secure sums still take, besides the rounds."""
        return 0

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
        """Fix what depends on T, the last iteration; `start` does it first."""
        self._horizon = horizon
        self._plan(horizon)

    def _plan(self, horizon: int) -> None:
        """Fix it, or refuse the number of rounds."""

    def _has_asked(self) -> bool:
        """Return whether agents have been asked for a release, arrived or not."""
        return any(one.release for one in self._rounds)

    def _end(self, result: ResultT) -> None:
        """Add what the method knows, after the last round."""

    def summary(self) -> None:
        """Log the settings, and what is not private about them."""
        lines = [*self.server.summary(), *self._plans(), *self._notes()]
        for line in lines:
            is_warning = line.startswith(("WARNING", "NOT PRIVATE"))
            _log.log(logging.WARNING if is_warning else logging.INFO, "\t├──> %s", line)

    def _plans(self) -> list[str]:
        """Return what the rounds come to, once it is known how many there are."""
        return []

    def _notes(self) -> list[str]:
        """Return what else `summary` logs: whom to trust, what is not on disk."""
        return []


def vectors_record(vectors: np.ndarray[Any, Any] | None) -> ArrayRecord | None:
    """Return what the server half has released, as Flower sends it."""
    return None if vectors is None else to_array_record([vectors])
