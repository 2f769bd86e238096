"""A ledger of charges of each schema opens, and is upgraded.

The files are made by SQL and hashlib alone: no code of the package can change them.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from flwr_fbo._common.version import __version__
from flwr_fbo.journal import file_formats
from flwr_fbo.journal.file_formats import LEDGER
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.journal.npy import from_json_array, to_json_array
from flwr_fbo.privacy.filters import Spent
from flwr_fbo.privacy.guarantee import CLIENT, EXAMPLE
from flwr_fbo.privacy.spending_ledger import FILE_NAME, Charge, SpendingLedger, unit_of
from flwr_fbo.site.proofs import recover
from tests.support.ledgers import ledger_charges

TABLES = """
CREATE TABLE identity (name TEXT PRIMARY KEY, value TEXT NOT NULL,
    digest BLOB NOT NULL);
CREATE TABLE part (name TEXT NOT NULL, number INTEGER NOT NULL, count INTEGER NOT NULL,
    total BLOB NOT NULL, last INTEGER NOT NULL, running INTEGER NOT NULL,
    digest BLOB NOT NULL, PRIMARY KEY (name, number)) WITHOUT ROWID;
CREATE TABLE ledger (iteration INTEGER PRIMARY KEY, facts TEXT NOT NULL,
    vectors BLOB NOT NULL, committed REAL NOT NULL, digest BLOB NOT NULL);
"""


TRIALS = """
CREATE TABLE trial (number INTEGER PRIMARY KEY, iteration INTEGER NOT NULL,
    params TEXT NOT NULL, point BLOB NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('running', 'complete', 'failed')), value REAL,
    interruptions INTEGER NOT NULL, started REAL NOT NULL, finished REAL,
    source TEXT CHECK (source IN ('enqueued', 'start', 'own search', 'federation')),
    digest BLOB NOT NULL);
"""


STATE = """
CREATE TABLE state (name TEXT NOT NULL, part INTEGER NOT NULL, value BLOB NOT NULL,
    digest BLOB NOT NULL, PRIMARY KEY (part, name));
