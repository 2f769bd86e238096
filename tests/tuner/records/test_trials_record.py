"""What is read from a tuner's folder is what its run has returned."""

from pathlib import Path

import pytest

from flwr_fbo.journal.journal import Journal
from flwr_fbo.tuner.records.trials_record import (
    FILE_NAME,
    not_private_because,
    recorded_settings,
    recorded_spent,
    rung_of,
)
from tests.support.tuner_folders import OPTIONS, record, record_first_rung


@pytest.mark.parametrize("kind", OPTIONS)
def test_the_record_is_the_result(kind: str, tmp_path: Path) -> None:
    result = record(tmp_path, kind)
    with Journal(None, tmp_path / FILE_NAME) as journal:
        ledger, identity = journal.ledger(), journal.identity
        assert recorded_settings(journal) == list(result.settings)
    rungs = [rung_of(row, identity["direction"]) for row in ledger]
    assert rungs == list(result.rungs)
    spent = recorded_spent(identity, ledger)
    if result.privacy_spent is None:
        assert spent is None
    else:
        assert spent is not None
        assert spent.epsilon == pytest.approx(result.privacy_spent.epsilon)
        assert spent.epsilon <= identity["privacy"]["epsilon"] + 1e-9
        assert spent.num_releases == result.privacy_spent.num_releases
    assert (not_private_because(identity) == "") == (kind == "private")


def test_a_tuner_that_was_ended_has_spent_its_first_rung(tmp_path: Path) -> None:
    whole = record(tmp_path / "whole", "private").privacy_spent
    record_first_rung(tmp_path / "part", "private")
    with Journal(None, tmp_path / "part" / FILE_NAME) as journal:
        spent = recorded_spent(journal.identity, journal.ledger())
    assert spent is not None
    assert whole is not None
    assert spent.num_releases == 1
    assert 0 < spent.epsilon < whole.epsilon
