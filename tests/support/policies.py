"""Sites with a policy each, enrolled without a server."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from flwr_fbo import LinearBanditPolicy
from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.bandits import (
    ArmTable,
    Category,
    ContinualSettings,
    EllipsoidSampling,
    FeatureEncoder,
    FedGOUCBSettings,
    InverseGapWeighting,
    LinearUCBSettings,
    Network,
    NeuralBanditPolicy,
    Number,
    Optimism,
)
from flwr_fbo.bandits.fed_go_ucb.study import FedGOUCBStudy
from flwr_fbo.bandits.linear.study import LinearBanditStudy
from flwr_fbo.bandits.site.bandit_policy import BanditPolicy
from flwr_fbo.bandits.site.recorded_bandit import RecordedBandit
from flwr_fbo.bandits.site.recorded_neural_agent import RecordedNeuralAgent
from flwr_fbo.journal.journal import Journal

# Of a policy that no site has enrolled: the only journal of its folder.
FILE_NAME = "linear-bandit.sqlite"
KINDS = {
    "optimism": Optimism(),
    "sampling": EllipsoidSampling(num_draws=9, uniform_share=0.3, radius=1.0),
    "inverse gap": InverseGapWeighting(scale=2.0),
}
ENCODER = FeatureEncoder(
    {"age": Number(0, 100), "way": Category(["walk-in", "ambulance"])},
    {"price": Number(0, 10)},
)
BLOCKS = FeatureEncoder({"age": Number(0, 100)}, blocks=("ward", "home", "away"))
ARMS = ArmTable(
    {"ward": {"price": 9.0}, "clinic": {"price": 5.0}, "home": {"price": 1.0}}
)
CONTEXT: dict[str, Any] = {"age": 71, "way": "walk-in"}
# For a study without an encoder.
VECTORS = np.array([[1.0, 0.0, 0.0], [0.0, 0.6, 0.8], [0.0, 0.0, 0.5]])


def settings_of(
    encoder: FeatureEncoder | None = None, num_releases: int = 5
) -> LinearUCBSettings:
    """Return settings of a study without noise."""
    d = 3 if encoder is None else encoder.dimension
    releases = ContinualSettings(num_releases, d, epsilon=np.inf, delta=0.1)
    return LinearUCBSettings(releases, local_data="released", encoder=encoder)


VECTOR_SETTINGS, SETTINGS, BLOCK_SETTINGS = map(settings_of, (None, ENCODER, BLOCKS))


def enrolled(
    folder: Path,
    settings: LinearUCBSettings = SETTINGS,
    arms: ArmTable | None = ARMS,
    noise_seed: int | None = 3,
) -> LinearBanditPolicy:
    """Return the policy of a site that the server has enrolled."""
    study = LinearBanditStudy(settings, 2, noise_seed=noise_seed, study_id="decides")
    folder.mkdir(exist_ok=True)
    with Journal(RecordedBandit.identity_of(study), folder / FILE_NAME) as journal:
        bandit = RecordedBandit(journal, study)
        bandit.join(0, bandit.number)
    policy = LinearBanditPolicy.open(folder)
    if settings.encoder == ENCODER and arms is not None:
        policy.set_arms(arms)
    return policy


def learned(policy: LinearBanditPolicy) -> None:
    """Have a site receive what other agents have learned."""
    with policy._held() as bandit:
        d = bandit.study.settings.releases.dimension
        x = np.random.default_rng(d).normal(size=(50, d))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        z = np.column_stack([x, x @ np.linspace(-0.9, 0.9, d) / np.sqrt(d)])
        bandit.receive(z.T @ z, 0)


def features_of(
    context: dict[str, Any],
    names: tuple[str, ...],
    encoder: FeatureEncoder = ENCODER,
    arms: ArmTable = ARMS,
) -> FloatArray:
    """Return the features of a decision, encoded as its own."""
    fresh = replace(encoder)
    return fresh.encode(context, arms.eligible(names))[0]


# A study of Fed-GO-UCB whose sites decide at their own pace.
NEURAL_SETTINGS = FedGOUCBSettings(num_exploration=0)
NETWORK = Network(3, width=4)
NEURAL_FILE = "neural-bandit.sqlite"


def neural_enrolled(
    folder: Path,
    settings: FedGOUCBSettings = NEURAL_SETTINGS,
    num_evaluations: int = 20,
) -> NeuralBanditPolicy:
    """Return the policy of a site of `FedGOUCB` that the server has enrolled."""
    study = FedGOUCBStudy(
        settings.for_study(2, num_evaluations),
        2,
        NETWORK.num_parameters,
        NETWORK,
        seed=3,
        noise_seed=None if settings.privacy is None else 4,
        study_id="decides",
    )
    folder.mkdir(exist_ok=True)
    identity = RecordedNeuralAgent.identity_of(study)
    with Journal(identity, folder / NEURAL_FILE) as journal:
        agent = RecordedNeuralAgent(journal)
        agent.join(0, agent.number)
    return NeuralBanditPolicy.open(folder)


def vectors_enrolled(folder: Path) -> LinearBanditPolicy:
    """Return the policy of a linear bandit without an encoder."""
    return enrolled(folder, VECTOR_SETTINGS)


# Both bandits, for what holds for whatever a site believes.
MAKE_POLICY: dict[str, Callable[[Path], BanditPolicy[Any]]] = {
    "linear": vectors_enrolled,
    "neural": neural_enrolled,
}
