"""What one message may cost; `test_hostile_messages.py` has messages that cost more."""

from typing import Any

import pytest
from flwr.app import Context, RecordDict, UserConfig

from flwr_fbo import Limits
from flwr_fbo.privacy.spending_ledger import Promise
from flwr_fbo.site.limits import NO_LIMITS
from flwr_fbo.site.node_config_limits import node_limits
from flwr_fbo.site.size_limits import DEFAULT_SIZES, check_steps, size_limits
from flwr_fbo.study.codec import Study


class _Free(Study):
    """A study of another package that names no steps."""

    strategy, promise = "Free", Promise()

    def steps(self, num_rows: int) -> dict[str, float]:
        return {}

    def enrolment(self) -> Any:
        raise AssertionError


def test_a_study_without_steps_costs_none() -> None:
    check_steps(size_limits((NO_LIMITS,)), _Free())


def _context(**node_config: Any) -> Context:
    config: UserConfig = {
        f"fbo-{key.replace('_', '-')}": value for key, value in node_config.items()
    }
    return Context(1, 1, config, RecordDict(), {})


def test_each_size_is_set_by_the_app_or_the_node() -> None:
    """The smaller of the two, or the one that is set, and else the default."""

    def limit(name: str, app: int | None, node: str | None) -> float:
        given = {} if node is None else {name: node}
        own: dict[str, Any] = {name: app}
        both = Limits(**own), node_limits(_context(**given))
        return float(getattr(size_limits(both), name))

    for name, default in DEFAULT_SIZES.items():
        assert limit(name, None, None) == default
        for app, node in ((7, None), (7, "8"), (8, "7"), (None, "7")):
            assert limit(name, app, node) == 7
        assert limit(name, 10**9, None) == limit(name, None, str(10**9)) == 10**9
        wrongs: tuple[Any, ...] = (0, "many", True)
        for wrong in wrongs:
            with pytest.raises(ValueError, match=f"{name}={wrong!r} is not allowed"):
                Limits(**{name: wrong})
