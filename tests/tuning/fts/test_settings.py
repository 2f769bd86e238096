"""Settings of FTS: what is refused, by name."""

from __future__ import annotations

from typing import Any

import pytest

from flwr_fbo.tuning import FTSSettings


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"follow": "always"}, "follow='always' is not allowed"),
        ({"share_after": 0}, "share_after=0 is not allowed"),
        ({"share_every": 0}, "share_every=0 is not allowed"),
        (
            {"share_every": 2, "share_after": 3},
            "share_every=2 is not allowed: 1",
        ),
        ({"weighting": "best"}, "weighting='best' is not allowed"),
        ({"num_sub_regions": 2}, "num_sub_regions=2 is not allowed: 1"),
    ],
)
def test_settings_are_checked(options: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        FTSSettings(**options)
