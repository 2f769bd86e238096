"""The one line at the client: `tuner_mod` runs trials, and keeps their scores there."""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import NoReturn

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MessageType,
    RecordDict,
)
from flwr.clientapp.typing import ClientAppCallable

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.errors import RefusedError, log_once
from flwr_fbo._compat import (
    GET_PARAMETERS,
    MOD_REFUSED,
    SECURE_AGGREGATION_RECORD,
    secure_aggregation_stage,
)
from flwr_fbo.algorithms.search.trial import AppFailedError
from flwr_fbo.clients.gate import NO_ANSWER, Gate, let_go_by_a_site, sent
from flwr_fbo.clients.node_limits import hearing
from flwr_fbo.clients.recorded_agent import of_another_slot
from flwr_fbo.clients.site import SiteError, reported
from flwr_fbo.clients.site_journal import (
    configured_folder,
    configured_slot,
    held_journal,
    noted_slot,
)
from flwr_fbo.clients.sum_identity import SumIdentity
from flwr_fbo.clients.sum_member import sum_reply
from flwr_fbo.clients.time_limit import time_limit
from flwr_fbo.journal.journal import Journal
from flwr_fbo.privacy.spending import Promise
from flwr_fbo.secure_sum.terms import Exchange
from flwr_fbo.study.codec import StudyMismatchError, is_instruction
from flwr_fbo.study.limits import check_numbers, refused
from flwr_fbo.study.receipts import CHARGES, HEAD
from flwr_fbo.study.secure_sums import SecureSums
from flwr_fbo.tuner.ballots import make_ballot, no_scores
from flwr_fbo.tuner.envelope import (
    BALLOT,
    HEADER,
    KIND,
    RECEIPTS,
    SUM,
    BallotHeader,
    Header,
    ReplyHeader,
    SettingsHeader,
    SumHeader,
    TrialsHeader,
    header_record,
    pack,
    read_header,
    unpack,
)
from flwr_fbo.tuner.hidden_metrics import (
    check_weight,
    hide_evaluate_metrics,
    hide_train_metrics,
    merged,
    score_of,
    weight_of,
)
from flwr_fbo.tuner.trial_context import (
    KEPT_SUM,
    FederationTrial,
    Overlay,
    TrialStates,
)

# Where a `NumPyClient` reads its config.
_NUMPY_CONFIGS = ("fitins.config", "evaluateins.config")

_NO_WORKFLOW = (
    "secagg_mod or secaggplus_mod is a mod of this ClientApp, and the server does not "
    "run SecAggWorkflow or SecAggPlusWorkflow"
)
_NO_MOD = (
    "the server runs SecAggWorkflow or SecAggPlusWorkflow, and this ClientApp does not "
    "have its mod, as in ClientApp(mods=[tuner_mod, secaggplus_mod])"
)

_STUDY_IN_TRIAL = (
    "A trial of FederationTuner takes part in no study: start that before the tuner, "
    "or after it."
)

_EXACT = "exact scores"
_REPLY = "a reply to evaluate"

# Seconds to wait for another process of this client to let go of its sums.
_PATIENCE = 1.0
# Arrays in the journal of sums: what was asked last, and the ballot on it.
_ABOUT, _BALLOT = "about", "ballot"
# Characters of a server's message in an error.
_LONGEST_QUOTE = 500


