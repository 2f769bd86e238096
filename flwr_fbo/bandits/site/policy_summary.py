"""What a site's bandit has learned so far, as numbers and as a readable text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.bandits.linear.settings import LinearUCBSettings
from flwr_fbo.privacy.conditions import FINISHED_TABLE
from flwr_fbo.privacy.guarantee import EXAMPLE, Guarantee


@dataclass(frozen=True, eq=False)
class PolicySummary:
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
    num_trials : int
        Actions chosen so far.
    num_awaited : int
        Actions whose reward has not arrived yet.
    num_timed_out : int
        Actions whose reward did not come in time: see `RewardTimeout`.
    num_logged : int
        Logged trials from before the study, by `LinearBanditPolicy.add_history`.
    outside : dict of str to int
        Values of contexts and arms outside of their declared bounds, by field.
    num_releases : int
        Releases of this agent so far.
    num_included : int
        Own releases that the sum in use covers.
    num_others, max_others : int
        Other agents: those with a release in the sum in use, and all whose releases
        this agent can receive. How many trials their releases hold is never sent.
    epsilon_spent : float
        Epsilon spent so far: all of it with the first release.
    warning : str
        What the promise does not cover; empty unless it covers less than it says.
    worth_of_others : float, optional
        How many more trials of its own the others' releases are worth to this site now:
        where sites act on their own data, and with one estimator.
    left : str
        When and why this site has left the sums of its study; empty unless it has.
    """

    settings: LinearUCBSettings
    estimate: FloatArray
    confidence_width: FloatArray
    num_trials: int
    num_awaited: int
    num_timed_out: int
    num_logged: int
    outside: dict[str, int]
    num_releases: int
    num_included: int
    num_others: int
    max_others: int
    epsilon_spent: float
    warning: str
    worth_of_others: float | None = None
    left: str = ""

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Name and text of each fact besides the estimate."""
        releases = self.settings.releases
        planned = releases.num_releases
        own = f"{self.num_releases}{'' if planned is None else f' of {planned}'} made"
        others = f"{self.num_others} of {self.max_others} in the sum in use"
        conditions = (FINISHED_TABLE,) if self.settings.fixed_rows else ()
        terms, delta = Guarantee(EXAMPLE, "local", conditions), releases.delta
        trials = f"{self.num_trials}, {self.num_awaited} without a reward yet"
        if self.num_timed_out:
            trials += f", {self.num_timed_out} timed out"
        clipped = ", ".join(f"{name} {n}" for name, n in self.outside.items())
        return [
            ("Trials", trials),
            *([("Logged trials", f"{self.num_logged}")] if self.num_logged else []),
            *([("Outside bounds", f"{clipped}; clipped")] if clipped else []),
            ("Own releases", f"{own}, {self.num_included} in the sum in use"),
            ("Other agents", f"{others}; their numbers of trials are not sent"),
            *([("Left", self.left)] if self.left else []),
            *self._worth,
            ("Promised", terms.text(releases.epsilon, delta)),
            ("Spent", terms.text(self.epsilon_spent, delta)),
        ]

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

    def __str__(self) -> str:
        """Return the summary as lines of text."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        for name, text in self.facts:
            yield f"{name:<15} {text}"
        for name, estimate, width in self.coordinates:
            yield f"{name:<15} {estimate:.4g} +- {width:.4g}"
        yield self.interval_text
        if self.warning:
            yield self.warning
