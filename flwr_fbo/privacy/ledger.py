"""What the ledger says of one release of a tuning study; written before it leaves.

An entry holds what an auditor needs to charge the release again, and the vectors
themselves; never the noise, the sum before the noise, or who was sampled.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from flwr_fbo._arrays import FloatArray
from flwr_fbo._version import __version__
from flwr_fbo.journal.ledger_table import LedgerRow
from flwr_fbo.privacy.release import Release


def entry_of(release: Release, iteration: int, vectors: FloatArray) -> LedgerRow:
    """Return the ledger's entry for the vectors of ``iteration``, shape (P, M)."""
    settings = release.settings
    facts: dict[str, Any] = {
        # What the round is charged at: noise over exact sensitivity.
        "noise_multiplier": release.effective_noise_multiplier(iteration),
        **asdict(settings.subsampling),
        "sensitivity": release.sensitivity(iteration),
        "noise_std": release.noise_std(iteration).tolist(),
        "private": release.private,
        "noise_only": settings.noise_only,
        "flwr_fbo": __version__,
    }
    return LedgerRow(iteration, facts, vectors)
