"""When agents vote: early enough to try what votes say, and late enough to know."""

import pytest

from flwr_fbo.tuning.fed_vote.settings import LEAST_EVALUATIONS
from flwr_fbo.tuning.fed_vote.vote_schedule import votes_after


@pytest.mark.parametrize(
    ("horizon", "expected"),
    [
        (1, (0,)),
        (2, (0, 1)),
        (10, (4, 9)),
        (11, (5, 9)),
        (LEAST_EVALUATIONS - 1, (5, 9)),
        (LEAST_EVALUATIONS, (5, 9, LEAST_EVALUATIONS - 1)),
        (60, (5, 9, 59)),
    ],
)
def test_votes_come_before_the_last_round(
    horizon: int, expected: tuple[int, ...]
) -> None:
    assert votes_after(horizon) == expected
