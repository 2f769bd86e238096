"""The client: it only synchronises. Decisions are made by `triage.site`."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from flwr_fbo import Limits, linear_bandit_app

bandit = linear_bandit_app(limits=Limits(max_epsilon_per_example=8.0, max_delta=1e-5))
app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer the server from the site's folder."""
    # A SuperNode's config names the site's folder. Simulated nodes have none yet.
    node = context.node_config
    if "fbo-folder" not in node:
        folder = f"{context.run_config['sites']}/site-{node['partition-id']}"
        node["fbo-folder"] = folder
    return bandit(message, context)
