"""`FederationTuner`: a private choice among trials of the user's own federated app."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from flwr.app import Context
from flwr.serverapp import Grid
from optuna.distributions import CategoricalDistribution

from flwr_fbo._common.conversion import takes_plain
from flwr_fbo._common.errors import end_of_faults
from flwr_fbo._common.fields import to_json
from flwr_fbo._common.validation import (
    check_folder,
    require,
    require_bool,
    require_choice,
    require_function,
    require_instance,
    require_int,
)
from flwr_fbo.privacy.accounting import terms_of
from flwr_fbo.secure import SecureAggregation
from flwr_fbo.space.search_space import Params
from flwr_fbo.strategies.seeds import Seeds
from flwr_fbo.study.callbacks import (
    Callback,
    Started,
    check_callbacks,
    tell,
    tell_of_end,
)
from flwr_fbo.study.codec import fresh_seed
from flwr_fbo.tuner.app_shape import app_shape
from flwr_fbo.tuner.candidates.candidates import (
    Candidates,
    app_defaults,
    check_enqueued,
    check_keys,
    warn_outside,
)
from flwr_fbo.tuner.candidates.proposed_trials import ProposedTrials, check_study
from flwr_fbo.tuner.candidates.trial_space import ConditionalSpace, TrialSpace
from flwr_fbo.tuner.choosers.chooser import Chooser
from flwr_fbo.tuner.choosers.make_chooser import ScoreSource, make_chooser
from flwr_fbo.tuner.choosers.score import Score
from flwr_fbo.tuner.decisions.enough_voices import (
    examples_needed,
    too_few_voices,
)
from flwr_fbo.tuner.federation_result import FederationResult
from flwr_fbo.tuner.message_headers import check_weights
from flwr_fbo.tuner.private_choice import PrivateChoice
from flwr_fbo.tuner.records.trials_record import (
    HANDED_OVER,
    PLAN,
    SETTINGS,
    TrialsRecord,
    has_begun,
    plan_of,
    recorded_result,
    recorded_settings,
    recorded_spent,
    stored,
)
from flwr_fbo.tuner.rungs.live_trials import Federation
from flwr_fbo.tuner.rungs.trial_run import TrialRun
from flwr_fbo.tuner.schedules.race import OneTraining
from flwr_fbo.tuner.schedules.schedule import NOT_SHARED, AppShape, Plan, Schedule
from flwr_fbo.tuner.trials.trial_grid import Main, TrialGrid
from flwr_fbo.tuner.trials.trial_thread import THREAD_NAME
from flwr_fbo.tuning.search.portfolios import Listed, listed_settings
from flwr_fbo.tuning.search.settings import Direction

_log = logging.getLogger("flwr.fbo")

# Seconds to wait for a run that was killed to let go of the folder.
_PATIENCE = 60.0


class FederationTuner:
    """Tunes the settings of a federated training: of the app that you have.

    Each trial is a call of the app's own ``main(grid, context)`` with other values in
    its run config. The trials of a rung share the clients out. At its end each client
    sends one bounded message about all of them, the sum is released once with noise,
    and the best trials go on; the last one is trained to the end by all clients, and is
    the app's model. The client's part is `tuner_mod`.

    Examples
    --------
    >>> from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    >>> from flwr.clientapp import ClientApp
    >>> from flwr.serverapp.strategy import FedAvg
    >>> import numpy as np
    >>> from optuna.distributions import FloatDistribution
    >>> from flwr_fbo import FederationTuner, InProcessGrid, PrivateChoice, tuner_mod
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
    ...     return FedAvg().start(grid, ArrayRecord([np.zeros(1)]), num_rounds)
    >>> tuner = FederationTuner(
    ...     space={"learning-rate": FloatDistribution(1e-3, 1, log=True)},
    ...     metric="accuracy",
    ...     direction="maximize",
    ...     num_agents=20,
    ...     privacy=PrivateChoice(epsilon=2, delta=1e-3),
    ... )
    >>> run_config = {"num-rounds": 15, "learning-rate": 0.9}  # the app's defaults
    >>> grid = InProcessGrid(client_app, num_nodes=20, run_config=run_config)
    >>> context = Context(1, 1, {}, RecordDict(), run_config)
    >>> result = tuner.start(main, grid, context)
    >>> len(result.settings), result.privacy_spent.epsilon <= 2
    (16, True)
    >>> list(result.returned.arrays)  # what main has returned: Flower's Result
    ['0']

    Parameters
    ----------
    space : mapping of str to Optuna distribution
        The search space. Its keys are keys of the app's run config; server and clients
        find a trial's values there. A key that has an effect only where others have
        certain values has a pair of its distribution and that condition: ``{"decay":
        (FloatDistribution(0.8, 0.99), {"schedule": ["exponential"]})}`` for a decay of
        the learning rate that only one schedule reads. Elsewhere a trial has the app's
        default for it. If a key needs several others, all must have such a value. They
        are keys with choices, and may have conditions of their own.
    metric : str or mapping of str to float
        Key of the score in a client's reply to ``evaluate``; or keys of several
        metrics with their weights: ``{"accuracy": 1, "seconds": -0.01}`` is maximised
        for a high accuracy in little time. One key where ``privacy`` protects one
        example: of a mean over ``num-examples``.
    direction : {"maximize", "minimize"}
        Whether larger or smaller scores are better.
    num_agents : int
        Number N >= 1 of clients that give a ballot at most; the release is divided by
        it. A node that joins while N others are there is trained with, and not asked.
    privacy : PrivateChoice or None
        Private choice among the trials. None: by exact means of the clients' scores,
        weighted by ``num-examples``, which is *not private*; or by the scores of the
        server.
    schedule : OneTraining or Halving
        Number of trials, and how they are trained. By default a race inside
        one training. `Halving` only chooses, by trials that all clients train.
    score : {"clients", "server"}
        Who scores the trials. ``"server"``: what Flower's strategies keep of each
        round, first of their ``evaluate_fn``, on data that the server has, or means
        over the clients' replies. A `main` with a loop of its own calls
        ``server_score(grid, evaluate_fn)``, or returns the score, or a dict with it.
        No score of a client is released: ``privacy`` is None.
    aggregation : SecureAggregation, optional
        Secure sums of the ballots, so that the server learns the noisy sum of
        each rung alone. It takes five more exchanges per rung. Without it the server is
        trusted: it reads each ballot and adds the noise.
    enqueue : sequence of dict, str, Path or StudyPortfolio
        Settings that are tried in any case, besides the app's defaults: a list, or what
        strategies take as ``portfolio``, such as the file that `portfolio_of_studies`
        makes of earlier tuners. What one leaves out is as in the defaults. No setting
        is tried twice: of a space with fewer settings than trials, each is tried once.
    seeds : Seeds, optional
        Seeds that make a tuner repeat: ``study`` its settings; ``noise`` is for
        experiments only. No ``features``: there are none.

    Raises
    ------
    ValueError
        If an argument is not allowed; the message names it.
    ImportError
        If real noise is wanted and OpenDP is missing; the message names the extra.

    Notes ----- *Formal guarantees*: those of `PrivateChoice`. Epsilon covers what the
    releases reveal of one client's scores, or of one example's, *given the models*. The
    models were trained on the clients' data, and nothing here makes that training
    private.

    With ``privacy`` no client's metric reaches the server: replies to ``evaluate`` keep
    their keys, with NaN for numbers, empty lists and texts, and the weight 1, and so do
    replies to ``train`` but for their weights. A ``main`` that reads aggregated metrics
    gets NaN. Not covered, and exact at the server: `tuner_mod` lists it.

    *How trials are compared.* Where a rung releases a noisy sum of ballots, by its
    scores plus half of those that decided the rung before: trials that were ahead
    before keep a part of their lead. This averages the noise, and costs no epsilon.
    Exact means are taken as they are.

    *What is chosen, and what is claimed.* Chosen is the trial with the smallest
    expected loss under what was released: the app's defaults have a margin, which
    grows with the noise, so with few clients they are chosen more often. That they are
    *beaten* is claimed if two things are shown, each with p at most .02. The chosen
    model is ahead of theirs: by more than the noise, and clients that order the trials
    at random, explain, over all rungs that both were in. And its settings are better:
    other trials with settings like its own did better than those with settings like the
    defaults. Two trainings with the same settings give two models, too, and one of them
    is ahead. This second test permutes the settings that were drawn at random, which
    takes at least five of them; if no setting has any effect, its rate of errors is
    exact, however trials are trained. ``result.over_defaults`` has both. It costs no
    epsilon. Of exact means the chance is not known, the best mean is chosen, and
    nothing is claimed.

    *Same clients.* Where a strategy of ``flwr.serverapp`` draws a part of the clients,
    all trials that have the same clients to draw from get the same ones in the same
    round. What else the app draws is its own in each trial.

    *What is handed over.* With `OneTraining` the `main` of the chosen trial runs to its
    own end, and ``result.returned`` is what it returns. In that last part clients keep
    their metrics, as in the trials, unless ``start(..., exact_metrics=True)`` asks for
    them. A client finds the ``context.state`` that its app had in that trial. No client
    evaluates a trial before the end of a rung.

    With ``aggregation`` no ballot reaches the server but masked: clients add the noise,
    and the guarantee holds towards the server. With a roster that the clients pin
    (``fbo-roster`` in the node config) the server may deviate from the protocol in any
    way; without it the server must follow the protocol. It can still choose who takes
    part, stop, and send models of its own making; ``fbo-min-agents`` and its like bound
    the former. A rung is summed once. A sum that may have been unmasked is asked for
    again when a tuner is started again with its ``folder``: clients with an
    ``fbo-folder`` answer as they did. If too few do, the tuner ends with an error.

    Trials take turns in one process. Each has its own random states of Python, NumPy
    and PyTorch, drawn from those that `start` finds: no two trials, nor the training
    after them, draw the same noise. A trial that waits keeps the variables of its
    ``main`` in memory, and its models in a temporary file (``TMPDIR``, on a disk).
    Trials that all clients train share a message only while their models from all
    clients fit into 100 MB. Peak memory of 16 trials over that of one training, 20
    clients, models of 1, 10 and 100 MB: with `OneTraining` 2.40, 1.23 and 1.42 times,
    with `Halving` 2.43, 1.28 and 1.40 (``python -m benchmarks.tuner_memory``).

    *A run that is started again* calls `main` anew. For each round that clients have
    trained it finds the mean of their replies in ``folder/kept``, and asks nobody. Such
    files have the mean model, as the server has it anyway; only their owner can read
    them; they take a model for each round of each trial that is left, and go with the
    trial. So it is with Flower's ``FedAvg``, ``FedProx``, ``FedAvgM``, ``FedAdagrad``,
    ``FedAdam`` and ``FedYogi``, and with subclasses that leave ``start`` and
    ``aggregate_train`` as they are, and have no ``train_metrics_aggr_fn``. Trained
    again from the start are trials of other strategies, with Flower's wrappers for
    privacy or its secure aggregation, of a `main` without a strategy, and of an app
    that keeps anything in a client's ``context.state``; and, but for the first two
    strategies, where the model that training begins with is not the same again.

    With ``folder`` each trial's ``main`` works in ``folder/trial-<number>``, which is
    made anew when the trial begins, so that files which it writes by relative paths are
    its own. Relative paths that it *reads* are looked up there too: open what is read
    by an absolute path. Grid, clients and tuner, and a training after it, work where
    the process does. So does the chosen trial in the last part of `OneTraining`: what
    it has written before is copied there. So do trials without ``folder``, which write
    the same files.
    """

    @takes_plain
    def __init__(
        self,
        space: ConditionalSpace,
        metric: str | Mapping[str, float],
        direction: Direction,
        num_agents: int,
        *,
        privacy: PrivateChoice | None,
        schedule: Schedule | None = None,
        score: ScoreSource = "clients",
        aggregation: SecureAggregation | None = None,
        enqueue: Listed = (),
        seeds: Seeds | None = None,
    ) -> None:
        self._trial_space = TrialSpace.of(space)
        self.space = self._trial_space.space
        check_keys(self.space)
        for key, distribution in self.space.distributions.items():
            if isinstance(distribution, CategoricalDistribution):
                choices = distribution.choices
                is_plain = all(isinstance(c, bool | int | float | str) for c in choices)
                allowed = "numbers, strings and bools, as in a run config"
                require(is_plain, f"space[{key!r}]", choices, allowed)
        metric = dict(metric) if isinstance(metric, Mapping) else metric
        weights = {metric: 1.0} if isinstance(metric, str) else metric
        check_weights("metric", weights)
        require_choice("direction", direction, Direction)
        require_choice("score", score, ScoreSource)
        require_int("num_agents", num_agents, 1)
        schedule = OneTraining() if schedule is None else schedule
        require_instance(
            "schedule", schedule, Schedule, allowed="a OneTraining, or a Halving"
        )
        require_instance(
            "privacy",
            privacy,
            PrivateChoice,
            optional=True,
            allowed="a PrivateChoice, or None: not private",
        )
        seeds = Seeds() if seeds is None else seeds
        require_instance("seeds", seeds, Seeds)
        require(seeds.features is None, "seeds.features", seeds.features, "None")
        enqueue = listed_settings(enqueue, self.space.distributions, "enqueue")
        check_enqueued(self.space, enqueue, schedule.trials)
        self.metric = metric
        self.direction = direction
        self.num_agents = num_agents
        self.schedule: Schedule = schedule
        self.privacy = privacy
        self._enqueue = [dict(params) for params in enqueue]
        self._seeds = seeds
        self._score_source = score
        self._score = Score(weights, direction)
        self._chooser_of = partial(
            make_chooser,
            num_clients=num_agents,
            score=self._score,
            score_source=score,
            privacy=privacy,
            aggregation=aggregation,
            noise_seed=seeds.noise,
        )
        # Now, as it raises where its arguments do not fit together.
        self._chooser = self._chooser_of(schedule.sizes)

    def start(
        self,
        main: Main,
        grid: Grid,
        context: Context,
        *,
        folder: str | Path | None = None,
        study: optuna.Study | None = None,
        callbacks: Sequence[Callback] = (),
        exact_metrics: bool = False,
    ) -> FederationResult:
        """Run the trials, choose, and train the chosen trial to its end.

        Parameters
        ----------
        main : callable
            The app's own, from Grid and context; called once per trial. It may raise an
            exception, or end without an evaluation at the clients: then the trial has
            failed, and is worse than all that have not. So has a trial whose training
            diverges, or fails at all clients in a round. With `OneTraining` it is
            called once or twice more, and ended before its first message, to learn how
            the app trains; what it returns in the chosen trial is ``result.returned``.
        grid : Grid
            The Grid that the ServerApp gets.
        context : Context
            The context of the ServerApp.
        folder : str or Path, optional
            An absolute path of a folder for this tuner alone, which keeps what it has
            released. A run that is killed can be started again with it: rungs that are
            decided stay so, and no rung is released twice. Trials go on after their
            last round where this gives the same model, and are trained again elsewhere:
            see the notes of the class. A run config with another value of any key is
            refused: it is of another training. It has each trial's working directory,
            too.
        study : optuna.Study, optional
            A study whose sampler proposes the settings, in place of a Latin hypercube,
            as many as share a send, from the scores of those before; trials that are
            enqueued in it are not allowed. It shows the trials as they go on, in its
            own storage: those that do not survive are pruned. It needs exact scores:
            ``privacy`` is None.
        callbacks : list or tuple of Callback
            Objects that are told of each rung and of the result. See `Callback`.
        exact_metrics : bool
            Whether clients send their metrics in the last part of a `OneTraining`,
            after the choice. They are not covered by epsilon then, and a site with
            limits still hides them. Where `main` ends with the last rung, as it may
            with few clients and few rounds, there is no such part.

        Raises
        ------
        ValueError
            If an argument is not allowed, if a key of the space is not in the run
            config, if more than ``num_agents`` nodes are there when the tuner begins,
            or if ``main`` does not evaluate at the clients in any trial of a rung.
        AggregationError
            If no client has a finite score, or too few give a ballot. With ``privacy``
            the server learns it from what a rung releases, see `PrivateChoice`.
        TrainingFailedError
            If training diverged, or failed at all clients, in all trials of a rung.
        JournalError
            If the folder cannot be used, or holds a tuner of other settings.
        Exception
            What ``main`` has raised, if no trial of a rung can be compared, or in the
            chosen trial after the choice.

        Returns
        -------
        FederationResult
            Where the folder holds one that is complete, nobody is asked anything, and
            ``returned`` is None.
        """
        require_function("main", main, "a function of grid and context")
        require_bool("exact_metrics", exact_metrics)
        allowed = (
            "that of a federation. This is a trial of another tuner, whose app tunes "
            "itself: give that tuner, or `flwr-fbo tune`, the app without a tuner"
        )
        require(not isinstance(grid, TrialGrid), "grid", grid, allowed)
        folder, callbacks = check_folder("folder", folder), check_callbacks(callbacks)
        if study is not None:
            check_study(study, self.direction)
            allowed = "None with a study: its sampler learns from exact scores"
            require(self.privacy is None, "privacy", self.privacy, allowed)
        defaults = app_defaults(self.space, context.run_config)
        # A tuner that goes on has its nodes, and its warnings, from before.
        is_new = not has_begun(folder)
        if is_new:
            self._check_nodes(grid)
        # A folder goes on only with the same settings: its rungs were decided for them.
        identity = self._identity(defaults, has_study=study is not None)
        with TrialsRecord(folder, identity, _PATIENCE) as record:
            record.check_app(self._app_of(grid, context), ignored=[str(folder)])
            candidates = self._candidates(
                record, defaults, is_proposed=study is not None
            )
            plan = plan_of(record.journal)
            if plan is None:  # settled before the first message
                app = Federation(main, grid, context)
                first_folder = folder and folder / f"{THREAD_NAME}0"
                plan = self._planned(app, candidates, first_folder)
                record.save(PLAN, to_json(plan))
            # Epsilon is shared by the rungs that there are: the plan may have fewer.
            sizes = plan.sizes
            chooser = self._chooser_of(sizes)
            if is_new and self.privacy is not None:
                if self._chooser.examples is not None:
                    _log.info(examples_needed(sizes, self.privacy))
                elif few := too_few_voices(sizes, self.num_agents, self.privacy):
                    _log.warning(few)
            ledger = record.journal.ledger()
            # What decided rungs say was logged by an earlier run: it is said again.
            for row in ledger:
                chooser.say_of(row, sizes)
            num_decided = len(ledger)
            _say(plan, chooser, num_decided, folder)
            # Seeds are not public.
            public = {k: v for k, v in identity.items() if k != "noise_seed"}
            started = Started(
                record.name(),
                FederationTuner.__name__,
                public,
                num_decided,
                terms_of(recorded_spent(identity, ledger)),
            )
            tell(callbacks, "on_start", started)
            returned = None
            # A run may have been killed after the choice, and before its training
            # ended.
            is_ended = stored(record.journal, HANDED_OVER) is not None
            is_left = plan.hands_over and not is_ended
            if num_decided < len(plan.rungs) or is_left:
                proposed = None
                if study is not None:
                    proposed = ProposedTrials(study, self._trial_space, record.name())
                run = TrialRun(
                    app=Federation(main, grid, context),
                    candidates=candidates,
                    plan=plan,
                    chooser=chooser,
                    score=self._score,
                    record=record,
                    callbacks=callbacks,
                    proposed=proposed,
                )
                try:
                    returned = run.climb(exact_metrics)
                except BaseException as error:
                    tell_of_end(callbacks, record.name(), folder, error)
                    raise
                finally:
                    end_of_faults()
            result = recorded_result(record.journal, chooser.trust)
        result = replace(result, returned=returned)
        _log.info("chosen: %s; the app's defaults %s", result.best, result.verdict)
        tell(callbacks, "on_end", result)
        return result

    def _app_of(self, grid: Grid, context: Context) -> dict[str, Any]:
        """Return what all trainings of a tuner have in common, by name."""
        tuned = self.space.distributions
        return {
            "app": f"{grid.run.fab_id} {grid.run.fab_version}".strip(),
        } | {
            f"run_config[{key!r}]": value
            for key, value in context.run_config.items()
            if key not in tuned
        }

    def _candidates(
        self, record: TrialsRecord, defaults: Params, is_proposed: bool
    ) -> Candidates:
        """Return the settings of all trials, as far as they are known.

        A sampler proposes the others later, if ``is_proposed``.
        """
        seed = fresh_seed() if self._seeds.study is None else self._seeds.study
        space, recorded = self._trial_space, recorded_settings(record.journal)
        found = Candidates(space, self.schedule.trials, defaults, self._enqueue, seed)
        for settings in recorded:
            found.add(settings)
        # They are drawn once: a run that goes on has the same trials.
        if not recorded:
            if not is_proposed:
                found.fill()
            record.save(SETTINGS, found.settings)
            warn_outside(space, defaults)
        if found.num_trials < self.schedule.trials:
            _log.warning(
                "%d distinct settings are all that there are: so many trials, and not "
                "%d.",
                found.num_trials,
                self.schedule.trials,
            )
        return found

    def _planned(
        self, app: Federation, candidates: Candidates, folder: Path | None
    ) -> Plan:
        """Return how the trials are trained; `main` may write files into the folder."""
        # A schedule that does not depend on the app needs no call of main.
        shape = AppShape(len(list(app.grid.get_node_ids())))
        if self.schedule.is_shaped:
            settings = candidates.settings[0]
            shape = app_shape(
                self.schedule, app.main, app.grid, app.context, settings, folder
            )
        return self.schedule.plan(candidates.num_trials, shape)

    def plan(self, main: Main, grid: Grid, context: Context) -> Plan:
        """Return how the trials would be trained; no message is sent.

        Parameters
        ----------
        main : callable
            The app's own. It is called, and ended before its first message.
        grid : Grid
            The Grid that the ServerApp gets.
        context : Context
            The context of the ServerApp.

        Raises
        ------
        ValueError
            If a key of the space is not in the run config.
        """
        require_function("main", main, "a function of grid and context")
        defaults = app_defaults(self.space, context.run_config)
        space, num = self._trial_space, self.schedule.trials
        warn_outside(space, defaults)
        candidates = Candidates(space, num, defaults, self._enqueue, seed=0)
        app = Federation(main, grid, context)
        with tempfile.TemporaryDirectory() as folder:  # main may write files
            return self._planned(app, candidates, Path(folder) / "0")

    def _check_nodes(self, grid: Grid) -> None:
        num_nodes = len(list(grid.get_node_ids()))
        allowed = f"at least the {num_nodes} nodes that are connected"
        require(num_nodes <= self.num_agents, "num_agents", self.num_agents, allowed)
        if num_nodes < self.num_agents and self._chooser.adds_noise:
            _log.warning(
                "num_agents=%d, and %d nodes are connected so far: fewer ballots with "
                "the same noise are a less certain choice.",
                self.num_agents,
                num_nodes,
            )

    def _identity(self, defaults: Params, has_study: bool) -> dict[str, Any]:
        """Return what may not change while the tuner goes on, as JSON values."""
        identity = {
            "space": self.space.to_json(),
            "conditions": self._trial_space.conditions,
            "metric": self.metric,
            "score": self._score_source,
            "direction": self.direction,
            "num_agents": self.num_agents,
            "schedule": type(self.schedule).__name__,
            **self.schedule.identity(),
            "sizes": self.schedule.sizes,
            "privacy": None if self.privacy is None else asdict(self.privacy),
            "noise_seed": self._seeds.noise,
            "defaults": defaults,
            "enqueue": self._enqueue,
            "study": has_study,
            **self._chooser.identity(),
        }
        plain: dict[str, Any] = json.loads(json.dumps(identity))
        return plain


def _say(plan: Plan, chooser: Chooser, num_decided: int, folder: Path | None) -> None:
    """Log what is about to happen, and what is not private about it."""
    rungs = plan.rungs
    _log.info(
        "FederationTuner: %s, %d at a time",
        ", ".join(f"{r.num_trials} trials to round {r.rounds}" for r in rungs),
        plan.parallel,
    )
    if plan.hands_over:
        last = rungs[-1].rounds
        _log.info(
            "The rungs take %d rounds of the app%s; then the chosen trial is trained "
            "from round %d to %s.",
            plan.num_rung_rounds,
            "" if not plan.is_shared else ", in which trials share the clients out",
            last,
            "its end" if plan.num_rounds is None else f"{plan.num_rounds}",
        )
        if plan.reason:
            _log.warning(
                "%s, which takes longer than one training, and costs more epsilon "
                "where training is charged: %s.",
                NOT_SHARED,
                plan.reason,
            )
        elif plan.num_rounds is None and plan.num_rung_rounds > last:
            _log.warning(
                "The app trains for its own number of rounds after the rungs, %d more "
                "in all than without a tuner: no key of the run config has that "
                "number.",
                plan.num_rung_rounds - last,
            )
    chooser.say()
    if chooser.adds_noise:
        _log.info(  # as it has to be
            "Metrics stay at the clients while trials are compared: the server sees "
            "NaN for each. num-examples of a reply to train is exact at the server."
        )
    if chooser.examples is not None:
        _log.info("num-examples of the replies to evaluate is exact there, too.")
    if num_decided:
        what = "is complete" if num_decided == len(rungs) else "goes on"
        _log.warning(
            "The tuner in %s %s: %d of %d rungs are decided, and stay so.",
            folder,
            what,
            num_decided,
            len(rungs),
        )
