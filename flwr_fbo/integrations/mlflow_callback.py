"""MLflow: a run for each study."""

from __future__ import annotations

import os
import re
import time
import weakref
from collections.abc import Mapping
from hashlib import sha256
from posixpath import normpath
from typing import Any

from flwr_fbo._common.validation import require, require_instance
from flwr_fbo.integrations.tracked import Tracker
from flwr_fbo.study.callbacks import Started

# Of one call of MLflow's log_batch, of one parameter, and of a name.
_MOST_PARAMS, _MOST_METRICS, _MOST_CHARACTERS, _LONGEST_NAME = 100, 1000, 6000, 250
# What MLflow does not allow in a name: it has no colons on Windows. An underscore that
# looks like the beginning of a spelt character is spelt itself.
_ALLOWED = r"/\w.\- " + ("" if os.name == "nt" else ":")
_SPELT = re.compile(rf"[^{_ALLOWED}]|_(?=x[0-9A-F]+(?:[_/]|[^{_ALLOWED}]))")
_STUDY = "flwr_fbo.study"


class MlflowCallback(Tracker):
    """Logs a study to MLflow: settings, counts, epsilon, and what is recommended.

    A study has one MLflow run, also after a restart with the same folder. Settings are
    parameters of the run. Metrics have the round, or the number of the rung, as step.
    The run ends as FINISHED with the study's result. It ends as FAILED if the study
    ends with an error, if the result could not be logged, or if there is none when the
    callback or the process ends.

    Names stay as they are where MLflow allows them. Other characters are written as
    their code point: ``lr [log]`` becomes ``lr _x5B_log_x5D_``. Longer names than 250
    characters end in a hash. So different names have different keys.

    Examples
    --------
    >>> from flwr_fbo.integrations import MlflowCallback
    >>> callback = MlflowCallback("digits", tracking_uri="sqlite:////srv/mlflow.db")
    >>> callback.experiment
    'digits'

    Parameters
    ----------
    experiment : str
        Name of the MLflow experiment; it is made if it does not exist.
    tracking_uri : str, optional
        MLflow's own default unless given, such as the variable
        ``MLFLOW_TRACKING_URI``. A ServerApp works in the SuperLink's folder: use an
        absolute path for ``"sqlite:///..."``.

    Raises
    ------
    ValueError
        If an argument is not allowed; the message names it.
    ImportError
        If MLflow is not installed; the message names the extra.
    """

    def __init__(
        self, experiment: str = "flwr-fbo", *, tracking_uri: str | None = None
    ) -> None:
        named = isinstance(experiment, str) and experiment != ""
        require(named, "experiment", experiment, "the name of an experiment")
        require_instance(
            "tracking_uri", tracking_uri, str, optional=True, allowed="a string"
        )
        try:
            import mlflow
        except ImportError as error:
            raise ImportError(
                "MlflowCallback needs MLflow: pip install 'flwr-fbo[mlflow]'."
            ) from error
        self._mlflow: Any = mlflow
        self.experiment = experiment
        self._tracking_uri = tracking_uri
        self._client: Any = None
        self._run = ""
        self._end: Any = None

    def on_start(self, started: Started) -> None:
        """Begin the study's run, or go on with it, and log the settings."""
        self._fail()
        self._client = client = self._mlflow.MlflowClient(self._tracking_uri)
        found = client.get_experiment_by_name(self.experiment)
        experiment = found and found.experiment_id
        if found is None:
            experiment = client.create_experiment(self.experiment)
        mine = f"tags.`{_STUDY}` = '{started.study}'"
        runs = client.search_runs([experiment], mine)
        if runs:  # of this study, before a restart
            self._run = str(runs[0].info.run_id)
            client.update_run(self._run, status="RUNNING")
        else:
            name, tags = f"{started.method}-{started.study}", {_STUDY: started.study}
            run = client.create_run(experiment, tags=tags, run_name=name)
            self._run = str(run.info.run_id)
        # Also called when the interpreter exits: a study that raises has no `on_end`.
        end = client.set_terminated
        self._end = weakref.finalize(self, end, self._run, "FAILED")
        super().on_start(started)

    def on_error(self, error: BaseException) -> None:
        """End the run as FAILED."""
        self._fail()

    def on_end(self, result: Any) -> None:
        """Log the setting that is recommended or chosen, and end the run."""
        try:
            super().on_end(result)
        except Exception:
            self._fail()
            raise
        self._end.detach()
        self._client.set_terminated(self._run)

    def _fail(self) -> None:
        """End a run that is still going on."""
        end, self._end, self._run = self._end, None, ""
        if end is not None:
            end()

    def log(
        self,
        title: str,
        texts: Mapping[str, str],
        numbers: Mapping[str, float],
        step: int,
    ) -> None:
        """Log texts as parameters and numbers as metrics, so many at a time."""
        if not self._run:
            raise RuntimeError("MLflow has no run for this study: it could not begin.")
        make, now = self._mlflow.entities, int(time.time() * 1000)
        metrics = [make.Metric(_key(k), v, now, step) for k, v in numbers.items()]
        params = [make.Param(_key(k), v[:_MOST_CHARACTERS]) for k, v in texts.items()]
        for i in range(0, len(metrics), _MOST_METRICS):
            self._client.log_batch(self._run, metrics=metrics[i : i + _MOST_METRICS])
        for i in range(0, len(params), _MOST_PARAMS):
            self._client.log_batch(self._run, params=params[i : i + _MOST_PARAMS])


def _key(name: str) -> str:
    """Return a name that MLflow allows: the same one where possible, else its own."""
    key = _SPELT.sub(_spelt, name)
    path = normpath(key)
    if path != key or path == "." or path.startswith(("..", "/")):
        # MLflow may make a file of it, which must not be another name's.
        key = re.sub(r"/|^\.+", _spelt, key)
    if len(key) > _LONGEST_NAME:
        digest = sha256(name.encode(errors="surrogatepass")).hexdigest()[:16]
        key = f"{key[: _LONGEST_NAME - 17]}-{digest}"
    return key


def _spelt(found: re.Match[str]) -> str:
    return "".join(f"_x{ord(character):X}_" for character in found[0])
