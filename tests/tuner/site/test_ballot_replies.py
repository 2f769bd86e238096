"""A client's replies about the trials of a rung: what is on disk before they are."""

from pathlib import Path
from typing import Any

import pytest

from flwr_fbo.site.gate import NO_ANSWER
from flwr_fbo.tuner.ballots.rank_ballots import RankBallots
from tests.support.federation import charges_in
from tests.support.gate import NODE, Site, gate_app


def test_a_ballot_is_charged_before_it_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So one that cannot be made costs as much, and says no more."""
    site = Site(gate_app(), **NODE, **{"fbo-folder": str(tmp_path)})
    site.run_trials()
    charged: list[int] = []

    def fails(*_: Any) -> Any:
        charged.append(len(charges_in(tmp_path)))
        raise ZeroDivisionError("patient 17")

    with monkeypatch.context() as patch:
        patch.setattr(RankBallots, "vector", fails)
        reason = str(site.ask_ballot().error.reason)
    assert charged == [1]
    assert NO_ANSWER.removesuffix(".") in reason
    assert "ZeroDivisionError" not in reason
    assert "patient" not in reason
    assert len(charges_in(tmp_path)) == 1
    assert site.ask_ballot().has_error()  # it is not to be had for one charge more
