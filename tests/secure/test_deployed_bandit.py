"""A bandit with secure sums over a real deployment with TLS: one of four sites is lost.

CI plays three releases, `make everything` twenty.
"""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_fbo import LinearBanditPolicy
from flwr_fbo.bandits import ContinualSettings
from flwr_fbo.journal.journal import Journal
from flwr_fbo.secure.roster import Roster, SigningKey
from flwr_fbo.strategies.study_record import read_ledger
from tests.support.deployed import DEPLOYMENT, await_condition, begun, deployment
from tests.support.lost_folders import charges_in

NUM_SITES = 4

CLIENT = """
import numpy as np

from flwr_fbo import linear_bandit_app


class Ward:
    def contexts(self, t):
        return np.eye(3)

    def reward(self, x):
        return float(x @ [0.2, 0.3, 0.8])


app = linear_bandit_app(make_environment=lambda context: Ward())
"""

SERVER = """
from pathlib import Path

from flwr.serverapp import ServerApp

from flwr_fbo import FedUCB, Host
from flwr_fbo.bandits import ContinualSettings, LinearUCBSettings
from flwr_fbo.secure import SecureAggregation

app = ServerApp()


@app.main()
def main(grid, context):
    config = context.run_config
    num_releases = int(config["num-rounds"])
    releases = ContinualSettings(
        num_releases=num_releases,
        dimension=3,
        epsilon=4.0,
        delta=1e-5,
        reward_range=(0, 1),
        mechanism="blocks",
    )
    strategy = FedUCB(
        LinearUCBSettings(releases, local_data="released"),
        num_agents=4,
        schedule=[*range(4, 4 * num_releases + 1, 4)],
        aggregation=SecureAggregation(threshold=3, roster=str(config["roster"])),
    )
    result = strategy.start(
        grid,
        timeout=90.0,
        folder=Path(str(config["record"])),
        host=Host(authenticated=True, max_empty_rounds=4),
    )
    print("spent", result.privacy_spent.epsilon)
"""


@pytest.fixture
def federation(loopback_only: None, tmp_path: Path) -> Iterator[Any]:
    """A federation whose sites pin a roster; its folder has that, and the app."""
    with deployment(tmp_path / "federation") as all_processes:
        folder = all_processes.folder
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(DEPLOYMENT / "app", folder / "app", ignore=ignored)
        (folder / "app" / "hospitals" / "client_app.py").write_text(CLIENT)
        (folder / "app" / "hospitals" / "server_app.py").write_text(SERVER)
        keys = {slot: SigningKey.draw() for slot in range(NUM_SITES)}
        roster = Roster.draw({slot: key.public for slot, key in keys.items()})
        roster.save(folder / "roster.json")
        all_processes.start_superlink()
        for slot, key in keys.items():
            site = f"site-{slot}"
            key.save(folder / f"{site}.pem")
            all_processes.register(site)
            all_processes.start_supernode(
                site,
                {
                    "agent-id": slot,
                    "fbo-folder": str(folder / site),
                    "fbo-roster": str(folder / "roster.json"),
                    "fbo-key": str(folder / f"{site}.pem"),
                    "fbo-min-threshold": 3,
                },
            )
        yield all_processes


@pytest.mark.parametrize(
    ("num_releases", "lost_after"),
    [
        pytest.param(3, 1, marks=pytest.mark.gate),
        pytest.param(20, 7, marks=pytest.mark.slow),
    ],
)
def test_the_others_go_on_when_a_site_is_killed(
    num_releases: int, lost_after: int, federation: Any
) -> None:
    study = federation.folder / "record"
    roster = federation.folder / "roster.json"
    config = f'record="{study}" roster="{roster}" num-rounds={num_releases}'

    def is_time() -> bool:
        path = study / "server.sqlite"
        return path.exists() and len(_ledger(path)) >= lost_after

    with begun(federation, federation.folder / "app", config) as end:
        await_condition(is_time, "no release is made", 900)
        # The site is gone with all that runs for it.
        process = federation.processes["site-3"]
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        printed = end(3000)
    assert "spent 4.0" in printed, printed
    ledger = _ledger(study / "server.sqlite")
    assert [row.facts["release"] for row in ledger] == [*range(1, num_releases + 1)]
    summed = [row.facts["summed"] for row in ledger]
    # It may have been summed in the release that it was lost in.
    with_it = sum(3 in slots for slots in summed)
    assert lost_after <= with_it <= lost_after + 1
    everybody, others = [0, 1, 2, 3], [0, 1, 2]
    assert summed == [everybody] * with_it + [others] * (num_releases - with_it)
    releases = ContinualSettings(
        num_releases, 3, epsilon=4.0, delta=1e-5, mechanism="blocks"
    )
    for slot in everybody:
        folder = federation.folder / f"site-{slot}"
        # One charge of all releases, however many of them a site is in.
        [charge] = charges_in(folder)
        assert charge.noise_multiplier == pytest.approx(1 / releases.mu)
        policy = LinearBanditPolicy.open(folder)
        summary = policy.summary()
        is_in = with_it if slot == 3 else num_releases
        assert is_in <= summary.num_releases <= is_in + (slot == 3)
        assert np.isfinite(summary.estimate).all()


def _ledger(path: Path) -> list[Any]:
    with Journal.snapshot(path) as journal:
        return read_ledger(journal)[1]
