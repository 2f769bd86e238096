"""`SecureAggregation`: the option that keeps the sites' messages from the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flwr_fbo._common.fields import check_fields, integer, ruled
from flwr_fbo._common.validation import check_folder
from flwr_fbo.privacy.release import ReleaseSettings
from flwr_fbo.secure.collector import SecureCollector
from flwr_fbo.secure.roster import Roster
from flwr_fbo.secure.secure_release import SecureRelease
from flwr_fbo.secure.sum_settings import SumGroup
from flwr_fbo.secure.terms import default_threshold


@dataclass(frozen=True)
class SecureAggregation:
    """How the sites of a study sum their messages without a trusted server.

    The server learns the sum with its noise, and who answered. Each release takes five
    more exchanges of short messages.

    Examples
    --------
    >>> from optuna.distributions import FloatDistribution
    >>> from flwr_fbo import FedVote
    >>> from flwr_fbo.secure import SecureAggregation
    >>> strategy = FedVote(
    ...     {"C": FloatDistribution(1e-3, 1e3, log=True)},
    ...     "maximize",
    ...     num_agents=20,
    ...     epsilon=8,
    ...     delta=1e-3,
    ...     aggregation=SecureAggregation(colluding=2),
    ... )

    Attributes
    ----------
    colluding : int
        Number C of sites, >= 0, that may collude with the server or with each other.
        With more than 50 sites at most a fifth of them. A site knows its own noise: if
        C is 0, epsilon holds against the server, and not against the other sites.
    threshold : int, optional
        Number T of sites that must agree on a sum before it is unmasked, more than half
        of the n sites: C < 2 T - n and C < T - 1. The default is more than two thirds.
    honest : int, optional
        Number H of summed sites whose noise alone gives the planned noise multiplier,
        from 1 to n - C; by default T - C. A sum has at least H + C sites. Fewer honest
        sites allow more to be absent; the noise is then sqrt(answered / H) times that
        of a trusted server.
    roster : str or Path, optional
        File with the public keys of all sites (``flwr-fbo keys roster``), the one that
        the sites pin. Without it the guarantee is against a server that follows the
        protocol and reads all that it sees.

    Raises
    ------
    ValueError
        If an argument is not allowed; the message names it.
    """

    colluding: int = field(default=0, metadata=integer(0))
    threshold: int | None = field(default=None, metadata=integer(1, optional=True))
    honest: int | None = field(default=None, metadata=integer(1, optional=True))
    roster: str | Path | None = field(default=None, metadata=ruled(check_folder))

    def __post_init__(self) -> None:
        check_fields(self)

    def group(self, slots: range) -> SumGroup:
        """Return how some sites sum their messages.

        Raises
        ------
        ValueError
            If the numbers do not fit so many sites; the message names the field.
        """
        threshold, honest = self.threshold, self.honest
        if threshold is None:
            threshold = default_threshold(len(slots))
        if honest is None:
            honest = max(threshold - self.colluding, 1)
        about = slots.start, len(slots), honest, self.colluding, threshold
        return SumGroup(*about)

    def collector(self, groups: Sequence[range]) -> SecureCollector:
        """Return what has the sites of each group, given by its slots, sum.

        Raises
        ------
        ValueError
            If the numbers, or the roster, do not fit so many sites.
        """
        roster = self._load_roster()
        return SecureCollector([*map(self.group, groups)], roster)

    @staticmethod
    def mechanism(settings: ReleaseSettings) -> SecureRelease:
        """Return the release in which the sites add the noise.

        Raises
        ------
        ValueError
            If the sites cannot keep a setting; the message names it.
        """
        return SecureRelease(settings)

    def _load_roster(self) -> Roster | None:
        """Return the roster in the file, or None without one.

        Raises
        ------
        ValueError
            If the file cannot be read, or is not a roster.
        """
        if self.roster is None:
            return None
        try:
            return Roster.load(self.roster)
        except OSError as error:
            why = f"a file that can be read ({error.strerror})"
            raise ValueError(
                f"roster={str(self.roster)!r} is not allowed: {why}."
            ) from error
