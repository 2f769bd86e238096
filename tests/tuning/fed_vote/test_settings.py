"""Settings of FedVote: what is refused, by name."""

import math
from typing import Any

import pytest

from flwr_fbo.tuning import FedVoteSettings
from flwr_fbo.tuning.fed_vote.settings import VoteCount
from tests.support.votes import strategy


def test_what_voters_cannot_use_is_refused() -> None:
    for name, value in (("clip_norm", 0.5), ("min_follow_probability", 0.05)):
        with pytest.raises(ValueError, match=f"{name}={value} is not allowed"):
            strategy(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_cells", 1),
        ("max_similarity", 0.0),
        ("num_sub_regions", 4),
        ("num_features", 99),
    ],
)
def test_bad_settings_are_named(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name}={value!r} is not allowed"):
        FedVoteSettings(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("noise_std", -1.0),
        ("noise_std", math.inf),
        ("sampling_probability", 1.5),
    ],
)
def test_bad_counts_are_named(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name}={value!r} is not allowed"):
        VoteCount(**{"num_agents": 3, name: value})
