"""Limits of a site, whatever the server says: privacy, sizes and time.

Sizes are looked at before anything of a message is built. A server writes the study
that a site plays, and a number in it can be worth hours or gigabytes. So each integer
of a study is below a limit, which its field names (see `flwr_fbo._common.fields`); one
that no field is known for is below ``max_points``. What is costly only together, such
as many candidates of many features, shows in `Study.steps`, once the study is made.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field, asdict, dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.errors import refused
from flwr_fbo._common.fields import (
    DEFAULT_CAP,
    FREE,
    cap_of,
    check_fields,
    fields_by_name,
    flag,
    fraction,
    integer,
    number,
    part_of,
    positive,
)
from flwr_fbo._common.validation import is_number, require
from flwr_fbo.privacy.filters import Spent
from flwr_fbo.privacy.spending_ledger import Promise
from flwr_fbo.study.codec import (
    LONGEST_RECEIPT,
    RECEIPT_ENTRY,
    STUDY_ENTRY,
    Study,
    read_json,
)

if TYPE_CHECKING:
    from flwr_fbo.secure import BlockSums, SecureSums

# What a server learns where a limit on all studies together is reached: not which one,
# nor how far it is.
LIMITS_REACHED = "its limits"
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
    "max_questions": 10,
    "max_seconds": 86_400,
}


# What no study needs: lists within lists, entries of a config, characters of one.
_MOST_LEVELS, _MOST_ENTRIES, _LONGEST_ENTRY = 8, 100, 1_000
_NO_STUDY = "the study is not JSON that a strategy writes"
# Arrays of a message: as many as an agent has peers, a few times over.
_ARRAYS_A_PEER = 4

# Limits on sums: with any of them a site refuses studies in which the server reads its
# messages.
_OF_SUMS = (
    "min_agents",
    "min_threshold",
    "min_honest",
    "min_colluding",
    "min_noise_multiplier",
)
_COUNT = integer(1, optional=True)
_EPSILON = number(most=math.inf, above=0, allowed="a number > 0", optional=True)


@dataclass(frozen=True)
class Limits:
    """Limits on all studies on a site's data together, and on the cost of each.

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
    included. This holds against a server that chooses each study after it has read all
    earlier ones (`flwr_fbo.privacy.filters`), for limits that were set before the first
    release; 1e-6 of epsilon more is allowed, for rounding. A bandit's site adds its own
    noise, so that this holds against the server too. In a tuning study the server adds
    the noise: the site counts what the server promises, and stops a server that asks
    for more. It cannot see whether the noise was added.

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
        to their rewards, by the study's settings. Below 1, a study is refused where
        this may be all of them: with `InverseGapWeighting`, for which there is no
        bound, with a phase I of `FedGOUCB`, and where rewards drown in exploration,
        regularisation or noise. See `flwr_fbo.bandits.linear.regard_to_rewards` for the
        rule, and for what it does not count.
    allow_fixed_rows : bool
        Whether an epsilon may be for one trial with all other rows fixed, as it is with
        ``local_data="own"`` (see `LinearUCBSettings`). Of effect with ``max_epsilon``.
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

    max_epsilon: float | None = field(default=None, metadata=_EPSILON)
    max_delta: float | None = field(default=None, metadata=fraction(optional=True))
    max_releases: int | None = field(default=None, metadata=_COUNT)
    max_uniform_share: float | None = field(
        default=None, metadata=number(0, 1, optional=True)
    )
    allow_fixed_rows: bool = field(default=False, metadata=flag())
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
        epsilon, delta = self.max_epsilon, self.max_delta
        if epsilon != math.inf:
            together = "given together with max_"
            is_valid = delta is None or epsilon is not None
            require(is_valid, "max_epsilon", epsilon, f"{together}delta={delta}")
            is_valid = epsilon is None or delta is not None
            require(is_valid, "max_delta", delta, f"{together}epsilon={epsilon}")

    @cached_property
    def bound_epsilon(self) -> bool:
        """True if epsilon is limited."""
        return self.max_epsilon is not None and self.max_epsilon < math.inf

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
        most = self.max_uniform_share
        if most is not None and uniform_share > most:
            raise refused(
                f"the study makes up to a share of {uniform_share:g} of all decisions "
                f"without regard to rewards, and max_uniform_share={most:g}",
                public="max_uniform_share",
            )

    @cached_property
    def of_sums(self) -> dict[str, float]:
        """Requirements on the secure sums that the site takes part in, by name."""
        values = {name: getattr(self, name) for name in _OF_SUMS}
        return {name: value for name, value in values.items() if value is not None}

    def check_secure(
        self, secure: SecureSums | BlockSums | None, promise: Promise
    ) -> None:
        """Raise `RefusedError` unless messages are summed as the site wants.

        Parameters
        ----------
        secure : SecureSums or BlockSums, optional
            Settings of a study's secure sums.
        promise : Promise
            Charges that the study announces.
        """
        if secure is None:
            if self.of_sums:
                name = next(iter(self.of_sums))
                raise refused(f"no secure aggregation, which {name} needs")
            return
        z = secure.noise_multiplier
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
        for name, least in self.of_sums.items():
            if found[name] < least:
                text = f"{name}={least:g}, and the study has {found[name]:g}"
                raise refused(text, public=name)

    def check_sum(self, spent: Spent) -> None:
        """Raise `RefusedError` if all charges together exceed a limit."""
        releases, most = spent.num_releases, self.max_releases
        if most is not None and releases > most:
            raise refused(
                f"with its other studies that is {releases} releases, and "
                f"max_releases={most}",
                public=LIMITS_REACHED,
            )
        if not self.bound_epsilon:
            return
        assert self.max_epsilon is not None
        assert self.max_delta is not None
        most_epsilon = self.max_epsilon * (1 + _ROUNDING)
        epsilon, relation = spent.least_epsilon(self.max_delta), ">="
        if epsilon <= most_epsilon:  # else to add them up could take minutes
            epsilon, relation = spent.epsilon(self.max_delta), "="
        if epsilon > most_epsilon:
            raise refused(
                f"with its other studies that is epsilon{relation}{epsilon:.4g} at "
                f"max_delta={self.max_delta:g}, and max_epsilon={self.max_epsilon:g}",
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
        f"{name}={value:g}"
        for each in limits
        for name, value in asdict(each).items()
        if is_number(value)
    ]
    return ", ".join(dict.fromkeys(texts))


