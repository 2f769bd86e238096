"""The client: it evaluates the settings that its agent chooses."""

from digits.task import make_objective
from flwr_fbo import tuning_app

app = tuning_app(make_objective)
