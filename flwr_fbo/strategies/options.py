"""What strategies have in common besides the algorithm: privacy, durability, seeds.

And presets, by name, and the parameters that several strategies document alike.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from textwrap import indent
from typing import Any, Literal, Self

from flwr_fbo._common.fields import (
    check_fields,
    choice,
    flag,
    integer,
    number,
    positive,
    ruled,
    seed,
)
from flwr_fbo._common.validation import (
    check_folder,
    is_number,
    require,
    require_instance,
    require_int,
    require_known,
)
from flwr_fbo.privacy.accounting import Method
from flwr_fbo.privacy.release import Calibration
from flwr_fbo.privacy.sampling import Sampling
from flwr_fbo.privacy.weights import WeightSchedule
from flwr_fbo.tuning.registry import ALGORITHMS, load
from flwr_fbo.tuning.search.settings import SearchSettings

_FINGERPRINT = re.compile("SHA256:[A-Za-z0-9+/]{43}")


_PATIENCE = number(0, math.inf, allowed="a number of seconds >= 0")

SCHEDULES = ("release_after", "min_follow_probability")


def _check_rounds(name: str, value: Any) -> None:
    ok = isinstance(value, Collection) and not isinstance(value, str)
    ok = ok and all(is_number(r) and isinstance(r, int) and r >= 1 for r in value)
    require(ok, name, value, "a collection of rounds >= 1")


@dataclass(frozen=True)
class Privacy:
    """How the releases of a tuning study are made, counted and limited.

    Omitted settings are those of the strategy, or of its preset.

    Examples
    --------
    >>> from optuna.distributions import FloatDistribution
    >>> from flwr_fbo import FedVote, Privacy
    >>> strategy = FedVote(
    ...     {"C": FloatDistribution(1e-3, 1e3, log=True)},
    ...     "maximize",
    ...     num_agents=20,
    ...     privacy=Privacy(noise_multiplier=2.0, max_epsilon=4.0),
    ...     delta=1e-3,
    ... )

    Attributes
    ----------
    noise_multiplier : float, optional
        Noise multiplier z >= 0: the noise's standard deviation over the sensitivity. Do
        not give it together with the strategy's ``epsilon``, which determines it. 1 if
        neither is given.
    clip_norm : float, optional
        Clipping norm S of an agent's message; ``math.inf`` is allowed without noise.
    sampling_probability : float, optional
        Probability q in (0, 1] that an agent takes part in a release.
    sampling : {"poisson", "fixed-size"}
        How agents are sampled; see `ReleaseSettings`. A fixed size needs
        ``accountant="rdp"``; do not compare its epsilon with Poisson sampling's.
    calibration : {"joint", "published"}
        How z becomes noise; see `ReleaseSettings`. ``"joint"`` gives the least noise
        for a given z.
    accountant : {"pld", "rdp", "moments"}
        Method that counts epsilon: the tightest, Flower's Renyi accountant, or the
        papers'.
    release_after : collection of int, optional
        Rounds, from 1, after which there is a release; not together with the next
        one. A round without a release costs no privacy, and agents keep their
        last vectors.
    min_follow_probability : float, optional
        Probability, from 0 to below 1, with which an agent must follow a release.
        Releases end when it is lower; with 0 there is one after every round.
    min_answers : int, optional
        Number of agents, >= 1, that must answer before a release; by default half of
        those enrolled. Until then the release is postponed, at no epsilon, because who
        answers is public. Late answers count while the release is open.
    max_epsilon : float, optional
        Privacy budget at the study's delta. A release that would exceed it is not made,
        and no later one.
    budget : str or Path, optional
        Absolute path of the folder with a ledger that outlives the study.
        ``max_epsilon`` then limits all studies with this folder together, also if one
        is chosen after another was read: see `flwr_fbo.privacy.filters`.
    when_exhausted : {"halt", "raise"}
        What happens at ``max_epsilon``: releases end and the agents go on, or `start`
        raises ``PrivacyBudgetExhausted``.
    noise_only : bool
        Whether every contribution is replaced by zero, as a control.

    Raises
    ------
    ValueError
        If an argument is not allowed; the message names it.
    """

    noise_multiplier: float | None = None
    clip_norm: float | None = None
    sampling_probability: float | None = None
    sampling: Sampling = "poisson"
    calibration: Calibration = "joint"
    accountant: Method = "pld"
    release_after: Collection[int] | None = field(
        default=None, metadata=ruled(_check_rounds, optional=True)
    )
    min_follow_probability: float | None = field(
        default=None, metadata=number(0, below=1, optional=True)
    )
    min_answers: int | None = field(default=None, metadata=integer(1, optional=True))
    max_epsilon: float | None = field(default=None, metadata=positive(optional=True))
    budget: str | Path | None = field(default=None, metadata=ruled(check_folder))
    when_exhausted: Literal["halt", "raise"] = field(
        default="halt", metadata=choice(Literal["halt", "raise"])
    )
    noise_only: bool = field(default=False, metadata=flag())

    def __post_init__(self) -> None:
        check_fields(self)
        given = [name for name in SCHEDULES if getattr(self, name) is not None]
        require(len(given) <= 1, "privacy", given, f"at most one of {SCHEDULES}")
        if self.budget is not None:
            limited = self.max_epsilon is not None
            require(limited, "max_epsilon", None, "given, where budget is")
            allowed = "'pld', where budget is given"
            require(self.accountant == "pld", "accountant", self.accountant, allowed)

    def iterations(
        self, horizon: int, follow_probability: Callable[[int], float]
    ) -> tuple[int, ...]:
        """Return the iterations after which a release is due, in order.

        Parameters
        ----------
        horizon : int
            T, the last iteration; its messages would be of no use to anybody.
        follow_probability : callable
            1 - p_t for t >= 1: how likely an agent follows in iteration t.
        """
        iterations = range(horizon)
        if self.release_after is not None:
            return tuple(t for t in iterations if t + 1 in self.release_after)
        least = self.min_follow_probability or 0.0
        return tuple(t for t in iterations if follow_probability(t + 1) >= least)

    @property
    def has_schedule(self) -> bool:
        """Whether it says after which rounds there are releases."""
        return any(getattr(self, name) is not None for name in SCHEDULES)

    def filled(self, other: Privacy) -> Self:
        """Return the settings with what is not given taken from another's."""
        scheduled = self if self.has_schedule else other
        schedules = {name: getattr(scheduled, name) for name in SCHEDULES}
        values: dict[str, Any] = {
            one.name: getattr(other, one.name)
            if getattr(self, one.name) is None
            else getattr(self, one.name)
            for one in fields(self)
        }
        return type(self)(**{**values, **schedules})


