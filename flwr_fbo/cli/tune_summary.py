"""What a tuning came to, in the words of who ran it: their metric, their sign."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr_fbo._common.text import counted, short_value
from flwr_fbo.cli.run_config import run_config_option, short_values
from flwr_fbo.cli.tune_record import written_files
from flwr_fbo.privacy.accounting import PrivacySpent
from flwr_fbo.privacy.conditions import WITHOUT_TRAINING
from flwr_fbo.privacy.guarantee import Guarantee
from flwr_fbo.space.search_space import Params
from flwr_fbo.tuner.decisions.enough_voices import (
    LITTLE,
    enough_examples,
    enough_to_gain,
    lost_if_all_agree,
)
from flwr_fbo.tuner.federation_result import FederationResult, last_of
from flwr_fbo.tuner.report.listing import (
    best_round_in_words,
    final_in_words,
)
from flwr_fbo.tuner.schedules.schedule import NOT_SHARED, Plan
from flwr_fbo.tuner.tune_settings import MODEL, TuneSettings
from flwr_fbo.tuner.verdict import YOURS, how_sure


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
    earlier : sequence of PrivacySpent
        What each other private tuning of the app has spent.
    """

    path: Path
    folder: Path
    settings: TuneSettings
    defaults: Params
    result: FederationResult
    plan: Plan | None
    changed: Sequence[str] = ()
    earlier: Sequence[PrivacySpent] = ()

    @property
    def command(self) -> str:
        """The line that trains the app with the chosen settings."""
        command = f"flwr run {shlex.quote(str(self.path))}"
        if self.result.defaults_stayed_best:
            return command
        return f"{command} {run_config_option(short_values(self.result.best))}"

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
    def is_worse(self) -> bool | None:
        """Whether the trained model is worse than the app's own settings.

        By what the app has measured of them, alone or in a rung; None if it has not.
        """
        result, metric = self.result, self.settings.metric
        final, plain = result.final(metric), last_of(result.plain, metric)
        if result.defaults_stayed_best:
            return False
        if final is None:
            return None
        in_rungs = result.measured.get(0, {})
        known = [r[metric] for n, r in in_rungs.items() if n > 0 and metric in r]
        known += [] if plain is None else [plain[1]]
        if not known:
            return None
        sign = 1.0 if self.settings.direction == "maximize" else -1.0
        return any(not sign * final[1] >= sign * value for value in known)

    def lines(self) -> list[str]:
        """Return the result in words, a line each."""
        result, metric = self.result, self.settings.metric
        chosen, before = (
            ", ".join(f"{key}={short_value(value)}" for key, value in settings.items())
            for settings in (result.best, self.defaults)
        )
        lines, plain = list[str](), last_of(result.plain, metric)
        final = result.final(metric)
        if self.changed:
            lines.append(f"OUTDATED: {changed_in_words(self.changed, self.folder)}")
        if final is not None and plain is not None:
            text = f"{metric}: {short_value(plain[1])} with the app's own settings, "
            lines.append(f"{text}{short_value(final[1])} tuned.")
        elif final is not None:
            lines.append(final_in_words(metric, *final))
        if self.is_worse:
            lines.append(
                f"WORSE: the trained model has a worse {metric} in the app than the "
                "app's own settings have had. The rungs saw only its first rounds. Do "
                "not use these settings."
            )
        lines += [f"Chosen:  {chosen}", f"Before:  {before}"]
        lines.append(f"How sure: {self._how_sure()}.")
        compared = self.compared()
        is_told = final is not None and plain is not None
        if compared is not None and not (result.defaults_stayed_best or is_told):
            whose, rounds, old, new = compared
            text = f"{metric}, {whose}, after {counted(rounds, 'round')} of training: "
            lines.append(f"{text}{short_value(old)} before, {short_value(new)} after.")
        elif compared is None and self.settings.epsilon is not None:
            lines.append(
                f"{metric}: stays at the clients; they compared models by "
                f"{'ranks' if self.settings.protects == 'client' else 'sums'}. To "
                "see it, train with the line below: then the server gets each client's "
                "metrics as the app sends them, which epsilon does not cover."
            )
        lines += best_round_in_words(result, metric, self.settings.direction)
        trainings = None if self.plan is None else self.plan.num_trainings
        if trainings is not None:
            lines.append(cost_in_words(*trainings, is_compared=plain is not None))
        lines.append(self._privacy())
        if self.settings.epsilon is not None and self.earlier:
            lines.append(earlier_in_words(self.earlier))
        lines.append(f"Model: {self._where()}")
        lines.append(f"Record: {self.folder}")
        lines += ["To train with these settings:", f"  {self.command}"]
        return lines

    def _how_sure(self) -> str:
        result = self.result
        return how_sure(
            result.best_trial,
            result.over_defaults,
            have_failed=result.defaults_failed,
            by_metric=self._by_metric(),
        )

    def _by_metric(self) -> str:
        """Return how sure the choice is by exact scores, whose noise is not known."""
        result, metric = self.result, self.settings.metric
        final, plain = result.final(metric), last_of(result.plain, metric)
        if self.is_worse:
            return "not. The trained model is worse, though its trial was ahead"
        text = f"the score is better than with {YOURS}"
        if final is not None and plain is not None:
            gap = short_value(abs(final[1] - plain[1]))
            text = f"{metric} is better by {gap} at the end"
        elif (compared := self.compared()) is not None:
            _, rounds, old, new = compared
            gap = short_value(abs(new - old))
            text = f"{metric} was better than with {YOURS} by {gap} when the race "
            text += f"compared them, after {counted(rounds, 'round')}"
        return f"{text}; another --seed may differ"

    def _privacy(self) -> str:
        spent = self.result.privacy_spent
        if spent is not None:
            text = f"Privacy: {spent.text('.3g')}: it covers what the clients' scores "
            return f"{text}decided, and not the models."
        if self.settings.score == "server":
            return "Privacy: none was asked for; the server scored the models."
        return "Privacy: none. The server read each client's exact scores."

    def _where(self) -> str:
        written = written_files(self.folder)
        files = ""
        if written is not None:
            files = f"written in {written[0]} meanwhile: {', '.join(written[1])}"
        if self.model is not None:
            return f"{self.model}{files and f'; {files}'}"
        text = "the server returned none, so it is only where the app itself saves it"
        if files:
            return f"{text} ({files})."
        return f"{text}. If the app saves none, train again with the line below."

    def values(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        result, compared = self.result, self.compared()
        metric, lead = self.settings.metric, result.over_defaults
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
            "verdict": self._how_sure(),
            "defaults_beaten": None if spent is None else result.defaults_beaten,
            "p_model": None if lead is None else lead.p_value,
            "p_settings": None if lead is None else lead.settings_p_value,
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
            **({"epsilon": None} if spent is None else spent.to_json()),
            "earlier": [spent.to_json() for spent in self.earlier],
            "model": None if self.model is None else str(self.model),
            "model_in_words": self._where(),
            "record": str(self.folder),
            "command": self.command,
        }


