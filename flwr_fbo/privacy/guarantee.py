r"""Terms of an epsilon: whom it protects, between which two worlds, and against whom.

An epsilon without its terms says nothing: that of a client and that of one example can
neither be compared nor added. So each `Guarantee` names

- the *unit of privacy*: ``"example"``, one trial or record, or ``"client"``, all that a
  site sends;
- the *adjacency*: ``"zeroed"``, with the unit's messages or with zeros in their place,
  or ``"replaced"``, with another one in its place;
- the *trust*: ``"server"``, which is trusted, so that epsilon holds against the other
  sites and all who read what is released; ``"sums"``, where sites add the noise to a
  sum under masks; ``"local"``, where each adds its own, so that it holds against all;
- conditions, such as ``"without the training"``.

Examples
--------
>>> from flwr_fbo.privacy.guarantee import CLIENT, EXAMPLE, of_group
>>> CLIENT.terms(1e-3)
'per client (message or zeros, delta 0.001)'
>>> EXAMPLE.terms(1e-5)
'per example (replaced by another, delta 1e-05)'
>>> round(of_group(2.0, 1e-3, 2), 2)  # a message that is replaced
4.71
>>> [round(of_group(4.0, 1e-5, trials), 1) for trials in (2, 3, 10)]
[9.1, 15.1, 81.3]

Formal guarantees
-----------------
*From zeros to another message.* Let releases be Gaussian mechanisms, each with noise of
z times the sensitivity :math:`S = \max_m \lVert f(m) - f(0) \rVert`, so that together
they are :math:`\mu`-GDP for zeroed messages, with :math:`\mu^2 = \sum 1/z^2`. Then they
are :math:`2\mu`-GDP for replaced ones, and where both m and -m can be sent this is
exact.

*Proof.* For messages m and m' the triangle inequality gives :math:`\lVert f(m) - f(m')
\rVert \le \lVert f(m) - f(0) \rVert + \lVert f(0) - f(m') \rVert \le 2S`. Noise of z S
is thus z/2 times the sensitivity of replacement: 2/z-GDP, and squares add up (Dong,
Roth & Su, 2022, corollary 2). With f(m') = -f(m) and norm S the distance is 2S.

*The same with Poisson sampling.* Let a release have noise of z S, and let each message
be in it with probability q. Then the pair of :math:`(1-q) N(0, z^2) + q N(1, z^2)` and
:math:`(1-q) N(0, z^2) + q N(-1, z^2)` dominates a message that is replaced by another:
at each epsilon its delta is at least that of the release. So releases compose by the
losses of these pairs (Zhu, Dong & Wang, 2022, theorem 10), however each was chosen from
the ones before. It is the pair that dp-accounting takes for ``REPLACE_ONE``
(`GaussianPrivacyLoss`, adjacency ``REPLACE``). It holds for the gradients of an example
in DP-SGD, too, with S the clipping norm.

*Proof.* Let u and v be the two contributions over z S, with norms of at most 1/z. All
else in the sum is the same in both worlds: given that, it moves both laws alike, and
the hockey-stick divergence :math:`H_a` is jointly convex. For :math:`a = e^\epsilon \ge
1` the unsampled parts of both laws cancel, but for :math:`(1-q)(a-1)`:

.. math:: H_a = q\, E (1 - s X - a Y)_+, \quad s = (1-q)(a-1)/q,

with the mean under N(u). There X and Y, the densities of N(0) and N(v) over that of
N(u), are lognormal with mean 1. The covariance matrix of their logarithms has the
entries :math:`|u|^2`, :math:`u \cdot (u - v)` and :math:`|u - v|^2`. The mean of f(X,
Y) changes with these by :math:`\tfrac12 \sum_{ij} d\Sigma_{ij} E[X_i X_j f_{ij}]`
(Plackett, 1954), and here :math:`f_{ij} \ge 0`. So it is largest where each entry is:
1/z^2, 2/z^2 and 4/z^2, which v = -u of norm 1/z attains. For a < 1 the roles of u and v
change. (Lebeda, Regehr, Kamath & Steinke, 2024, show that each adjacency and way of
sampling needs a pair of its own.)

*A group of k.* If k examples of one person are replaced, one after another, each step
is :math:`\mu`-GDP, and all are :math:`k\mu`-GDP (theorem 2.14 there).

*What does not follow.* A guarantee for one example gives none for a client, whose
number of examples is unbounded here. A guarantee for a client with replaced messages
holds for each of its examples: another example makes at most another message.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from flwr_fbo._common.fields import check_fields, choice
from flwr_fbo._common.validation import require, require_int
from flwr_fbo.privacy.conditions import after_epsilon
from flwr_fbo.privacy.gaussian import gaussian_epsilon, gaussian_mu, poisson_epsilon

Protects = Literal["client", "example"]
Adjacency = Literal["zeroed", "replaced"]
Trust = Literal["server", "sums", "local"]

_WORDS = {
    ("client", "zeroed"): "message or zeros",
    ("client", "replaced"): "message replaced by another",
    ("example", "zeroed"): "with or without it",
    ("example", "replaced"): "replaced by another",
}
_AGAINST = {
    "server": "against the other sites and readers, not the server",
    "sums": "against the server too, by sums under masks",
    "local": "against the server too, by each site's own noise",
}
# Delta that lets so many units be exposed in a study is refused without a switch.
_LARGEST_DELTA = 1e-2
# Of few units; of more a tenth of one over their number.
_DEFAULT_DELTA = 1e-3
# Of examples there are up to 10,000.
_DEFAULT_OF_EXAMPLES = 1e-5
# Deltas at which a noise is shown besides its own.
PROFILE = (1e-3, 1e-6, 1e-9)


@dataclass(frozen=True)
class PrivacyUnit:
    """Whom an epsilon protects, and which two worlds it compares.

    Attributes
    ----------
    protects : {"client", "example"}
        Unit of privacy.
    adjacency : {"zeroed", "replaced"}
        What is there in the other world, in place of the unit.
    """

    protects: Protects = field(metadata=choice(Protects))
    adjacency: Adjacency = field(metadata=choice(Adjacency))

    def __post_init__(self) -> None:
        check_fields(self)

    def terms(self, delta: float, more: str = "") -> str:
        """Return what follows an epsilon at ``delta``; ``more`` within brackets."""
        words = f"{_WORDS[self.protects, self.adjacency]}, delta {delta:g}"
        return f"per {self.protects} ({words}{more and f'; {more}'})"

    @property
    def words(self) -> str:
        """Unit and adjacency, in words."""
        return f"per {self.protects}, {_WORDS[self.protects, self.adjacency]}"


# The unit of tuning: all messages of a site, or zeros; other ones, where samples have a
# fixed size. That of a bandit. And that of a training with DP-SGD, whose libraries add
# or remove one example.
CLIENT = PrivacyUnit("client", "zeroed")
REPLACED_CLIENT = PrivacyUnit("client", "replaced")
EXAMPLE = PrivacyUnit("example", "replaced")
ONE_EXAMPLE_LESS = PrivacyUnit("example", "zeroed")


@dataclass(frozen=True)
class Guarantee:
    """Terms of an epsilon, besides its delta.

    Examples
    --------
    >>> from flwr_fbo.privacy.guarantee import EXAMPLE, Guarantee
    >>> bandit = Guarantee(EXAMPLE, "local", ("for a finished table",))
    >>> bandit.text(4.0, 1e-5)
    'epsilon 4 per example (replaced by another, delta 1e-05), for a finished table'

    Attributes
    ----------
    unit : PrivacyUnit
        Unit of privacy and adjacency.
    trust : {"server", "sums", "local"}, optional
        Who adds the noise, and so against whom it holds; None where several studies
        are added up that differ in it.
    conditions : tuple of str
        Under which epsilon holds, in the words that follow it.
    """

    unit: PrivacyUnit
    trust: Trust | None = None
    conditions: tuple[str, ...] = ()

    def text(self, epsilon: float, delta: float, form: str = ".4g") -> str:
        """Return an epsilon with its terms."""
        number = "infinite" if math.isinf(epsilon) else format(epsilon, form)
        return f"epsilon {number} {self.after(delta)}"

    def after(self, delta: float, more: str = "") -> str:
        """Return what follows the number of an epsilon at ``delta``."""
        return f"{self.unit.terms(delta, more)}{after_epsilon(*self.conditions)}"

    @property
    def against(self) -> str:
        """Against whom it holds, in words; empty where studies differ."""
        return "" if self.trust is None else _AGAINST[self.trust]

    def facts(self, delta: float) -> dict[str, Any]:
        """Return the terms as JSON values, to stand beside an epsilon."""
        return {
            "delta": delta,
            "unit": self.unit.protects,
            "adjacency": self.unit.adjacency,
            "trust": self.trust,
            "conditions": list(self.conditions),
        }


def of_group(epsilon: float, delta: float, size: int) -> float:
    """Return epsilon of a Gaussian mechanism for a group, such as a patient's visits.

    Parameters
    ----------
    epsilon, delta : float
        For one example; epsilon is 0, infinite, or from 1e-3 to 1e3.
    size : int
        Examples of the group, >= 1.
    """
    require_int("size", size, 1)
    if epsilon == 0 or math.isinf(epsilon):
        return epsilon
    return gaussian_epsilon(delta, size * gaussian_mu(epsilon, delta))


def replaced_epsilon(
    entries: tuple[tuple[float, float, int], ...], delta: float
) -> float:
    """Return epsilon of releases if messages are replaced, by their zeroed charges.

    Parameters
    ----------
    entries : tuple of (float, float, int)
        Sampling probability, noise multiplier and number of releases; one at least.
    delta : float
        In (0, 1).
    """
    return poisson_epsilon(replaced_entries(entries), delta, replaced=True)


def replaced_entries(
    entries: tuple[tuple[float, float, int], ...],
) -> tuple[tuple[float, float, int], ...]:
    """Return zeroed charges for `poisson_epsilon` of replaced contributions."""
    return tuple((q, z if q < 1 else z / 2, count) for q, z, count in entries)


def profile_text(mu: float, delta: float) -> str:
    """Return what noise that is mu-GDP gives at other deltas, in a line.

    Examples
    --------
    >>> from flwr_fbo.privacy.gaussian import gaussian_mu
    >>> from flwr_fbo.privacy.guarantee import profile_text
    >>> profile_text(gaussian_mu(2.0, 1e-3), 1e-3)
    'The same noise: 3.23 at delta 1e-06, 4.13 at delta 1e-09'
    """
    others = [
        f"{gaussian_epsilon(other, mu):.3g} at delta {other:g}"
        for other in PROFILE
        if not math.isclose(other, delta)
    ]
    return f"The same noise: {', '.join(others)}"


def large_delta(num_units: int) -> float:
    """Return above which delta a warning is due: a tenth of one over the units.

    It is half of what is refused at most.
    """
    return min(_LARGEST_DELTA / 2, 0.1 / num_units)


def default_delta(num_clients: int, protects: Protects = "client") -> float:
    """Return the delta that is promised where none is given.

    At most a thousandth for clients; 1e-5 for examples, whose number is not known yet.
    """
    if protects == "example":
        return _DEFAULT_OF_EXAMPLES
    return min(_DEFAULT_DELTA, large_delta(num_clients))


def delta_warning(delta: float, num_units: int, unit: PrivacyUnit) -> str:
    """Return why a delta is too large for so many units; empty if it is not.

    A delta of one over the number of units would allow a mechanism that publishes one
    of them. Gaussian noise does no such thing, but what is promised would allow it.
    """
    if delta <= large_delta(num_units):
        return ""
    return (
        f"delta {delta:.2g} is not well below one over the {num_units} "
        f"{unit.protects}s: such a promise would allow to publish one of them. Take at "
        f"most {large_delta(num_units):.2g}"
    )


def require_small_delta(delta: float, *, allow_large_delta: bool) -> None:
    """Raise ValueError for a delta of 0.01 and more, unless that is allowed."""
    expected = (
        f"below {_LARGEST_DELTA:g}, or allow_large_delta=True: a promise at such a "
        "delta would allow to expose one unit in a hundred"
    )
    require(allow_large_delta or delta < _LARGEST_DELTA, "delta", delta, expected)
