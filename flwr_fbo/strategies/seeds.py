"""Seeds of a tuning study: of draws, shared features and noise."""

from __future__ import annotations

from dataclasses import dataclass, field

from flwr_fbo._common.fields import check_fields, seed


@dataclass(frozen=True)
class Seeds:
    """Seeds of a tuning study; by default the operating system draws them.

    Examples
    --------
    >>> from optuna.distributions import FloatDistribution
    >>> from flwr_fbo import FTS, Seeds
    >>> strategy = FTS(
    ...     {"C": FloatDistribution(1e-3, 1e3, log=True)},
    ...     "maximize",
    ...     num_agents=20,
    ...     seeds=Seeds(study=1, features=2),
    ... )

    Attributes
    ----------
    study : int, optional
        Seed of the agents' draws; the agents are told it.
    features : int, optional
        Public seed of the shared features.
    noise : int, optional
        Seed of noise and sampling mask, *for experiments only*: the study is then not
        private.

    Raises
    ------
    ValueError
        If one is not an integer >= 0; the message names it.
    """

    study: int | None = field(default=None, metadata=seed())
    features: int | None = field(default=None, metadata=seed())
    noise: int | None = field(default=None, metadata=seed())

    def __post_init__(self) -> None:
        check_fields(self)
