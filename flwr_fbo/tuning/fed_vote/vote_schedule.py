"""The iterations after which agents vote, unless a study says otherwise."""

from __future__ import annotations

from flwr_fbo.tuning.fed_vote.settings import LEAST_EVALUATIONS

# The first two votes follow these rounds: when agents have looked around for
# themselves, and when they have tried what the first votes pointed at.
GUIDING = (6, 10)


def votes_after(horizon: int) -> tuple[int, ...]:
    """Return the iterations after which agents vote, by default.

    Two votes guide the search; they come earlier in a study of fewer than 12 rounds, so
    that what they say can be tried. Where agents evaluate enough for the study to
    recommend a setting, a third vote comes one round before the last.

    Parameters
    ----------
    horizon : int
        T >= 1, the last iteration.
    """
    latest = ((horizon - 1) // 2, horizon - 1)
    guiding = {min(r - 1, t) for r, t in zip(GUIDING, latest, strict=True)}
    has_third = horizon >= LEAST_EVALUATIONS  # of iteration 0 there is one, too
    return tuple(sorted(guiding | {horizon - 1} if has_third else guiding))