def _check_keys(name: str, keys: Any) -> None:
    require(isinstance(keys, Mapping), name, keys, "a mapping of slots to fingerprints")
    for slot, key in keys.items():
        require_int("slot", slot, 0)
        ok = isinstance(key, str) and _FINGERPRINT.fullmatch(key) is not None
        require(ok, f"keys[{slot}]", key, "as `ssh-keygen -lf` prints it, SHA256:")
    ok = len(set(keys.values())) == len(keys)
    require(ok, name, keys, "another key for every slot")


@dataclass(frozen=True)
class Durability:
    """Which agents a study waits for, and when it gives up.

    Examples
    --------
    >>> from optuna.distributions import FloatDistribution
    >>> from flwr_fbo import FTS, Durability
    >>> strategy = FTS(
    ...     {"C": FloatDistribution(1e-3, 1e3, log=True)},
    ...     "maximize",
    ...     num_agents=20,
    ...     durability=Durability(min_agents=15, patience=600),
    ... )

    Attributes
    ----------
    min_agents : int, optional
        Number of agents that must enrol before the first round, from 1 to N; all N by
        default. Later rounds need no minimum. A resumed study waits for these agents
        once, and then goes on with those that are there.
    patience : float
        Seconds, >= 0, to wait for these agents, and for a run that still holds the
        folder.
    authenticated : bool
        Whether SuperNodes authenticate (``flower-superlink --enable-supernode-auth``).
        If True, an agent's slot stays with the first node that names it as its
        ``agent-id``, and with that node's key. If the SuperLink's database is lost,
        resume with False. If False, a node that claims the slot of an absent agent
        takes its place, because a restarted SuperNode has a new node id. The first node
        that names a slot locks its true agent out: give ``keys`` to prevent that. True
        needs a ``folder``: without its record a run that starts again is another study,
        which the sites are charged for again.
    keys : mapping of int to str, optional
        Fingerprint of the SuperNode's public key for each slot, 0 to N - 1, as
        ``ssh-keygen -lf KEY.pub`` prints it (``"SHA256:..."``). Only that key gets the
        slot, under any node id. Needs ``authenticated=True``.
    new : bool
        Whether another study may begin although a folder beside its own has one with
        the same settings. If False, an authenticated study does not: a misspelled
        ``folder`` would charge the sites again.
    max_empty_rounds : int
        Number of rounds in a row, >= 1, without any result after which the run ends
        with an error. Earlier such rounds postpone a release that is due. Without
        connected nodes no round begins: the run ends with an error after ``patience``.

    Raises
    ------
    ValueError
        If an argument is not allowed; the message names it.
    """

    min_agents: int | None = field(default=None, metadata=integer(1, optional=True))
    patience: float = field(default=300.0, metadata=_PATIENCE)
    authenticated: bool = field(default=False, metadata=flag())
    keys: Mapping[int, str] | None = field(
        default=None, metadata=ruled(_check_keys, optional=True)
    )
    new: bool = field(default=False, metadata=flag())
    max_empty_rounds: int = field(default=1, metadata=integer(1))

    def __post_init__(self) -> None:
        check_fields(self)
        ok = self.keys is None or self.authenticated
        require(ok, "keys", self.keys, "with authenticated=True")


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


