"""What `tests/site/test_site_budget.py` and others share."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from flwr_fbo import Limits
from flwr_fbo.privacy.continual_settings import ContinualSettings
from flwr_fbo.privacy.spending_ledger import (
    Charge,
    Promise,
)
from flwr_fbo.site.site import Answer, Site
from flwr_fbo.space.search_space import SearchSpace
from flwr_fbo.tuning.dp_fts_de.settings import DPFTSDESettings
from flwr_fbo.tuning.search.study import TuningInstruction, TuningStudy
from flwr_fbo.tuning.site.tuning_site import TuningSite
from tests.support.federation import (
    SPACE,
    objective_of,
)

LIMITS = Limits(max_epsilon_per_client=3, max_delta=1e-3)
# A bandit protects an example, and needs a limit for one.
OF_EXAMPLES = Limits(max_epsilon_per_example=3, max_delta=1e-3)


AGENT = DPFTSDESettings(num_initial=2, num_features=10, num_candidates=20)


# Two releases of a study: two such studies spend less than 3, three spend more.
CHARGES = (Charge(1.7 * math.sqrt(2.0)),) * 2


FOLDERS = pytest.mark.parametrize("in_folder", [True, False])


class Node:
    """One client: a new context for each message where there is a folder."""

    def __init__(self, folder: Path | None, **node_config: Any) -> None:
        self._config = {"agent-id": 0, **node_config}
        if folder is not None:
            self._config["fbo-folder"] = str(folder)
        self._state = RecordDict()
        self._fresh = folder is not None

    def ask(
        self, site: Site[Any, Any], config: dict[str, Any], arrays: Sequence[Any] = ()
    ) -> Answer:
        state = RecordDict() if self._fresh else self._state
        return site.answer(Context(1, 1, dict(self._config), state, {}), arrays, config)


def site_of(limits: Limits | None = LIMITS) -> TuningSite:
    return TuningSite(lambda _: objective_of(0), limits=limits)


def study_of(
    charges: tuple[Charge, ...] = CHARGES, private: bool = True, study_id: str = "one"
) -> TuningStudy:
    promise = Promise(charges, private)
    space = SearchSpace(SPACE)
    return TuningStudy(space, "maximize", AGENT, 1, 2, study_id, promise)


def asked_of(
    study: TuningStudy, iteration: int, release: int, slot: int = 0
) -> dict[str, Any]:
    return TuningInstruction(
        "round", study, slot, iteration, release=release
    ).to_config()


def node_of(tmp_path: Path, in_folder: bool, **node_config: Any) -> Node:
    return Node(tmp_path / "site" if in_folder else None, **node_config)


RELEASES = ContinualSettings(num_releases=3, dimension=3, epsilon=1.5, delta=1e-3)


class Environment:
    def contexts(self, t: int) -> Any:
        return np.eye(3)

    def reward(self, x: Any) -> float:
        return 0.5