"""


FACTS = (
    '{"study_kind": "tuning", "study_id": "a", "release": 1, "owner": -1,'
    ' "charge": [1.5, 1.0, 1], "delta": 0.001}',
    '{"study_kind": "linear-bandit", "study_id": "b", "release": 1, "owner": -1,'
    ' "charge": [2.0, 0.5, 1], "delta": null}',
)


CHARGES = [Charge(1.5), Charge(2.0, 0.5)]


def digest(values: list[object], blob: bytes = b"") -> bytes:
    return hashlib.sha256(repr(values).encode() + blob).digest()


def write_ledger(path: Path, application_id: int, schema: int, made_by: str) -> None:
    """Write a ledger of two charges, as a version of the package did."""
    identity = [("kind", '"spending"')]
    if made_by:
        identity.append(("flwr_fbo", f'"{made_by}"'))
    stream = BytesIO()
    np.lib.format.write_array(stream, np.zeros(0), version=(1, 0))
    empty = stream.getvalue()
    with closing(sqlite3.connect(path)) as connection:
        has_trials, has_state = schema == 7, schema != 1
        tables = TABLES + TRIALS * has_trials + STATE * has_state
        connection.executescript(tables)
        run = connection.execute
        totals = {}
        sums = []
        for name, value in identity:
            sums.append(digest(["identity", name, value]))
            run("INSERT INTO identity VALUES (?, ?, ?)", (name, value, sums[-1]))
        totals["identity"] = len(sums), sums, -1
        sums = []
        for i, facts in enumerate(FACTS):
            row = i, facts, empty, 1764230400.5 + i
            values = ["ledger", i, facts, (len(empty),), row[3]]
            sums.append(digest(values, empty))
            run("INSERT INTO ledger VALUES (?, ?, ?, ?, ?)", (*row, sums[-1]))
        totals["ledger"] = len(sums), sums, len(FACTS) - 1
        heads = []
        for table, (count, digests, last) in totals.items():
            total = _sum(digests)
            values = ["part", table, 0, count, (32,), last, 0]
            heads.append(digest(values, total))
            row_of_part = table, 0, count, total, last, 0, heads[-1]
            run("INSERT INTO part VALUES (?, ?, ?, ?, ?, ?, ?)", row_of_part)
        head = "head", 0, len(heads), _sum(heads), -1, 0, b""
        run("INSERT INTO part VALUES (?, ?, ?, ?, ?, ?, ?)", head)
        run(f"PRAGMA application_id = {application_id}")
        run(f"PRAGMA user_version = {schema}")
        connection.commit()


def _sum(digests: list[bytes]) -> bytes:
    total = sum(int.from_bytes(one, "big") for one in digests) % 2**256
    return total.to_bytes(32, "big")


# How a ledger of each schema was written: the first ones were journals of schema 7.
SCHEMAS: dict[int, Callable[[Path], None]] = {
    0: lambda path: write_ledger(path, 0, 7, ""),
    1: lambda path: write_ledger(path, 0x66626F4C, 1, "0.1.0"),
    2: lambda path: write_ledger(path, 0x66626F4C, 2, "0.1.0"),
}


def numbers_of(path: Path) -> tuple[int, int]:
    with closing(sqlite3.connect(path)) as connection:
        application, schema = (
            connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("application_id", "user_version")
        )
        return application, schema


def test_there_is_a_file_of_each_schema() -> None:
    assert SCHEMAS.keys() == {*LEDGER.upgrades, LEDGER.schema}


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_ledger_of_each_schema_opens_and_is_upgraded(
    tmp_path: Path, schema: int
) -> None:
    path = tmp_path / FILE_NAME
    SCHEMAS[schema](path)
    path.chmod(0o600)
    with SpendingLedger.held(tmp_path) as ledger:
        assert ledger_charges(ledger) == CHARGES
        assert [row.committed for row in ledger.rows] == [1764230400.5, 1764230401.5]
        ledger.record(("tuning", "c"), 1, Charge(3.0))
    assert numbers_of(path) == (LEDGER.application_id, LEDGER.schema)
    with SpendingLedger.held(tmp_path) as ledger:
        assert ledger_charges(ledger) == [*CHARGES, Charge(3.0)]
        # Which charges with sampling were promised together was not noted then.
        client, example = (Spent.of(u, ledger.facts()) for u in (CLIENT, EXAMPLE))
        # Whom they protect was not noted either: it follows from the kind.
        assert {unit_of(facts) for facts in ledger.facts()} == {CLIENT, EXAMPLE}
    assert client == Spent(((Charge(1.5),), (Charge(3.0),)), 3)
    # What was sampled counts without amplification.
    of_example = (Charge(0.75),), (Charge(2.0),), (Charge(1.5),)
    assert example == Spent(of_example, 3, EXAMPLE)
    with Journal(None, path) as journal:
        made_by = journal._store.made_by
        assert made_by == ("0.1.0" if schema == LEDGER.schema else __version__)
        assert journal.identity == {"kind": "spending"}
    # A new ledger is the same file.
    with SpendingLedger.held(tmp_path / "new"):
        pass
    assert schema_of(path) == schema_of(tmp_path / "new" / FILE_NAME)


def test_what_an_earlier_version_has_added_up_is_made_again(tmp_path: Path) -> None:
    """It told the plans of a study apart by less, and kept one array too many."""
    study, whole = ("tuning", "a"), (Charge(5.0, 0.35, 4),)
    with SpendingLedger.held(tmp_path) as ledger:
        ledger.record(study, 1, Charge(5.0, 0.35), promised=whole, unit=CLIENT)
        stored = ledger.journal.load_array("totals")
        assert stored is not None
        values = from_json_array(stored)
        del values["version"]
        [entry] = values["charged"]["_entries"]
        entry[0] = [*entry[0][:3], entry[0][4]]
        old = to_json_array(values)
        ledger.journal.put({"totals": old, "total": old})
    for release in (2, 3):  # with a total that is made again, and with one that is read
        with SpendingLedger.held(tmp_path) as ledger:
            one = Charge(5.0, 0.35)
            ledger.record(study, release, one, promised=whole, unit=CLIENT)
            assert ledger.journal.load_array("total") is None
    with SpendingLedger.held(tmp_path) as ledger:
        charged = ledger.charged()
        assert charged.num_releases == 3
        assert charged.groups(CLIENT) == (whole,)


def test_charges_whose_unit_is_not_known_count_for_all(tmp_path: Path) -> None:
    """Of a kind of another package, from before units were noted."""
    with SpendingLedger.held(tmp_path) as ledger:
        ledger.record(("outside", "a"), 1, Charge(4.0))
        spent = [Spent.of(unit, ledger.facts()) for unit in (CLIENT, EXAMPLE)]
    assert [s.groups for s in spent] == [((Charge(4.0),),), ((Charge(2.0),),)]


def schema_of(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        query = "SELECT sql FROM sqlite_master WHERE sql NOT NULL ORDER BY name"
        return ["".join(row[0].split()) for row in connection.execute(query)]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_ledger_opens_in_the_next_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schema: int
) -> None:
    """Which adds a column: today's package then refuses the file, by name."""
    path = tmp_path / FILE_NAME
    SCHEMAS[schema](path)
    path.chmod(0o600)

    def add_table(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE auditor (name TEXT)")

    upgrades = {**LEDGER.upgrades, LEDGER.schema: add_table}
    following = replace(LEDGER, schema=LEDGER.schema + 1, upgrades=upgrades)
    with monkeypatch.context() as later:
        later.setattr(file_formats, "LEDGER", following)
        later.setattr("flwr_fbo.journal.journal_file.__version__", "9.8.7")
        with SpendingLedger.held(tmp_path) as ledger:
            assert ledger_charges(ledger) == CHARGES
            ledger.record(("tuning", "c"), 1, Charge(3.0))
    before = path.read_bytes()
    with pytest.raises(JournalError) as error, SpendingLedger.held(tmp_path):
        pass
    assert str(error.value) == (
        f"The ledger {path} has schema {LEDGER.schema + 1} and was made by flwr_fbo "
        f"9.8.7. This is flwr_fbo {__version__}, with schema {LEDGER.schema}. Use "
        "flwr_fbo 9.8.7 at this site, or a newer one: a ledger cannot go back to an "
        "older schema."
    )
    assert error.value.public == (
        "This site's ledger was made by flwr_fbo 9.8.7, and this is flwr_fbo "
        f"{__version__}."
    )
    with pytest.raises(JournalError, match=r"9\.8\.7"):
        recover(tmp_path)
    assert path.read_bytes() == before


def test_a_damaged_ledger_is_not_upgraded(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    SCHEMAS[0](path)
    path.chmod(0o600)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE part SET count = 1 WHERE name = 'ledger'")
        connection.commit()
    before = path.read_bytes()
    with pytest.raises(JournalError, match="damaged"), SpendingLedger.held(tmp_path):
        pass
    assert path.read_bytes() == before
    assert numbers_of(path) == (0, 7)
