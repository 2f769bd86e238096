"""The one line at the client: `tuner_mod` runs trials, and keeps their scores there."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import NoReturn

from flwr.app import Context, Error, Message, MessageType, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from flwr_fbo._common.errors import AppFailedError, log_once
from flwr_fbo._compat import GET_PARAMETERS
from flwr_fbo.site.gate import NO_ANSWER, Gate, let_go_by_a_site, sent
from flwr_fbo.site.node_config_limits import hearing
from flwr_fbo.site.site import SiteError, reported
from flwr_fbo.tuner.message_headers import (
    HEADER,
    BallotHeader,
    SettingsHeader,
    SumHeader,
    TrialsHeader,
)
from flwr_fbo.tuner.site.asked_site import AskedSite
from flwr_fbo.tuner.site.ballot_replies import ballot_reply, sum_reply_of
from flwr_fbo.tuner.site.hidden_metrics import hide_evaluate_metrics, hide_train_metrics
from flwr_fbo.tuner.site.trial_replies import call_app, trial_replies
from flwr_fbo.tuner.site.trial_states import TrialStates
from flwr_fbo.tuner.trial_context import Overlay


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
      has an ``fbo-folder``, and its limits (``fbo-max-epsilon-per-client`` and its
      like) hold.
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
    trained arrays, ``num-examples`` of a reply to ``train``, the number of validation
    examples where a choice protects one of them, ``norm_bit`` of Flower's
    adaptive clipping, which of the tuned keys the client reads, whether its app keeps
    anything in ``context.state``, and the type of an exception. With `secagg_mod` or
    `secaggplus_mod` the trained arrays leave masked, as that protocol masks them; the
    keys and key shares of the protocol leave as they are.
    """
    header = None
    if HEADER not in message.content:
        gate = reported(partial(Gate, context))
    else:
        site = reported(partial(AskedSite.of, message, context))
        header, gate = site.header, site.gate
        if isinstance(header, TrialsHeader):
            return reported(partial(trial_replies, site, header, call_next))
        if isinstance(header, BallotHeader):
            return reported(partial(ballot_reply, site, header))
        if isinstance(header, SumHeader):
            return reported(partial(sum_reply_of, site, header))
    answer, is_hidden = partial(call_next, message, context), False
    if isinstance(header, SettingsHeader):
        if header.attempt:  # a trial goes on as the app's own training
            TrialStates.adopt(context.state, header.attempt, header.trial)
        content = RecordDict({n: r for n, r in message.content.items() if n != HEADER})
        overlay = Overlay(context.run_config, header.settings)
        answer = partial(
            call_app, message, content, context, call_next, overlay, context.state
        )
        is_hidden = header.is_hidden
    # A message that is no trial's ends the trials of this client.
    TrialStates.forget(context.state)
    return _own_reply(message, gate, answer, is_hidden)


def _own_reply(
    message: Message, gate: Gate, answer: Callable[[], Message], is_hidden: bool
) -> Message:
    """Return what may leave of an app's own reply to a message, or of its error."""
    failure: Exception | None = None
    with hearing(gate.context), let_go_by_a_site() as passed:
        try:
            reply = answer()
        except Exception as error:
            failure = error
    gate.renew()  # the app's own clients may have limits of which nobody knew before
    is_bound = gate.is_bound
    if failure is not None:
        if not is_bound or isinstance(failure, SiteError):
            raise failure
        reported(partial(_raise, AppFailedError.told(NO_ANSWER), failure))
    # A reply that the gate has let go was charged: an agent of the same app made it.
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
    # What has a model keeps its weight, as the server could not aggregate it else.
    with_model = MessageType.TRAIN, GET_PARAMETERS
    has_model = message.metadata.message_type.startswith(with_model)
    hide = hide_train_metrics if has_model else hide_evaluate_metrics
    return sent(message, hide(reply.content))


def _raise(error: Exception, cause: Exception) -> NoReturn:
    raise error from cause
