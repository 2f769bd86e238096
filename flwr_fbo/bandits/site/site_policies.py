"""The policy of a site's folder, whatever kind of bandit it plays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flwr_fbo._common.validation import refuse
from flwr_fbo.bandits.kind import LINEAR_SITE, NEURAL_SITE
from flwr_fbo.bandits.site.bandit_policy import BanditPolicy
from flwr_fbo.site.study_journals import last_journal


def open_policy(folder: str | Path, patience: float = 30.0) -> BanditPolicy[Any]:
    """Open the policy of the bandit that is played in a folder.

    A site whose study has no network of its own opens `NeuralBanditPolicy` with its
    model instead.

    Parameters
    ----------
    folder, patience
        See `LinearBanditPolicy.open`.

    Raises
    ------
    ValueError
        If the folder has bandits of both kinds.
    StudyMismatchError
        If the study needs a model of the site.
    JournalError
        If there is none, or the server did not enrol the site.
    """
    kinds = LINEAR_SITE, NEURAL_SITE
    found = [k for k in kinds if last_journal(Path(folder), k.name).is_file()]
    if len(found) > 1:
        text = "the folder of one bandit: this one has a linear and a neural one"
        refuse("folder", str(folder), text)
    # A client process loads what its message needs, and a service what it serves.
    if found == [NEURAL_SITE]:
        from flwr_fbo.bandits.site.neural_bandit_policy import NeuralBanditPolicy

        return NeuralBanditPolicy.open(folder, patience)
    from flwr_fbo.bandits.site.linear_bandit_policy import LinearBanditPolicy

    return LinearBanditPolicy.open(folder, patience)
