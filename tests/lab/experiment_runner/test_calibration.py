"""Committed runs against files of the papers' authors."""

from math import hypot
from pathlib import Path

import numpy as np

from flwr_fbo.lab.experiment_runner.curves import curves_by_method
from flwr_fbo.lab.experiment_runner.results import read_results
from tests.support.reference import reference

FOLDER = Path(__file__).parents[3] / "experiments" / "dp-fts-de"


def test_thompson_sampling_on_landmine_is_the_authors() -> None:
    """From the last initial point to iteration 60, where 1 - AUC is .238."""
    authors = reference("landmine_curves.json")["thompson_sampling"]
    experiment, runs = read_results(FOLDER / "fig3a.jsonl")
    curves = curves_by_method(["alone-anywhere"], runs)["alone-anywhere"]
    assert len(authors) == 9
    for iteration, theirs in authors.items():
        auc = curves[:, experiment.first_shown + int(iteration)]
        error = np.std(auc, ddof=1) / len(auc) ** 0.5
        apart = np.mean(auc) - theirs["mean_auc"]
        assert abs(apart) < 2 * hypot(error, theirs["se_runs_of_agent_mean"])
