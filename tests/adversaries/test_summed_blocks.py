"""A server that attacks secure sums of blocks: `tests.adversaries.summed_blocks`."""

from typing import Any

import pytest

from flwr_fbo.secure.masks import SumKeys
from flwr_fbo.secure.member import Member
from tests.adversaries.summed_blocks import attack
from tests.support.taken_out import (
    TakeOut,
    assert_found,
    draw_each_share_again,
    forget_what_was_unmasked,
)


def test_nothing_leaves_that_is_not_allowed() -> None:
    tally = attack(messages=1500)
    assert not tally.violations
    # Else nothing would be tried but refusals.
    assert tally.answered > 300
    assert tally.masked > 40
    assert tally.sums > 4


@pytest.mark.slow
def test_ten_thousand_messages() -> None:
    tally = attack(messages=10_000, seed=1)
    assert not tally.violations
    assert tally.sums > 40


def _believe_all_signatures(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SumKeys, "is_signed", lambda *_: True)


def _answer_exchanges_again(patch: pytest.MonkeyPatch) -> None:
    """Forget each reply: the exchange before is answered once more."""
    answer: Any = Member.answer

    def again(member: Member, exchange: int, *about: Any) -> Any:
        if exchange == member._answered == 1:
            member._answered = 0
        return answer(member, exchange, *about)

    patch.setattr(Member, "answer", again)


@pytest.mark.parametrize(
    ("take_out", "found"),
    [
        (forget_what_was_unmasked, "was unmasked over"),
        (draw_each_share_again, "draws shares again"),
        (_believe_all_signatures, "was unmasked over"),
        (_answer_exchanges_again, "two answers of site"),
    ],
)
def test_what_a_site_does_not_check_is_found(
    take_out: TakeOut,
    found: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    take_out(monkeypatch)
    assert_found(found, attack(messages=3000).violations)
