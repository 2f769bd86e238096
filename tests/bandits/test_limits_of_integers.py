"""The limit of each integer of a bandit's study, and what its fields hold."""

from typing import Any

import pytest

from flwr_fbo._common.fields import FREE, fields_by_name
from flwr_fbo.bandits.fed_go_ucb.settings import FedGOUCBSettings, NeuralPrivacy
from flwr_fbo.bandits.fed_go_ucb.study import FedGOUCBStudy
from flwr_fbo.bandits.linear.exploration import EllipsoidSampling, Optimism
from flwr_fbo.bandits.linear.feature_encoder import FeatureEncoder
from flwr_fbo.bandits.linear.feature_fields import Category, Number
from flwr_fbo.bandits.linear.peer_graph import PeerGraph
from flwr_fbo.bandits.linear.settings import (
    DeterminantTrigger,
    LinearUCBSettings,
    RewardTimeout,
)
from flwr_fbo.bandits.linear.study import LinearBanditStudy
from flwr_fbo.models.langevin_regression import LangevinSettings
from flwr_fbo.models.network import Network
from flwr_fbo.privacy.continual_settings import ContinualSettings

CAPS: dict[type, dict[str, str]] = {
    LinearBanditStudy: {"num_agents": "max_agents", "noise_seed": FREE},
    PeerGraph: {
        "num_agents": "max_peers",
        "edges": "max_peers",
        "hops": "max_peers",
        "num_estimators": "max_dimension",
    },
    EllipsoidSampling: {"num_draws": "max_points", "uniform_share": FREE},
    FedGOUCBStudy: {
        "num_agents": "max_agents",
        "num_parameters": "max_features",
        "seed": FREE,
        "noise_seed": FREE,
    },
    FedGOUCBSettings: {
        "num_exploration": "max_trials",
        "num_refinements": "max_points",
        "threshold": FREE,
    },
}
PARTS: dict[type, dict[str, type]] = {
    LinearBanditStudy: {
        "settings": LinearUCBSettings,
        "trigger": DeterminantTrigger,
        "graph": PeerGraph,
    },
    LinearUCBSettings: {
        "releases": ContinualSettings,
        "encoder": FeatureEncoder,
        "reward_timeout": RewardTimeout,
    },
    FedGOUCBStudy: {"settings": FedGOUCBSettings, "network": Network},
    FedGOUCBSettings: {"regression": LangevinSettings, "privacy": NeuralPrivacy},
}


@pytest.mark.parametrize("kind", CAPS)
def test_an_integer_of_a_study_has_its_limit(kind: type) -> None:
    known = fields_by_name(kind)
    assert {name: known[name].metadata["cap"] for name in CAPS[kind]} == CAPS[kind]


@pytest.mark.parametrize("kind", PARTS)
def test_a_field_says_which_dataclass_it_holds(kind: type) -> None:
    known = fields_by_name(kind)
    assert {name: known[name].metadata["part"] for name in PARTS[kind]} == PARTS[kind]


@pytest.mark.parametrize(
    ("kind", "name", "values", "made"),
    [
        (LinearUCBSettings, "exploration", {"kind": "optimism"}, Optimism),
        (FeatureEncoder, "context", {"low": 0, "high": 1}, Number),
        (FeatureEncoder, "arm", {"values": ["a", "b"]}, Category),
    ],
)
def test_the_json_says_which_dataclass_it_is(
    kind: type, name: str, values: dict[str, Any], made: type
) -> None:
    assert fields_by_name(kind)[name].metadata["part"](values) is made
