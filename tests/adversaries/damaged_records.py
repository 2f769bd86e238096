"""Damage copies of real journals, and count what reading them again gives.

    python -m tests.adversaries.damaged_records [--records 2000] [--seed 0]

Plays three short seeded studies with journals: a tuning site's, a FedUCB site's and a
tuning server's. Each time one copy of one of them is damaged in one place. It is then
read and continued as after a restart: everything is loaded, the next step is recorded,
and everything is loaded again. Counted is how this ends:

    same numbers     the damage is where nothing is stored
    refused          `JournalError`
    silently wrong   other numbers than without damage
    raw traceback    another exception

The exit status is 1 unless the last two are 0. A file of 0 bytes is left out: it is a
new journal.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import random
import shutil
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context
from optuna.distributions import FloatDistribution

from flwr_fbo import DPFTSDE, Host, InProcessGrid, Privacy, Seeds, tuning_app
from flwr_fbo.bandits import ContinualSettings, LinearUCBSettings
from flwr_fbo.bandits.linear.study import LinearBanditStudy
from flwr_fbo.bandits.site.decision import Request
from flwr_fbo.bandits.site.recorded_bandit import RecordedBandit
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.lab.tasks.linear_bandit import LinearBanditEnvironment, LinearBanditTask
from flwr_fbo.strategies.study_record import StudyRecord, read_ledger
from flwr_fbo.study.kinds import SERVER_FILE
from flwr_fbo.tuning import DPFTSDESettings
from flwr_fbo.tuning.search.agent_journal import load_agent
from flwr_fbo.tuning.search.study import TuningStudy

OUTCOMES = ("same numbers", "refused", "silently wrong", "raw traceback")
_NUM_AGENTS, _NUM_ROUNDS, _OLDER_ROUND = 3, 8, 5
_SEED = 7
_TABLES = ("trial", "state", "ledger", "identity", "part")


@dataclass
class Record:
    """One journal of a study.

    Attributes
    ----------
    name : str
    path : Path
    older : Path
        A copy from earlier in the same study.
    read : callable
        Takes the path of a copy, returns all numbers that the owner goes on from.
    """

    name: str
    path: Path
    older: Path
    read: Callable[[Path], str]


def digest_of(values: Any) -> str:
    """Return a digest of arrays and JSON values, nested in dicts and lists."""

    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return [str(value.dtype), value.shape, value.tolist()]
        return str(value)

    text = json.dumps(values, sort_keys=True, default=plain)
    return hashlib.sha256(text.encode()).hexdigest()


# The records


def records(folder: Path) -> list[Record]:
    """Play the studies; return their journals."""
    return [*_tuning(folder), _bandit(folder)]


class _CopyingGrid(InProcessGrid):
    """Copies journals when a round begins."""

    copies: Callable[[], None]

    def push_messages(self, messages: Any) -> Any:
        """Deliver messages."""
        sent = list(messages)
        if sent and sent[0].metadata.group_id == str(_OLDER_ROUND):
            self.copies()
        return super().push_messages(sent)


def _make_objective(context: Context) -> Callable[[dict[str, Any]], float]:
    shift = 0.1 * int(context.node_config["partition-id"])
    return lambda params: -((params["x"] - shift) ** 2) - params["y"] ** 2


def _tuning(folder: Path) -> Iterator[Record]:
    strategy = DPFTSDE(
        {name: FloatDistribution(-1.0, 1.0) for name in "xy"},
        "maximize",
        _NUM_AGENTS,
        agent=DPFTSDESettings(num_features=20, num_initial=4, num_candidates=50),
        epsilon=20.0,
        delta=1e-3,
        privacy=Privacy(min_follow_probability=0.0),
        seeds=Seeds(study=_SEED, features=_SEED, noise=_SEED),
    )
    app = tuning_app(_make_objective)
    config: Any = {"fbo-folder": str(folder / "clients")}
    grid = _CopyingGrid(app, _NUM_AGENTS, run_config=config)
    server, older_server = folder / "server" / SERVER_FILE, folder / "server-older"
    older_site = folder / "site-older"

    def site() -> Path:
        return next((folder / "clients").glob("*-agent-0.sqlite"))

    def copies() -> None:
        shutil.copy(server, older_server)
        shutil.copy(site(), older_site)

    grid.copies = copies
    host = Host(patience=0.0)
    strategy.start(grid, num_rounds=_NUM_ROUNDS, folder=folder / "server", host=host)
    study = strategy.study
    assert isinstance(study, TuningStudy)
    with Journal(None, server) as journal:
        identity = journal.identity
    with Journal(None, site()) as journal:
        of_site = journal.identity
    yield Record(
        "tuning site",
        site(),
        older_site,
        lambda path: digest_of([_site(path, of_site, study) for _ in range(2)]),
    )
    yield Record(
        "server",
        server,
        older_server,
        lambda path: digest_of([_server(path, identity, study) for _ in range(2)]),
    )


def _site(path: Path, identity: dict[str, Any], study: TuningStudy) -> Any:
    """Load a tuning site's agent, and play one more trial."""
    with Journal(identity, path) as journal:
        agent = load_agent(journal, study, 0)
        now: dict[str, Any] = {"started": 0.0, "finished": 0.0}  # of each run its own
        trials = [asdict(trial) | now for trial in journal.trials()]
        last = journal.trials(first=journal.num_trials - 1)
        found = [agent.state_dict(), trials, [one.params for one in last]]
        if last:
            number = journal.begin_trial(99, {"x": 0.5}, last[0].point, "start")
            journal.end_trial(number, 0.25)
        journal.put({"one-more": np.arange(3)})
    return found


