"""Where a site's ledger is kept, and whose charges count."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context, RecordDict, UserConfig

from flwr_fbo.privacy.spending_ledger import Charge, charge_facts
from flwr_fbo.site.kept_ledger import KeptLedger
from tests.support.ledgers import ledger_charges


def _context(node: UserConfig | None = None, run: UserConfig | None = None) -> Context:
    return Context(1, 1, node or {}, RecordDict(), run or {})


def test_without_a_folder_a_ledger_lives_as_long_as_the_run() -> None:
    context = _context({"partition-id": 3})
    kept = KeptLedger(context, None)
    assert (kept.owner, kept.counted) == (3, 3)
    assert not kept.has_own_folder
    assert not kept.has_file
    facts = charge_facts(("tuning", "a"), 1, Charge(4.0), kept.owner)
    with kept.held() as ledger:
        ledger.add(facts)
    with KeptLedger(context, None).held() as ledger:
        assert ledger_charges(ledger) == [Charge(4.0)]
    with KeptLedger(_context(), None).held() as ledger:
        assert ledger_charges(ledger) == []


def test_all_charges_count_in_a_folder_that_the_server_did_not_choose(
    tmp_path: Path,
) -> None:
    folder: UserConfig = {"fbo-folder": str(tmp_path)}
    own = KeptLedger(_context({"agent-id": 2, **folder}), tmp_path)
    assert own.has_own_folder
    assert (own.owner, own.counted) == (2, -1)
    by_server = KeptLedger(_context({"agent-id": 2}, folder), tmp_path)
    assert not by_server.has_own_folder
    assert by_server.counted == 2
    # An app that names another folder than the run config has one of its own.
    elsewhere = KeptLedger(_context({}, folder), tmp_path / "other")
    assert elsewhere.has_own_folder
    assert not own.has_file
    with own.held():
        pass
    assert own.has_file
