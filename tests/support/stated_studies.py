"""Studies of all kinds, played into folders: what `flwr-fbo statement` is told of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from optuna.distributions import FloatDistribution

from flwr_fbo import (
    DPFTSDE,
    FTS,
    DecentralizedFedUCB,
    FedGOUCB,
    FedUCB,
    FedVote,
    FedWarmStart,
    Host,
    InProcessGrid,
    Privacy,
    PrivateChoice,
    Seeds,
    charge_training,
    linear_bandit_app,
    tuning_app,
)
from flwr_fbo.bandits import (
    ContinualSettings,
    FedGOUCBSettings,
    LinearUCBSettings,
    Network,
    NeuralPrivacy,
    PeerGraph,
)
from flwr_fbo.models.langevin_regression import LangevinSettings
from flwr_fbo.privacy import DPSGD
from flwr_fbo.secure import SecureAggregation
from flwr_fbo.tuning import (
    DPFTSDESettings,
    FedVoteSettings,
    FedWarmStartSettings,
    FTSSettings,
)
from tests.support.apps import (
    NUM_CLIENTS,
    in_process,
    main_of,
    message_app,
    server_context,
    tuner,
)
from tests.support.fed_go_ucb import APP as NEURAL_APP

SPACE = {"x": FloatDistribution(0, 1)}
AGGREGATION = SecureAggregation(colluding=1, threshold=5, honest=4)


class Ward:
    """Three arms, of which the last is the best."""

    def contexts(self, t: int) -> Any:
        return np.eye(3)

    def reward(self, x: Any) -> float:
        return float(x @ [0.2, 0.3, 0.8])


VOTING = tuning_app(lambda context: lambda trial: -abs(trial["x"] - 0.3))
BANDIT = linear_bandit_app(make_environment=lambda context: Ward())


@dataclass(frozen=True)
class Played:
    """Folders of a study that was played."""

    folder: Path
    server: Path = field(init=False)
    sites: tuple[Path, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "server", self.folder / "server")
        sites = tuple(self.folder / f"site-{slot}" for slot in range(NUM_CLIENTS))
        object.__setattr__(self, "sites", sites)

    @property
    def node_configs(self) -> list[Any]:
        """What each site's operator sets."""
        return [
            {"agent-id": slot, "partition-id": slot, "fbo-folder": str(site)}
            for slot, site in enumerate(self.sites)
        ]

    def grid(self, app: Any) -> InProcessGrid:
        """Return a grid of the sites."""
        return InProcessGrid(app, NUM_CLIENTS, node_configs=self.node_configs)


def _vote(
    played: Played,
    aggregation: SecureAggregation | None = None,
    metrics: tuple[str, ...] = (),
) -> None:
    privacy = Privacy(release_after=(1, 2))
    agent = FedVoteSettings(num_initial=1, num_candidates=20)
    study = FedVote(
        SPACE,
        "maximize",
        NUM_CLIENTS,
        epsilon=2,
        delta=1e-3,
        privacy=privacy,
        agent=agent,
        aggregation=aggregation,
    )
    host = Host(metrics=metrics)
    study.start(played.grid(VOTING), num_rounds=3, folder=played.server, host=host)


def _warm(played: Played) -> None:
    agent = FedWarmStartSettings(share_after=2, num_led=2, num_candidates=20)
    study = FedWarmStart(
        SPACE,
        "maximize",
        NUM_CLIENTS,
        epsilon=8,
        delta=1e-3,
        agent=agent,
        cohorts=(3,),
    )
    study.start(played.grid(VOTING), num_rounds=4, folder=played.server)


def _de(played: Played) -> None:
    agent = DPFTSDESettings(num_initial=2, num_candidates=20, num_starts=1)
    study = DPFTSDE(SPACE, "maximize", NUM_CLIENTS, epsilon=8, delta=1e-3, agent=agent)
    study.start(played.grid(VOTING), num_rounds=4, folder=played.server)


def _fts(played: Played) -> None:
    agent = FTSSettings(num_initial=2, num_candidates=20, num_starts=1)
    study = FTS(SPACE, "maximize", NUM_CLIENTS, agent=agent)
    study.start(played.grid(VOTING), num_rounds=3, folder=played.server)


