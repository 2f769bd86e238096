"""Confidence of linear bandits, and sums of trials."""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.bandits.linear.confidence import Confidence
from flwr_fbo.bandits.linear.settings import LinearUCBSettings
from flwr_fbo.privacy.continual_settings import ContinualSettings

D = 4


PRIVATE = ContinualSettings(num_releases=5, dimension=D, epsilon=1.0, delta=0.1)


PLAIN = replace(PRIVATE, epsilon=math.inf)


def width_of(s: Confidence, V: FloatArray) -> float:
    log_det = np.linalg.slogdet(V)[1]
    return float(s.width_at(log_det, np.linalg.eigvalsh(V)[0]))


def confidence(
    releases: ContinualSettings = PLAIN, num_agents: int = 3, **more: Any
) -> Confidence:
    usual = {"local_data": "released", "width": "exact"}
    settings = LinearUCBSettings(releases, **{**usual, **more})
    return Confidence.of(settings, num_agents)


def total_of(actions: FloatArray, rewards: FloatArray) -> FloatArray:
    z = np.column_stack([actions, rewards])
    return np.asarray(z.T @ z)
