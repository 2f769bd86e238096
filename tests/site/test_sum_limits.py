"""What secure sums must be for a site to join them: each limit is compared."""

from typing import Any

import pytest

from flwr_fbo import Limits
from flwr_fbo._common.errors import RefusedError
from flwr_fbo.privacy.release import ReleaseSettings
from flwr_fbo.privacy.spending_ledger import Charge, Promise
from flwr_fbo.secure.sum_settings import SecureSums, SumGroup
from flwr_fbo.site.sum_limits import check_secure, sum_limits

SUMS = SecureSums(
    ReleaseSettings(20, noise_multiplier=2.0), 4, (SumGroup(0, 20, 15, 2, 15),)
)
FOUND = {
    "min_agents": 20,
    "min_threshold": 15,
    "min_honest": SUMS.groups[0].honest,
    "min_colluding": SUMS.groups[0].colluding,
    "min_noise_multiplier": 2.0,
}


@pytest.mark.parametrize("name", FOUND)
def test_each_limit_is_compared_with_what_the_study_has(name: str) -> None:
    exact: dict[str, Any] = {name: FOUND[name]}
    assert sum_limits(Limits(**exact)) == exact
    check_secure(Limits(**exact), SUMS, Promise())
    more: dict[str, Any] = {name: FOUND[name] + 1}
    with pytest.raises(RefusedError, match=f"{name}={more[name]:g}, and the study has"):
        check_secure(Limits(**more), SUMS, Promise())
    with pytest.raises(RefusedError, match=f"no secure aggregation, which {name} need"):
        check_secure(Limits(**exact), None, Promise())


def test_a_promise_of_more_noise_or_a_sample_is_refused() -> None:
    check_secure(Limits(), SUMS, Promise((Charge(2.0),), True))
    check_secure(Limits(max_releases=3), None, Promise())
    with pytest.raises(RefusedError, match="less noise than the study promises"):
        check_secure(Limits(), SUMS, Promise((Charge(2.1),), True))
    with pytest.raises(RefusedError, match="promises a sample of them"):
        check_secure(Limits(), SUMS, Promise((Charge(2.0, 0.5),), True))
