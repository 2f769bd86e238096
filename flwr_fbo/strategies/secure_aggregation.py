"""The option of tuning strategies that keeps messages from the server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flwr_fbo._common.validation import require, require_int
from flwr_fbo.secure_sum.graph import MAX_COMPLETE
from flwr_fbo.secure_sum.roster import Roster
from flwr_fbo.secure_sum.terms import default_threshold
from flwr_fbo.strategies.options import check_folder
from flwr_fbo.study.secure_sums import SumGroup

# What a study without a roster says.
NO_ROSTER = (
    "no roster: this holds against a server that follows the protocol and reads all it "
    "sees, not against one that deviates from it"
)


@dataclass(frozen=True)
class SecureAggregation:
    """How the sites of a tuning study sum their messages without a trusted server.

    The server learns the sum with its noise, and who answered. Each release takes five
    more exchanges of short messages.

    Examples
    --------
    >>> from optuna.distributions import FloatDistribution
    >>> from flwr_fbo import FedVote, SecureAggregation
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

    colluding: int = 0
    threshold: int | None = None
    honest: int | None = None
    roster: str | Path | None = None

    def __post_init__(self) -> None:
        require_int("colluding", self.colluding, 0)
        for name in ("threshold", "honest"):
            value = getattr(self, name)
            if value is not None:
                require_int(name, value, 1)
        check_folder("roster", self.roster)

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

    def load_roster(self) -> Roster | None:
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


def check_pinned(roster: Roster | None, slots: range) -> None:
    """Raise ValueError unless the sites that sum together are those of a roster.

    Of more than 50 all must be. Else a server could choose sites by their place in the
    sparse graph that they mask each other on.
    """
    if roster is None:
        return
    pinned = set(roster.slots)
    missing = sorted(set(slots) - pinned)
    allowed = f"one with the keys of slots {slots.start} to {slots.stop - 1}"
    require(not missing, "roster", f"without slots {missing[:8]}", allowed)
    ok = len(slots) <= MAX_COMPLETE or len(slots) == len(pinned)
    allowed = f"one of the {len(slots)} sites that sum together, as they are over 50"
    require(ok, "roster", f"{len(pinned)} sites", allowed)
