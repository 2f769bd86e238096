"""How ``flwr-fbo tune`` tunes an app: settings that a bundle carries as JSON."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Result

from flwr_fbo.privacy.guarantee import Protects, default_delta
from flwr_fbo.space.search_space import SearchSpace
from flwr_fbo.strategies.seeds import Seeds
from flwr_fbo.tuner.candidates.trial_space import TrialSpace
from flwr_fbo.tuner.choosers.make_chooser import ScoreSource
from flwr_fbo.tuner.federation_result import FederationResult
from flwr_fbo.tuner.federation_tuner import FederationTuner
from flwr_fbo.tuner.own_app import component, fresh_main, with_tuner_mod
from flwr_fbo.tuner.private_choice import PrivateChoice
from flwr_fbo.tuner.schedules.race import OneTraining
from flwr_fbo.tuning.search.settings import Direction

_log = logging.getLogger("flwr.fbo")

MODEL = "model.npz"


@dataclass(frozen=True)
class TuneSettings:
    """What is tuned, by which metric, and how privately.

    Attributes
    ----------
    space : str
        `SearchSpace`, as JSON.
    metric : str
        Name of the metric in the clients' replies, or of the server's score.
    direction : {"maximize", "minimize"}
        Which values of the metric are better.
    num_agents : int
        Number of sites, >= 1.
    epsilon, delta : float or None
        None: not private.
    score : {"clients", "server"}
        Who scores the trials.
    trials : int
        At most.
    seed : int or None
        Makes the candidates repeat.
    protects : {"client", "example"}
        Unit of privacy.
    metric_range : tuple of float or None
        Of the metric, where one example is protected.
    max_examples : int or None
        Examples with which a site counts at most, where one is protected.
    """

    space: str
    metric: str
    direction: Direction
    num_agents: int
    epsilon: float | None = None
    delta: float | None = None
    score: ScoreSource = "clients"
    trials: int = 16
    seed: int | None = None
    protects: Protects = "client"
    metric_range: tuple[float, float] | None = None
    max_examples: int | None = None

    @property
    def privacy(self) -> PrivateChoice | None:
        """How trials are chosen privately; None: they are not."""
        if self.epsilon is None:
            return None
        delta = self.delta
        if delta is None:
            delta = default_delta(self.num_agents, self.protects)
        about = self.protects, self.metric_range, self.max_examples
        return PrivateChoice(self.epsilon, delta, *about)

    def tuner(self) -> FederationTuner:
        """Return the tuner.

        Raises
        ------
        ValueError
            If a setting is not allowed; the message names it.
        """
        return FederationTuner(
            SearchSpace.from_json(self.space).distributions,
            self.metric,
            self.direction,
            self.num_agents,
            privacy=self.privacy,
            schedule=OneTraining(trials=self.trials),
            score=self.score,
            seeds=Seeds(study=self.seed),
        )

    @property
    def trial_space(self) -> TrialSpace:
        """What is searched."""
        return TrialSpace(SearchSpace.from_json(self.space))

    def to_json(self) -> str:
        """Return the settings as JSON."""
        values = {**asdict(self), "space": json.loads(self.space)}
        return json.dumps(values, sort_keys=True, indent=2)

    @classmethod
    def from_json(cls, text: str) -> TuneSettings:
        """Return the settings that `to_json` gave."""
        values: dict[str, Any] = json.loads(text)
        if values["metric_range"] is not None:
            values["metric_range"] = tuple(values["metric_range"])
        return cls(**{**values, "space": json.dumps(values["space"])})


def server_context(run_config: dict[str, Any]) -> Context:
    """Return the context of a ServerApp in this process."""
    return Context(1, 1, {}, RecordDict(), dict(run_config))


def save_model(result: FederationResult, folder: Path) -> Path | None:
    """Save the arrays of the trained model; None where `main` has returned none."""
    returned = result.returned
    if not isinstance(returned, Result) or not returned.arrays:
        return None
    arrays = {name: array.numpy() for name, array in returned.arrays.items()}
    np.savez(folder / MODEL, allow_pickle=False, **arrays)
    return folder / MODEL


def tuned_server(reference: str, settings: str, folder: str = "") -> ServerApp:
    """Return a ServerApp that tunes another one, as a bundle of the command has it.

    Parameters
    ----------
    reference : str
        The app's own ServerApp, as ``module:name``.
    settings : str
        `TuneSettings` as JSON.
    folder : str
        An absolute path, of the record; empty: none is kept.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        path = Path(folder) if folder else None
        tuner = TuneSettings.from_json(settings).tuner()
        result = tuner.start(fresh_main(reference), grid, context, folder=path)
        for line in str(result).splitlines():
            _log.info("%s", line)
        if path is not None:
            save_model(result, path)

    return app


def tuned_client(reference: str) -> ClientApp:
    """Return a ClientApp that runs trials of another one, and changes nothing else.

    Parameters
    ----------
    reference : str
        The app's own ClientApp, as ``module:name``.
    """
    return with_tuner_mod(lambda: component(reference, ClientApp))
