"""What a site takes part in, whatever the server says: privacy, sizes and time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from flwr_fbo._common.conversion import take_plain
from flwr_fbo._common.errors import PublicError
from flwr_fbo._common.validation import (
    is_number,
    require,
    require_int,
    require_positive,
)
from flwr_fbo.privacy.spending import Charge, Promise, composed_epsilon, least_epsilon

if TYPE_CHECKING:
    from flwr_fbo.study.secure_sums import SecureSums

# Of an epsilon that was calibrated to the limit itself.
_ROUNDING = 1e-6

# What one message may cost, where neither the app nor the node config says it.
DEFAULT_SIZES: dict[str, float] = {
    "max_agents": 100_000,
    "max_peers": 1_000,
    "max_features": 2_048,
    "max_points": 10_000,
    "max_choices": 1_000,
    "max_dimension": 256,
    "max_synchronisations": 20_000,
    "max_steps": 50_000_000,
    "max_characters": 2**19,
    "max_numbers": 2**21,
    "max_trials": 10_000,
    "max_seconds": 86_400,
}


class StudyRefusedError(PublicError, RuntimeError):
    """A study promises less, or would release more, than a site wants."""


@dataclass(frozen=True)
class SumLimits:
    """What a site wants of the secure sums that it takes part in.

    With any of them it takes part in no tuning study without secure aggregation, and in
    no bandit study without noise of its own.

    Examples
    --------
    >>> from flwr_fbo import Limits, SumLimits
    >>> limits = Limits(sums=SumLimits(min_agents=20, min_honest=14))

    Attributes
    ----------
    min_agents : int, optional
        Smallest number of sites whose messages are summed.
    min_threshold : int, optional
        Smallest number of sites that must agree on a sum.
    min_honest : int, optional
        Smallest number of sites whose noise alone is enough. It limits how much more
        noise a sum has than planned, and protects nobody.
    min_colluding : int, optional
        Smallest number of sites, >= 0, that may collude with the server: the others
        of a sum alone give the planned noise. Without it the server chooses.
    min_noise_multiplier : float, optional
        Smallest noise multiplier of a sum.

    Raises
    ------
    ValueError
        If a value is not allowed.
    """

    min_agents: int | None = None
    min_threshold: int | None = None
    min_honest: int | None = None
    min_colluding: int | None = None
    min_noise_multiplier: float | None = None

    def __post_init__(self) -> None:
        take_plain(self)
        for name in ("min_agents", "min_threshold", "min_honest"):
            if getattr(self, name) is not None:
                require_int(name, getattr(self, name), 1)
        if self.min_colluding is not None:
            require_int("min_colluding", self.min_colluding, 0)
        if self.min_noise_multiplier is not None:
            require_positive("min_noise_multiplier", self.min_noise_multiplier)

    def check(self, secure: SecureSums | None, promise: Promise) -> None:
        """Raise `StudyRefusedError` unless messages are summed as the site wants.

        Parameters
        ----------
        secure : SecureSums, optional
            How a tuning study sums them.
        promise : Promise
            What the study says that it costs.
        """
        wanted = {name: v for name, v in vars(self).items() if v is not None}
        if secure is None:
            if wanted:
                name = next(iter(wanted))
                raise refused(f"no secure aggregation, which {name} needs")
            return
        z = secure.settings.noise_multiplier
        if any(c.noise_multiplier > z * (1 + _ROUNDING) for c in promise.charges):
            raise refused("the sites of a sum add less noise than the study promises")
        if any(c.sampling_probability < 1 for c in promise.charges):
            raise refused(
                "all sites are summed, and the study promises a sample of them"
            )
        found = {
            "min_agents": min(g.num_slots for g in secure.groups),
            "min_threshold": min(g.threshold for g in secure.groups),
            "min_honest": min(g.honest for g in secure.groups),
            "min_colluding": min(g.colluding for g in secure.groups),
            "min_noise_multiplier": z,
        }
        for name, least in wanted.items():
            if found[name] < least:
                text = f"{name}={least:g}, and the study has {found[name]:g}"
                raise refused(text, public=name)


@dataclass(frozen=True)
class Limits:
    """What all studies on a site's data may spend together, and what one may cost.

    The first three hold for everything in the site's `SpendingLedger`: this study and
    all others that it took part in, of whatever kind. The others hold for each message.

    Examples
    --------
    >>> from flwr_fbo import Limits
    >>> limits = Limits(max_epsilon=3.0, max_delta=1e-5, max_trials=50)

    Formal guarantees
    -----------------
    With ``max_epsilon`` and ``max_delta`` all that was released of a site since its
    ledger began, under its ``agent-id``, is (max_epsilon, max_delta)-DP, under the
    adjacency of each study's mechanism (see `SpendingLedger`), as long as the site runs
    the app that it reviewed: whoever may call ``flwr run`` can replace it, limits
    included. A bandit's site adds its own noise, so that this holds against the server
    too. In a tuning study the server adds the noise: the site counts what the server
    promises, and stops a server that asks for more. It cannot see whether the noise was
    added.

    Attributes
    ----------
    max_epsilon, max_delta : float, optional
        Epsilon > 0 at delta in (0, 1), given together. With them a study that is not
        private, or promises less than its noise says, is refused. With
        ``max_epsilon=math.inf`` alone the site takes part in any study.
    max_releases : int, optional
        Number of releases, >= 1; all releases of a bandit study count as one.
    max_uniform_share : float, optional
        In [0, 1]: largest share of a bandit's decisions that may be made without regard
        to their rewards. Below 1, `InverseGapWeighting` is refused, for which there is
        no such bound.
    allow_fixed_rows : bool
        Whether an epsilon may be for one trial with all other rows fixed, as it is with
        ``local_data="own"`` (see `LinearUCBSettings`). Of effect with ``max_epsilon``.
    sums : SumLimits
        What the site wants of secure sums.
    max_agents : int, optional
        Agents of a study: 100,000 unless given here or in the node config.
    max_peers : int, optional
        Agents of a study without a centre, which all know the whole graph: 1,000.
    max_features : int, optional
        Features of a message or a model, and weights of a network: 2,048.
    max_points : int, optional
        Points that are drawn or tried before a query, such as initial points,
        candidates and posterior samples: 10,000.
    max_choices : int, optional
        Choices of all categorical parameters together: 1,000.
    max_dimension : int, optional
        Parameters of a space, coordinates of an action, sub-regions, streams: 256.
    max_synchronisations : int, optional
        Planned synchronisations of a bandit study: 20,000. Where their number is
        unknown there is no limit: each takes rounds of its own.
    max_steps : int, optional
        Work for one message besides its trials, as `Study.steps` estimates it, in steps
        of at most about 10 ns: 50 million.
    max_characters : int, optional
        Characters of a study, which comes as JSON with every message: 2**19.
    max_numbers : int, optional
        Numbers in a message's arrays together: 2**21.
    max_trials : int, optional
        Trials that one message may ask for: 10,000. Where the first trials of a tuning
        study all fail, the site tries up to five more at once.
    max_seconds : float, optional
        Seconds after which the trials of one message end: 86,400, a day. The running
        trial ends first. All trials are in the journal, so that the next message goes
        on from there.

    Raises
    ------
    ValueError
        If a value is not allowed, or only one of epsilon and delta is given.

    Notes
    -----
    The limits from ``max_agents`` on are always on. Up to ``max_numbers`` they are
    checked before anything of a message is built, so that a lying server costs a site
    about a second and 200 MB at most (``python -m tests.adversaries.lying_server``).
    """

    max_epsilon: float | None = None
    max_delta: float | None = None
    max_releases: int | None = None
    max_uniform_share: float | None = None
    allow_fixed_rows: bool = False
    max_agents: int | None = None
    max_peers: int | None = None
    max_features: int | None = None
    max_points: int | None = None
    max_choices: int | None = None
    max_dimension: int | None = None
    max_synchronisations: int | None = None
    max_steps: int | None = None
    max_characters: int | None = None
    max_numbers: int | None = None
    max_trials: int | None = None
    max_seconds: float | None = None
    sums: SumLimits = SumLimits()

    def __post_init__(self) -> None:
        take_plain(self)
        for field in ("max_epsilon", "max_delta"):
            value = getattr(self, field)
            ok = value is None or (is_number(value) and value > 0)
            require(ok, field, value, "a number > 0")
        epsilon, delta = self.max_epsilon, self.max_delta
        require(delta is None or delta < 1, "max_delta", delta, "below 1")
        if epsilon != math.inf:
            together = "given, or not, together with max_"
            ok = delta is None or epsilon is not None
            require(ok, "max_epsilon", epsilon, f"{together}delta={delta}")
            ok = epsilon is None or delta is not None
            require(ok, "max_delta", delta, f"{together}epsilon={epsilon}")
        for field in ("max_releases", *DEFAULT_SIZES):
            if field != "max_seconds" and getattr(self, field) is not None:
                require_int(field, getattr(self, field), 1)
        share = self.max_uniform_share
        ok = share is None or (is_number(share) and 0 <= share <= 1)
        require(ok, "max_uniform_share", share, "a number in [0, 1]")
        if self.max_seconds is not None:
            require_positive("max_seconds", self.max_seconds)
        allowed = "True or False"
        value = self.allow_fixed_rows
        require(isinstance(value, bool), "allow_fixed_rows", value, allowed)
        ok = isinstance(self.sums, SumLimits)
        require(ok, "sums", self.sums, "a SumLimits")

    @cached_property
    def bound_epsilon(self) -> bool:
        """Whether epsilon is limited."""
        return self.max_epsilon is not None and self.max_epsilon < math.inf

    @cached_property
    def bound_anything(self) -> bool:
        """Whether epsilon or the number of releases is limited."""
        return self.bound_epsilon or self.max_releases is not None

    def check_promise(self, promise: Promise, unprotected: str = "") -> None:
        """Raise `StudyRefusedError` unless a study is private, where epsilon is bound.

        Parameters
        ----------
        promise : Promise
        unprotected : str
            What it asks for besides that no guarantee covers.
        """
        if not self.bound_epsilon:
            return
        require_private(promise)
        if promise.caveat:
            raise refused(f"the study {promise.caveat}")
        if promise.fixed_rows and not self.allow_fixed_rows:
            raise refused(
                "the study promises less than local_data='released': its epsilon is "
                "for one trial with all other rows fixed, and allow_fixed_rows=False",
                public="allow_fixed_rows",
            )
        if unprotected:
            raise refused(f"the study asks for {unprotected}, which is not private")

    def check_uniform_share(self, share: float) -> None:
        """Raise `StudyRefusedError` if too many decisions are made at random."""
        most = self.max_uniform_share
        if most is not None and share > most:
            raise refused(
                f"the study makes up to a share of {share:g} of all decisions at "
                f"random, and max_uniform_share={most:g}",
                public="max_uniform_share",
            )

    def check_release(self, promise: Promise, release: int) -> None:
        """Raise `StudyRefusedError` if a release, from 1, is not promised."""
        promised = promise.num_releases
        if self.bound_anything and release > promised:
            raise refused(
                f"release {release} is asked for, and the study promises {promised}"
            )

    def check_sum(self, charges: Sequence[Charge]) -> None:
        """Raise `StudyRefusedError` if charges together exceed a limit."""
        releases, most = sum(c.num_releases for c in charges), self.max_releases
        if most is not None and releases > most:
            raise refused(
                f"with its other studies that is {releases} releases, and "
                f"max_releases={most}",
                public="max_releases",
            )
        if not self.bound_epsilon:
            return
        assert self.max_epsilon is not None
        assert self.max_delta is not None
        most_epsilon = self.max_epsilon * (1 + _ROUNDING)
        epsilon, relation = least_epsilon(charges, self.max_delta), ">="
        if epsilon <= most_epsilon:  # else to add them up could take minutes
            epsilon, relation = composed_epsilon(charges, self.max_delta), "="
        if epsilon > most_epsilon:
            raise refused(
                f"with its other studies that is epsilon{relation}{epsilon:.4g} at "
                f"max_delta={self.max_delta:g}, and max_epsilon={self.max_epsilon:g}",
                public="max_epsilon",
            )

    def check_size(self, limit: str, size: float, what: str) -> None:
        """Raise `StudyRefusedError` if a size is above the limit that it names."""
        most = getattr(self, limit)
        if size > most:
            raise refused(
                f"{what}={size:.15g} exceeds {limit}={most:.15g}",
                public=f"{what} exceeds {limit}",
            )


NO_LIMITS = Limits()


def limits_text(limits: Iterable[Limits]) -> str:
    """Return what limits say, each once: empty if they say nothing."""
    given = [
        f"{name}={value:g}"
        for one in limits
        for name, value in (*vars(one).items(), *vars(one.sums).items())
        if is_number(value)
    ]
    return ", ".join(dict.fromkeys(given))


def require_private(promise: Promise) -> None:
    """Raise `StudyRefusedError` unless a study is private."""
    if not promise.private:
        raise refused("the study is not private: no noise, seeded noise, or a trigger")


@lru_cache(maxsize=8)  # the same with every message
def size_limits(limits: tuple[Limits, ...]) -> Limits:
    """Return the sizes that all limits allow; the default of what none of them says."""
    sizes: dict[str, Any] = {}
    for name, default in DEFAULT_SIZES.items():
        given = [value for one in limits if (value := getattr(one, name)) is not None]
        sizes[name] = min(given, default=default)
    return Limits(**sizes)


def refused(why: str, public: str = "") -> StudyRefusedError:
    """Return the error; all of it is public, unless another reason is."""
    text = "This site takes no part: {}."
    return StudyRefusedError(text.format(why), public=text.format(public or why))