def _server(path: Path, identity: dict[str, Any], study: TuningStudy) -> Any:
    """Load a server's record, and save one more release."""
    with Journal(None, path) as journal:
        stored, ledger = read_ledger(journal)
    with StudyRecord(path.parent, identity) as record:
        progress = record.load(study)
        assert progress is not None
        found = [
            stored,
            [[row.iteration, row.facts, row.vectors] for row in ledger],
            [[row.iteration, row.facts, row.vectors] for row in progress.ledger],
            [progress.slots, progress.journals, dict(progress.state)],
            [progress.study.to_dict(), [asdict(one) for one in progress.rounds]],
        ]
        progress.rounds = [*progress.rounds, progress.rounds[-1]]
        record.save(progress)
    return found


def _bandit(folder: Path) -> Record:
    releases = ContinualSettings(num_releases=9, dimension=3, epsilon=1.0, delta=1e-2)
    settings = LinearUCBSettings(releases, local_data="raw")
    study = LinearBanditStudy(settings, 2, noise_seed=_SEED)
    identity = RecordedBandit.identity_of(study)
    path, older = folder / "bandit.sqlite", folder / "bandit-older"
    task = LinearBanditTask(dimension=3, num_actions=5)
    with Journal(identity, path) as journal:
        bandit = RecordedBandit(journal)
        number = bandit.number
        bandit.join(0, number)
        environment = LinearBanditEnvironment(task, _SEED, 0)
        for k in range(1, 6):
            bandit.play(environment, 30 * k)
            # Its reward has not come.
            request = Request(environment.contexts(30 * k))
            bandit.choose([bandit.decisions.offer(request)])
            bandit.receive(2 * bandit.release(k), k)
            if k == 3:
                shutil.copy(path, older)

    def read(copy: Path) -> str:
        found: list[Any] = []
        for step in range(2):
            with Journal(identity, copy) as journal:
                bandit = RecordedBandit(journal)
                bandit.join(0, number)
                made = bandit.num_releases
                found += [made, journal.num_releases, bandit.num_trials]
                found += [list(bandit.decisions.awaited.items()), journal.load_state()]
                found += [
                    [t.number, t.state, t.value, t.iteration, t.point, t.params]
                    for t in journal.trials()
                ]
                found += [bandit.release(k) for k in range(1, made + 1)]
                [choice] = bandit.choose([bandit.decisions.offer(Request(np.eye(3)))])
                bandit.reward({choice.ticket: 0.5 + 0.1 * step})
                found.append(bandit.release(made + 1))
        with Journal(identity, copy) as journal:
            found += [RecordedBandit(journal).decisions.awaited, journal.load_state()]
            found += [row.vectors for row in journal.ledger()]
        return digest_of(found)

    return Record("FedUCB site", path, older, read)


# The damages: each changes one copy, with a generator and an older copy


