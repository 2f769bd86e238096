"""Trials whose settings an Optuna study proposes, and which it shows as they go on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import TrialState

from flwr_fbo._common.validation import require, require_instance
from flwr_fbo.space.search_space import Params
from flwr_fbo.tuner.candidates.candidates import Candidates
from flwr_fbo.tuner.candidates.trial_space import TrialSpace
from flwr_fbo.tuning.search.settings import Direction

# How often a sampler is asked for settings that are new.
_MOST_PROPOSALS = 10
# User attributes of a trial in the user's study.
_TUNER, _NUMBER, _SETTINGS = "tuner", "trial", "settings"


def check_study(study: optuna.Study, direction: Direction) -> None:
    """Raise ValueError if a study is not one that trials can be in."""
    require_instance("study", study, optuna.Study)
    directions = [direction.name.lower() for direction in study.directions]
    allowed = f"[{direction!r}], as direction"
    require(directions == [direction], "study.directions", directions, allowed)
    waiting = len(study.get_trials(deepcopy=False, states=[TrialState.WAITING]))
    require(waiting == 0, "study", f"{waiting} enqueued trials", "none: see enqueue")


class ProposedTrials:
    """The trials of a tuner in the user's study.

    The study's sampler learns from the scores of the first rung, where all trials are
    compared after the same number of rounds. It learns them in a study of its own,
    which has them as complete: some samplers ignore trials that go on or are pruned.

    Parameters
    ----------
    study : optuna.Study
        Whose sampler proposes, and which shows the trials.
    space : TrialSpace
        A key that is not in force is neither proposed nor shown.
    tuner : str
        The name of the tuner. Trials that an earlier run of it has left running, as it
        was killed, have failed.
    """

    def __init__(self, study: optuna.Study, space: TrialSpace, tuner: str) -> None:
        self._study, self._space, self._tuner = study, space, tuner
        self._shown: dict[int, optuna.Trial] = {}
        self._asked: dict[int, optuna.Trial] = {}
        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # no word of this study
        try:
            self._learned = optuna.create_study(
                sampler=study.sampler, direction=study.direction
            )
        finally:
            optuna.logging.set_verbosity(verbosity)
        # Nobody else would ever end them.
        for left in study.get_trials(deepcopy=False, states=[TrialState.RUNNING]):
            if left.user_attrs.get(_TUNER) == tuner:
                study.tell(left.number, state=TrialState.FAIL)

    def propose(self, number: int, candidates: Candidates) -> None:
        """Add settings for a trial to the candidates: such as are not among them yet.

        A sampler that proposes what was tried again and again is not asked on.
        """
        space = self._space
        for _ in range(_MOST_PROPOSALS):
            trial, found = self._learned.ask(), Params()
            # One key after those that it needs.
            while missing := [k for k in space.in_force(found) if k not in found]:
                for key in missing:
                    axis = space.space.distributions[key]
                    found[key] = _suggested(trial, key, axis)
            if candidates.add(found):
                self._asked[number] = trial
                return
            self._learned.tell(trial, state=TrialState.FAIL)
        candidates.fill(number + 1)

    def show(self, number: int, settings: Params) -> None:
        """Show a trial that begins."""
        inside = self._space.inside(settings)
        sampler = self._study.sampler
        # All is given: a sampler would fit its model for nothing.
        self._study.sampler = optuna.samplers.RandomSampler()
        try:
            self._study.enqueue_trial({name: settings[name] for name in inside})
            trial = self._study.ask(inside)
        finally:
            self._study.sampler = sampler
        trial.set_user_attr(_TUNER, self._tuner)
        trial.set_user_attr(_NUMBER, number)
        trial.set_user_attr(_SETTINGS, settings)
        self._shown[number] = trial

    def learn(self, number: int, settings: Params, score: float) -> None:
        """Tell the sampler the score of a trial of the first rung; NaN: it failed."""
        value = score if math.isfinite(score) else None
        state = TrialState.FAIL if value is None else TrialState.COMPLETE
        # Settings that were given, or filled up, are known to the sampler all the same.
        if number in self._asked:
            self._learned.tell(self._asked[number], value, state)
        elif value is not None:
            inside = self._space.inside(settings)
            params = {name: settings[name] for name in inside}
            self._learned.add_trial(
                optuna.create_trial(params=params, distributions=inside, value=value)
            )

    def report(
        self, rounds: int, scores: dict[int, float], going_on: Sequence[int]
    ) -> None:
        """Show the scores of a rung that is decided.

        Parameters
        ----------
        rounds : int
            Rounds of training at its end.
        scores : dict of int to float
            Scores by trial, in the metric's unit; not finite where it has none.
        going_on : sequence of int
            The trials of the next rung. Empty: this was the last, and all are complete.
        """
        for number, score in scores.items():
            trial = self._shown[number]
            is_scored = math.isfinite(score)
            if is_scored:
                trial.report(score, rounds)
            if number in going_on:  # without a score too, where few have one
                continue
            if not is_scored:
                self._study.tell(trial, state=TrialState.FAIL)
            elif going_on:
                self._study.tell(trial, state=TrialState.PRUNED)
            else:
                self._study.tell(trial, score)
            del self._shown[number]

    def end(self) -> None:
        """Show as failed what is running yet, if a tuner ends before its last rung."""
        while self._shown:
            self._study.tell(self._shown.popitem()[1], state=TrialState.FAIL)


def _suggested(trial: optuna.Trial, key: str, axis: BaseDistribution) -> Any:
    """Return a sampler's value for one key."""
    if isinstance(axis, CategoricalDistribution):
        return trial.suggest_categorical(key, axis.choices)
    if isinstance(axis, IntDistribution):
        return trial.suggest_int(key, axis.low, axis.high, step=axis.step, log=axis.log)
    assert isinstance(axis, FloatDistribution)
    return trial.suggest_float(key, axis.low, axis.high, step=axis.step, log=axis.log)
