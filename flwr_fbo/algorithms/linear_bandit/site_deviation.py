"""How much the sites of a linear bandit may differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flwr_fbo._common.conversion import take_plain
from flwr_fbo._common.validation import (
    require,
    require_known,
    require_name,
    require_positive,
)


@dataclass(frozen=True)
class SiteDeviation:
    """How far a site's parameter may be from the shared one, and in which features.

    At site i an action x has mean reward x'(theta + delta_i). Theta is the mean of the
    sites' parameters, each weighted by its number of trials. A site learns its delta_i
    by itself, from what it sent or from its raw trials, as ``local_data`` says; delta_i
    is in no message. How: see `flwr_fbo.algorithms.linear_bandit.site_belief`.

    Examples
    --------
    >>> from flwr_fbo import (
    ...     ContinualSettings, FeatureEncoder, LinearUCBSettings, Number, SiteDeviation,
    ... )
    >>> encoder = FeatureEncoder({"age": Number(0, 110)}, blocks=("ward", "home"))
    >>> encoder.feature_names
    ('ward: intercept', 'ward: age', 'home: intercept', 'home: age')
    >>> releases = ContinualSettings(
    ...     num_releases=30, dimension=encoder.dimension, epsilon=1.0, delta=1e-5
    ... )

    At each site an arm may be a little better or worse than elsewhere, at any age:

    >>> deviation = SiteDeviation(0.2, features=["ward: intercept", "home: intercept"])
    >>> settings = LinearUCBSettings(
    ...     releases, encoder=encoder, site_deviation=deviation
    ... )

    Attributes
    ----------
    bound : float
        D > 0: bound on ||delta_i||, the same for all sites. Choose it without looking
        at private data. Where D is above the sites' true deviations, a site trusts the
        federation less than it could. Where it is below, a site can stay wrong.
    features : sequence of str
        Names of the features in which sites differ; delta_i is zero in all others. All
        features unless given. ``["intercept"]``, of an encoder without blocks, is one
        number added to all rewards of a site. It changes no choice, as all arms share
        it, but without it the other features would have to explain it.

    Raises
    ------
    ValueError
        If a value is not allowed.
    """

    bound: float
    features: Sequence[str] = ()

    def __post_init__(self) -> None:
        take_plain(self)
        require_positive("bound", self.bound)
        is_list = isinstance(self.features, tuple | list)
        require(is_list, "features", self.features, "a list of names")
        for name in self.features:
            require_name("features", name)
        ok = len(set(self.features)) == len(self.features)
        require(ok, "features", self.features, "each name once")
        object.__setattr__(self, "features", tuple(self.features))

    def coordinates(self, feature_names: Sequence[str]) -> list[int]:
        """Return the places of the features in which sites differ.

        Parameters
        ----------
        feature_names : sequence of str
            Of all features: `LinearUCBSettings.feature_names`.

        Raises
        ------
        ValueError
            If one is unknown.
        """
        places = {name: i for i, name in enumerate(feature_names)}
        for name in self.features:
            require_known("site_deviation.features", name, places)
        return sorted(places[name] for name in self.features or feature_names)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, as JSON values."""
        return {**asdict(self), "features": list(self.features)}