def tuner_mod(
    message: Message, context: Context, call_next: ClientAppCallable
) -> Message:
    """Let `FederationTuner` try settings at this client.

    It must be the first of the app's mods, as in ``ClientApp(mods=[tuner_mod, ...])``.
    Messages that are not the tuner's pass as they are, and so do their replies, but at
    a site with limits: see below.

    - Flower's secure aggregation of models works as without the tuner, with its mod
      after this one: ``ClientApp(mods=[tuner_mod, secaggplus_mod])``.
    - A message with several trials is taken apart. Each trial is run in turn, with its
      settings in ``context.run_config``, and with a ``context.state`` of its own. A
      `NumPyClient` finds the settings in the ``config`` of `fit` and `evaluate` too.
    - Scores stay in ``context.state``. At the end of a rung they become one bounded
      vector about all its trials.
    - With secure aggregation ballots leave only masked. The ballot, the share of the
      noise and the keys of a rung are in a file of the ``fbo-folder`` before a reply
      leaves; without one in ``context.state``, and forgotten with any message that is
      not of this tuner. A site whose node config has ``fbo-roster`` and ``fbo-key``, or
      ``fbo-min-agents`` and its like, gives no other ballot, and no exact scores of
      trials.
    - In the training that follows a private choice, or goes on after it, the metrics
      stay at the client too, unless ``exact_metrics=True`` asks for them. At a site
      with a limit on epsilon or releases, with ``fbo-min-agents`` and its like, or with
      a roster, they always do, in the reply to whatever message: a server could ask
      for the exact score of any setting. Its ``train`` replies have what is listed
      below, and no other number.
    - Ballots count in the site's own ledger of what it has spent, where its node config
      has an ``fbo-folder``, and its limits (``fbo-max-epsilon`` and its like) hold.
    - A trial that raises an exception at this client does not touch the others. The
      exception is logged here; only its type is sent. Of an error that the app gives
      as its reply only the code is.
    - A score that is missing, NaN or infinite is a failure, and so is an exception in
      ``evaluate``. Failures rank below all finite scores in the ballot.

    Examples
    --------
    >>> from flwr.clientapp import ClientApp
    >>> from flwr_fbo import tuner_mod
    >>> app = ClientApp(mods=[tuner_mod])

    Notes
    -----
    *Formal guarantees*: see `PrivateChoice`. Exact at the server, and not covered: the
    trained arrays, ``num-examples`` of a reply to ``train``, ``norm_bit`` of Flower's
    adaptive clipping, which of the tuned keys the client reads, whether its app keeps
    anything in ``context.state``, and the type of an exception. With `secagg_mod` or
    `secaggplus_mod` the trained arrays leave masked, as that protocol masks them; the
    keys and key shares of the protocol leave as they are.
    """
    gate, header = reported(partial(_read, message, context))
    if isinstance(header, TrialsHeader):
        arguments = message, context, call_next, header, gate
        return reported(partial(_run_trials, *arguments))
    if isinstance(header, BallotHeader):
        return reported(partial(_ballot, message, context, header, gate))
    if isinstance(header, SumHeader):
        return reported(partial(_sum, message, context, header, gate))
    if isinstance(header, SettingsHeader) and header.attempt:
        TrialStates.adopt(context.state, header.attempt, header.trial)
    TrialStates.forget(context.state)
    answer = partial(call_next, message, context)
    if isinstance(header, SettingsHeader):
        content = RecordDict({n: r for n, r in message.content.items() if n != HEADER})
        overlay = Overlay(context.run_config, header.settings)
        about = message, content, context, call_next, overlay, context.state
        answer = partial(_call, *about)
    is_hidden = isinstance(header, SettingsHeader) and header.is_hidden
    return _own_reply(message, context, answer, is_hidden)


def _own_reply(
    message: Message, context: Context, answer: Callable[[], Message], is_hidden: bool
) -> Message:
    """Return what may leave of an app's own reply to a message, or of its error."""
    failure: Exception | None = None
    with hearing(context), let_go_by_a_site() as passed:
        try:
            reply = answer()
        except Exception as error:
            failure = error
    # Now, as the app's own clients may have limits of which nobody knew before.
    is_bound = Gate(context).is_bound
    if failure is not None:
        if not is_bound or isinstance(failure, SiteError):
            raise failure
        reported(partial(_raise, AppFailedError.told(NO_ANSWER), failure))
    if passed or not (is_bound or is_hidden):
        return reply
    if is_bound:
        log_once(
            "metrics of the app stay at this site:",
            "this site has limits, so that the metrics of its app's own replies stay "
            "here: the server gets NaN",
            logging.INFO,
        )
    if reply.has_error():
        return sent(message, Error(reply.error.code, NO_ANSWER))
    with_model = MessageType.TRAIN, GET_PARAMETERS
    has_model = message.metadata.message_type.startswith(with_model)
    hide = hide_train_metrics if has_model else hide_evaluate_metrics
    return sent(message, hide(reply.content))


def _raise(error: Exception, cause: Exception) -> NoReturn:
    raise error from cause


