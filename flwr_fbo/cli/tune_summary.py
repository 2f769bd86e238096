"""What a tuning came to, in the words of who ran it: their metric, their sign."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr_fbo._common.text import short_value
from flwr_fbo.cli.run_config import run_config_option
from flwr_fbo.privacy.conditions import WITHOUT_TRAINING, after_epsilon
from flwr_fbo.space.search_space import Params
from flwr_fbo.tuner.decisions.enough_clients import (
    LITTLE,
    enough_to_gain,
    lost_if_all_agree,
)
from flwr_fbo.tuner.federation_result import FederationResult, last_of
from flwr_fbo.tuner.private_choice import PrivateChoice
from flwr_fbo.tuner.report.listing import (
    best_round_in_words,
    final_in_words,
    rounds_in_words,
)
from flwr_fbo.tuner.schedules.schedule import Plan
from flwr_fbo.tuner.tune_settings import MODEL, TuneSettings, default_delta


@dataclass(frozen=True)
class Summary:
    """The result of one tuning.

    Attributes
    ----------
    path : Path
        The app, as the user has named it.
    folder : Path
        The record.
    settings : TuneSettings
        Settings of the tuning.
    defaults : dict
        Values of the app for the keys that were tuned.
    result : FederationResult
        Result of the tuner.
    plan : Plan or None
        Rungs that were planned.
    changed : sequence of str
        Files of the app that have changed since the tuning began.
    """

    path: Path
    folder: Path
    settings: TuneSettings
    defaults: Params
    result: FederationResult
    plan: Plan | None
    changed: Sequence[str] = ()

    @property
    def command(self) -> str:
        """The line that trains the app with the chosen settings."""
        command = f"flwr run {shlex.quote(str(self.path))}"
        if self.result.defaults_stayed_best:
            return command
        return f"{command} {run_config_option(self.result.best)}"

    @property
    def model(self) -> Path | None:
        """Where the arrays of the trained model are, if `main` has returned them."""
        path = self.folder / MODEL
        return path if path.exists() else None

    def compared(self) -> tuple[str, int, float, float] | None:
        """Return what tells before from after: whose, the round, and both scores.

        The latest round after which both models were scored, with the settings alone
        different: the defaults and those that were chosen. None where it is not known.
        """
        result, metric = self.result, self.settings.metric
        pair = 0, result.best_trial
        if self.settings.epsilon is None:
            for rung in reversed(result.rungs):
                if {*pair} <= {*rung.trials}:
                    scores = dict(zip(rung.trials, rung.scores, strict=True))
                    before, after = scores[0], scores[result.best_trial]
                    whose = "mean of the clients"
                    if self.settings.score == "server":
                        whose = "at the server"
                    return whose, rung.rounds, before, after
        found = [result.measured.get(trial, {}) for trial in pair]
        rounds = [
            number
            for number in found[0].keys() & found[1].keys()
            if number > 0 and all(metric in one[number] for one in found)
        ]
        if not rounds:
            return None
        last = max(rounds)
        return "at the server", last, found[0][last][metric], found[1][last][metric]

    @property
    def is_worse(self) -> bool:
        """Whether the trained model is known to be worse than the app's own settings.

        By what the app has measured of them, alone or in a rung.
        """
        result, metric = self.result, self.settings.metric
        final, plain = result.final(metric), last_of(result.plain, metric)
        if final is None or result.defaults_stayed_best:
            return False
        in_rungs = result.measured.get(0, {})
        known = [r[metric] for n, r in in_rungs.items() if n > 0 and metric in r]
        known += [] if plain is None else [plain[1]]
        sign = 1.0 if self.settings.direction == "maximize" else -1.0
        return any(not sign * final[1] >= sign * value for value in known)

    def lines(self) -> list[str]:
        """Return the result in words, a line each."""
        result, metric = self.result, self.settings.metric
        chosen, before = (
            ", ".join(f"{key}={short_value(value)}" for key, value in settings.items())
            for settings in (result.best, self.defaults)
        )
        lines, plain = [""], last_of(result.plain, metric)
        final = result.final(metric)
        if self.changed:
            lines.append(f"OUTDATED: {changed_in_words(self.changed, self.folder)}")
        if final is not None and plain is not None:
            text = f"{metric}: {short_value(plain[1])} with the app's own settings, "
            lines.append(f"{text}{short_value(final[1])} tuned.")
        if self.is_worse:
            lines.append(
                f"WORSE: the trained model has a worse {metric} in the app than the "
                "app's own settings have had. The rungs saw only its first rounds. Do "
                "not use these settings."
            )
        lines += [f"Chosen:  {chosen}", f"Before:  {before}"]
        lines.append(f"How sure: {self._verdict()}.")
        compared = self.compared()
        if compared is not None and not result.defaults_stayed_best:
            whose, rounds, old, new = compared
            text = f"{metric}, {whose}, after {rounds_in_words(rounds)} of training: "
            lines.append(f"{text}{short_value(old)} before, {short_value(new)} after.")
        elif compared is None and self.settings.epsilon is not None:
            lines.append(
                f"{metric}: stays at the clients; they compared models by ranks."
            )
        if final is not None and plain is None:
            lines.append(final_in_words(metric, *final))
        lines += best_round_in_words(result, metric, self.settings.direction)
        trainings = None if self.plan is None else self.plan.num_trainings
        if trainings is not None:
            cost = f"Cost: {trainings[0]} rounds of training at a client"
            more = "" if plain is None else f", and {trainings[1]} more to compare"
            lines.append(f"{cost}; the app alone has {trainings[1]}{more}.")
        lines.append(self._privacy())
        lines.append(f"Model: {self._where()}")
        lines.append(f"Record: {self.folder}")
        lines += ["To train with these settings:", f"  {self.command}"]
        return lines

    def _verdict(self) -> str:
        result = self.result
        verdict = f"the app's defaults {result.verdict}"
        if result.privacy_spent is None and not result.defaults_stayed_best:
            verdict += "; of exact scores it is not known what is chance"
        return verdict

    def _privacy(self) -> str:
        spent = self.result.privacy_spent
        if spent is not None:
            text = f"epsilon {spent.epsilon:.3g} at delta {spent.delta:g}"
            text = f"Privacy: {text}{after_epsilon(WITHOUT_TRAINING)}: it covers what "
            return f"{text}the clients' scores decided, and not the models."
        if self.settings.score == "server":
            return "Privacy: none was asked for; the server scored the models."
        return "Privacy: none. The server read each client's exact scores."

    def _where(self) -> str:
        if self.model is not None:
            return f"{self.model}, and where the app itself saves it"
        return "trained to the end; it is where the app saves it, and nowhere else"

    def values(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        result, compared = self.result, self.compared()
        metric = self.settings.metric
        final = result.final(metric)
        best = result.best_round(metric, self.settings.direction)
        spent = result.privacy_spent
        trainings = None if self.plan is None else self.plan.num_trainings
        named = None
        if compared is not None:
            names = "by", "round", "before", "after"
            named = dict(zip(names, compared, strict=True))
        return {
            "chosen": result.best,
            "defaults": self.defaults,
            "trial": result.best_trial,
            "verdict": self._verdict(),
            "defaults_beaten": None if spent is None else result.defaults_beaten,
            "metric": self.settings.metric,
            "direction": self.settings.direction,
            "compared": named,
            "final": None if final is None else {"round": final[0], "value": final[1]},
            "best_round": None
            if best is None
            else {"round": best[0], "value": best[1]},
            "worse_than_defaults": self.is_worse,
            "app_changed": list(self.changed),
            "curves": result.curves(self.plan, self.settings.metric),
            "trainings": None if trainings is None else trainings[0],
            "plain_trainings": None if trainings is None else trainings[1],
            "epsilon": None if spent is None else spent.epsilon,
            "delta": None if spent is None else spent.delta,
            "condition": "" if spent is None else WITHOUT_TRAINING,
            "model": None if self.model is None else str(self.model),
            "record": str(self.folder),
            "command": self.command,
        }


def dry_run_lines(settings: TuneSettings, plan: Plan) -> list[str]:
    """Return what a tuning would do, cost and be sure of; a line each."""
    sharing = ", sharing the clients out" if plan.is_shared else ""
    lines = [f"Nothing was trained. At {settings.num_agents} sites it would train"]
    lines += [
        f"  {rung.num_trials} settings to round {rung.rounds}, of which "
        f"{rung.num_survivors} go{'es' * (rung.num_survivors == 1)} on"
        for rung in plan.rungs
    ]
    lines.append(f"and the chosen one to the end{sharing}.")
    if plan.num_rounds is not None:
        lines.append(
            f"In a trial {plan.rounds_key} is {plan.num_rounds}: with the rounds of "
            f"the other trials these are the app's {plan.app_rounds}."
        )
    if plan.reason:
        lines.append(f"All clients train each trial: {plan.reason}.")
    if plan.num_trainings is not None:
        tuned, plain = plan.num_trainings
        part = f"{tuned / plain:.2g} times"
        text = f"Cost: {tuned} rounds of training at a client, {part} the app alone"
        lines.append(f"{text} ({plain}).")
    if settings.epsilon is None:
        lines.append("Not private: exact scores decide. --epsilon makes it private.")
        return lines
    delta = settings.delta
    delta = default_delta(settings.num_agents) if delta is None else delta
    privacy = PrivateChoice(settings.epsilon, delta)
    sizes = tuple(rung.num_trials for rung in plan.rungs)
    lost, kept = lost_if_all_agree(sizes, settings.num_agents, privacy)
    lines.append(
        f"Epsilon {settings.epsilon:g} at delta {delta:g}: if all clients agree, and "
        f"rank the app's defaults last, these are replaced in {100 * (1 - kept):.0f} "
        f"of 100 tunings, and {100 * lost:.0f} % of the best setting's gain is lost."
    )
    enough = enough_to_gain(sizes, settings.num_agents, privacy)
    if lost > LITTLE and enough:
        lines.append(
            f"With {' or '.join(enough)} at most {100 * LITTLE:.0f} % would be lost."
        )
    return lines


def changed_in_words(changed: Sequence[str], folder: Path) -> str:
    """Return that files of the app have changed since the tuning in a folder began."""
    return (
        f"the app has changed since this tuning began: {', '.join(changed)}. The rungs "
        "that were decided before are of the app as it was. To tune it as it is now, "
        f"remove {folder}, or pass another --folder."
    )
