"""Sum limits of a site: what secure sums must be for the site to join them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flwr_fbo._common.errors import refused
from flwr_fbo.privacy.spending_ledger import Promise
from flwr_fbo.site.limits import ROUNDING, Limits

if TYPE_CHECKING:
    from flwr_fbo.secure import BlockSums, SecureSums

# Limits on sums: with any of them a site refuses studies in which the server reads its
# messages.
_OF_SUMS = (
    "min_agents",
    "min_threshold",
    "min_honest",
    "min_colluding",
    "min_noise_multiplier",
)


def sum_limits(limits: Limits) -> dict[str, float]:
    """Return what limits demand of the secure sums that a site joins, by name."""
    values = {name: getattr(limits, name) for name in _OF_SUMS}
    return {name: value for name, value in values.items() if value is not None}


def check_secure(
    limits: Limits, secure: SecureSums | BlockSums | None, promise: Promise
) -> None:
    """Raise `RefusedError` unless messages are summed as the site wants.

    Parameters
    ----------
    limits : Limits
        Limits of the site.
    secure : SecureSums or BlockSums, optional
        Settings of a study's secure sums.
    promise : Promise
        Charges that the study announces.
    """
    demanded = sum_limits(limits)
    if secure is None:
        if demanded:
            name = next(iter(demanded))
            raise refused(f"no secure aggregation, which {name} needs")
        return
    z = secure.noise_multiplier
    if any(c.noise_multiplier > z * (1 + ROUNDING) for c in promise.charges):
        raise refused("the sites of a sum add less noise than the study promises")
    if any(c.sampling_probability < 1 for c in promise.charges):
        raise refused("all sites are summed, and the study promises a sample of them")
    found = {
        "min_agents": min(g.num_slots for g in secure.groups),
        "min_threshold": min(g.threshold for g in secure.groups),
        "min_honest": min(g.honest for g in secure.groups),
        "min_colluding": min(g.colluding for g in secure.groups),
        "min_noise_multiplier": z,
    }
    for name, least in demanded.items():
        if found[name] < least:
            text = f"{name}={least:g}, and the study has {found[name]:g}"
            raise refused(text, public=name)
