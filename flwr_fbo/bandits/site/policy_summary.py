"""What a site's bandit has learned so far, as numbers and as a readable text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.bandits.linear.settings import LinearUCBSettings
from flwr_fbo.bandits.site.realised_privacy import RealisedPrivacy
from flwr_fbo.privacy.conditions import FINISHED_TABLE
from flwr_fbo.privacy.guarantee import EXAMPLE, Guarantee

if TYPE_CHECKING:
    from flwr_fbo.bandits.fed_go_ucb.settings import FedGOUCBSettings


@dataclass(frozen=True, eq=False)
class PolicySummary(ABC):
    """Base of the summaries: the state of a site's bandit; ``print`` shows it.

    A summary is for the site alone: it is made of the site's raw trials.

    Attributes
    ----------
    num_trials : int
        Actions chosen so far.
    num_awaited : int
        Actions whose reward has not arrived yet.
    num_timed_out : int
        Actions whose reward did not come in time: see `RewardTimeout`.
    num_releases : int
        Releases of this agent so far.
    epsilon_spent : float
        Epsilon spent so far: all of it with the first release.
    warning : str
        What the promise does not cover; empty unless it covers less than it says.
    """

    num_trials: int
    num_awaited: int
    num_timed_out: int
    num_releases: int
    epsilon_spent: float
    warning: str

    @property
    @abstractmethod
    def facts(self) -> list[tuple[str, str]]:
        """Name and text of each fact besides the estimate."""

    @property
    def coordinates(self) -> list[tuple[str, float, float]]:
        """Name, estimate and confidence width of each coordinate, if it has any."""
        return []

    @property
    def interval_text(self) -> str:
        """What the intervals mean, in a sentence; empty without any."""
        return ""

    @property
    def trials_text(self) -> str:
        """How many trials there are, and how many without a reward."""
        late = f", {self.num_timed_out} timed out" if self.num_timed_out else ""
        return f"{self.num_trials}, {self.num_awaited} without a reward yet{late}"

    def __str__(self) -> str:
        """Return the summary as lines of text."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        for name, text in self.facts:
            yield f"{name:<15} {text}"
        for name, estimate, width in self.coordinates:
            yield f"{name:<15} {estimate:.4g} +- {width:.4g}"
        if self.interval_text:
            yield self.interval_text
        if self.warning:
            yield self.warning


