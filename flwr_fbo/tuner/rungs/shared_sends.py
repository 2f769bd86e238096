"""Trials that share sends: one message a node, with what several trials ask of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from flwr.app import Error, Message, RecordDict
from flwr.serverapp.exception import AggregationError

from flwr_fbo._compat import CLIENT_APP_RAISED
from flwr_fbo.tuner.choosers.tuner_clients import HINT, TunerClients, reply_header
from flwr_fbo.tuner.envelope import ReplyHeader, TrialsHeader, pack, unpack
from flwr_fbo.tuner.rungs.send_order import next_trials
from flwr_fbo.tuner.site.hidden_metrics import MetricError
from flwr_fbo.tuner.trials.trial_thread import TrialThread, for_others

# A trial's number, and the message of it that is at a place in a node's message.
_Places = list[tuple[int, Message]]


class SharedSends:
    """Sends what trials ask, several in one message, and hands out the replies.

    Parameters
    ----------
    clients : TunerClients
        The clients that are asked.
    header_of : callable
        Function from the trials of a message to its header.
    parallel : int
        Number of trials, >= 1, that share a send.
    asks_all : bool
        Whether all that give a ballot evaluate a trial at the end of a rung, though its
        `main` may ask only some.
    skips : bool
        Whether nobody evaluates a trial before the end of a rung.
    hear_state : callable
        Called when the app of a client is first heard to keep a state in a trial.

    Attributes
    ----------
    read : set of str
        The tuned keys that clients have read.
    has_score : bool
        Whether any trial could be scored so far.
    """

    def __init__(
        self,
        clients: TunerClients,
        header_of: Callable[[list[int]], TrialsHeader],
        *,
        parallel: int,
        asks_all: bool,
        skips: bool,
        hear_state: Callable[[], None],
    ) -> None:
        self.read: set[str] = set()
        self.has_score = False
        self._clients = clients
        self._header_of = header_of
        self._parallel = parallel
        self._asks_all = asks_all
        self._skips = skips
        self._hear_state = hear_state
        self._has_state = False
        # Of the rung: which types clients were asked for, and for which they answered.
        self._asked: set[str] = set()
        self._answered: set[str] = set()
        # The trials for which replies came without a metric that can be used.
        self._without_metric: set[int] = set()

    def advance(
        self,
        trials: Sequence[TrialThread],
        rounds: int,
        after_send: Callable[[Sequence[TrialThread]], None],
    ) -> None:
        """Run trials until each was scored after so many rounds, or has ended.

        ``after_send`` is called after each send, with the trials that have shared it.

        Raises
        ------
        AggregationError
            If already two trials were evaluated, and no reply has the metric as a
            number.
        ValueError
            If the trials that came first have nothing to be compared by.
        """
        for trial in trials:
            trial.begin()
            self._skip(trial, rounds)
        while waiting := [t for t in trials if not t.has_reached(rounds)]:
            # Until there is any score, those that come first show whether there are
            # scores.
            shared = next_trials(waiting, self._parallel, not self.has_score)
            for trial in trials:
                trial.prepare() if trial in shared else trial.put_away()
            self._share(shared, rounds)
            for trial in shared:
                self._skip(trial, rounds)
            after_send(shared)
            self.has_score |= any(math.isfinite(t.server_score) for t in shared)
            done = [t for t in shared if t.has_reached(rounds)]
            if not self.has_score and len(done) == len(shared):
                # Now, before all others are trained for nothing.
                for trial in done:
                    # Clients may yet be able to evaluate another one.
                    is_known = trial.error is not None or trial.last_error
                    if not is_known and trial.failure is not None:
                        raise trial.failure

    def _skip(self, trial: TrialThread, rounds: int) -> None:
        """Leave evaluations out that come before the end of a rung."""
        while self._skips and trial.waits_for_evaluate and trial.num_train < rounds:
            trial.skip()

    def check_answers(self) -> None:
        """Raise `AggregationError` if no client could train in a rung, or evaluate."""
        # Training first: evaluation fails where an app has not been trained.
        for kind in sorted(self._asked - self._answered, reverse=True):
            error = self._clients.error_of(kind)
            raise AggregationError(f"No client could {kind}: {error}.")
        self._asked, self._answered = set(), set()

    def _share(self, trials: Sequence[TrialThread], rounds: int) -> None:
        """Send what trials wait for, and let them go on with the replies."""
        clients = self._clients
        voters = clients.voters.among(clients.look())
        by_node: dict[int, _Places] = {}
        for trial in trials:
            self._asked.add(trial.pending_type)
            messages = list(trial.pending)
            if trial.waits_for_evaluate:
                clients.evaluate_type = trial.pending_type
                is_first = not trial.goes_on
                if trial.num_train >= rounds and self._asks_all and is_first:
                    # A client that did not evaluate a trial could not rank it.
                    messages += for_others(messages, voters)
            for message in messages:
                node = message.metadata.dst_node_id
                by_node.setdefault(node, []).append((trial.number, message))
        timeouts = [t.timeout for t in trials if t.timeout is not None]
        # A trial that waits as long as it takes must not be cut off by another.
        clients.timeout = max(timeouts) if len(timeouts) == len(trials) else None
        messages = [self._message(places) for places in by_node.values()]
        replies: dict[int, list[Message]] = {trial.number: [] for trial in trials}
        answered = clients.send(messages)
        headers = {node: reply_header(reply) for node, reply in answered.items()}
        bare = [
            node
            for node, reply in answered.items()
            if reply.has_content() and headers[node] is None
        ]
        # One node without the mod counts as one that fails; all are an app without it.
        if bare and len(bare) == len(answered):
            raise AggregationError(_without_mod(bare[0]))
        for node, reply in answered.items():
            for number, own in self._taken_apart(reply, headers[node], by_node[node]):
                replies[number].append(own)
        if self._asks_all and trials[0].waits_for_evaluate:
            self._check_scores(replies)
        # From here on a trial's models are its own: each is gone once it is used.
        del answered, messages, by_node
        for trial in trials:
            asked = {message.metadata.dst_node_id for message in trial.pending}
            found = replies.pop(trial.number)
            if self._asks_all and trial.waits_for_evaluate:
                errors = [m.error.reason for m in found if m.has_error()]
                has_failed = 0 < len(found) == len(errors)
                trial.last_error = str(errors[-1]) if has_failed else ""
            # Main sees the replies of nodes that it has asked, and not those of other
            # voters.
            trial.answer([m for m in found if m.metadata.src_node_id in asked])
            trial.put_away()  # the others have their models to use yet

    def _check_scores(self, replies: Mapping[int, list[Message]]) -> None:
        """Raise `AggregationError` if two trials have replies, but no usable metric.

        One trial is not enough: an app may leave a metric out that it cannot compute.
        """
        for number, answers in replies.items():
            self.has_score |= any(reply.has_content() for reply in answers)
            failed = [reply.error for reply in answers if reply.has_error()]
            kind = MetricError.__name__
            if any(str(error.reason).startswith(kind) for error in failed):
                self._without_metric.add(number)
        if not self.has_score and len(self._without_metric) > 1:
            metric = " + ".join(self._header_of([]).metric)
            raise AggregationError(
                f"metric={metric!r}: no client has such a score: "
                f"{self._clients.error_of(self._clients.evaluate_type)}."
            )

    def _message(self, places: _Places) -> Message:
        """Return one message of several to one node."""
        header = self._header_of([number for number, _ in places])
        contents = {place: m.content for place, (_, m) in enumerate(places)}
        metadata = places[0][1].metadata
        ttl = max(message.metadata.ttl for _, message in places)
        content = pack(header, contents)
        return self._clients.message(
            metadata.dst_node_id, content, metadata.message_type, ttl
        )

    def _taken_apart(
        self, reply: Message, header: ReplyHeader | None, places: _Places
    ) -> list[tuple[int, Message]]:
        """Return the trials' replies in a reply, each an answer to its own message."""
        first = places[0][1].metadata
        node, kind = first.dst_node_id, first.message_type
        if reply.has_error():
            return [(n, Message(reply.error, reply_to=m)) for n, m in places]
        if header is None:
            reasons = dict.fromkeys(map(str, range(len(places))), _without_mod(node))
            contents: dict[int, RecordDict] = {}
        else:
            self.read |= set(header.read)
            self._clients.voters.hear(node, header.slot)
            if header.keeps_state and not self._has_state:
                self._has_state = True
                self._hear_state()
            self._clients.hear(node, header, self._header_of([]))
            reasons = header.errors
            contents = unpack(reply.content, range(len(places)))
        replies = []
        for place, (number, message) in enumerate(places):
            reason = reasons.get(str(place))
            if reason is None:
                self._answered.add(kind)
                replies.append((number, Message(contents[place], reply_to=message)))
            else:
                self._clients.last_errors[kind] = reason
                error = Error(CLIENT_APP_RAISED, reason)
                replies.append((number, Message(error, reply_to=message)))
        return replies


def _without_mod(node: int) -> str:
    return f"Node {node} has answered without tuner_mod. {HINT}"
