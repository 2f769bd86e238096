"""The client: what a site tries, and what it is rewarded with."""

from flwr.app import Context

from flwr_fbo.bandits import neural_bandit_app
from flwr_fbo.lab.tasks.nonlinear_bandit import (
    FunctionBanditTask,
    NonlinearBanditEnvironment,
)


def make_environment(context: Context) -> NonlinearBanditEnvironment:
    """Return this site's bandit: 50 candidates, the same for all sites."""
    slot = int(context.node_config["partition-id"])
    seed = int(context.run_config["environment-seed"])
    return NonlinearBanditEnvironment(FunctionBanditTask(), seed, slot)


app = neural_bandit_app(make_environment)