@dataclass(frozen=True, eq=False)
class LinearPolicySummary(PolicySummary):
    """The state of a site's linear bandit; ``print`` shows it as a text.

    The summary is for the site alone: unless the site acts on released sums only, its
    estimate comes from the site's raw trials.

    Examples
    --------
    >>> import tempfile
    >>> from flwr_fbo import (
    ...     FedUCB,
    ...     InProcessGrid,
    ...     Limits,
    ...     LinearBanditPolicy,
    ...     linear_bandit_app,
    ... )
    >>> from flwr_fbo.bandits import ContinualSettings, LinearUCBSettings
    >>> releases = ContinualSettings(
    ...     num_releases=1, dimension=2, epsilon=float("inf"), delta=1e-5
    ... )
    >>> folder = tempfile.mkdtemp()
    >>> app = linear_bandit_app(limits=Limits(max_epsilon_per_example=float("inf")))
    >>> grid = InProcessGrid(app, 1, node_configs=[{"fbo-folder": folder}])
    >>> settings = LinearUCBSettings(releases, "own")
    >>> strategy = FedUCB(settings, num_agents=1, interval=0)
    >>> _ = strategy.start(grid)
    >>> policy = LinearBanditPolicy.open(folder)
    >>> choice = policy.choose([[1.0, 0.0], [0.0, 1.0]])
    >>> summary = policy.summary()
    >>> summary.num_trials, summary.num_awaited
    (1, 1)
    >>> print(summary)  # doctest: +ELLIPSIS
    Trials          1, 1 without a reward yet
    Own releases    1 of 1 made, 1 in the sum in use
    Other agents    0 of 0 in the sum in use; their numbers of trials are not sent
    Others' worth   0 more own trials
    Promised        epsilon infinite per example (replaced by another, delta 1e-05)...
    Spent           epsilon infinite per example (replaced by another, delta 1e-05)...
    ...

    Attributes
    ----------
    settings : LinearUCBSettings
        Settings of the study, with the epsilon that it promises and the names of the
        coordinates. All intervals hold at once, in all trials of this agent, with a
        probability of 1 - ``alpha``.
    estimate : ndarray of shape (d,)
        Estimate theta of the shared parameter; of the site's where it acts on own data.
        Shape (E, d) for E > 1 estimators, which play in turn.
    confidence_width : ndarray of the shape of ``estimate``
        Half the confidence interval of each coordinate: theta_i lies within
        ``estimate[i] +- confidence_width[i]``. Where the site acts on its own data, it
        is from these alone, and so holds whatever the other sites are; else it is

            w sqrt((V^-1)_ii),

        where V is the regularised Gram matrix and w the width of the ellipsoid
        ``||theta - estimate||_V <= w`` (Abbasi-Yadkori et al., 2011); see
        `LinearUCBSettings.width`.
    num_logged : int
        Logged trials from before the study, by `LinearBanditPolicy.add_history`.
    outside : dict of str to int
        Values of contexts and arms outside of their declared bounds, by field.
    num_included : int
        Own releases that the sum in use covers.
    num_others, max_others : int
        Other agents: those with a release in the sum in use, and all whose releases
        this agent can receive. How many trials their releases hold is never sent.
    worth_of_others : float, optional
        How many more trials of its own the others' releases are worth to this site now:
        where sites act on their own data, and with one estimator.
    left : str
        When and why this site has left the sums of its study; empty unless it has.
    realised : RealisedPrivacy, optional
        The last estimate of `LinearBanditPolicy.realised_privacy`.
    """

    settings: LinearUCBSettings
    estimate: FloatArray
    confidence_width: FloatArray
    num_logged: int
    outside: dict[str, int]
    num_included: int
    num_others: int
    max_others: int
    worth_of_others: float | None = None
    left: str = ""
    realised: RealisedPrivacy | None = None

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Name and text of each fact besides the estimate."""
        releases = self.settings.releases
        planned = releases.num_releases
        own = f"{self.num_releases}{'' if planned is None else f' of {planned}'} made"
        others = f"{self.num_others} of {self.max_others} in the sum in use"
        conditions = (FINISHED_TABLE,) if self.settings.fixed_rows else ()
        terms, delta = Guarantee(EXAMPLE, "local", conditions), releases.delta
        clipped = ", ".join(f"{name} {n}" for name, n in self.outside.items())
        return [
            ("Trials", self.trials_text),
            *([("Logged trials", f"{self.num_logged}")] if self.num_logged else []),
            *([("Outside bounds", f"{clipped}; clipped")] if clipped else []),
            ("Own releases", f"{own}, {self.num_included} in the sum in use"),
            ("Other agents", f"{others}; their numbers of trials are not sent"),
            *([("Left", self.left)] if self.left else []),
            *self._worth,
            ("Promised", terms.text(releases.epsilon, delta)),
            ("Spent", terms.text(self.epsilon_spent, delta)),
            *self._realised,
        ]

    @property
    def _realised(self) -> list[tuple[str, str]]:
        """What one outcome is protected by where play goes on."""
        if not self.settings.fixed_rows or not self.settings.releases.noise_std:
            return []
        text = "not estimated yet: realised_privacy() of the policy does"
        if self.realised is not None:
            text = f"{self.realised}; after release {self.realised.num_releases}"
        return [("Realised", text)]

    @property
    def _worth(self) -> list[tuple[str, str]]:
        """What the others are worth to this site."""
        if self.worth_of_others is None:
            return []
        return [("Others' worth", f"{self.worth_of_others:.0f} more own trials")]

    @property
    def coordinates(self) -> list[tuple[str, float, float]]:
        """Name, estimate and confidence width of each coordinate, by estimator."""
        names = [*self.settings.feature_names]
        if self.estimate.ndim > 1:
            estimators = range(len(self.estimate))
            names = [f"estimator {e}, {name}" for e in estimators for name in names]
        values, widths = self.estimate.ravel(), self.confidence_width.ravel()
        return [*zip(names, values.tolist(), widths.tolist(), strict=True)]

    @property
    def interval_text(self) -> str:
        """What the intervals mean, in a sentence."""
        middle = self.settings.releases.reward_middle
        above = f", less {middle:g}," if middle else ""
        return (
            f"All intervals hold together with a probability of at least "
            f"{1 - self.settings.alpha:.4g}, if mean rewards{above} are x'theta with "
            f"||theta|| <= {self.settings.norm_bound:.4g}."
        )


@dataclass(frozen=True, eq=False)
class NeuralPolicySummary(PolicySummary):
    """The state of a site's bandit with a network; ``print`` shows it as a text.

    Attributes
    ----------
    settings : FedGOUCBSettings
        Settings of the study.
    phase : {1, 2}
        1 while the site explores at random, and the network is fitted.
    num_rewarded : int
        Decisions with a reward.
    num_included : int
        Those of them that are in the total in use; None with privacy, where a site acts
        on released totals only.
    has_total : bool
        Whether the site has received a total.
    """

    settings: FedGOUCBSettings
    phase: int
    num_rewarded: int
    num_included: int | None
    has_total: bool

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Name and text of each fact."""
        phases = {1: "I: explores at random", 2: "II: acts on its model"}
        total = "none yet" if not self.has_total else "in use"
        if self.has_total and self.num_included is not None:
            total += f", with {self.num_included} own rewards"
        privacy = self.settings.privacy
        lines = [
            ("Trials", self.trials_text),
            ("Phase", phases[self.phase]),
            ("Own rewards", f"{self.num_rewarded}"),
            ("Total of all", total),
        ]
        if privacy is None:
            return lines
        planned, terms = privacy.num_synchronisations, Guarantee(EXAMPLE, "local")
        return [
            *lines,
            ("Own releases", f"{self.num_releases} of {planned} made"),
            ("Promised", terms.text(privacy.epsilon, privacy.delta)),
            ("Spent", terms.text(self.epsilon_spent, privacy.delta)),
        ]
