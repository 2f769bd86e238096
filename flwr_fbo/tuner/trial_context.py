"""The context of a trial, at the server and at a client: its run config, its number."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import Context


@dataclass(frozen=True)
class FederationTrial:
    """The trial of a `FederationTuner` that an app is running: see `current_trial`.

    Attributes
    ----------
    number : int
        Number from 0, the app's defaults; as in ``result.settings`` and in the log.
    rung : int
        Rung, from 1, that the trial is trained for.
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
    >>> from flwr_fbo.tuning import current_trial
    >>> def log_folder(context):
    ...     trial = current_trial(context)
    ...     return "logs/final" if trial is None else f"logs/trial-{trial.number}"
    >>> log_folder(Context(1, 1, {}, RecordDict(), {"learning-rate": 0.1}))
    'logs/final'

    Parameters
    ----------
    context : Context
        Context of `main`, or of a client's ``train`` and ``evaluate``; a `NumPyClient`
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
        The app's own run config.
    settings : mapping
        Replaces some of its values.
    trial : FederationTrial, optional
        None: no trial, but the training with the settings that were chosen.

    Attributes
    ----------
    trial : FederationTrial or None
        The trial that is running.
    settings : dict
        Values that replace those of the run config.
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


def _overlay(
    run_config: dict[str, Any], settings: dict[str, Any], trial: FederationTrial | None
) -> Overlay:
    """Return a copy of a run config that was pickled, or is copied."""
    return Overlay(run_config, settings, trial)


def trial_context(context: Context, overlay: Overlay) -> Context:
    """Return the context of a trial: a state of its own, and other settings."""
    own = copy.copy(context)
    own.state = copy.deepcopy(context.state)
    own.run_config = overlay
    return own