@dataclass(frozen=True)
class Preset:
    """Settings of a private tuning strategy.

    A strategy has them as ``presets``, by name; without names it has one, named "".

    Attributes
    ----------
    agent : SearchSettings
    privacy : Privacy
    weights : WeightSchedule
        Weights of the agents in each sub-region; by default all weigh the same.
    """

    agent: SearchSettings
    privacy: Privacy
    weights: WeightSchedule = field(default_factory=lambda: WeightSchedule(peak=0.0))

    def privacy_with(self, privacy: Privacy | None) -> Privacy:
        """Return what is given, and the preset's for what is not."""
        if privacy is None:
            return self.privacy
        require_instance("privacy", privacy, Privacy)
        return privacy.filled(self.privacy)


@cache
def private_strategies() -> dict[str, Any]:
    """Return the strategies with presets by name, for files and commands."""
    named = {a.strategy for a in ALGORITHMS.values() if a.strategy}
    return {one.__name__: one for one in map(load, sorted(named)) if one.presets}


def preset_of(strategy: str, preset: str | None) -> Preset:
    """Return the settings of a strategy by name, as files and commands give them.

    Raises
    ------
    ValueError
        If there is no such strategy, or it has no such preset.
    """
    require_known("strategy", strategy, private_strategies())
    presets: dict[str, Preset] = private_strategies()[strategy].presets
    if "" in presets:
        require(preset is None, "preset", preset, f"left out, with {strategy}")
        return presets[""]
    preset = next(iter(presets)) if preset is None else preset
    require_known("preset", preset, presets)
    return presets[preset]


# Parameters that several strategies have, documented once. A line
# ``{space, direction}`` of a strategy's docstring stands for the text of these
# parameters. It is inserted as the class is made, for ``help()`` and Sphinx alike.
_TEXT = """
space : mapping of str to Optuna distribution
    The search space of all agents.
direction : {"maximize", "minimize"}
num_agents : int
    Number N of agents, the slots of the study.
epsilon : float, optional
    Epsilon that the whole study may spend at ``delta``, from 1e-3 to 1e3. The noise is
    computed from it: the smallest noise multiplier for the planned releases.
    ``privacy`` may give the noise in its place.
delta : float, optional
    In (0, 1), and far below 1 / N. Must be given where ``epsilon`` is; else it is the
    published 1 / N^1.1, which is too large for a small federation: 0.17 for five
    agents.
portfolio : sequence of dict, str, Path or StudyPortfolio
    Settings that each site evaluates before its own search, which learns from them:
    after those that the site enqueued, and before the centre or the initial points. A
    list of settings; a learner of `Portfolio.known`; ``"auto"``, the learner that the
    names in ``space`` decide; or a list of earlier studies, see `StudyPortfolio`, or
    the path of its file, which ends in ``.json``. By default there are none.
aggregation : SecureAggregation, optional
    How the sites sum their messages, so that the server learns the noisy sum alone.
    Without it the server is trusted: it reads each message and adds the noise.
seeds : Seeds, optional
    Seeds of draws, features and noise; by default the operating system draws them.
metrics : collection of str
    Metrics that clients report, averaged and logged: ``"best-value"`` or nothing. No
    privacy guarantee covers them.
folder : str or Path, optional
    Absolute path of the folder with the server's durable record, one folder a study. If
    the run is killed, a new run with the same folder and settings continues after the
    last completed round.
durability : Durability, optional
    Which agents a study waits for, and when it gives up.
client_api : {"both", "message", "numpy", "action"}
    Kind of client that reads the messages. `NumPyClient` and Message-API clients both
    read ``"both"``, but Flower's own client mods refuse it: with mods, name your kind
    of client. ``"action"`` is for apps with `add_tuning`.
callbacks : list or tuple of Callback
    Objects that are told of each round and of the result. See `Callback`.
"""

# The text of each entry, by its name.
_ENTRIES = {
    entry.partition(" :")[0]: entry for entry in re.split(r"\n(?=\S)", _TEXT.strip())
}
_HOST = "folder", "durability", "client_api", "callbacks"
_ENTRIES["options"] = "\n".join(map(_ENTRIES.__getitem__, _HOST))


def documented(docstring: str | None) -> str | None:
    """Return a class's docstring with the text of the shared parameters."""

    def text(line: re.Match[str]) -> str:
        entries = map(_ENTRIES.__getitem__, line[2].split(", "))
        return indent("\n".join(entries), line[1])

    # Python 3.13 has taken away the indentation.
    marker = re.compile(r"^( *)\{([a-z_, ]+)\}$", re.MULTILINE)
    return docstring and marker.sub(text, docstring)
