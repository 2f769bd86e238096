"""What a trial finds in its context: run config and state, each a trial's own."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, cast

from flwr.app import ConfigRecord, Context, MetricRecord, RecordDict

from flwr_fbo._compat import SECURE_AGGREGATION_STATE

_PREFIX = "fbo-tuner"
_ATTEMPT, _SCORES = f"{_PREFIX}:attempt", f"{_PREFIX}:scores"
# Where the client's part in secure sums is kept: it is forgotten with the scores.
KEPT_SUM = f"{_PREFIX}:sum"


@dataclass(frozen=True)
class FederationTrial:
    """The trial of a `FederationTuner` that an app is running: see `current_trial`.

    Attributes
    ----------
    number : int
        From 0, the app's defaults; as in ``result.settings`` and in the log.
    rung : int
        From 1, the one that the trial is trained for.
    rounds : int
        Rounds of training, from the trial's start, at the end of this rung.
    settings : dict
        Values of the keys of the space in this trial.
    """

    number: int
    rung: int
    rounds: int
    settings: dict[str, Any]


def current_trial(context: Context) -> FederationTrial | None:
    """Return which trial of a `FederationTuner` is running; None outside of trials.

    For loggers in the app's own code, which would write all trials into one run. None
    in the training after the tuner as well, and in an app without one.

    Examples
    --------
    >>> from flwr.app import Context, RecordDict
    >>> from flwr_fbo import current_trial
    >>> def log_folder(context):
    ...     trial = current_trial(context)
    ...     return "logs/final" if trial is None else f"logs/trial-{trial.number}"
    >>> log_folder(Context(1, 1, {}, RecordDict(), {"learning-rate": 0.1}))
    'logs/final'

    Parameters
    ----------
    context : Context
        That of `main`, or of a client's ``train`` and ``evaluate``; a `NumPyClient`
        gets it in its ``client_fn``. Its run config knows the trial, and a plain dict
        made of it does not. At the server the trial changes from rung to rung: call
        this where it is needed.
    """
    config = context.run_config
    return config.trial if isinstance(config, Overlay) else None


def _reads_all(name: str) -> Any:
    """Return a method of dict that also notes that all settings were read."""

    def method(overlay: Overlay) -> Any:
        overlay.read.update(overlay.settings)
        return getattr(dict, name)(overlay)

    return method


class Overlay(dict[str, Any]):
    """A run config with a trial's settings on top; notes which of them are read.

    It is a dict, as apps may ask for one: to write it as JSON, or to send it. It has
    the name of one, too: OmegaConf goes by that, and takes no other class.

    Parameters
    ----------
    run_config : mapping
    settings : mapping
        Replaces some of its values.
    trial : FederationTrial, optional
        None: no trial, but the training with the settings that were chosen.

    Attributes
    ----------
    trial : FederationTrial or None
    settings : dict
    read : set of str
        The keys of the settings that were read; whoever reads all reads each of them.
    """

    __module__, __qualname__ = "builtins", "dict"

    def __init__(
        self,
        run_config: Mapping[str, Any],
        settings: Mapping[str, Any],
        trial: FederationTrial | None = None,
    ) -> None:
        super().__init__({**run_config, **settings})
        self.trial = trial
        self.settings = dict(settings)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.update({key} & self.settings.keys())
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or a default."""
        self.read.update({key} & self.settings.keys())
        return super().get(key, default)

    def __reduce__(self) -> Any:
        # By this name its class would not be found again.
        return _overlay, (dict(self), self.settings, self.trial)

    # json.dumps, dict() and ** each call another one of these.
    __iter__ = _reads_all("__iter__")
    keys = _reads_all("keys")
    items = _reads_all("items")
    values = _reads_all("values")


def _overlay(*about: Any) -> Overlay:
    """Return a copy of a run config that was pickled, or is copied."""
    return Overlay(*about)


