"""Secure sums over a real deployment: clients and ServerApp get SIGKILL in them.

CI kills in the last exchange, `make everything` in each.
"""

import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_fbo.journal.journal import Journal
from flwr_fbo.privacy.release import ReleaseSettings
from flwr_fbo.secure.roster import Roster, SigningKey
from flwr_fbo.secure.secure_release import SecureRelease, SecureTotal
from flwr_fbo.strategies.study_record import read_ledger
from flwr_fbo.tuning.search.study import TuningStudy
from tests.support.deployed import DEPLOYMENT, await_condition, begun, deployment

NUM_SITES, NUM_ROUNDS = 3, 3

# A client that notes what it adds to a sum and what it replies. Where a file in its
# folder says so it is killed: as a request arrives, or between journal and reply.
CLIENT = """
import hashlib
import os
import signal
import time
from pathlib import Path

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from flwr_fbo import tuning_app
from flwr_fbo.secure.integer_noise import IntegerNoise

honest = tuning_app(lambda context: lambda trial: -abs(trial["x"] - 0.3))
wrapped = IntegerNoise.wrapped
app = ClientApp()


def die(order: Path) -> None:
    if order.exists():
        order.rename(order.with_name(f"done-{order.name}"))
        os.kill(os.getpid(), signal.SIGKILL)


@app.train()
def train(message: Message, context: Context) -> Message:
    study = Path(str(context.run_config["record"])).parent
    folder = study / str(context.node_config["agent-id"])

    def noted(noise, integers):
        added = wrapped(noise, integers)
        np.save(folder / f"added-{time.time_ns()}.npy", added)
        return added

    IntegerNoise.wrapped = noted
    config = message.content["config"]
    exchange = config["fbo-exchange"]
    die(folder / f"kill-on-request-{exchange}")
    reply = honest(message, context)
    if exchange:
        sent = b"".join(array.data for array in reply.content["arrays"].values())
        digest = hashlib.sha256(sent).hexdigest()
        with (folder / "replies").open("a") as notes:
            print(config["fbo-attempt"], exchange, digest, file=notes)
    die(folder / f"kill-before-reply-{exchange}")
    return reply
"""

# A ServerApp that waits for no client that is killed: Flower notices it after a minute.
# It is killed itself, where a file says so, after the replies of an exchange.
SERVER = """
import os
import signal
import time
from pathlib import Path

from flwr.serverapp import ServerApp
from optuna.distributions import FloatDistribution

from flwr_fbo import FedVote, Host, Privacy
from flwr_fbo.secure import SecureAggregation
from flwr_fbo.tuning import FedVoteSettings

app = ServerApp()


@app.main()
def main(grid, context):
    record = Path(str(context.run_config["record"]))
    study = record.parent

    def num_killed():
        return len(list(study.glob("*/done-kill-*")))

    def send_and_receive(messages, *, timeout=None):
        asked, replies, before = list(messages), [], num_killed()
        left, end = set(grid.push_messages(asked)), time.monotonic() + timeout
        while len(left) > num_killed() - before and time.monotonic() < end:
            time.sleep(0.2)
            replies += grid.pull_messages(left)
            left -= {reply.metadata.reply_to_message_id for reply in replies}
        exchange = asked[0].content["config"]["fbo-exchange"] if asked else 0
        order = study / f"kill-server-in-{exchange}"
        if order.exists():
            order.rename(study / f"done-{order.name}")
            os.kill(os.getpid(), signal.SIGKILL)
        return replies

    grid.send_and_receive = send_and_receive
    strategy = FedVote(
        {"x": FloatDistribution(0, 1)},
        "maximize",
        3,
        agent=FedVoteSettings(num_initial=1, num_features=16, num_candidates=20),
        privacy=Privacy(noise_multiplier=1.0, release_after=[1]),
        delta=1e-3,
        # All are needed: those that were killed must come back.
        aggregation=SecureAggregation(
            threshold=3, honest=3, roster=str(context.run_config["roster"])
        ),
    )
    result = strategy.start(
        grid,
        num_rounds=int(context.run_config["num-rounds"]),
        timeout=180.0,
        folder=record,
        host=Host(authenticated=True, max_empty_rounds=4),
    )
    print(result.recommendation)
"""


