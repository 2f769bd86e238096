"""What a privacy statement says of a bandit's study."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from flwr_fbo.bandits.fed_go_ucb.study import FedGOUCBStudy
from flwr_fbo.bandits.linear.study import LinearBanditStudy
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy.spending_ledger import Charge
from flwr_fbo.study.report.statement import InLedger, Sent, StudyFacts

_RELEASE = "sums of the site's actions and rewards, with its own noise"
_MASKED = "masked sums of actions and rewards, with a share of the noise"
_OPEN = "gradients and sums of the site's evaluations, as they are"
_LATER = (
    "what one outcome changes in later decisions of a running site: there epsilon does "
    "not hold, since the site acts on its own exact data"
)
_BEFORE = "after how many decisions the sites synchronise: the schedule is public"
_COUNTS = (
    "with each reply the number of the site's evaluations, and whether it asks to "
    "synchronise"
)


def linear_facts(
    identity: Mapping[str, Any], rows: Sequence[LedgerRow], ledger: InLedger
) -> StudyFacts:
    """Return what a statement says of a linear bandit, by a journal of it.

    As `flwr_fbo.tuning.report.statement.study_facts` does of tuning.
    """
    if not identity:
        return StudyFacts("FedUCB", not_covered=(_BEFORE,))
    study = LinearBanditStudy.from_dict({"study_id": "one", **identity})
    # A server's row counts the releases of each agent; a site has a row for each.
    made = [max(row.facts.get("num_releases", [0])) for row in rows]
    times = max(made, default=0) or len(rows)
    sent: tuple[Sent, ...] = ()
    if study.secure is not None:
        noise = study.secure.noise(0)
        num_bytes = noise.length * (noise.num_bits // 8)
        sent = (Sent(_MASKED, times, num_bytes),)
    elif rows:
        # A server passes the messages of peers on, and keeps none.
        is_passed_on = study.graph is not None and made[-1] > 0
        size = None if is_passed_on else rows[-1].vectors.nbytes
        sent = (Sent(_RELEASE, times, size),)
    secure = identity["secure"]
    return StudyFacts(
        study.strategy,
        study.promise.charges if study.private else (Charge(0.0),),
        sent,
        "local" if study.secure is None else "sums",
        not_covered=((_LATER,) if study.settings.fixed_rows else ()) + (_BEFORE,),
        groups=() if secure is None else secure["groups"],
        roster="" if secure is None else secure["roster"],
        is_seeded=study.noise_seed is not None,
    )


def neural_facts(
    identity: Mapping[str, Any], rows: Sequence[LedgerRow], ledger: InLedger
) -> StudyFacts:
    """Return what a statement says of a bandit with a network: see `linear_facts`."""
    if not identity:
        return StudyFacts("FedGOUCB", exact=(_COUNTS,))
    seed = identity["seed"] or 0  # drawn by the server; no number here needs it
    study = FedGOUCBStudy.from_dict({"study_id": "one", **identity, "seed": seed})
    sizes = Counter(row.vectors.nbytes for row in rows)
    what = _RELEASE if study.has_noise else _OPEN
    return StudyFacts(
        study.strategy,
        study.promise.charges if study.private else (Charge(0.0),),
        tuple(Sent(what, times, size) for size, times in sorted(sizes.items())),
        "local",
        exact=(_COUNTS,),
        is_seeded=study.noise_seed is not None,
    )
