"""`charge_training`: the site's ledger counts what an app trains with DP-SGD."""

from __future__ import annotations

import logging

from flwr.app import Context

from flwr_fbo._common.errors import PublicError
from flwr_fbo._common.validation import require, require_instance
from flwr_fbo.privacy.spending_ledger import cover
from flwr_fbo.privacy.training import Trainings, charges_of
from flwr_fbo.site.gate import Gate
from flwr_fbo.site.limits import Limits
from flwr_fbo.site.site_journal import configured_folder

_log = logging.getLogger("flwr.fbo")


def charge_training(
    context: Context,
    training: Trainings,
    plan: Trainings | None = None,
    limits: Limits | None = None,
) -> None:
    """Charge a site for a round of DP-SGD, before it is trained.

    An app calls it in its ``train`` function, of whatever library: with ``FedAvg``, or
    in the trials of a `FederationTuner`. The charge is on disk when this returns. Each
    call is another charge: a round that is trained again is charged again.

    Examples
    --------
    >>> from flwr.app import Context, RecordDict
    >>> from flwr_fbo import charge_training
    >>> from flwr_fbo.privacy import DPSGD
    >>> limits = {"fbo-max-epsilon-per-example": 8.0, "fbo-max-delta": 1e-5}
    >>> context = Context(7, 1, limits, RecordDict(), {})  # as train(message, context)
    >>> one_round = DPSGD(noise_multiplier=1.1, sampling_probability=0.05, num_steps=20)
    >>> all_rounds = DPSGD(
    ...     noise_multiplier=1.1, sampling_probability=0.05, num_steps=27 * 20
    ... )
    >>> charge_training(context, one_round, plan=all_rounds)
    >>> charge_training(context, DPSGD(0.4, 0.5, 100))
    Traceback (most recent call last):
    ...
    flwr_fbo._common.errors.RefusedError: This site takes no part: its limits.

    Parameters
    ----------
    context : flwr.app.Context
        Context of the message. The ledger is in the ``fbo-folder`` of its node config.
        Without that, limits cover only the run, and a warning says so: the ledger is in
        the ``fbo-folder`` of the run config, which a server can exchange, or lives in
        ``context.state``. Without folder and limits nothing is kept.
    training : DPSGD or sequence of DPSGD
        Steps that are about to be taken.
    plan : DPSGD or sequence of DPSGD, optional
        All steps that are planned, these among them: the site is charged for all of
        them at first, and later rounds are within. It costs much less than rounds that
        are charged one after another, since a server could stop at any of these. A
        round fits if it has at least the plan's noise multiplier, at most its sampling
        probability, and no more steps than are left. One beyond these counts besides.
        Every round of a run must give the same plan, or a second one is charged: take
        its rounds from a key of the app's own, as a tuner sends ``num-server-rounds``
        of its parts. By default the round is all.
    limits : Limits, optional
        Limits that hold besides those of the node config, such as
        ``fbo-max-epsilon-per-example``, and those of the app.

    Raises
    ------
    RefusedError
        If it would exceed a limit; nothing is charged then. Its text may leave the
        site, as Flower sends it to the server; the site's log has the numbers.
    JournalError
        If the ledger cannot be used, or lacks charges.
    NodeConfigError
        If a value of the node config is not allowed.
    ValueError
        If an argument is not allowed, or the plan does not cover the training.

    Notes
    -----
    *Formal guarantees*. What leaves of steps that were charged is covered by the totals
    of `Limits` and `SpendingLedger`, for one example with or without it, if each step
    is as `DPSGD` says, and if nothing else leaves: a metric, or a number of examples,
    is exact. Whether an app trains as it says, and charges what it trains, cannot be
    told from outside.

    A server that may choose the plan learns from a refusal that less is left of the
    limits than the plan costs. Where a plan fits, the site is charged for it.
    """
    expected = "Limits, or None"
    require_instance("limits", limits, Limits, allowed=expected, optional=True)
    steps = charges_of("training", training)
    planned = steps if plan is None else charges_of("plan", plan)
    # Else a plan with a slip, such as too little noise, would be no plan at all.
    expected = f"one that covers the training: {training!r}"
    require(cover(planned, steps), "plan", plan, expected)
    try:
        gate = Gate(context, configured_folder(context), limits)
        gate.charge_training(f"run {context.run_id}", steps, planned)
    except PublicError as error:
        # Flower sends its text to the server: how much is left is the site's business.
        _log.warning("A training was not charged, so it must not begin. %s", error)
        raise type(error)(error.public, public=error.public) from None