def _read(message: Message, context: Context) -> tuple[Gate, Header | None]:
    """Return what the site allows, and the header: of a size that it wants."""
    if HEADER not in message.content:  # the app's own: nothing of ours is asked
        return Gate(context), None
    gate = Gate(context, configured_folder(context))
    sizes = gate.sizes
    assert sizes.max_characters is not None
    try:
        header = read_header(message.content, sizes.max_characters)
    except ValueError as error:  # it quotes what the server has sent itself
        text = str(error)[:_LONGEST_QUOTE]
        raise StudyMismatchError.told(text) from None
    if isinstance(header, TrialsHeader):
        sizes.check_size("max_trials", len(header.trials), "trials of a message")
        sizes.check_size("max_trials", len(header.alive), "trials of a tuner")
        longest = max((len(one) for one in header.settings), default=0)
        sizes.check_size("max_dimension", longest, "settings of a trial")
    elif isinstance(header, BallotHeader | SumHeader):
        asked = header if isinstance(header, BallotHeader) else header.ballot
        sizes.check_size("max_features", len(asked.trials), "trials of a ballot")
    if isinstance(header, TrialsHeader | SumHeader) and header.sums is not None:
        sums = header.sums
        agents = [sums.settings.num_agents, *(g.slots.stop for g in sums.groups)]
        sizes.check_size("max_agents", max(agents), "num_agents")
        sizes.check_size("max_features", sums.num_features, "num_features")
        if len(sums.groups) != 1 or sums.settings.num_sub_regions != 1:
            raise refused("a secure sum is of one bounded ballot")
    if isinstance(header, SumHeader):
        arrays = message.content.array_records[SUM].values()
        check_numbers(sizes, [len(array.data) / 8 for array in arrays])
    receipts = message.content.config_records.get(RECEIPTS) or ConfigRecord()
    sizes.check_size("max_trials", len(receipts), "receipts of a message")
    gate.hear([*receipts.values()], configured_slot(context), KIND)
    return gate, header


def _run_trials(
    message: Message,
    context: Context,
    call_next: ClientAppCallable,
    header: TrialsHeader,
    gate: Gate,
) -> Message:
    """Return the replies of all trials of a send."""
    unprotected = "" if header.is_hidden else _EXACT
    identity = _admit(gate, header, header.sums, unprotected)
    slot = -1 if header.sums is None else identity.own_slot(context)
    states = TrialStates(context.state, header.attempt, header.alive)
    contents = unpack(message.content, range(len(header.trials)))
    replies: dict[int, RecordDict] = {}
    errors: dict[str, str] = {}
    read: set[str] = set()
    keeps_state = False
    assert gate.sizes.max_seconds is not None
    check_time = time_limit(gate.sizes.max_seconds)
    for place, trial in enumerate(header.trials):
        settings = header.settings[place]
        current = FederationTrial(trial, header.rung, header.rounds, dict(settings))
        overlay = Overlay(context.run_config, settings, current)
        state = states.load(trial)
        try:
            reported(check_time)
            arguments = message, contents[place], context, call_next, overlay, state
            with hearing(context):
                reply = reported(partial(_call, *arguments))
            if reply.has_error():
                errors[str(place)] = _said_of(reply.error.code)
            else:
                kept = partial(_kept, message, reply.content, trial, header, states)
                replies[place] = reported(kept)
        except SiteError as error:
            errors[str(place)] = NO_ANSWER if gate.is_bound else str(error)
        if str(place) in errors and _is_evaluate(message):
            states.score(trial, math.nan, 1.0)
        states.save(trial, state)
        keeps_state |= bool(state)
        read |= overlay.read
    # Once more, as the app's own clients may have limits of which nobody knew before.
    gate = Gate(context, configured_folder(context))
    _admit(gate, header, header.sums, unprotected)
    if unprotected:  # replies to train have metrics, too
        gate.charge_unprotected((KIND, header.attempt))
    answer = replace(
        _header_of(gate, header.attempt, context),
        errors=errors,
        read=tuple(sorted(read)),
        keeps_state=keeps_state,
        slot=slot,
    )
    gate.let_go(unprotected)
    return sent(message, pack(answer, replies))


def _header_of(gate: Gate, attempt: str, context: Context) -> ReplyHeader:
    """Return the header of a reply, with what it says of the site's ledger."""
    mark = gate.mark((KIND, attempt))
    if not mark:
        return ReplyHeader()
    agent = configured_slot(context)
    return ReplyHeader(charges=mark[CHARGES], head=mark[HEAD], agent=agent)


