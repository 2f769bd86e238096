"""What a site's journals prove: they are read if its folder has changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flwr_fbo.privacy.spending_ledger import Charge, SpendingLedger
from tests.support.site_budget import Node, asked_of, site_of, study_of


def test_journals_are_read_only_if_the_folder_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flwr_fbo.site import proofs as site_proofs

    for number in range(3):
        Node(tmp_path).ask(
            site_of(None),
            asked_of(study_of((Charge(9.0),), study_id=f"s{number}"), 0, 1),
        )
    read: list[Path] = []
    notes_in = site_proofs._notes_in

    def noted(path: Path, patience: float) -> Any:
        read.append(path)
        return notes_in(path, patience)

    monkeypatch.setattr(site_proofs, "_notes_in", noted)
    Node(tmp_path).ask(site_of(None), study_of(study_id="next").enrolment())
    assert read == []
    with SpendingLedger.held(tmp_path) as ledger:
        facts = dict(ledger.rows[0].facts)
        ledger.add({**facts, "study_id": "by hand"})
    Node(tmp_path).ask(site_of(None), study_of(study_id="next").enrolment())
    assert len(read) == 3
