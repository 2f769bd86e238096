"""What a site takes part in, whatever the server says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from flwr.app import Context

from flwr_fbo._errors import PublicError
from flwr_fbo._validation import is_number, require, require_int
from flwr_fbo.clients.site_journal import NodeConfigError
from flwr_fbo.privacy.spending import Charge, Promise, composed_epsilon

# Of an epsilon that was calibrated to the limit itself.
_ROUNDING = 1e-6


class StudyRefusedError(PublicError, RuntimeError):
    """A study promises less, or would release more, than a site wants."""


@dataclass(frozen=True)
class Limits:
    """What all studies on a site's data may spend together.

    They hold for everything in the site's `SpendingLedger`: this study and all others
    that it took part in, of whatever kind.

    Formal guarantees
    -----------------
    With ``max_epsilon`` and ``max_delta`` all that was released of a site since its
    ledger began is (max_epsilon, max_delta)-DP, under the adjacency of each study's
    mechanism (see `SpendingLedger`). A bandit's site adds its own noise, so that this
    holds against the server too. In a tuning study the server adds the noise: the site
    counts what the server promises, and stops a server that asks for more. It cannot
    see whether the noise was added.

    Attributes
    ----------
    max_epsilon, max_delta : float, optional
        Epsilon > 0 at delta in (0, 1), given together. With them a study that is not
        private, or promises less than its noise says, is refused. With
        ``max_epsilon=math.inf`` alone the site takes part in any study.
    max_releases : int, optional
        Number of releases, >= 1; all releases of a bandit study count as one.

    Raises
    ------
    ValueError
        If a value is not allowed, or only one of epsilon and delta is given.

    Examples
    --------
    >>> from flwr_fbo import Limits
    >>> Limits(max_epsilon=3.0, max_delta=1e-5)
    Limits(max_epsilon=3.0, max_delta=1e-05, max_releases=None)
    """

    max_epsilon: float | None = None
    max_delta: float | None = None
    max_releases: int | None = None

    def __post_init__(self) -> None:
        for field in ("max_epsilon", "max_delta"):
            value = getattr(self, field)
            ok = value is None or (is_number(value) and value > 0)
            require(ok, field, value, "a number > 0")
        epsilon, delta = self.max_epsilon, self.max_delta
        require(delta is None or delta < 1, "max_delta", delta, "below 1")
        if epsilon != math.inf:
            together = "given, or not, together with max_"
            ok = delta is None or epsilon is not None
            require(ok, "max_epsilon", epsilon, f"{together}delta={delta}")
            ok = epsilon is None or delta is not None
            require(ok, "max_delta", delta, f"{together}epsilon={epsilon}")
        if self.max_releases is not None:
            require_int("max_releases", self.max_releases, 1)

    @cached_property
    def bound_epsilon(self) -> bool:
        """Whether epsilon is limited."""
        return self.max_epsilon is not None and self.max_epsilon < math.inf

    @cached_property
    def bound_anything(self) -> bool:
        """Whether epsilon or the number of releases is limited."""
        return self.bound_epsilon or self.max_releases is not None

    def check_promise(self, promise: Promise, unprotected: str = "") -> None:
        """Raise `StudyRefusedError` unless a study is private, where epsilon is bound.

        Parameters
        ----------
        promise : Promise
        unprotected : str
            What it asks for besides that no guarantee covers.
        """
        if not self.bound_epsilon:
            return
        require_private(promise)
        if promise.caveat:
            raise _refused(f"the study {promise.caveat}")
        if unprotected:
            raise _refused(f"the study asks for {unprotected}, which is not private")

    def check_release(self, promise: Promise, release: int) -> None:
        """Raise `StudyRefusedError` if a release, from 1, is not promised."""
        promised = promise.num_releases
        if self.bound_anything and release > promised:
            raise _refused(
                f"release {release} is asked for, and the study promises {promised}"
            )

    def check_sum(self, charges: Sequence[Charge]) -> None:
        """Raise `StudyRefusedError` if charges together exceed a limit."""
        releases, most = sum(c.num_releases for c in charges), self.max_releases
        if most is not None and releases > most:
            raise _refused(
                f"with its other studies that is {releases} releases, and "
                f"max_releases={most}",
                public="max_releases",
            )
        if not self.bound_epsilon:
            return
        assert self.max_epsilon is not None
        assert self.max_delta is not None
        epsilon = composed_epsilon(charges, self.max_delta)
        if epsilon > self.max_epsilon * (1 + _ROUNDING):
            raise _refused(
                f"with its other studies that is epsilon={epsilon:.4g} at "
                f"max_delta={self.max_delta:g}, and max_epsilon={self.max_epsilon:g}",
                public="max_epsilon",
            )


NO_LIMITS = Limits()


def require_private(promise: Promise) -> None:
    """Raise `StudyRefusedError` unless a study is private."""
    if not promise.private:
        raise _refused("the study is not private: no noise, seeded noise, or a trigger")


def _refused(why: str, public: str = "") -> StudyRefusedError:
    """Return the error; all of it is public, unless another reason is."""
    text = "This site takes no part: {}."
    return StudyRefusedError(text.format(why), public=text.format(public or why))


def node_limits(context: Context) -> Limits:
    """Return the limits of the node config: ``fbo-max-epsilon`` and its like.

    Raises
    ------
    NodeConfigError
        If one is not allowed; the text names the key.
    """
    names = {f.name: f"fbo-{f.name.replace('_', '-')}" for f in fields(Limits)}
    given = {
        field: _number(context.node_config[key])
        for field, key in names.items()
        if key in context.node_config
    }
    try:
        return Limits(**given) if given else NO_LIMITS
    except ValueError as error:
        text = str(error)
        for field, key in names.items():
            text = text.replace(field, key)
        key = text.partition("=")[0]
        raise NodeConfigError(
            f"node config {text}", public=f"node config {key} is not allowed."
        ) from None


def _number(value: Any) -> Any:
    """Return a number that a SuperNode's --node-config may give as text."""
    if not isinstance(value, str):
        return value
    try:
        return int(value) if value.isdecimal() else float(value)
    except ValueError:
        return value