@pytest.fixture(scope="module")
def federation(
    loopback_only: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """A federation whose sites pin a roster; its folder has that, and the app."""
    with deployment(tmp_path_factory.mktemp("federation")) as all_processes:
        folder = all_processes.folder
        shutil.copytree(
            DEPLOYMENT / "app",
            folder / "app",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
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
                    "fbo-min-honest": 3,
                },
            )
        yield all_processes


@pytest.mark.gate
def test_a_key_that_is_not_registered_is_refused(federation: Any) -> None:
    """Over TLS, by the SuperLink that the others are let in by."""
    from loopback.keys import make_key_pair

    make_key_pair(federation.keys / "stranger")
    federation.start_supernode("stranger", {"agent-id": NUM_SITES})
    stranger = federation.processes.pop("stranger")
    await_condition(lambda: stranger.poll() is not None, "it tries for ever", 120)
    assert stranger.returncode != 0
    assert "No SuperNode found with the given public key" in federation.log("superlink")


# A deployment in which a site is killed is in the gate: see `test_deployed_bandit`.
@pytest.mark.slow
@pytest.mark.parametrize("exchange", [1, 2, 3, 4, 5])
def test_whatever_is_killed_in_a_sum_it_is_right(
    exchange: int, federation: Any
) -> None:
    """Two sites before they have replied, and the ServerApp in the last exchange.

    From the last exchange on it must be the same sum; before, another attempt.
    """
    study = federation.folder / f"study-{exchange}"
    for slot in range(NUM_SITES):
        (study / str(slot)).mkdir(parents=True)
    orders = [
        study / "0" / f"kill-on-request-{exchange}",
        study / "1" / f"kill-before-reply-{exchange}",
    ]
    if exchange == 5:
        orders.append(study / "kill-server-in-5")
    for order in orders:
        order.touch()
    roster = federation.folder / "roster.json"
    config = f'record="{study / "record"}" roster="{roster}" num-rounds={NUM_ROUNDS}'
    for again in range(1 + (exchange == 5)):
        with begun(federation, federation.folder / "app", config) as end:
            printed = end(600)
        assert ("Resuming the study" in printed) == bool(again)
    assert [order for order in orders if order.exists()] == []

    num_attempts = max(_num_attempts(study / str(slot)) for slot in range(NUM_SITES))
    assert num_attempts == (1 if exchange == 5 else 2), printed
    _assert_right(study)


def _num_attempts(site: Path) -> int:
    """Return in how many attempts a site replied; it never gives two replies to one.

    And it answers the last exchange of one attempt only.
    """
    replies: dict[tuple[str, str], set[str]] = defaultdict(set)
    for line in (site / "replies").read_text().splitlines():
        attempt, exchange, digest = line.split()
        replies[attempt, exchange].add(digest)
    assert {len(digests) for digests in replies.values()} == {1}
    assert len([exchange for _, exchange in replies if exchange == "5"]) == 1
    return len({attempt for attempt, _ in replies})


def _assert_right(study: Path) -> None:
    """Assert that the release is the sum of what each site added, once."""
    with Journal(None, study / "record" / "server.sqlite") as journal:
        fields, ledger = read_ledger(journal)
    secure = TuningStudy.from_dict(fields["study"]).secure
    assert secure is not None
    assert isinstance(secure.settings, ReleaseSettings)
    (row,) = ledger
    assert row.facts["summed"] == list(range(NUM_SITES))
    total = np.zeros(secure.noise(0).length, dtype=np.uint64)
    for slot in row.facts["summed"]:
        first, *others = map(np.load, (study / str(slot)).glob("added-*.npy"))
        for other in others:
            np.testing.assert_array_equal(first, other)
        total += first
    summed = SecureTotal(tuple(row.facts["summed"]), total)
    released = SecureRelease(secure.settings).decoded(
        row.iteration, secure.noise(0), summed
    )
    np.testing.assert_array_equal(row.vectors, released)
