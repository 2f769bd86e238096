"""Secure sums over a real deployment: clients and ServerApp get SIGKILL in them."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_fbo.journal.journal import Journal
from flwr_fbo.privacy.release import ReleaseSettings
from flwr_fbo.privacy.secure_release import SecureRelease
from flwr_fbo.protocol.tuning_study import TuningStudy
from flwr_fbo.strategies.study_record import read_ledger
from tests.deployed import DEPLOYMENT, begun

NUM_SITES, NUM_ROUNDS = 3, 4

# A client that notes what it adds to a sum, draws no noise, and is killed between its
# journal and its reply where a file in its folder says so.
CLIENT = """
import os
import signal
from pathlib import Path

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from flwr_fbo import tuning_app
from flwr_fbo.privacy.integer_noise import IntegerNoise
from flwr_fbo.privacy.secure_release import SecureRelease

IntegerNoise.draw_share = lambda noise: np.zeros(noise.length, np.int64)
contribution = SecureRelease.contribution
honest = tuning_app(lambda context: lambda trial: -abs(trial["x"] - 0.3))
app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    folder = Path(context.node_config["fbo-folder"])

    def noted(release, iteration, slot, vector):
        given = contribution(release, iteration, slot, vector)
        np.save(folder / f"given-{iteration}-{slot}.npy", given)
        return given

    SecureRelease.contribution = noted
    reply = honest(message, context)
    exchange = message.content["config"].get("fbo-exchange", 0)
    for end in folder.glob(f"kill-in-{exchange}"):
        end.rename(folder / f"killed-in-{exchange}")
        os.kill(os.getpid(), signal.SIGKILL)
    return reply
"""

# A ServerApp that is killed where a file says so, after the replies of an exchange.
SERVER = """
import os
import signal
from pathlib import Path

from flwr.serverapp import ServerApp
from optuna.distributions import FloatDistribution

from flwr_fbo import Durability, FedVote, Privacy, SecureAggregation, VotingSettings

app = ServerApp()


@app.main()
def main(grid, context):
    record = Path(str(context.run_config["record"]))
    send_and_receive = grid.send_and_receive

    def fragile(messages, *, timeout=None):
        asked = list(messages)
        replies = send_and_receive(asked, timeout=timeout)
        exchange = asked[0].content["config"].get("fbo-exchange", 0) if asked else 0
        for end in record.parent.glob(f"kill-in-{exchange}"):
            end.rename(record.parent / f"killed-in-{exchange}")
            os.kill(os.getpid(), signal.SIGKILL)
        return replies

    grid.send_and_receive = fragile
    strategy = FedVote(
        {"x": FloatDistribution(0, 1)},
        "maximize",
        3,
        agent=VotingSettings(num_initial=2, num_features=16, num_candidates=20),
        privacy=Privacy(noise_multiplier=1.0, num_releases=2),
        delta=1e-3,
        aggregation=SecureAggregation(threshold=2, honest=2),
        durability=Durability(authenticated=True, max_empty_rounds=3),
        folder=record,
    )
    rounds = int(context.run_config["num-rounds"])
    print(strategy.start(grid, num_rounds=rounds, timeout=45.0).recommendation)
"""


def _app(folder: Path) -> Path:
    app = folder / "app"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(DEPLOYMENT / "app", app, ignore=ignored)
    (app / "hospitals" / "client_app.py").write_text(CLIENT)
    (app / "hospitals" / "server_app.py").write_text(SERVER)
    return app


@pytest.mark.slow
# In the last one it must be the same sum again; the others can begin anew.
@pytest.mark.parametrize("exchange", [5])
def test_whatever_is_killed_in_a_sum_it_is_right(
    exchange: int, federation: Any, tmp_path: Path
) -> None:
    """A client that has not replied yet, then the ServerApp, in one exchange."""
    from loopback.__main__ import node_config

    app = _app(tmp_path)
    federation.start_superlink()
    folders = [federation.folder / f"site-{site}" for site in range(NUM_SITES)]
    for site, folder in enumerate(folders):
        federation.register(folder.name)
        federation.start_supernode(folder.name, node_config(folder, site))
    journals = [folder / "journal" for folder in folders]
    journals[0].mkdir(parents=True, exist_ok=True)
    (journals[0] / f"kill-in-{exchange}").touch()
    (federation.folder / f"kill-in-{exchange}").touch()
    record = federation.folder / "record"
    config = f'record="{record}" num-rounds={NUM_ROUNDS}'
    with begun(federation, app, config) as end:
        end(600)
    assert (federation.folder / f"killed-in-{exchange}").exists()
    assert (journals[0] / f"killed-in-{exchange}").exists()
    with begun(federation, app, config) as end:
        printed = end(600)
    assert "Resuming the study" in printed

    with Journal(None, record / "server.sqlite") as journal:
        fields, ledger = read_ledger(journal)
    study = TuningStudy.from_dict(fields["study"])
    assert study.secure is not None
    assert isinstance(study.secure.settings, ReleaseSettings)
    assert len(ledger) == 2
    release = SecureRelease(study.secure.settings)
    for row in ledger:
        slots = row.facts["summed"]
        assert len(slots) >= study.secure.groups[0].min_summed
        total = sum(
            np.load(journals[slot] / f"given-{row.iteration}-{slot}.npy")
            for slot in slots
        )
        sensitivity = release.sensitivity(row.iteration)
        error = row.vectors.ravel() - np.asarray(total) * sensitivity
        assert np.linalg.norm(error) <= 1e-3 * len(slots) * sensitivity
