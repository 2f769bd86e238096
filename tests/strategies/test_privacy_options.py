"""Privacy of a tuning study: what goes together, and when releases are made."""

from typing import Any

import pytest

from flwr_fbo.strategies.privacy_options import Privacy


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ({"min_follow_probability": 0.0}, (0, 1, 2, 3, 4, 5)),
        ({"release_after": range(1, 4)}, (0, 1, 2)),
        ({"release_after": ()}, ()),
        ({"release_after": [5, 2, 77]}, (1, 4)),
        ({"min_follow_probability": 0.25}, (0, 1, 2, 3)),  # 1/t: 1, 1/2, 1/3, 1/4
    ],
)
def test_schedules(schedule: dict[str, Any], expected: tuple[int, ...]) -> None:
    assert Privacy(**schedule).iterations(6, lambda t: 1 / t) == expected


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("release_after", "some"),
        ("release_after", [0.5]),
        ("release_after", [0]),
        ("min_follow_probability", 1.0),
        ("min_answers", 0),
        ("max_epsilon", 0),
        ("budget", "relative"),
        ("when_exhausted", "stop"),
    ],
)
def test_options_that_are_none(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"{field}=.* is not allowed"):
        Privacy(**{field: value})


def test_options_that_do_not_go_together() -> None:
    with pytest.raises(ValueError, match="at most one of"):
        Privacy(min_follow_probability=0.5, release_after=[1])
    with pytest.raises(ValueError, match="max_epsilon=None is not allowed: given"):
        Privacy(budget="/var/lib/fbo")
    with pytest.raises(ValueError, match="accountant='rdp' is not allowed: 'pld'"):
        Privacy(budget="/var/lib/fbo", max_epsilon=3.0, accountant="rdp")
