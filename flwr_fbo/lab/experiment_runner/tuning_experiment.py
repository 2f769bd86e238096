"""Experiments that tune: federated search beside its controls, on one task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal, Self

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.validation import require
from flwr_fbo.algorithms.fed_warm_start.settings import FedWarmStartSettings
from flwr_fbo.lab.experiment_runner.base import Experiment
from flwr_fbo.lab.experiment_runner.runs import Run
from flwr_fbo.lab.experiment_runner.seeds import Seeds
from flwr_fbo.lab.experiment_runner.tuning_design import TuningDesign
from flwr_fbo.lab.experiment_runner.tuning_methods import (
    METHODS,
    TuningMethod,
    known_methods,
    methods_of,
    usual_methods,
)
from flwr_fbo.lab.experiment_runner.tuning_play import run_one, sending, spending
from flwr_fbo.lab.experiment_runner.tuning_table import TuningRun, at_the_end
from flwr_fbo.lab.experiment_runner.wording import ONE_SEED, carried, helped
from flwr_fbo.lab.simulation.progress import telling
from flwr_fbo.strategies.presets import preset_of
from flwr_fbo.strategies.tuning_strategy import TuningStrategy

# In a list of methods: those that the strategy is usually compared to.
_USUAL = "usual"


@dataclass(frozen=True, kw_only=True)
class TuningExperiment(TuningDesign):
    """Methods on a task, over paired seeds.

    Attributes
    ----------
    methods : tuple of str
        ``"usual"`` stands for all controls, without liars. All curves are added.
    form : {"convergence", "tradeoff"}
        The figure: best value against evaluation, or in the end against epsilon.
    """

    _presentation: ClassVar[tuple[str, ...]] = (*Experiment._presentation, "form")

    methods: tuple[str, ...] = (_USUAL,)
    form: Literal["convergence", "tradeoff"] = "convergence"

    def __post_init__(self) -> None:
        preset_of(self.strategy, self.preset)  # which names what it does not allow
        for name in self.curves:
            ok = name not in METHODS and not name.endswith("-noise-only")
            require(ok, "curves", name, "a name that no method or control has")
            weights = self.curves[name].weights
            ok = weights is None or self.strategy == "DPFTSDE"
            require(ok, "weights", weights, f"left out, with {self.strategy}")
        methods: list[str] = []
        for name in self.methods:
            methods += usual_methods(self) if name == _USUAL else [name]
        methods += [name for name in methods_of(self.curves) if name not in methods]
        object.__setattr__(self, "methods", tuple(methods))
        super().__post_init__()
        agent = self.base.agent
        least = agent.num_initial
        if isinstance(agent, FedWarmStartSettings):
            least = agent.share_after
        ok = self.num_evaluations >= least
        require(ok, "num_evaluations", self.num_evaluations, f"at least {least}")
        if self.form == "tradeoff":
            private = {n for n, c in self.curves.items() if c.method == "private"}
            alone = sorted(n for n in private if not self.curves[n].series)
            allowed = "private curves, each in a series, where form is 'tradeoff'"
            require(len(private) > 0 and not alone, "curves", alone, allowed)

    @property
    def first_shown(self) -> int:
        """The last initial point: before it no method has done anything."""
        return int(self.base.agent.num_initial) - 1

    @property
    def known_methods(self) -> Mapping[str, TuningMethod]:
        """All methods that it could have, by name."""
        return known_methods(self)

    def with_epsilon(self, epsilon: float) -> Self:
        """Return the same experiment at another epsilon; see `Experiment`."""
        allowed = "left out: its curves have their own noise"
        require(not self.curves, "epsilon", epsilon, allowed)
        return super().with_epsilon(epsilon)

    def recipe(self, method: str) -> dict[str, Any]:
        """Return what decides a method's runs, whatever experiment they are part of."""
        values = super().recipe(method)
        for name in ("privacy", "curves"):
            values.pop(name, None)
        chosen, base = self.known_methods[method], self.base
        curve = chosen.curve
        values["method"] = chosen.base or chosen.name
        values["agent"] = asdict(curve.agent(base.agent))
        values["weights"] = asdict(curve.weights or base.weights)
        # Noise alone leads to the same places whatever its scale: see `methods_of`.
        scale_free = self.strategy == "DPFTSDE" and values["method"] == "noise-only"
        if chosen.noisy and not scale_free:
            privacy = curve.privacy(self.privacy)
            q = privacy.sampling_probability or base.privacy.sampling_probability
            values["privacy"] = asdict(replace(privacy, sampling_probability=q))
            values["clip_norm"] = curve.clip_norm or base.privacy.clip_norm
        return values

    def check(self) -> None:
        """Raise, before any work is done, if it cannot be run: see `Task.check`."""
        for name in self.methods:  # what only the methods can refuse
            try:
                self._strategy(name)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
        super().check()

    def play(self, methods: Sequence[str], seed: int) -> list[TuningRun]:
        """Run some of the methods on one seed."""
        return [run_one(self, method, seed) for method in telling(methods)]

    def spending(self, method: str) -> FloatArray:
        """Return a site's epsilon after each evaluation; see `Experiment`."""
        return spending(self, self._strategy(method))

    def sending(self, method: str, runs: Sequence[Run]) -> FloatArray:
        """Return how many numbers have been sent by each evaluation."""
        return sending(self, self._strategy(method))

    def _strategy(self, method: str) -> TuningStrategy:
        return self.known_methods[method].build(self, Seeds.of_run(0))

    def notes(self, runs: Sequence[Run], until: int | None) -> tuple[str, list[str]]:
        """Return the table's title, and what is to be said below it."""
        title, (first, *others) = super().notes(runs, until)
        accountant = self.privacy.accountant.upper()
        privacy = (
            f"epsilon: spent at delta = {self.privacy.delta:.4g} ({accountant} "
            "accountant), had the noise been real. The noise of an experiment is "
            "seeded: NOT PRIVATE."
        )
        return title, [first, privacy, *others]

    def verdict(self, rows: Mapping[str, Any]) -> list[str]:
        """Say in words whether federation helped, with and without privacy."""
        if any(row.final.num_runs < 2 for row in rows.values()):
            return [ONE_SEED]
        lines = []
        for name, what in (("open", "without"), ("private", "with")):
            row = rows.get(name)
            if row is not None and row.over_alone is not None:
                lines.append(
                    f"Federation {what} privacy ({row.label}) "
                    f"{helped(row.over_alone, self._alone)}"
                )
        private = rows.get("private")
        if private is not None and private.over_noise_only is not None:
            lines.append(carried(private.label, private.over_noise_only))
        if private is not None and private.final_over_alone is not None:
            about = private.label, private.final_over_alone, self._alone
            lines += at_the_end(*about)
        return lines
