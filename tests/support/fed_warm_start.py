"""What `tests/strategies/test_fed_warm_start.py` and others share."""

from typing import Any

from flwr.app import ConfigRecord, Context, Message
from optuna.distributions import FloatDistribution

from flwr_fbo import InProcessGrid, Seeds
from flwr_fbo.strategies.fed_warm_start import FedWarmStart
from flwr_fbo.tuning.fed_warm_start.settings import (
    FedWarmStartSettings,
)
from tests.support.grouped import hosted

SPACE = {"x": FloatDistribution(0.0, 1.0), "y": FloatDistribution(0.0, 1.0)}


AGENT = FedWarmStartSettings(
    num_features=16, num_candidates=60, share_after=3, num_led=2
)


N, SIZES, ROUNDS = 7, (3, 2), 9


SEEDS = Seeds(study=1, features=2, noise=3)


def objective_of(site: int) -> Any:
    centre = 0.7 + 0.02 * site
    return lambda p: -((p["x"] - centre) ** 2) - (p["y"] - 0.2) ** 2


def make_objective(context: Context) -> Any:
    return objective_of(int(context.node_config["partition-id"]))


def strategy(**options: Any) -> FedWarmStart:
    defaults: dict[str, Any] = {
        "agent": AGENT,
        "cohorts": SIZES,
        "epsilon": 8.0,
        "delta": 1e-3,
        "seeds": SEEDS,
    }
    return hosted(FedWarmStart, SPACE, "maximize", N, **{**defaults, **options})


def round_of(message: Message) -> int:
    """Return the round of a message; 0 for one that enrols."""
    config = message.content["config"]
    assert isinstance(config, ConfigRecord)
    number = config.get("server-round", 0)
    assert isinstance(number, int)
    return number


class LateGrid(InProcessGrid):
    """Whose nodes of some slots are not connected at the first looks."""

    is_complete = False
    away: tuple[int, ...] = (0, 1, 2)
    looks = 0

    def get_node_ids(self) -> list[int]:
        """Return the ids of those that are there."""
        self.looks -= 1
        ids = list(super().get_node_ids())
        return [n for i, n in enumerate(ids) if self.looks < 0 or i not in self.away]
