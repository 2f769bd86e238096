"""Folders of tuners, as they are after a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context
from flwr.serverapp import Grid

from flwr_fbo import Halving, PrivateChoice, Seeds
from flwr_fbo.tuning import FederationResult
from tests.support.apps import (
    RUN_CONFIG,
    DyingGrid,
    Ended,
    in_process,
    main_of,
    message_app,
    server_context,
    tuner,
)

SCHEDULE = Halving(6, (1, 3), parallel=2)
NUM_SENDS_OF_FIRST_RUNG = 7
OPTIONS: dict[str, dict[str, Any]] = {
    "private": {
        "privacy": PrivateChoice(epsilon=4.0, delta=1e-3),
        "seeds": Seeds(study=1),
    },
    "seeded": {},
    "exact": {"privacy": None},
}


def record(folder: Path, kind: str, **run_config: Any) -> FederationResult:
    """Let a tuner of a kind of ``OPTIONS`` run to its end in a folder."""
    study = tuner(**{"schedule": SCHEDULE, "folder": folder, **OPTIONS[kind]})
    return study.start(_main, in_process(), server_context(**run_config))


def record_first_rung(folder: Path, kind: str) -> None:
    """End a tuner after its first rung."""
    grid = DyingGrid(message_app(), 6, run_config=RUN_CONFIG)
    grid.dies_at = NUM_SENDS_OF_FIRST_RUNG
    study = tuner(**{"schedule": SCHEDULE, "folder": folder, **OPTIONS[kind]})
    with pytest.raises(Ended):
        study.start(_main, grid, server_context())


def _main(grid: Grid, context: Context) -> None:
    if context.run_config["local-epochs"] == 5:  # one of the trials: see its score
        raise ArithmeticError
    main_of()(grid, context)
