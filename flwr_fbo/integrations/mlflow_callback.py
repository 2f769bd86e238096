"""MLflow: a run for each study."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar

from flwr_fbo._validation import require
from flwr_fbo.integrations.tracked import (
    numbers_of_round,
    numbers_of_rung,
    texts_of,
    texts_of_result,
    texts_of_rung,
)
from flwr_fbo.protocol.callbacks import Callback, DecidedRung, Round, Started

# Of one call of MLflow's log_batch, and of one parameter.
_MOST_PARAMS, _MOST_METRICS, _MOST_CHARACTERS = 100, 1000, 6000
_STUDY = "flwr_fbo.study"

T = TypeVar("T")


class MlflowCallback(Callback):
    """Logs a study to MLflow: settings, counts, epsilon, and what is recommended.

    A study has one MLflow run, also after a restart with the same folder. Settings are
    parameters of the run. Metrics have the round, or the number of the rung, as step.

    Examples
    --------
    >>> from flwr_fbo import MlflowCallback
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
        ok = isinstance(experiment, str) and experiment != ""
        require(ok, "experiment", experiment, "the name of an experiment")
        ok = tracking_uri is None or isinstance(tracking_uri, str)
        require(ok, "tracking_uri", tracking_uri, "a string")
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

    def on_start(self, started: Started) -> None:
        """Begin the study's run, or go on with it, and log the settings."""
        self._run = ""
        self._client = self._mlflow.MlflowClient(self._tracking_uri)
        self._run = self._run_of(started)
        self._log_params(texts_of({"method": started.method, **started.settings}))

    def on_round(self, finished: Round) -> None:
        """Log counts and epsilon."""
        self._log_metrics(numbers_of_round(finished), finished.server_round)

    def on_rung(self, decided: DecidedRung) -> None:
        """Log scores and epsilon, and the settings of the trials."""
        self._log_metrics(numbers_of_rung(decided), decided.number)
        self._log_params(texts_of_rung(decided))

    def on_end(self, result: Any) -> None:
        """Log the setting that is recommended or chosen, and end the run."""
        self._log_params(texts_of_result(result))
        self._client.set_terminated(self._run)

    def _run_of(self, started: Started) -> str:
        """Return the id of the study's run."""
        client = self._client
        found = client.get_experiment_by_name(self.experiment)
        if found is None:
            experiment = client.create_experiment(self.experiment)
        else:
            experiment = found.experiment_id
        mine = f"tags.`{_STUDY}` = '{started.study}'"
        runs = client.search_runs([experiment], mine)
        if runs:
            client.update_run(runs[0].info.run_id, status="RUNNING")
            return str(runs[0].info.run_id)
        name = f"{started.method}-{started.study}"
        run = client.create_run(experiment, tags={_STUDY: started.study}, run_name=name)
        return str(run.info.run_id)

    def _log_params(self, texts: Mapping[str, str]) -> None:
        run, param = self._begun, self._mlflow.entities.Param
        for some in _chunks(texts.items(), _MOST_PARAMS):
            params = [param(_key(k), v[:_MOST_CHARACTERS]) for k, v in some]
            self._client.log_batch(run, params=params)

    def _log_metrics(self, numbers: Mapping[str, float], step: int) -> None:
        run, metric = self._begun, self._mlflow.entities.Metric
        now = int(time.time() * 1000)
        for some in _chunks(numbers.items(), _MOST_METRICS):
            metrics = [metric(_key(k), v, now, step) for k, v in some]
            self._client.log_batch(run, metrics=metrics)

    @property
    def _begun(self) -> str:
        if not self._run:
            raise RuntimeError("MLflow has no run for this study: it could not begin.")
        return self._run


def _key(name: str) -> str:
    """Return a name that MLflow allows."""
    return re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)[:250]


def _chunks(items: Iterable[T], most: int) -> Iterator[list[T]]:
    left = iter(items)
    while some := list(islice(left, most)):
        yield some
