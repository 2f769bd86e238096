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
    # A client process loads what its message needs, and a service what it serves.
    if policy_file(folder) == last_journal(Path(folder), NEURAL_SITE.name):
        from flwr_fbo.bandits.site.neural_bandit_policy import NeuralBanditPolicy

        return NeuralBanditPolicy.open(folder, patience)
    from flwr_fbo.bandits.site.linear_bandit_policy import LinearBanditPolicy

    return LinearBanditPolicy.open(folder, patience)


def policy_file(folder: str | Path) -> Path:
    """Return the journal of the bandit that is played in a folder.

    That of a linear one, which is not there, where none is.

    Raises
    ------
    ValueError
        If the folder has bandits of both kinds.
    """
    linear, neural = (
        last_journal(Path(folder), kind.name) for kind in (LINEAR_SITE, NEURAL_SITE)
    )
    if linear.is_file() and neural.is_file():
        text = "the folder of one bandit: this one has a linear and a neural one"
        refuse("folder", str(folder), text)
    return neural if neural.is_file() else linear