def trial_context(context: Context, overlay: Overlay) -> Context:
    """Return the context of a trial: a state of its own, and other settings."""
    own = copy.copy(context)
    own.state = copy.deepcopy(context.state)
    own.run_config = overlay
    return own


class TrialStates:
    """What a client keeps of trials in ``context.state``: app states, last scores.

    Parameters
    ----------
    state : RecordDict
        ``context.state``; changed in place.
    attempt : str
        What belongs to another run of the tuner is forgotten.
    alive : collection of int, optional
        What belongs to other trials is forgotten. None: nothing is.

    Attributes
    ----------
    scores : dict of int to tuple of float
        Score and weight of each trial that has one.
    """

    def __init__(
        self, state: RecordDict, attempt: str, alive: Collection[int] | None = None
    ) -> None:
        known = cast(ConfigRecord, state.get(_ATTEMPT, ConfigRecord()))
        if known.get("attempt") != attempt:
            self.forget(state)
            state[_ATTEMPT] = ConfigRecord({"attempt": attempt})
            state[_SCORES] = MetricRecord()
        self._state = state
        self._stored = cast(MetricRecord, state[_SCORES])
        if alive is None:
            return
        kept: set[int | None] = {None, *alive}
        for name in [name for name in self._stored if int(name) not in kept]:
            del self._stored[name]
        for name in [name for name in state if self._trial_of(name) not in kept]:
            del state[name]

    @classmethod
    def adopt(cls, state: RecordDict, attempt: str, trial: int) -> None:
        """Make the app's state in a trial its own: that trial goes on as no trial.

        Nothing is changed where there is none, as after the first such message.
        """
        known = cast(ConfigRecord, state.get(_ATTEMPT, ConfigRecord()))
        if known.get("attempt") != attempt or f"{_PREFIX}:{trial}:begun" not in state:
            return
        own = cls(state, attempt).load(trial)
        state.clear()
        state.update(own)

    @staticmethod
    def forget(state: RecordDict) -> None:
        """Remove everything that belongs to trials."""
        for name in [name for name in state if name.startswith(f"{_PREFIX}:")]:
            del state[name]

    @property
    def scores(self) -> dict[int, tuple[float, float]]:
        """Score and weight of each trial that has one."""
        pairs = {int(name): cast(list[float], v) for name, v in self._stored.items()}
        return {trial: (score, weight) for trial, (score, weight) in pairs.items()}

    def score(self, trial: int, score: float, weight: float) -> None:
        """Keep a trial's last score."""
        self._stored[str(trial)] = [score, weight]

    def load(self, trial: int) -> RecordDict:
        """Return the app's state in a trial; at first what it is outside of trials.

        But for Flower's secure aggregation: a client that answers its last stage twice,
        from two copies of a state, can be asked for the keys of both masks of a model.
        """
        mine = f"{_PREFIX}:{trial}:"
        if f"{mine}begun" not in self._state:
            self._state[f"{mine}begun"] = ConfigRecord()
            own = RecordDict()
            for name, record in self._state.items():
                is_app = not name.startswith(f"{_PREFIX}:")
                if is_app and name != SECURE_AGGREGATION_STATE:
                    own[name] = copy.deepcopy(record)
            return own
        names = [name for name in self._state if name.startswith(f"{mine}own:")]
        return RecordDict({n.split(":", 3)[3]: self._state[n] for n in names})

    def save(self, trial: int, state: RecordDict) -> None:
        """Keep the app's state in a trial."""
        mine = f"{_PREFIX}:{trial}:own:"
        for name in [name for name in self._state if name.startswith(mine)]:
            del self._state[name]
        for name, record in state.items():
            self._state[f"{mine}{name}"] = record

    @staticmethod
    def _trial_of(name: str) -> int | None:
        """Return whose record it is; None for the app's own outside of trials."""
        prefix, _, rest = name.partition(":")
        number = rest.partition(":")[0]
        return int(number) if prefix == _PREFIX and number.isdecimal() else None
