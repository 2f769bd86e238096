"""Checks that a test takes out, to see that an adversary finds what they prevent."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from flwr_fbo.secure import site_sums
from flwr_fbo.secure.member import Member

# Takes a check out of the code.
TakeOut = Callable[[pytest.MonkeyPatch], None]


def forget_what_was_unmasked(patch: pytest.MonkeyPatch) -> None:
    """Let a site unmask a second sum of a release."""
    patch.setattr(Member, "has_unmasked", property(lambda _: False))


def draw_each_share_again(patch: pytest.MonkeyPatch) -> None:
    """Let a site draw another share of the noise for each attempt."""
    begun: Any = site_sums._begun

    def forgetful(*about: Any) -> Any:
        return *begun(*about)[:2], site_sums._NO_SHARE

    patch.setattr(site_sums, "_begun", forgetful)


def assert_found(words: str, violations: Iterable[str]) -> None:
    """Assert that an adversary's violations name what is missing."""
    found = [*violations]
    assert any(words in violation for violation in found), found[:5]
