"""Limits of a site, whatever the server says: their values, and what privacy allows.

`flwr_fbo.site.sum_limits` has what they say of secure sums, and
`flwr_fbo.site.size_limits` what a message may cost.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property

from flwr_fbo._common.errors import refused
from flwr_fbo._common.fields import (
    check_fields,
    flag,
    fraction,
    integer,
    interval,
    number,
    positive,
)
from flwr_fbo._common.validation import is_number, require
from flwr_fbo.privacy.filters import Spent
from flwr_fbo.privacy.guarantee import (
    CLIENT,
    EXAMPLE,
    ONE_EXAMPLE_LESS,
    Guarantee,
    PrivacyUnit,
)
from flwr_fbo.privacy.spending_ledger import Promise

# The range of a metric, where a site names no other: that of an accuracy.
ACCURACY_RANGE = (0.0, 1.0)
# What a server learns where a limit on all studies together is reached: not which one,
# nor how far it is.
LIMITS_REACHED = "its limits"
# Of an epsilon, or a noise multiplier, that was calibrated to the limit itself.
ROUNDING = 1e-6

# The limit on the total of each unit.
_EPSILONS = {
    CLIENT: "max_epsilon_per_client",
    ONE_EXAMPLE_LESS: "max_epsilon_per_example",
}
_COUNT = integer(1, optional=True)
_EPSILON = number(most=math.inf, above=0, allowed="a number > 0", optional=True)


@dataclass(frozen=True)
class Limits:
    """Limits on all studies on a site's data together, and on the cost of each.

    The first four hold for everything in the site's `SpendingLedger`: this study and
    all others that it took part in, of whatever kind. The others hold for each message.

    Examples
    --------
    >>> from flwr_fbo import Limits
    >>> limits = Limits(max_epsilon_per_client=3.0, max_delta=1e-5, max_trials=50)

    Formal guarantees
    -----------------
    With ``max_epsilon_per_example`` and ``max_delta`` all that was charged to a site
    since its ledger began, under its ``agent-id``, is (max_epsilon_per_example,
    max_delta)-DP for one example, with or without it: its row or none, its gradients or
    zeros. That counts trainings that the app has charged (`flwr_fbo.charge_training`)
    as DP-SGD is counted. It counts what protects an example that is replaced by another
    as it is: no row is one of the rows that it could be replaced by. It counts what
    protects a client, too, as it protects its examples: at twice the distance (see
    `flwr_fbo.privacy.guarantee`). For an example that is *replaced by another*
    max_epsilon_per_example holds only where no training is in the ledger; else that
    costs more, and is told beside it wherever this total is told. A training that the
    app has not charged is not in it. With ``max_epsilon_per_client`` the same holds for
    all messages of the site, or zeros, in studies that protect a client. A study that
    protects an example promises a client nothing: a site that limits a client alone
    takes part in none. Both hold as long as the site runs the app that it reviewed:
    whoever may call ``flwr run`` can replace it, limits included. This holds against a
    server that chooses each study after it has read all earlier ones
    (`flwr_fbo.privacy.filters`), for limits that were set before the first release;
    1e-6 of epsilon more is allowed, for rounding. A bandit's site adds its own noise,
    so that this holds against the server too. In a tuning study the server adds the
    noise: the site counts what the server promises, and stops a server that asks for
    more. It cannot see whether the noise was added.

    Attributes
    ----------
    max_epsilon_per_client, max_epsilon_per_example : float, optional
        Epsilon > 0 of all that the site sends, and of one trial or record. With one of
        them a study that is not private, or promises less than its noise says, is
        refused. With ``math.inf`` for one, and nothing for the other, the site takes
        part in any study. A site with a limit for a client alone refuses what protects
        an example, trainings that are charged too.
    max_delta : float, optional
        Delta in (0, 1) of both, given together with a finite one.
    max_releases : int, optional
        Number of releases, >= 1; all releases of a bandit study count as one, and so
        do the steps of a training's round.
    max_uniform_share : float, optional
        In [0, 1]: largest share of a bandit's decisions that may be made without regard
        to their rewards, by the study's settings. Below 1, a study is refused where
        this may be all of them: with `InverseGapWeighting`, for which there is no
        bound, with a phase I of `FedGOUCB`, and where rewards drown in exploration,
        regularisation or noise. See `flwr_fbo.bandits.linear.regard_to_rewards` for the
        rule, and for what it does not count.
    allow_fixed_rows : bool
        Whether an epsilon may be for one trial with all other rows fixed, as it is with
        ``local_data="own"`` (see `LinearUCBSettings`). Of effect with a limit on
        epsilon.
    metric_range : tuple of float, optional
        Smallest and largest value that the app gives one example in a tuner's metric,
        0 and 1 unless given here: in a node config ``"0..10"``. A site with a folder or
        with limits takes part in a choice that protects one example only if it has this
        range: the noise is made for it, and in a narrower one an example would move
        more. See `PrivateChoice` for what else the app must keep to.
    min_agents : int, optional
        Smallest number of sites whose messages are summed. With this one, or any of the
        next four, a site takes part in no tuning study without secure aggregation, and
        in no bandit study without noise of its own.
    min_threshold : int, optional
        Smallest number of sites that must agree on a sum.
    min_honest : int, optional
        Smallest number of sites whose noise alone is enough. It limits how much more
        noise a sum has than planned, and protects nobody.
    min_colluding : int, optional
        Smallest number of sites, >= 0, that may collude with the server: the others of
        a sum alone give the planned noise. Without it the server chooses.
    min_noise_multiplier : float, optional
        Smallest noise multiplier of a sum.
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
    max_questions : int, optional
        Studies a day that a site with a limit on epsilon or releases answers for before
        any of them is played: 10, and ten times as many in all. See
        `flwr_fbo.site.questions`.
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

    max_epsilon_per_client: float | None = field(default=None, metadata=_EPSILON)
    max_epsilon_per_example: float | None = field(default=None, metadata=_EPSILON)
    max_delta: float | None = field(default=None, metadata=fraction(optional=True))
    max_releases: int | None = field(default=None, metadata=_COUNT)
    max_uniform_share: float | None = field(
        default=None, metadata=number(0, 1, optional=True)
    )
    allow_fixed_rows: bool = field(default=False, metadata=flag())
    metric_range: tuple[float, float] | None = field(
        default=None, metadata=interval(optional=True)
    )
    min_agents: int | None = field(default=None, metadata=_COUNT)
    min_threshold: int | None = field(default=None, metadata=_COUNT)
    min_honest: int | None = field(default=None, metadata=_COUNT)
    min_colluding: int | None = field(default=None, metadata=integer(0, optional=True))
    min_noise_multiplier: float | None = field(
        default=None, metadata=positive(optional=True)
    )
    max_agents: int | None = field(default=None, metadata=_COUNT)
    max_peers: int | None = field(default=None, metadata=_COUNT)
    max_features: int | None = field(default=None, metadata=_COUNT)
    max_points: int | None = field(default=None, metadata=_COUNT)
    max_choices: int | None = field(default=None, metadata=_COUNT)
    max_dimension: int | None = field(default=None, metadata=_COUNT)
    max_synchronisations: int | None = field(default=None, metadata=_COUNT)
    max_steps: int | None = field(default=None, metadata=_COUNT)
    max_characters: int | None = field(default=None, metadata=_COUNT)
    max_numbers: int | None = field(default=None, metadata=_COUNT)
    max_trials: int | None = field(default=None, metadata=_COUNT)
    max_questions: int | None = field(default=None, metadata=_COUNT)
    max_seconds: float | None = field(default=None, metadata=positive(optional=True))

    def __post_init__(self) -> None:
        check_fields(self)
        delta = self.max_delta
        values = {name: getattr(self, name) for name in _EPSILONS.values()}
        for name, epsilon in values.items():
            is_bound = epsilon is not None and epsilon < math.inf
            allowed = f"given together with {name}={epsilon}"
            require(not is_bound or delta is not None, "max_delta", delta, allowed)
        is_used = delta is None or any(one is not None for one in values.values())
        allowed = "given together with max_epsilon_per_client or _per_example"
        require(is_used, "max_delta", delta, allowed)

    @cached_property
    def epsilons(self) -> dict[PrivacyUnit, float]:
        """The finite limits on epsilon, at ``max_delta``, by unit."""
        limits = {unit: getattr(self, name) for unit, name in _EPSILONS.items()}
        return {
            unit: most
            for unit, most in limits.items()
            if most is not None and most < math.inf
        }

    @cached_property
    def bound_epsilon(self) -> bool:
        """True if an epsilon is limited."""
        return bool(self.epsilons)

    @cached_property
    def bound_anything(self) -> bool:
        """True if epsilon or the number of releases is limited."""
        return self.bound_epsilon or self.max_releases is not None

    def check_promise(
        self, promise: Promise, unprotected: str = "", uniform_share: float = 0.0
    ) -> None:
        """Raise `RefusedError` unless a study is one that the site wants.

        Parameters
        ----------
        promise : Promise
            Charges that the study announces.
        unprotected : str
            Name of what it asks for besides that no guarantee covers; empty without it.
        uniform_share : float
            Largest share of its decisions that have no regard to rewards.
        """
        if self.bound_epsilon:
            require_private(promise)
            if promise.fixed_rows and not self.allow_fixed_rows:
                raise refused(
                    "the study promises less than local_data='released': its epsilon "
                    "is for one trial with all other rows fixed, and "
                    "allow_fixed_rows=False",
                    public="allow_fixed_rows",
                )
            if unprotected:
                raise refused(f"the study asks for {unprotected}, which is not private")
            self._check_unit(promise.unit)
        most = self.max_uniform_share
        if most is not None and uniform_share > most:
            raise refused(
                f"the study makes up to a share of {uniform_share:g} of all decisions "
                f"without regard to rewards, and max_uniform_share={most:g}",
                public="max_uniform_share",
            )

    def _check_unit(self, unit: PrivacyUnit) -> None:
        """Raise `RefusedError` if no limit on epsilon binds what protects a unit."""
        is_bound = unit.protects == "client" or self.max_epsilon_per_example is not None
        if not is_bound:
            most = f"max_epsilon_per_client={self.max_epsilon_per_client:g}"
            raise refused(
                "the study protects one example and promises nothing to a client, and "
                f"{most} limits a client alone: set max_epsilon_per_example too",
                public="max_epsilon_per_example",
            )

    def check_spent(self, charged: Mapping[PrivacyUnit, Spent]) -> None:
        """Raise `RefusedError` if all charges together exceed a limit.

        Parameters
        ----------
        charged : mapping of PrivacyUnit to Spent
            All charges, as they add up for each of `TOTALS`.
        """
        releases, most = charged[CLIENT].num_releases, self.max_releases
        if most is not None and releases > most:
            raise refused(
                f"with its other studies that is {releases} releases, and "
                f"max_releases={most}",
                public=LIMITS_REACHED,
            )
        for unit, most_epsilon in self.epsilons.items():
            assert self.max_delta is not None
            spent = charged[unit]
            if spent.exceeds(most_epsilon * (1 + ROUNDING), self.max_delta):
                other = charged[EXAMPLE] if unit == ONE_EXAMPLE_LESS else None
                told = spent.text(self.max_delta, Guarantee(unit), other)
                raise refused(
                    f"with its other studies that is {told}, and "
                    f"{_EPSILONS[unit]}={most_epsilon:g}",
                    public=LIMITS_REACHED,
                )

    def check_size(self, limit: str, size: float, what: str) -> None:
        """Raise `RefusedError` if a size is above the limit that it names."""
        most = getattr(self, limit)
        if size > most:
            raise refused(
                f"{what}={size:.15g} exceeds {limit}={most:.15g}",
                public=f"{what} exceeds {limit}",
            )


NO_LIMITS = Limits()


def limits_text(limits: Iterable[Limits]) -> str:
    """Return what limits say, each once: empty if they say nothing."""
    texts = [
        f"{name}={range_text(value) if isinstance(value, tuple) else f'{value:g}'}"
        for each in limits
        for name, value in asdict(each).items()
        if is_number(value) or isinstance(value, tuple)
    ]
    return ", ".join(dict.fromkeys(texts))


def range_text(values: tuple[float, float]) -> str:
    """Return a range as a node config has it."""
    return f"{values[0]:g}..{values[1]:g}"


def require_private(promise: Promise) -> None:
    """Raise `RefusedError` unless a study is private."""
    if not promise.private:
        raise refused("the study is not private: no noise, seeded noise, or a trigger")