def require_private(promise: Promise) -> None:
    """Raise `RefusedError` unless a study is private."""
    if not promise.private:
        raise refused("the study is not private: no noise, seeded noise, or a trigger")


@lru_cache(maxsize=8)  # the same with every message
def size_limits(limits: tuple[Limits, ...]) -> Limits:
    """Return the sizes that all limits allow; the default of what none of them says."""
    sizes: dict[str, Any] = {}
    for name, default in DEFAULT_SIZES.items():
        values = [
            value for each in limits if (value := getattr(each, name)) is not None
        ]
        sizes[name] = min(values, default=default)
    return Limits(**sizes)


def check_config(limits: Limits, config: Mapping[str, Any], study: type[Study]) -> None:
    """Raise `RefusedError` if a config, or the study in it, is too large.

    Parameters
    ----------
    limits : Limits
        With every size: see `size_limits`.
    config : mapping
        Config of a message: of `Instruction.to_config`, or anything else.
    study : type
        Dataclass of the site's kind of study.
    """
    _check_count("entries of the config", len(config), _MOST_ENTRIES)
    for name, value in config.items():
        if name != STUDY_ENTRY and hasattr(value, "__len__"):
            most = LONGEST_RECEIPT if name == RECEIPT_ENTRY else _LONGEST_ENTRY
            _check_count("an entry of the config", len(value), most)
    text = config.get(STUDY_ENTRY, "{}")
    if not isinstance(text, str):
        raise refused(_NO_STUDY)
    limits.check_size("max_characters", len(text), "len(study)")
    _check_study(limits, text, study)


@lru_cache(maxsize=8)  # every message brings the whole study again
def _check_study(limits: Limits, text: str, study: type[Study]) -> None:
    values = _read(text)
    if not isinstance(values, dict):
        raise refused(_NO_STUDY)
    if isinstance(values.get("space"), str):
        _check_space(limits, values["space"])
    _check_sizes(limits, values, study)