def _said_of(code: int) -> str:
    """Return what the server is told of an app's error: nothing of its text."""
    text = f"the app gave error {code}"
    if code == MOD_REFUSED:
        text += (
            ", a mod refused the message; a DP mod belongs on the app's own train, "
            "@app.train(mods=[...])"
        )
    return f"{text}."


def _call(
    message: Message,
    content: RecordDict,
    context: Context,
    call_next: ClientAppCallable,
    overlay: Overlay,
    state: RecordDict,
) -> Message:
    """Return the app's answer to a content, under other settings and another state."""
    inner, inner_message = copy.copy(context), copy.copy(message)
    inner.run_config, inner.state = overlay, state
    for name in _NUMPY_CONFIGS:
        if name in content:
            # What main has put there stays: it has read the same settings.
            config = {**overlay.settings, **content.config_records[name]}
            content[name] = ConfigRecord(config)
    # A trial has a copy of the state, and so of a site's journals and ledger in it.
    if overlay.trial and any(map(is_instruction, content.config_records.values())):
        raise StudyMismatchError.told(_STUDY_IN_TRIAL)
    inner_message.content = content
    try:
        reply = call_next(inner_message, inner)
    except KeyError as error:
        if error.args == (SECURE_AGGREGATION_RECORD,):
            raise StudyMismatchError.told(_NO_WORKFLOW) from error
        if secure_aggregation_stage(content):  # the mod takes the stage out
            raise StudyMismatchError.told(_NO_MOD) from error
        raise
    if inner.state is not state:  # the app has put another in its place
        state.clear()
        state.update(inner.state)
    return reply


def _is_evaluate(message: Message) -> bool:
    return message.metadata.message_type.startswith(MessageType.EVALUATE)


def _kept(
    message: Message,
    content: RecordDict,
    trial: int,
    header: TrialsHeader,
    states: TrialStates,
) -> RecordDict:
    """Keep the score of a reply; return what of the reply is sent."""
    if not _is_evaluate(message):
        if not header.is_hidden:
            return content
        if (
            message.metadata.message_type != GET_PARAMETERS
        ):  # a model that weighs nothing
            check_weight(content)
        return hide_train_metrics(content)
    configs, found = content.config_records.values(), content.metric_records.values()
    metrics = {**merged(configs), **merged(found)}
    if header.metric:  # else the server scores its own model
        score = score_of(metrics, header.metric, _REPLY)
        states.score(trial, score, weight_of(metrics, _REPLY))
    return hide_evaluate_metrics(content) if header.is_hidden else content


def _ballot(
    message: Message, context: Context, header: BallotHeader, gate: Gate
) -> Message:
    """Return what the client says about the trials of a rung."""
    unprotected = _EXACT if header.is_exact else ""
    _admit(gate, header, None, unprotected)
    # No noise of a server covers exact scores, whatever it promises.
    promise = Promise() if header.is_exact else header.promise
    gate.charge((KIND, header.attempt), promise, header.release)
    vector = gate.of_data(partial(_vector, context, header))
    assert vector is not None
    arrays = ArrayRecord({"ballot": Array(vector)})
    gate.let_go(arrays)
    said = _header_of(gate, header.attempt, context)
    return sent(message, RecordDict({HEADER: header_record(said), BALLOT: arrays}))