def _peers(played: Played) -> None:
    releases = ContinualSettings(2, 3, epsilon=4.0, delta=1e-5)
    settings = LinearUCBSettings(releases, local_data="released")
    study = DecentralizedFedUCB(
        settings,
        PeerGraph.named("ring", NUM_CLIENTS),
        schedule=[5, 10],
        num_trials=12,
    )
    study.start(played.grid(BANDIT), folder=played.server)


def _linear(
    played: Played,
    local_data: Any = "own",
    aggregation: SecureAggregation | None = None,
) -> None:
    mechanism: Any = "toeplitz" if aggregation is None else "blocks"
    releases = ContinualSettings(2, 3, epsilon=4.0, delta=1e-5, mechanism=mechanism)
    settings = LinearUCBSettings(releases, local_data=local_data)
    study = FedUCB(
        settings, NUM_CLIENTS, schedule=[5, 10], num_trials=12, aggregation=aggregation
    )
    study.start(played.grid(BANDIT), folder=played.server)


def _neural(played: Played, privacy: NeuralPrivacy | None) -> None:
    settings = FedGOUCBSettings(
        num_exploration=2 if privacy is None else 0,
        regression=LangevinSettings(num_iterations=4),
        threshold=3.0,
        privacy=privacy,
    )
    study = FedGOUCB(
        settings, num_agents=NUM_CLIENTS, num_evaluations=9, model=Network(6, width=3)
    )
    study.start(played.grid(NEURAL_APP), folder=played.server)


BY_CLIENT = PrivateChoice(epsilon=4, delta=1e-3)
BY_EXAMPLE = PrivateChoice(epsilon=4, delta=1e-5, protects="example")
# A round of a training, and how many rounds its plan has.
ROUND, PLANNED = DPSGD(1.0, 0.1, 10), 5


def charged(
    message: Message, context: Context, call_next: ClientAppCallable
) -> Message:
    """Charge a round before it is trained."""
    charge_training(context, ROUND)
    return call_next(message, context)


def _tuner(
    played: Played,
    aggregation: SecureAggregation | None = None,
    privacy: PrivateChoice = BY_CLIENT,
    *,
    is_charged: bool = False,
) -> None:
    study = tuner(
        privacy=privacy,
        seeds=Seeds(study=1),
        folder=played.server,
        **({} if aggregation is None else {"aggregation": aggregation}),
    )
    app = message_app(train_mods=(charged,) if is_charged else ())
    grid = in_process(app, node_configs=played.node_configs)
    study.start(main_of(), grid, server_context())


def _train(played: Played, rounds: int, plan: DPSGD | None) -> None:
    """Charge the first site for rounds of one run: no server keeps a record."""
    context = Context(7, 1, played.node_configs[0], RecordDict(), {})
    for _ in range(rounds):
        charge_training(context, ROUND, plan=plan)


PLAN = DPSGD(1.0, 0.1, PLANNED * 10)
STUDIES: dict[str, Callable[[Played], None]] = {
    "FedVote": _vote,
    "FedVote, secure": lambda played: _vote(played, AGGREGATION),
    "FedVote, metrics": lambda played: _vote(played, metrics=("best-value",)),
    "DPFTSDE": _de,
    "FTS": _fts,
    "DecentralizedFedUCB": _peers,
    "FedWarmStart": _warm,
    "FedUCB": _linear,
    "FedUCB, secure": lambda played: _linear(played, "released", AGGREGATION),
    "FedGOUCB": lambda played: _neural(
        played, NeuralPrivacy(2.0, 1e-5, num_features=4, num_synchronisations=2)
    ),
    "FedGOUCB, open": lambda played: _neural(played, None),
    "FederationTuner": _tuner,
    "FederationTuner, secure": lambda played: _tuner(played, AGGREGATION),
    "FederationTuner, examples": lambda played: _tuner(played, privacy=BY_EXAMPLE),
    "FederationTuner, examples, secure": lambda played: _tuner(
        played, AGGREGATION, BY_EXAMPLE
    ),
    "FederationTuner, charged": lambda played: _tuner(played, is_charged=True),
    "DPSGD, planned": lambda played: _train(played, 3, PLAN),
    "DPSGD, beyond its plan": lambda played: _train(played, 7, PLAN),
    "DPSGD": lambda played: _train(played, 6, None),
}


def play(name: str, folder: Path) -> Played:
    """Play a study into folders of its server and its sites."""
    folder.mkdir(parents=True, exist_ok=True)
    played = Played(folder)
    STUDIES[name](played)
    return played
