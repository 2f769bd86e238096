"""A server that attacks live sites of a secure bandit: `tests.adversaries`."""

from pathlib import Path

import pytest

from flwr_fbo.privacy.spending_ledger import SpendingLedger
from flwr_fbo.site.gate import Gate
from flwr_fbo.site.limits import Limits
from tests.adversaries.secure_bandit import Tally, attack
from tests.support.taken_out import (
    TakeOut,
    assert_found,
    draw_each_share_again,
    forget_what_was_unmasked,
)


def assert_right(tally: Tally) -> None:
    assert not tally.violations, tally.violations[:5]
    # Else nothing would be tried but refusals.
    assert tally.answered > 0.2 * tally.asked
    assert tally.masked > 0.02 * tally.asked
    assert tally.unmasked > 0.01 * tally.asked
    assert len(tally.refused) > 2


def test_nothing_leaves_uncharged(tmp_path: Path) -> None:
    assert_right(attack(400, seed=3, folder=tmp_path))


@pytest.mark.slow
def test_nothing_leaves_uncharged_in_ten_thousand_messages(tmp_path: Path) -> None:
    tally = attack(10_000, seed=4, folder=tmp_path)
    assert_right(tally)
    assert tally.releases > 50
    assert tally.only_once > 5


def _charge_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SpendingLedger, "add", lambda *_: None)


def _limit_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Limits, "check_spent", lambda *_: None)


def _let_sums_go_uncharged(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Gate, "charge", lambda *_: None)
    patch.setattr(Gate, "let_go", lambda *_: None)


@pytest.mark.gate
@pytest.mark.parametrize(
    ("take_out", "found"),
    [
        (_charge_nothing, "not charged"),
        (_limit_nothing, "is beyond its limit"),
        (_let_sums_go_uncharged, "not charged"),
        (forget_what_was_unmasked, "unmasks two sums"),
        (draw_each_share_again, "draws shares again"),
    ],
)
def test_what_a_site_does_not_do_is_found(
    take_out: TakeOut,
    found: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    take_out(monkeypatch)
    assert_found(found, attack(1500, seed=5, folder=tmp_path).violations)
