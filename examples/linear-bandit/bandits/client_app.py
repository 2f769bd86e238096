"""The client: what a site plays. Its trials never leave it."""

from flwr.app import Context

from flwr_fbo import linear_bandit_app
from flwr_fbo.lab.tasks.linear_bandit import LinearBanditEnvironment, LinearBanditTask


def make_environment(context: Context) -> LinearBanditEnvironment:
    """Return this site's bandit: K = 25 actions a trial, of dimension 5."""
    slot = int(context.node_config["partition-id"])
    task = LinearBanditTask(dimension=5, num_actions=25)
    seed = int(context.run_config["environment-seed"])
    return LinearBanditEnvironment(task, seed, slot)


# A site with rewards of its own has no environment: linear_bandit_app(folder=...), and
# LinearBanditPolicy.open(folder) wherever it decides.
app = linear_bandit_app(make_environment=make_environment)
