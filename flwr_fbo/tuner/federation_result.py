"""The result of a `FederationTuner`."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from flwr.app import Context
from flwr.serverapp import Grid

from flwr_fbo._common.conversion import frame_of
from flwr_fbo.privacy.accounting import PrivacySpent
from flwr_fbo.space.search_space import Params
from flwr_fbo.tuner.decisions.lead_over_defaults import Lead
from flwr_fbo.tuner.schedules.schedule import Plan
from flwr_fbo.tuner.trials.tuned_grid import TunedGrid
from flwr_fbo.tuner.verdict import verdict_on_defaults
from flwr_fbo.tuning.search.settings import Direction

NOT_TRIED = "not tried"


@dataclass(frozen=True)
class Rung:
    """A comparison of trials that is decided.

    Attributes
    ----------
    rounds : int
        Rounds of training at its end.
    trials : tuple of int
        The candidates, from 0.
    scores : tuple of float
        What was released of each. With privacy the mean of the clients' ballots, with
        noise: a rank, larger is better; or, where one example is protected, the mean
        over all examples in parts of the metric's range, less the mean of the trials.
        Else the metric's exact mean, in its own unit.
    survivors : tuple of int
        The best first. After the last rung it is one, the chosen trial. With noise a
        rung is decided by ``scores`` plus half of what decided the rung before, and the
        defaults have a margin: so survivors need not be in the order of ``scores``.
    failed : tuple of int
        The candidates with which `main` has failed.
    """

    rounds: int
    trials: tuple[int, ...]
    scores: tuple[float, ...]
    survivors: tuple[int, ...]
    failed: tuple[int, ...] = ()


@dataclass(frozen=True)
class FederationResult:
    """The settings that were chosen, and how.

    Examples
    --------
    >>> from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    >>> from flwr.clientapp import ClientApp
    >>> from flwr.serverapp.strategy import FedAvg
    >>> import numpy as np
    >>> from optuna.distributions import FloatDistribution
    >>> from flwr_fbo import (
    ...     FederationTuner,
    ...     Halving,
    ...     InProcessGrid,
    ...     PrivateChoice,
    ...     tuner_mod,
    ... )
    >>> client_app = ClientApp(mods=[tuner_mod])
    >>> def reply(message, **metrics):
    ...     records = {"metrics": MetricRecord({"num-examples": 1, **metrics})}
    ...     if message.metadata.message_type == "train":
    ...         records["arrays"] = message.content["arrays"]
    ...     return Message(RecordDict(records), reply_to=message)
    >>> @client_app.train()
    ... def train(message, context):
    ...     return reply(message)  # your own training
    >>> @client_app.evaluate()
    ... def evaluate(message, context):
    ...     rate = context.run_config["learning-rate"]
    ...     return reply(message, accuracy=1 - abs(rate - 0.1))
    >>> def main(grid, context):
    ...     num_rounds = context.run_config["num-rounds"]
    ...     FedAvg().start(grid, ArrayRecord([np.zeros(1)]), num_rounds)  # your own
    >>> tuner = FederationTuner(
    ...     space={"learning-rate": FloatDistribution(1e-3, 1, log=True)},
    ...     metric="accuracy",
    ...     direction="maximize",
    ...     num_agents=4,
    ...     schedule=Halving(trials=4, rounds=(1, 2)),
    ...     privacy=PrivateChoice(epsilon=8, delta=1e-3),
    ... )
    >>> run_config = {"num-rounds": 2, "learning-rate": 0.5}  # the app's defaults
    >>> grid = InProcessGrid(client_app, num_nodes=4, run_config=run_config)
    >>> context = Context(1, 1, {}, RecordDict(), run_config)
    >>> result = tuner.start(main, grid, context)
    >>> list(result.best)
    ['learning-rate']
    >>> [len(rung.trials) for rung in result.rungs]
    [4, 2]
    >>> print(str(result).splitlines()[0][:19])  # and how sure that is, and the cost
    Chosen of 4 trials:
    >>> main(*result.apply(grid, context))  # the training with the best settings

    Attributes
    ----------
    settings : tuple of dict
        Settings of each trial. Trial 0 is the app's own defaults.
    rungs : tuple of Rung
        Comparisons, in order.
    privacy_spent : PrivacySpent or None
        Epsilon at delta of all releases; None without privacy. See `PrivateChoice` for
        what it covers. With ``Seeds(noise=...)`` it is what the choices would have
        spent with real noise.
    trust : str
        Words for what the server learned of a client's ballots.
    over_defaults : Lead or None
        Lead of the chosen trial's model over that of the app's defaults.
        None where these are chosen or have failed, and where it is not known: without
        privacy.
    num_rungs : int, optional
        Rungs of the schedule. By default all of them are decided.
    returned : object
        What `main` has returned in the chosen trial, which was trained to its end:
        Flower's ``Result``, in many apps. None without such a training, and where an
        earlier run of a tuner with ``folder`` has ended it.
    exact_metrics : bool or None
        Whether the clients have sent exact metrics in the last part of that training,
        after the choice. None without such a training.
    measured : dict of int to dict
        What the app's own evaluation at the server gave, by trial and round of its
        training: metrics by name; without privacy also means over the clients. Empty
        without any.
    plain : dict of int to dict
        The same of a training with the app's defaults alone, by round. Empty where
        nobody has asked for it.
    """

    settings: tuple[Params, ...]
    rungs: tuple[Rung, ...]
    privacy_spent: PrivacySpent | None
    trust: str = ""
    over_defaults: Lead | None = None
    num_rungs: int | None = None
    returned: Any = field(default=None, compare=False, repr=False)
    exact_metrics: bool | None = None
    measured: dict[int, dict[int, dict[str, float]]] = field(
        default_factory=dict, compare=False, repr=False
    )
    plain: dict[int, dict[str, float]] = field(
        default_factory=dict, compare=False, repr=False
    )

    @property
    def is_decided(self) -> bool:
        """Whether no rung is left."""
        return self.num_rungs in (None, len(self.rungs))

    @property
    def best_trial(self) -> int:
        """The trial that was chosen: whose expected loss is smallest."""
        return self.rungs[-1].survivors[0]

    @property
    def best(self) -> Params:
        """The settings that were chosen."""
        return dict(self.settings[self.best_trial])

    @property
    def defaults_stayed_best(self) -> bool:
        """Whether the app's defaults were chosen."""
        return self.best_trial == 0

    @property
    def defaults_beaten(self) -> bool:
        """Whether model and settings are better than the defaults', beyond chance."""
        return self.over_defaults is not None and self.over_defaults.is_of_settings

    @property
    def verdict(self) -> str:
        """The outcome for the app's defaults, in words."""
        return verdict_on_defaults(
            self.best_trial, self.over_defaults, have_failed=self.defaults_failed
        )

    @property
    def defaults_failed(self) -> bool:
        """Whether they have no score in a rung: nothing can be ahead of them."""
        return any(
            0 in rung.failed or not math.isfinite(rung.scores[rung.trials.index(0)])
            for rung in self.rungs
            if 0 in rung.trials
        )

    @property
    def found(self) -> dict[str, Any]:
        """The trial that was chosen and its settings, by name: for trackers."""
        return {"chosen-trial": self.best_trial, "chosen": self.best}

    def curves(
        self, plan: Plan | None, metric: str
    ) -> dict[str, list[tuple[int, float]]]:
        """Return how a metric went on, as the app has it: `measured` and `plain`.

        Parameters
        ----------
        plan : Plan or None
            Schedule of the trials; None where it is not known.
        metric : str
            Name of the metric.

        Returns
        -------
        dict of str to list of (int, float)
            By trial, and ``"plain"`` for the training with the app's own settings
            alone: rounds of the whole federation's work, and the metric.
        """
        trainings = {str(n): self.measured[n] for n in sorted(self.measured)}
        if plan is None:
            trainings = {}
        found = {}
        for name, rounds in {**trainings, "plain": self.plain}.items():
            points = [
                (number, rounds[number][metric])
                for number in sorted(rounds)
                if metric in rounds[number]
            ]
            # Rounds of the whole federation: a trial of a race has had a part of the
            # clients.
            if plan is not None and name != "plain":
                points = [(plan.work(number), value) for number, value in points]
            if points:
                found[name] = points
        return found

    def final(self, metric: str) -> tuple[int, float] | None:
        """Return the last round of the trained model, and its metric in the app.

        None where the app does not measure it, or it stays at the clients.
        """
        return last_of(self.measured.get(self.best_trial, {}), metric)

    def best_round(self, metric: str, direction: Direction) -> tuple[int, float] | None:
        """Return the round after which the chosen trial was best, and its metric then.

        The first of several. None where the app does not measure it.
        """
        rounds = self.measured.get(self.best_trial, {})
        sign = 1.0 if direction == "maximize" else -1.0
        found = [
            (sign * metrics[metric], -number)
            for number, metrics in rounds.items()
            if number > 0 and math.isfinite(metrics.get(metric, math.nan))
        ]
        if not found:
            return None
        value, number = max(found)
        return -number, sign * value

    def outcome(self, trial: int) -> str:
        """Return what has become of a trial, in words."""
        if self.is_decided and trial == self.best_trial:
            return "chosen"
        if self.rungs and trial not in self.rungs[0].trials:
            return NOT_TRIED
        for rung in self.rungs:
            if trial in rung.trials and trial not in rung.survivors:
                return f"round {rung.rounds}"
        return "goes on"

    def rows(self) -> list[dict[str, Any]]:
        """Return a row a trial: settings, released score by rung, outcome.

        The score is None in a rung without the trial.
        """
        scores = [
            dict(zip(rung.trials, rung.scores, strict=True)) for rung in self.rungs
        ]
        return [
            {
                "trial": trial,
                **{f"params_{name}": value for name, value in setting.items()},
                **{
                    f"score_rung_{number}": by_trial.get(trial)
                    for number, by_trial in enumerate(scores, 1)
                },
                "outcome": self.outcome(trial),
            }
            for trial, setting in enumerate(self.settings)
        ]

    def __str__(self) -> str:
        """Say what was chosen, how sure that is, and what it cost; a line each."""
        lines = [
            f"Chosen of {len(self.rungs[0].trials)} trials: {self.best}.",
            f"The app's defaults {self.verdict}.",
        ]
        if self.exact_metrics is not None:
            sent = "sent" if self.exact_metrics else "did not send"
            lines.append(
                "It was trained to its end, and handed over; in that part the "
                f"clients {sent} exact metrics."
            )
        if self.privacy_spent is None:
            lines.append(f"Epsilon is not counted: {self.trust}.")
        else:
            cost = f"Privacy spent for the choice: {self.privacy_spent.text('.2f')}"
            lines.append(f"{cost}; {self.trust}.")
        return "\n".join(lines)

    def to_dataframe(self) -> Any:
        """Return the trials as a ``pandas.DataFrame``: one row a trial.

        ``trial`` from 0, ``params_NAME`` for each setting, ``score_rung_N`` for the
        score released in each rung, and ``outcome``. A score is NaN in a rung without
        the trial.

        Raises
        ------
        ImportError
            If pandas is not installed; the message names the extra.
        """
        rows = self.rows()
        frame = frame_of(rows, list(rows[0]))
        scores = [name for name in rows[0] if name.startswith("score_rung_")]
        return frame.astype(dict.fromkeys(scores, float))

    def apply(
        self, grid: Grid, context: Context, *, exact_metrics: bool = False
    ) -> tuple[Grid, Context]:
        """Return Grid and context for a training with the settings that were chosen.

        As in ``main(*result.apply(grid, context))``. The context has them in its
        run config. The Grid sends them along with each message, and `tuner_mod` puts
        them into the run config of each client, also of one that joins later.

        After a private choice the clients' metrics stay at the clients, as they did
        while settings were compared: else the server would read each client's exact
        score of the chosen setting. What the server itself measures is not touched.

        Parameters
        ----------
        grid : Grid
            The Grid of the ServerApp.
        context : Context
            The context of the ServerApp.
        exact_metrics : bool
            Whether clients send their metrics all the same. They are not covered by
            epsilon then, and a site with limits still hides them.
        """
        tuned = copy.copy(context)
        tuned.run_config = {**context.run_config, **self.best}
        # Else the server would read each client's exact score of the chosen setting.
        is_hidden = self.privacy_spent is not None and not exact_metrics
        return cast(Grid, TunedGrid(grid, self.best, is_hidden)), tuned


def last_of(
    rounds: Mapping[int, Mapping[str, float]], metric: str
) -> tuple[int, float] | None:
    """Return the last round of a training, and a metric then; None without it."""
    last = max(rounds, default=0)
    value = rounds.get(last, {}).get(metric)
    return None if value is None else (last, value)
