"""What a privacy statement says of a tuning study."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from flwr_fbo._common.fields import from_json
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy.spending_ledger import Charge
from flwr_fbo.secure import SecureSums
from flwr_fbo.study.kinds import load
from flwr_fbo.study.report.statement import InLedger, Sent, StudyFacts
from flwr_fbo.tuning.registry import algorithm_in

_MODELS = "a model that a site trains with its best setting"
_COHORT = "the slot of a site: it shows its cohort, and so about when the site joined"


def study_facts(
    identity: Mapping[str, Any], rows: Sequence[LedgerRow], ledger: InLedger
) -> StudyFacts:
    """Return what a statement says of a study, by its server's or a site's journal.

    Parameters
    ----------
    identity : mapping of str to JSON value
        Of the journal; empty where a site has none of the study.
    rows : sequence of LedgerRow
        Releases of the server; a site's journal has none.
    ledger : InLedger
        What the site's ledger has of it; nothing of a server.
    """
    if not identity:
        return StudyFacts("a tuning study", not_covered=(_MODELS,))
    algorithm = algorithm_in(identity["agent"])
    module, _, strategy = algorithm.strategy.rpartition(":")
    folder = module.rpartition(".")[2]
    secure, is_warm = identity["secure"], "cohorts" in (identity["facts"] or {})
    sums = None if secure is None else from_json(SecureSums, secure)
    sizes = {8 * identity["agent"]["num_features"]}
    what, reads = "message with what the site believes of its objective", ""
    if sums is not None:
        noises = map(sums.noise, range(len(sums.groups)))
        sizes = {noise.length * (noise.num_bits // 8) for noise in noises}
        what = "masked message, which only the sum of all unmasks"
    elif strategy != "FTS":
        reads = load(f"flwr_fbo.tuning.{folder}.server:{strategy}Server").readable
    charges: tuple[Charge, ...] = ()
    times, senders = len(ledger.charges), None
    # A server knows its seeds; a site has what it was promised.
    private = identity.get("noise_seed") is None
    if "promise" in identity:
        private = identity["promise"]["private"]
    if rows:
        # A site is in one release at most, or in all.
        times = 1 if identity.get("parallel") else len(rows)
        charges = _charges(rows)[:times]
    if is_warm:
        senders = sum(identity["facts"]["cohorts"]["cohort_sizes"])
    return StudyFacts(
        strategy,
        charges,
        tuple(Sent(what, times, size) for size in sorted(sizes)),
        "server" if sums is None else "sums",
        reads,
        not_covered=(_MODELS, _COHORT) if is_warm else (_MODELS,),
        num_senders=senders,
        groups=() if secure is None else secure["groups"],
        roster="" if secure is None else secure["roster"],
        is_seeded=not private,
    )


def _charges(rows: Sequence[LedgerRow]) -> tuple[Charge, ...]:
    """Return the releases as one site is charged; empty where that is no Gaussian's."""
    if any(
        row.facts.get("sampling") != "poisson" or row.facts["noise_only"]
        for row in rows
    ):
        return ()
    return tuple(
        Charge(
            row.facts["noise_multiplier"],
            row.facts["sample_size"] / row.facts["population_size"],
        )
        for row in rows
        if math.isfinite(row.facts["noise_multiplier"])
    )