def _sum(message: Message, context: Context, header: SumHeader, gate: Gate) -> Message:
    """Return the client's reply in one exchange of the sum of a rung's ballots.

    Its ballot, its share of the noise and its keys are in a journal before a reply
    leaves: in a file where the client has an ``fbo-folder``, else in ``context.state``,
    beside its scores. So whatever is asked again, ballot and noise are the same: the
    difference of two sums would reveal them.

    Raises
    ------
    RefusedError
        If an honest server would not ask that; nothing has left.
    JournalError
        If it is asked for another client's slot.
    """
    asked, sums = header.ballot, header.sums
    if asked.is_exact or len(asked.trials) != sums.num_features:
        raise refused("a secure sum is of one bounded ballot")
    identity = _admit(gate, asked, sums)
    own = identity.own_slot(context)
    if own < 0:
        own = noted_slot(context, KEPT_SUM, asked.attempt)
    if own not in (-1, header.slot):
        raise of_another_slot(own, header.slot)
    with _held(context, asked.attempt, header.slot) as journal:
        begin = header.exchange == Exchange.ADVERTISE
        if _is_known(journal, header, begin):
            gate.is_on_record()
        else:
            # Charged once a rung, before anything about the client can leave.
            gate.charge((KIND, asked.attempt), asked.promise, asked.release)
            ballot = _vector(context, asked)
            journal.put({_ABOUT: np.array(header.about), _BALLOT: ballot})

        def contribution() -> FloatArray:
            ballot = journal.load_array(_BALLOT)
            assert ballot is not None
            return sums.release.contribution(0, header.slot, ballot)

        reply = sum_reply(
            journal,
            identity,
            sums,
            header.about,
            asked.release,
            header.slot,
            header.attempt,
            header.exchange,
            message.content.array_records[SUM]["request"].numpy(),
            contribution,
        )
        if header.exchange == Exchange.UNMASK:  # it is never needed again
            journal.put({_BALLOT: np.zeros(0)})
    arrays = ArrayRecord({"reply": Array(reply)})
    said = _header_of(gate, asked.attempt, context)
    gate.let_go(arrays)
    return sent(message, RecordDict({HEADER: header_record(said), SUM: arrays}))


def _is_known(journal: Journal, header: SumHeader, may_begin: bool) -> bool:
    """Return whether the ballot that is asked for is on record; refuse another one."""
    stored = journal.load_array(_ABOUT)
    about, release = None if stored is None else str(stored), header.ballot.release
    if about == header.about:
        return True
    if about is not None:
        last = json.loads(about)["ballot"]["release"]
        if release <= last:
            raise RefusedError.told(
                f"Release {release}: release {last} was asked for in other words."
            )
    if not may_begin:
        raise RefusedError.told(
            f"Release {release}: exchange {header.exchange} of a sum that did not "
            "begin here."
        )
    return False


def _held(context: Context, attempt: str, slot: int) -> AbstractContextManager[Journal]:
    """Hold the journal of this client's sums in one run of a tuner.

    It belongs to one slot: under two a client could be summed twice.
    """
    identity = {"kind": f"{KIND}-sums", "study_id": attempt, "slot": slot}
    folder, path = configured_folder(context), None
    if folder is not None:
        # Clients may share a folder. The attempt's name is the server's.
        owner = hashlib.sha256(f"{attempt} {configured_slot(context)}".encode())
        path = folder / f"sums-{owner.hexdigest()[:16]}.sqlite"
    return held_journal(
        context, identity, path, record=KEPT_SUM, may_begin=True, patience=_PATIENCE
    )


def _vector(context: Context, header: BallotHeader) -> FloatArray:
    """Return the client's ballot, or its exact scores and their weights."""
    states = TrialStates(context.state, header.attempt)
    sign = 1.0 if header.maximize else -1.0
    known, failed = states.scores, set(header.failed)
    scores = np.array([known.get(t, (0.0, 0.0)) for t in header.trials])
    scores[[t in failed for t in header.trials]] = math.nan, 1.0
    values, weights = sign * scores[:, 0], scores[:, 1]
    is_silent = bool(known) and not np.isfinite(values[weights > 0]).any()
    if is_silent:
        client = context.node_config.get("partition-id", context.node_id)
        rung, num_trials = header.rung + 1, len(header.trials)
        log_once(
            f"a client without a finite score in rung {rung}:",
            f"client {client} has no finite score in any of the {num_trials} trials of "
            f"rung {rung}",
        )
    if header.is_exact:
        return np.stack([values, weights])
    if is_silent:
        return no_scores(len(values))
    return make_ballot(values, weights > 0)


def _admit(
    gate: Gate,
    header: TrialsHeader | BallotHeader,
    sums: SecureSums | None,
    unprotected: str = "",
) -> SumIdentity:
    """Return who the site is in sums.

    Raises
    ------
    RefusedError
        If the site does not allow what is left.
    """
    promise = header.promise
    # The key decides the slot: an app's partition-id is about its data.
    identity = gate.check_sums(sums, promise, unprotected=unprotected)
    gate.check(promise, unprotected)
    gate.admit((KIND, header.attempt), promise, "FederationTuner")
    return identity