def _check_sizes(
    limits: Limits,
    value: Any,
    part: Any,
    cap: str = DEFAULT_CAP,
    name: str = "",
    level: int = 0,
) -> None:
    """Look at each integer of a study, whatever is in what.

    Parameters
    ----------
    limits : Limits
        Limits that the integers are compared with.
    value : JSON value
        A study, or a part of one.
    part : type or callable, optional
        Dataclass of the objects in the value: see `flwr_fbo._common.fields.ruled`.
    cap : str
        Limit of the integers in the value; or ``FREE``.
    name : str
        Field that has the value.
    level : int
        In how many lists and objects the value is.
    """
    _check_count("lists within lists", level, _MOST_LEVELS)
    if isinstance(value, dict):
        known = _fields_of(part, value)
        for key, below in value.items():
            field = known.get(key)
            if field is None:  # no strategy writes it
                _check_sizes(limits, below, None, DEFAULT_CAP, key, level + 1)
            else:
                _check_sizes(
                    limits, below, part_of(field), cap_of(field), key, level + 1
                )
    elif isinstance(value, list):
        for below in value:
            _check_sizes(limits, below, part, cap, name, level + 1)
    elif isinstance(value, int) and cap != FREE:
        limits.check_size(cap, value, name[:_LONGEST_ENTRY])


def _fields_of(part: Any, value: Mapping[str, Any]) -> Mapping[str, Field[Any]]:
    """Return the fields of a JSON object: none of one that no strategy writes."""
    if part is None:
        return {}
    if not isinstance(part, type):
        try:
            part = part(value)
        except (KeyError, TypeError, ValueError):
            return {}
    return fields_by_name(part)


def _check_space(limits: Limits, text: str) -> None:
    """Look at a space, which is JSON of pairs of a name and a distribution's JSON."""
    pairs = _read(text)
    if not isinstance(pairs, list):
        raise refused(_NO_STUDY)
    limits.check_size("max_dimension", len(pairs), "len(space)")
    choices = 0
    for pair in pairs:
        if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[1], str)):
            raise refused(_NO_STUDY)
        content = _read(pair[1])
        if not isinstance(content, dict):
            raise refused(_NO_STUDY)
        # In either format of Optuna's.
        for holder in (content, content.get("attributes")):
            listed = holder.get("choices") if isinstance(holder, dict) else None
            choices += len(listed) if isinstance(listed, list | str) else 0
    limits.check_size("max_choices", choices, "choices of the space")


def _read(text: str) -> Any:
    try:
        return read_json(text)
    except (ValueError, RecursionError):
        raise refused(_NO_STUDY) from None


def check_numbers(limits: Limits, sizes: Sequence[float]) -> None:
    """Raise `RefusedError` if arrays are too many, or have too many numbers.

    Parameters
    ----------
    limits : Limits
        With every size.
    sizes : sequence of float
        Size of each array, in numbers of eight bytes.
    """
    assert limits.max_peers is not None
    _check_count("arrays", len(sizes), _ARRAYS_A_PEER * limits.max_peers)
    limits.check_size("max_numbers", sum(sizes), "numbers in arrays")


def check_arrays(limits: Limits, arrays: Sequence[NDArray[Any]]) -> None:
    """Raise `RefusedError` unless arrays are of numbers, and not too many."""
    if any(array.dtype.kind not in "fiu" for array in arrays):
        raise refused("an array that came along is not of numbers")
    check_numbers(limits, [array.nbytes / 8 for array in arrays])


def check_steps(
    limits: Limits, study: Study, arrays: Sequence[NDArray[Any]] = ()
) -> None:
    """Raise `RefusedError` if a message of a study would take too long."""
    num_rows = len(arrays[0]) if len(arrays) and np.ndim(arrays[0]) else 0
    assert limits.max_steps is not None
    steps = study.steps(num_rows)
    total = sum(steps.values())
    # A study of another package may name no steps: it has no largest one.
    if total > limits.max_steps:
        most = max(steps, key=steps.__getitem__)
        steps_text = f"a message takes about {total:.2g} steps, most of them for {most}"
        raise refused(
            f"{steps_text}, and max_steps={limits.max_steps}",
            public=f"{steps_text}: more than max_steps",
        )


def _check_count(what: str, count: int, most: int) -> None:
    if count > most:
        raise refused(f"{what}: {count} are more than {most}")