@dataclass(frozen=True)
class DryRun:
    """What a tuning would do, cost and be sure of.

    Attributes
    ----------
    settings : TuneSettings
        Settings of the tuning.
    plan : Plan
        Rungs that are planned.
    is_guess : bool
        Whether nobody has given the number of sites.
    compare : bool
        Whether the app would be trained with its own settings, too.
    earlier : sequence of PrivacySpent
        What each private tuning of the app so far has spent.
    """

    settings: TuneSettings
    plan: Plan
    is_guess: bool = False
    compare: bool = False
    earlier: Sequence[PrivacySpent] = ()

    def values(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        plan, noise, privacy = self.plan, self._noise(), self.settings.privacy
        trainings = plan.num_trainings
        return {
            "sites": self.settings.num_agents,
            "sites_guessed": self.is_guess,
            "rungs": [
                {"trials": r.num_trials, "round": r.rounds, "go_on": r.num_survivors}
                for r in plan.rungs
            ],
            "shared": plan.is_shared,
            "reason": plan.reason,
            "trainings": None if trainings is None else trainings[0],
            "plain_trainings": None if trainings is None else trainings[1],
            "compare": self.compare,
            "epsilon": self.settings.epsilon,
            "delta": None if privacy is None else privacy.delta,
            "protects": None if privacy is None else privacy.protects,
            "gain_lost": None if noise is None else noise[1],
            "defaults_kept": None if noise is None else noise[2],
            "enough": [] if noise is None else noise[3],
            "earlier": [spent.to_json() for spent in self.earlier],
            "metric_checked": False,
        }

    def _noise(self) -> tuple[float, float, float, list[str]] | None:
        """Return delta, and what noise loses; None where that is not known."""
        privacy = self.settings.privacy
        if privacy is None or privacy.protects == "example":
            return None
        about = tuple(r.num_trials for r in self.plan.rungs), self.settings.num_agents
        lost, kept = lost_if_all_agree(*about, privacy)
        return privacy.delta, lost, kept, enough_to_gain(*about, privacy)

    def lines(self) -> list[str]:
        """Return it in words, a line each."""
        settings, plan = self.settings, self.plan
        sharing = ", sharing the clients out" if plan.is_shared else ""
        guess = ", a guess that --num-supernodes replaces," if self.is_guess else ""
        lines = [
            "Nothing was trained, and the metric was not checked. At "
            f"{settings.num_agents} sites{guess} it would train"
        ]
        lines += [
            f"  {rung.num_trials} settings to round {rung.rounds}, of which "
            f"{rung.num_survivors} go{'es' * (rung.num_survivors == 1)} on"
            for rung in plan.rungs
        ]
        lines.append(f"and the chosen one to the end{sharing}.")
        if plan.num_rounds is not None and plan.num_rounds != plan.app_rounds:
            lines.append(
                f"The chosen one ends at round {plan.num_rounds}: the race takes the "
                f"other rounds of the app's {plan.app_rounds}."
            )
        if plan.reason:
            lines.append(f"{NOT_SHARED}: {plan.reason}.")
        if plan.num_trainings is not None:
            lines.append(cost_in_words(*plan.num_trainings, is_compared=self.compare))
            if "two groups" in plan.reason:
                lines.append(
                    "Where ten clients or more train in a round (fraction_train=1, or "
                    "more sites), it costs about as much as the app alone."
                )
        noise, privacy = self._noise(), settings.privacy
        if privacy is None:
            lines.append("Not private: exact scores decide; --epsilon hides them.")
            return lines
        terms = Guarantee(privacy.ballots.unit, conditions=(WITHOUT_TRAINING,))
        promised = f"With {terms.text(privacy.epsilon, privacy.delta)}"
        if noise is None:  # nobody has told how many examples there are
            sizes = tuple(r.num_trials for r in plan.rungs)
            lines.append(
                f"{promised}: about {enough_examples(sizes, privacy):,.0f} validation "
                "examples in all are enough, if the settings differ by a tenth of the "
                f"range of {settings.metric}."
            )
        else:
            _, lost, kept, enough = noise
            lines.append(
                f"{promised}: if all clients "
                "agree, and rank the app's defaults last, these are replaced in "
                f"{100 * (1 - kept):.0f} of 100 tunings, and {100 * lost:.0f} % of the "
                "best setting's gain is lost."
            )
            if lost > LITTLE and enough:
                lines.append(
                    f"With {' or '.join(enough)} at most {100 * LITTLE:.0f} % would be "
                    "lost."
                )
        lines.append(
            f"No {settings.metric} would be shown, unless the server itself measures "
            "it: with --epsilon it stays at the clients."
        )
        if self.earlier:
            lines.append(earlier_in_words(self.earlier))
        return lines


def cost_in_words(tuned: int, plain: int, *, is_compared: bool) -> str:
    """Return what a tuning costs beside the app alone."""
    text = f"Cost: {tuned} rounds of training at a client"
    more = f", and {plain} more to compare" if is_compared else ""
    times = "" if tuned == plain else f" ({tuned / plain:.2g} times as many)"
    return f"{text}{times}; the app alone has {plain}{more}."


def earlier_in_words(earlier: Sequence[PrivacySpent]) -> str:
    """Return that an app was tuned privately before."""
    tunings = counted(len(earlier), "other private tuning")
    listed = "; ".join(str(spent) for spent in earlier)
    return (
        f"This app has {tunings} on record here ({listed}): on the same data those of "
        "one unit add up, with this one."
    )


def changed_in_words(changed: Sequence[str], folder: Path) -> str:
    """Return that files of the app have changed since the tuning in a folder began."""
    return (
        f"the app has changed since this tuning began: {', '.join(changed)}. The rungs "
        "that were decided before are of the app as it was. To tune it as it is now, "
        f"remove {folder}, or pass another --folder."
    )
