"""Whether a site answers does not depend on its data, whatever numbers a server writes.

Two worlds that differ in one reward are sent the same messages.
"""

import logging
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from flwr_fbo import InProcessGrid, linear_bandit_app
from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._compat import to_array_record
from flwr_fbo.bandits import ContinualSettings, EllipsoidSampling, LinearUCBSettings
from flwr_fbo.bandits.linear.study import (
    LinearBanditInstruction,
    LinearBanditStudy,
)

D, K, TRIALS = 5, 4, 6
CHANGES: dict[str, dict[str, Any]] = {
    "ridge": {"ridge": 1e-15},
    "a little more ridge": {"ridge": 1.2e-10},
    "noise scale": {"noise_scale": 1e-12},
    "a large noise scale": {"noise_scale": 1e12, "ridge": 1e-15},
    "width": {"width": 1e6, "ridge": 1e-15},
    "draws": {"exploration": EllipsoidSampling(4, 1e-12, 1.0), "ridge": 1e-15},
    "norm": {"max_action_norm": 1e-6},
    "long actions": {"max_action_norm": 1e6, "ridge": 1e-15},
    "range": {"reward_range": (0, 1e-6)},
    "far range": {"reward_range": (1e6 - 1, 1e6)},
    "wide range": {"reward_range": (-1e6, 1e6), "ridge": 1e-15},
}


class Ward:
    def __init__(self, seed: int, first: float) -> None:
        rng = np.random.default_rng(seed)
        contexts = rng.standard_normal((TRIALS, K, D))
        norms = np.linalg.norm(contexts, axis=2, keepdims=True)
        self._contexts = contexts / norms / 1.0000001
        self._rewards = rng.integers(0, 2, TRIALS).astype(float)
        self._rewards[0], self._trial = first, 0

    def contexts(self, t: int) -> FloatArray:
        self._trial = t
        return np.asarray(self._contexts[t])

    def reward(self, x: FloatArray) -> float:
        return float(self._rewards[self._trial])


def answers(first: float, seed: int, changes: dict[str, Any], local: Any) -> list[str]:
    """Return what a server sees of each of its messages, but for what has noise.

    At a site without limits, which says what went wrong.
    """
    app = linear_bandit_app(make_environment=lambda _: Ward(seed, first))
    grid = InProcessGrid(app, 1, node_configs=[{"agent-id": 0}])
    [node] = grid.get_node_ids()
    of_releases = ("max_action_norm", "reward_range")
    bounds = {k: v for k, v in changes.items() if k in of_releases}
    others = {k: v for k, v in changes.items() if k not in of_releases}
    releases = ContinualSettings(2, D, 1.0, 1e-5, **bounds)
    chosen = LinearUCBSettings(releases, local_data=local, **others)
    study, seen = LinearBanditStudy(chosen, 2), []

    def ask(*arrays: Any, **instruction: Any) -> Any:
        asked = LinearBanditInstruction(study=study, **instruction)
        record = ConfigRecord({**asked.to_config()})
        content = RecordDict({"config": record, "arrays": to_array_record(arrays)})
        [reply] = grid.send_and_receive([Message(content, node, "train")])
        if reply.has_error():
            seen.append(str(reply.error.reason))
            return None
        arrays_back = reply.content.array_records["arrays"].values()
        seen.append(str([array.shape for array in arrays_back]))
        return reply.content

    journal = int(ask(phase="enrol")["metrics"]["journal"])
    about = {"phase": "round", "slot": 0, "journal": journal}
    ask(**about, num_trials=3, send_release=True)
    for total in (releases.largest_entries, 1e200 * np.eye(D + 1), np.eye(D)):
        told = {"included": 1, "agents_in_total": 2, "num_synchronisations": 1}
        ask(total, **about, **told, num_trials=TRIALS)
    ask(**about, included=1, num_trials=TRIALS, send_release=True)
    return seen


@pytest.mark.parametrize("local", ["own", "released", "raw"])
@pytest.mark.parametrize("changes", CHANGES)
def test_two_worlds_look_alike(changes: str, local: str) -> None:
    logging.disable(logging.CRITICAL)
    try:
        for seed in range(2):
            about = seed, CHANGES[changes], local
            low, high = (answers(first, *about) for first in (0.0, 1.0))
            assert low == high
            refused = [text for text in low if not text.startswith("[")]
            assert len(refused) == 1  # the total of another shape
    finally:
        logging.disable(logging.NOTSET)
