"""After which trials agents synchronise: geometrically growing gaps."""

from __future__ import annotations

from flwr_fbo._common.validation import require, require_int


def geometric_schedule(num_trials: int, num_releases: int, first: int) -> list[int]:
    """Return n synchronisations from ``first`` on, the gaps growing towards T.

    After round(first (T / first)^(k / n)) trials, k = 0, .., n - 1, or one trial later
    than the one before where two would fall together: so with n = T - first they are
    after every trial. The next one would be after the last trial, where nobody acts on
    it any more.

    Raises
    ------
    ValueError
        If there are more of them than trials.
    """
    require_int("num_releases", num_releases, 1)
    require_int("first", first, 1)
    most = num_trials - first
    allowed = f"so many in the {most} trials after the first one"
    require(num_releases <= most, "num_releases", num_releases, allowed)
    ratio = (num_trials / first) ** (1 / num_releases)
    times = [first]
    for k in range(1, num_releases):
        times.append(max(round(first * ratio**k), times[-1] + 1))
    return times
