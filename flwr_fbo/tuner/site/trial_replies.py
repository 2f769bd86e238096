"""Replies to the trials of a message: each is run in turn, as if alone."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from flwr_fbo._common.errors import log_once
from flwr_fbo._compat import (
    GET_PARAMETERS,
    MOD_REFUSED,
    SECURE_AGGREGATION_RECORD,
    secure_aggregation_stage,
)
from flwr_fbo.site.gate import NO_ANSWER, sent
from flwr_fbo.site.kept_ledger import SPENDING
from flwr_fbo.site.node_config_limits import hearing
from flwr_fbo.site.site import SiteError, reported
from flwr_fbo.site.time_limit import time_limit
from flwr_fbo.study.codec import StudyMismatchError, is_instruction
from flwr_fbo.tuner.message_headers import TrialsHeader, pack, unpack
from flwr_fbo.tuner.site.asked_site import AskedSite
from flwr_fbo.tuner.site.hidden_metrics import (
    check_number,
    check_weight,
    hide_evaluate_metrics,
    hide_train_metrics,
    merged,
    score_of,
    weight_of,
)
from flwr_fbo.tuner.site.trial_states import TrialStates
from flwr_fbo.tuner.trial_context import FederationTrial, Overlay

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

_MOD_HINT = (
    ", a mod refused the message; a DP mod belongs on the app's own train, "
    "@app.train(mods=[...])"
)
_STUDY_IN_TRIAL = (
    "A trial of FederationTuner takes part in no study: start that before the tuner, "
    "or after it."
)

# What a site is asked for if scores are not hidden.
EXACT_SCORES = "exact scores"
_REPLY = "a reply to evaluate"


def trial_replies(
    site: AskedSite, header: TrialsHeader, call_next: ClientAppCallable
) -> Message:
    """Return the replies of all trials of a send."""
    message, gate, context = site.message, site.gate, site.gate.context
    is_evaluate = message.metadata.message_type.startswith(MessageType.EVALUATE)
    unprotected = "" if header.is_hidden else EXACT_SCORES
    identity = site.admit(header, header.sums, unprotected)
    slot = -1 if header.sums is None else site.own_slot(identity)
    # A trial finds what it has kept itself, and nothing of the others.
    states = TrialStates(context.state, header.attempt, header.examples, header.alive)
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
                reply = reported(partial(call_app, *arguments))
            if reply.has_error():  # of its text the server is told nothing
                code = reply.error.code
                hint = _MOD_HINT if code == MOD_REFUSED else ""
                errors[str(place)] = f"the app gave error {code}{hint}."
            else:
                keep = partial(_kept, message, reply.content, trial, header, states)
                replies[place] = reported(keep)
        except SiteError as error:
            # At a bound site not even the type of an exception leaves.
            errors[str(place)] = NO_ANSWER if gate.is_bound else str(error)
        # A failure is a score: else a client could be silent about a bad trial.
        if str(place) in errors and is_evaluate:
            states.fail(trial)
        states.save(trial, state)
        keeps_state |= bool({*state} - {SPENDING})
        read |= overlay.read
    # Once more, as the app's own clients may have limits of which nobody knew before.
    gate.renew()
    site.admit(header, header.sums, unprotected)
    if unprotected:  # replies to train have metrics, too
        gate.charge_unprotected(site.key(header))
    answer = replace(
        site.reply_header(header),
        errors=errors,
        read=tuple(sorted(read)),
        keeps_state=keeps_state,
        slot=slot,
    )
    gate.let_go(unprotected)
    return sent(message, pack(answer, replies))


def call_app(
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
    # A trial has a copy of the state, and so of a site's journals in it.
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
    finally:  # whatever fails: a training may have been charged before
        if inner.state is not state:  # the app has put another in its place
            charged = {name: state[name] for name in (SPENDING,) if name in state}
            state.clear()
            state.update({**charged, **inner.state})
    return reply


def _kept(
    message: Message,
    content: RecordDict,
    trial: int,
    header: TrialsHeader,
    states: TrialStates,
) -> RecordDict:
    """Keep the score of a reply; return what of the reply is sent."""
    kind = message.metadata.message_type
    if not kind.startswith(MessageType.EVALUATE):
        if not header.is_hidden:
            return content
        if kind != GET_PARAMETERS:  # which weighs nothing
            check_weight(content)
        return hide_train_metrics(content)
    configs, found = content.config_records.values(), content.metric_records.values()
    metrics = {**merged(configs), **merged(found)}
    # The score stays here, whatever of the reply is sent.
    if header.metric:  # else the server scores its own model
        score = score_of(metrics, header.metric, _REPLY)
        weight = weight_of(metrics, _REPLY)
        if header.examples is not None:
            check_number(metrics, weight)
        if weight == 0:  # Flower's own mean of the replies would be divided by zero
            log_once(
                "a score without weight:",
                "num-examples=0 in a reply to evaluate: its score counts for nothing",
            )
        states.score(trial, score, weight)
    return hide_evaluate_metrics(content) if header.is_hidden else content
