"""A generated server, at small size: `tests.adversaries.mutated_messages`."""

from typing import Any

import pytest
from flwr.app import Context

from flwr_fbo._common import fields
from flwr_fbo._common.validation import require_int
from flwr_fbo.bandits.site.neural_bandit_site import NeuralBanditSite
from flwr_fbo.site import site
from flwr_fbo.site.gate import Gate
from flwr_fbo.site.limits import Limits
from flwr_fbo.tuner.message_headers import BallotHeader
from flwr_fbo.tuner.site import ballot_replies
from tests.adversaries.mutated_messages import KINDS, attack, be_honest
from tests.support.taken_out import TakeOut, assert_found


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_leaves_that_is_not_allowed(kind: str) -> None:
    assert not attack(kind, messages=20).violations


@pytest.mark.parametrize("kind", KINDS)
def test_the_messages_that_are_changed_are_answered(kind: str) -> None:
    """Else nothing would be tried but refusals."""
    for one in be_honest(KINDS[kind]):
        assert one.rows
        assert not one.wrong


def _charge_no_falsy_release(patch: pytest.MonkeyPatch) -> None:
    charge: Any = Gate.charge

    def charge_some(self: Any, key: Any, promise: Any, release: Any, *more: Any) -> Any:
        return charge(self, key, promise, release, *more) if release else None

    def check_others(name: str, *about: Any) -> None:
        if name != "release":
            require_int(name, *about)

    patch.setattr(fields, "require_int", check_others)
    patch.setattr(Gate, "charge", charge_some)
    patch.setattr(Gate, "let_go", lambda *_: None)


def _keep_limits_from_a_tuner(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(site, "add_first_mod", lambda *_: None)


def _see_no_exploration(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NeuralBanditSite, "uniform_share", lambda *_: 0.0)


def _search_ballots_of_any_size(patch: pytest.MonkeyPatch) -> None:
    ballot_of: Any = ballot_replies.ballot_of
    check: Any = Limits.check_size

    def check_others(limits: Limits, limit: str, size: float, what: str) -> None:
        if what != "trials of a ballot":
            check(limits, limit, size, what)

    def searched(context: Context, header: BallotHeader) -> Any:
        assert len([t in header.failed for t in header.trials])
        return ballot_of(context, header)

    patch.setattr(Limits, "check_size", check_others)
    patch.setattr(ballot_replies, "ballot_of", searched)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "take_out", "found"),
    [
        ("tuner", _charge_no_falsy_release, "no row of the ledger for release"),
        ("tuner", _keep_limits_from_a_tuner, "and max_epsilon_per_client=0.5"),
        ("open-neural", _see_no_exploration, "admitted a random share of 1"),
        ("tuner", _search_ballots_of_any_size, "s of CPU"),
    ],
)
def test_what_was_mended_is_found_without_its_mend(
    kind: str,
    take_out: TakeOut,
    found: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    take_out(monkeypatch)
    assert_found(found, attack(kind, messages=2000).violations)