def _bit(path: Path, older: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def _page_size(content: bytes | bytearray) -> int:
    return int.from_bytes(content[16:18], "big")


def _put_page(path: Path, rng: random.Random, source: bytes | None) -> None:
    """Replace one page by random bytes, or by one from ``source``."""
    content = bytearray(path.read_bytes())
    size = _page_size(content)
    at = size * rng.randrange(len(content) // size)
    new = rng.randbytes(size)
    if source is not None:
        where = size * rng.randrange(len(source) // size)
        if len(source) >= at + size and rng.random() < 0.8:
            where = at
        new = source[where : where + size]
    content[at : at + size] = new
    path.write_bytes(content)


def _random_page(path: Path, older: Path, rng: random.Random) -> None:
    _put_page(path, rng, None)


def _older_page(path: Path, older: Path, rng: random.Random) -> None:
    _put_page(path, rng, older.read_bytes())


def _exchanged_page(path: Path, older: Path, rng: random.Random) -> None:
    content = path.read_bytes()
    size = _page_size(content)
    start = size * rng.randrange(len(content) // size)
    _put_page(path, rng, content[start : start + size])


def _zeros(path: Path, older: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    at = rng.randrange(len(content))
    length = min(rng.choice([1, 8, 64, 512, 4096]), len(content) - at)
    content[at : at + length] = bytes(length)
    path.write_bytes(content)


def _truncation(path: Path, older: Path, rng: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: rng.randrange(1, len(content))])


def _any_table(connection: sqlite3.Connection, rng: random.Random, most: int) -> str:
    """Return a table that has ``most`` rows or more."""
    tables = [
        table
        for table in _TABLES
        if connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] >= most
    ]
    return rng.choice(tables)


def _key(table: str) -> str:
    key = {"trial": "number", "ledger": "iteration", "part": "name || number"}
    return key.get(table, "name")


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    rows = connection.execute(f"PRAGMA table_info({table})")
    return [name for _, name, _, _, _, is_key in rows if not is_key]


def _two_rows(path: Path, older: Path, rng: random.Random) -> None:
    """Exchange all columns of two rows but the key, or one column."""
    with closing(sqlite3.connect(path)) as connection, connection:
        table = _any_table(connection, rng, 2)
        columns = _columns(connection, table)
        if rng.random() < 0.5:
            columns = [rng.choice(columns)]
        names, key = ", ".join(columns), _key(table)
        query = f"SELECT {key}, {names} FROM {table}"
        (a, *of_a), (b, *of_b) = rng.sample(connection.execute(query).fetchall(), 2)
        marks = ", ".join(f"{name} = ?" for name in columns)
        change = f"UPDATE {table} SET {marks} WHERE {key} = ?"
        connection.executemany(change, [(*of_b, a), (*of_a, b)])


def _older_row(path: Path, older: Path, rng: random.Random) -> None:
    """Put an older version of a row back, half of the time with its older part."""
    with closing(sqlite3.connect(path)) as connection, connection:
        table = _any_table(connection, rng, 1)
        connection.execute("ATTACH ? AS older", (str(older),))
        query = f"SELECT * FROM older.{table} EXCEPT SELECT * FROM main.{table}"
        rows = connection.execute(query).fetchall()
        if not rows:
            query = f"SELECT {_key(table)} FROM {table} ORDER BY 1 DESC LIMIT 1"
            (last,) = connection.execute(query).fetchone()  # as before it was added
            change = f"DELETE FROM {table} WHERE {_key(table)} = ?"
            connection.execute(change, (last,))
        else:
            row = rng.choice(rows)
            marks = ", ".join("?" * len(row))
            connection.execute(f"REPLACE INTO main.{table} VALUES ({marks})", row)
        if rng.random() < 0.5:
            connection.execute(
                "REPLACE INTO main.part SELECT * FROM older.part WHERE name = ?",
                (table,),
            )
        connection.commit()


def _deleted_row(path: Path, older: Path, rng: random.Random) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        table = _any_table(connection, rng, 1)
        keys = connection.execute(f"SELECT {_key(table)} FROM {table}").fetchall()
        change = f"DELETE FROM {table} WHERE {_key(table)} = ?"
        connection.execute(change, rng.choice(keys))


DAMAGES: dict[str, Callable[[Path, Path, random.Random], None]] = {
    "single bit": _bit,
    "page of random bytes": _random_page,
    "page of an older copy": _older_page,
    "page of another place": _exchanged_page,
    "zeros": _zeros,
    "truncation": _truncation,
    "rows exchanged": _two_rows,
    "older row": _older_row,
    "row deleted": _deleted_row,
}


def outcome_of(record: Record, path: Path, expected: str) -> tuple[str, str]:
    """Return one of `OUTCOMES` for a damaged copy, and what was raised."""
    try:
        found = record.read(path)
    except JournalError as error:
        return "refused", str(error)
    except Exception as error:
        return "raw traceback", repr(error)
    return ("same numbers" if found == expected else "silently wrong"), ""


def counted(num_records: int, seed: int) -> tuple[dict[str, Counter[str]], list[str]]:
    """Damage so many copies; return the outcomes by damage, and what is wrong."""
    counts = {name: Counter[str]() for name in DAMAGES}
    wrong = []
    with tempfile.TemporaryDirectory() as parent:
        originals = records(Path(parent))
        folder = Path(parent) / "copy"
        folder.mkdir()
        copy = folder / SERVER_FILE  # the server's record is found by its name
        expected = []
        for record in originals:
            shutil.copy(record.path, copy)
            expected.append(record.read(copy))
            copy.unlink()
        kinds = len(originals) * len(DAMAGES)
        for i in range(num_records):
            which, damage = divmod(i % kinds, len(DAMAGES))
            record, name = originals[which], list(DAMAGES)[damage]
            shutil.copy(record.path, copy)
            DAMAGES[name](copy, record.older, random.Random(f"{seed} {i}"))
            outcome, text = outcome_of(record, copy, expected[which])
            counts[name][outcome] += 1
            if outcome in OUTCOMES[2:]:
                wrong.append(f"{record.name}, {name}, number {i}: {outcome} {text}")
            for left in folder.iterdir():
                with suppress(FileNotFoundError):
                    left.unlink()
    return counts, wrong


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--records", type=int, default=2000, help="copies to damage")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    counts, wrong = counted(options.records, options.seed)
    print(f"{'damage':24}" + "".join(f"{outcome:>16}" for outcome in OUTCOMES))
    total: Counter[str] = sum(counts.values(), Counter())
    for name, row in [*counts.items(), ("all", total)]:
        print(f"{name:24}" + "".join(f"{row[outcome]:16}" for outcome in OUTCOMES))
    print("\n".join(wrong))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
