"""``flwr-fbo tune APP``: the settings of an app, tuned without a change to its files.

In this process the app's own server and client are called as they are. Where a
federation is named, a bundle in which one more module wraps them is run there.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shlex
import subprocess
import sys
import time
import tomllib
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from flwr_fbo._common.files import make_folder
from flwr_fbo._common.validation import (
    is_number,
    nearest,
    refuse,
    require,
    require_int,
    require_known,
)
from flwr_fbo._compat import parsed_config
from flwr_fbo.cli.commands import AsJson
from flwr_fbo.cli.output import columns_of, echo, json_of, plain_errors, wrapped
from flwr_fbo.cli.run_config import flat, short_values, write_run_config
from flwr_fbo.cli.tune_bundle import write_bundle
from flwr_fbo.cli.tune_progress import tuning_log
from flwr_fbo.cli.tune_record import (
    changed_files,
    note_files,
    note_written,
    record_folder,
    spent_before,
)
from flwr_fbo.cli.tune_search import (
    left_out,
    proposed_search,
    search_space,
)
from flwr_fbo.cli.tune_summary import (
    DryRun,
    Summary,
    changed_in_words,
    earlier_in_words,
)
from flwr_fbo.grid import InProcessGrid
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.privacy.accounting import PrivacySpent
from flwr_fbo.privacy.guarantee import Protects, large_delta
from flwr_fbo.space.search_space import SearchSpace
from flwr_fbo.tuner.candidates.candidates import warn_outside
from flwr_fbo.tuner.first_round import FirstRound
from flwr_fbo.tuner.own_app import AppError, OwnApp, with_tuner_mod
from flwr_fbo.tuner.plain_training import plain_training
from flwr_fbo.tuner.records.trials_record import (
    FILE_NAME,
    has_begun,
    has_ended,
    plan_of,
    recorded_result,
    save_plain,
)
from flwr_fbo.tuner.tune_settings import TuneSettings, save_model, server_context

_log = logging.getLogger("flwr.fbo")

_NUM_SUPERNODES = 20
# A larger delta would allow to publish one of a thousand examples.
_MOST_DELTA_OF_EXAMPLES = 1e-4

Direction = Literal["maximize", "minimize"]
Score = Literal["clients", "server"]

_SMALLER = {"loss", "rmse", "mse", "mae", "mape", "error", "err", "perplexity", "nll"}
_LARGER = {"accuracy", "acc", "auc", "auroc", "f1", "precision", "recall", "r2", "iou"}
_LARGER |= {"dice", "bleu", "kappa", "mcc", "map"}

# Keys of [tool.flwr-fbo.tune].
_KEYS = {
    *("metric", "direction", "search", "epsilon", "delta", "score", "trials"),
    *("num-supernodes", "federation", "seed"),
    *("protects", "metric-range", "max-examples"),
}


def tune(
    app: Annotated[Path, typer.Argument()] = Path(),
    metric: Annotated[
        str | None,
        typer.Option(help="Name of the score, as the app's clients report it."),
    ] = None,
    direction: Annotated[
        Direction | None,
        typer.Option(
            help="Of the metric; known for accuracy, auc, f1, loss, rmse, ..."
        ),
    ] = None,
    search: Annotated[
        list[str] | None,
        typer.Option(
            help="KEY=LOW..HIGH, KEY=LOW..HIGH:log or KEY=a,b,c; KEY is one of the run "
            "config. Once for each key."
        ),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(help="Makes the choice private. Without it nothing is hidden."),
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(
            help="1e-3 by default, at most 1/(10 N) for N sites, and .005; 1e-5 where "
            "one example is protected."
        ),
    ] = None,
    protects: Annotated[
        Protects | None,
        typer.Option(
            help="Whom epsilon protects: a client (default), or one validation "
            "example. Then the metric must be a mean over num-examples of values in "
            "--metric-range."
        ),
    ] = None,
    metric_range: Annotated[
        str | None,
        typer.Option(
            help="LOW..HIGH of one example's value, which the app clips; 0..1 by "
            "default. With --protects example. Sites allow another range by "
            "fbo-metric-range in their node config."
        ),
    ] = None,
    max_examples: Annotated[
        int | None,
        typer.Option(
            help="Examples with which a site counts at most: 10000. With --protects "
            "example."
        ),
    ] = None,
    score: Annotated[
        Score | None,
        typer.Option(
            help="Who scores: the clients that evaluate (default), or the server, by "
            "the evaluate_fn of its strategy or by means of what clients report."
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            help="Settings that are tried: 16, and fewer in a short training."
        ),
    ] = None,
    num_supernodes: Annotated[
        int | None,
        typer.Option(
            help="Sites, simulated here or on the engine; by default those of the "
            "app's federation, or 20."
        ),
    ] = None,
    federation: Annotated[
        str | None,
        typer.Option(
            help="SuperLink connection to run at, as `flwr run APP NAME`. Without it "
            "the app runs in this process."
        ),
    ] = None,
    run_config: Annotated[
        list[str] | None,
        typer.Option("--run-config", "-c", help="Other defaults, as for `flwr run`."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(help="Record of the tuning; by default in ~/.flwr-fbo/tune."),
    ] = None,
    write: Annotated[
        bool,
        typer.Option("--write", help="Write the chosen values into pyproject.toml."),
    ] = False,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="Train the app with its own settings, too: twice the cost. In this "
            "process only.",
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Say what it would do, cost and be sure of."),
    ] = False,
    bundle_only: Annotated[
        bool,
        typer.Option("--bundle-only", help="Write the bundle for review; run nothing."),
    ] = False,
    seed: Annotated[
        int | None, typer.Option(help="Makes the settings that are tried repeat.")
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Show Flower's own log, too.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Tune the settings of a Flower app; no line of the app is changed.

    APP is the app's folder; the current one by default. Its server and clients run as
    they are: many settings are tried inside one training, and the best one is trained
    to the end. The options may stand in pyproject.toml, below [tool.flwr-fbo.tune], as
    `metric = "accuracy"` and `search = {learning-rate = "1e-4..1:log"}`.

    Ctrl-C, and the same command again, goes on. Without --search it proposes one.

    Examples
    --------
    $ flwr-fbo tune my-app --metric accuracy --search learning-rate=1e-4..1:log
    $ flwr-fbo tune my-app --metric loss --search optimizer=sgd,adam --epsilon 2
    $ flwr-fbo tune my-app --metric accuracy --search local-epochs=1..8 --dry-run
    """
    with plain_errors(ValueError, JournalError, AppError):
        own = OwnApp.read(app)
        values = parsed_config(run_config) if run_config else {}
        for key in values:
            require_known("run_config", key, own.run_config)
        own = replace(own, run_config={**own.run_config, **values})
        given = _given(
            own,
            metric=metric,
            direction=direction,
            search=_by_key(search or []),
            epsilon=epsilon,
            delta=delta,
            score=score,
            trials=trials,
            num_supernodes=num_supernodes,
            federation=federation,
            seed=seed,
            protects=protects,
            metric_range=metric_range,
            max_examples=max_examples,
        )
        if not given["search"]:
            _propose(app, own, given)
            raise typer.Exit(2)
        job = _job(app, own, given, folder, values)
        is_bundle = bool(given["federation"] or bundle_only) and not dry_run
        allowed = "left out where the app runs elsewhere"
        require(not (compare and is_bundle), "compare", compare, allowed)
        if is_bundle:
            _run_bundle(job, given["federation"], bundle_only, as_json, write)
            return
        # What the app prints is not the command's result.
        with tuning_log(verbose), redirect_stdout(sys.stderr):
            found = _run_here(job, compare, dry_run)
        if found is None:
            _report(job, as_json, write)
        elif as_json:
            typer.echo(json_of(found.values()))
        else:
            for line in found.lines():
                echo(line)


@dataclass(frozen=True)
class _Job:
    """One tuning: the app, how, and where its record is.

    Without a direction that is known, the settings have any. ``is_guess``: that of the
    number of sites; nobody has given it.
    """

    path: Path
    app: OwnApp
    settings: TuneSettings
    folder: Path
    has_direction: bool
    is_guess: bool = False

    @property
    def earlier(self) -> list[PrivacySpent]:
        """What each other private tuning of this app has spent."""
        return spent_before(self.app.folder, self.folder)

    @property
    def defaults(self) -> dict[str, Any]:
        """The app's own values of the keys that are tuned."""
        keys = SearchSpace.from_json(self.settings.space).distributions
        return {key: self.app.run_config[key] for key in keys}

    @property
    def changed(self) -> list[str]:
        """Files of the app that have changed since the tuning began, in words."""
        return changed_files(self.app.folder, self.folder)

    def check_direction(self) -> None:
        """Raise ValueError if it has to be asked for."""
        metric = self.settings.metric
        allowed = f"minimize or maximize: it does not follow from the name {metric!r}"
        require(self.has_direction, "direction", None, allowed)


def _by_key(search: list[str]) -> dict[str, str]:
    """Return what options search, by key."""
    found = {}
    for one in search:
        key, sign, text = one.partition("=")
        is_pair = bool(key.strip() and sign and text.strip())
        require(is_pair, "search", one, "KEY=LOW..HIGH, KEY=LOW..HIGH:log or KEY=a,b,c")
        require(key.strip() not in found, "search", one, "once for each key")
        found[key.strip()] = text
    return found


def _given(own: OwnApp, **options: Any) -> dict[str, Any]:
    """Return each option: as on the command line, or else as in pyproject.toml."""
    table = own.options
    require(isinstance(table, dict), "[tool.flwr-fbo.tune]", table, "a table")
    for key in table:
        require_known("[tool.flwr-fbo.tune]", key, _KEYS)
    listed = table.get("search", {})
    if isinstance(listed, list):
        listed = _by_key([str(one) for one in listed])
    require(isinstance(listed, dict), "search", listed, "a table, or a list of texts")
    written = {key: _as_text(value) for key, value in flat(listed).items()}
    values = {
        name: table.get(name.replace("_", "-")) if value is None else value
        for name, value in options.items()
    }
    return {**values, "search": {**written, **options["search"]}}


def _as_text(value: Any) -> str:
    if isinstance(value, list):
        words = [str(v).lower() if isinstance(v, bool) else str(v) for v in value]
        return ",".join(words)
    return str(value)


def _propose(path: Path, own: OwnApp, given: dict[str, Any]) -> None:
    """Print a search for the numbers of the run config; nothing is run."""
    found = proposed_search(own.run_config)
    if not found:
        keys = sorted(own.run_config)
        allowed = (
            "KEY=a,b for texts and bools, or numbers in the run config: none of "
            f"{keys} is a number that looks like a setting. Values of the app's code "
            "can be tuned once they are read from there"
        )
        refuse("search", None, allowed)
    typer.echo("No --search: these numbers of the run config could be tuned.")
    for key, text in found.items():
        typer.echo(f"  {key} = {own.run_config[key]}: try {text}")
    echo(
        "Each range is around the app's own value. If that is far off, so is the "
        "range: widen it where you are not sure."
    )
    if others := left_out(own.run_config):
        echo(
            "Left out are texts, whose other values are not known, and bools. Those "
            "that change the training you can add:"
        )
        for key, text in others.items():
            typer.echo(f"  --search {shlex.quote(f'{key}={text}')}")
    guess = "" if given["metric"] else ", give your metric in place of accuracy"
    echo(f"Take out what you do not want to tune{guess}, and run:")
    options = {**given, "metric": given["metric"] or "accuracy", "search": None}
    words = [
        f"--{name.replace('_', '-')} {shlex.quote(str(value))}"
        for name, value in options.items()
        if value is not None
    ]
    words += [f"--search {shlex.quote(f'{k}={text}')}" for k, text in found.items()]
    typer.echo(f"  flwr-fbo tune {path} {' '.join(words)}")


def _job(
    path: Path,
    own: OwnApp,
    given: dict[str, Any],
    folder: Path | None,
    values: dict[str, Any],
) -> _Job:
    """Return what is to be done; each setting is checked before any work.

    ``values`` are those of the run config that the command line has given.
    """
    space = search_space(given["search"], own.run_config)
    num = given["num_supernodes"]
    if num is None:
        is_elsewhere = given["federation"] is not None
        allowed = "given with --federation: how many sites there are"
        require(not is_elsewhere, "num_supernodes", num, allowed)
        num = own.num_supernodes or _NUM_SUPERNODES
    is_guess = given["num_supernodes"] is None and own.num_supernodes is None
    require_int("num_supernodes", num, 1)
    metric = given["metric"]
    if metric is not None:
        is_name = isinstance(metric, str) and metric != ""
        require(is_name, "metric", metric, "a name")
    direction = given["direction"] or (metric and _direction_of(metric))
    settings = TuneSettings(
        space=SearchSpace(space).to_json(),
        metric=metric or "?",
        direction=direction or "maximize",
        num_agents=num,
        epsilon=given["epsilon"],
        delta=given["delta"],
        score=given["score"] or "clients",
        trials=16 if given["trials"] is None else given["trials"],
        seed=given["seed"],
        protects=given["protects"] or "client",
        metric_range=_range_of(given["metric_range"]),
        max_examples=given["max_examples"],
    )
    if settings.epsilon is None:
        for name in ("protects", "metric_range", "max_examples"):
            allowed = "left out, without epsilon"
            require(given[name] is None, name, given[name], allowed)
    if given["delta"] is not None:
        require(
            settings.epsilon is not None, "delta", settings.delta, "given with epsilon"
        )
        # A larger one allows that a client's scores are published as they are.
        most = large_delta(num)
        allowed = f"at most {most:.3g} for {num} sites: 1/(10 N), and .005"
        if settings.protects == "example":  # each site has a hundred, or more
            most = _MOST_DELTA_OF_EXAMPLES
            allowed = f"at most {most:g}, where one example is protected"
        is_small = is_number(settings.delta) and settings.delta <= most
        require(is_small, "delta", settings.delta, allowed)
    if settings.score == "server":
        allowed = "left out with --score server: no score of a client is released"
        require(settings.epsilon is None, "epsilon", settings.epsilon, allowed)
    settings.tuner()  # raises ValueError where a setting is not allowed
    if folder is None:  # one for each app and its settings
        about = settings.to_json()
        if values:
            about += json.dumps(values, sort_keys=True)
        folder = record_folder(own.folder, about)
    _warn_of(settings, direction)
    has_direction = direction is not None
    return _Job(path, own, settings, folder.absolute(), has_direction, is_guess)


def _range_of(text: str | None) -> tuple[float, float] | None:
    """Return the ends of a range such as ``0..1``; None where none is given."""
    if text is None:
        return None
    low, _, high = str(text).partition("..")
    try:
        return float(low), float(high)
    except ValueError:
        allowed = "LOW..HIGH, such as 0..1"
        raise ValueError(f"metric_range={text!r} is not allowed: {allowed}.") from None


def _warn_of(settings: TuneSettings, direction: Direction | None) -> None:
    """Warn of what is allowed, and hardly ever meant."""
    usual = _direction_of(settings.metric)
    if None not in (usual, direction) and usual != direction:
        _warn(
            f"--direction {direction}: a name like {settings.metric} usually asks for "
            f"{usual}. The settings with the worst score would be chosen."
        )
    for key in SearchSpace.from_json(settings.space).distributions:
        if "seed" in key.lower():
            _warn(
                f"{key} is searched: the best seed is one that was lucky, and says "
                "nothing of another training."
            )


def _warn(text: str) -> None:
    typer.echo(wrapped(f"Warning: {text}", columns_of(sys.stderr)), err=True)


def _direction_of(metric: str) -> Direction | None:
    """Return the direction of a metric with a known name; None of others."""
    words = set(metric.lower().replace("-", "_").replace(" ", "_").split("_"))
    words |= set(metric.lower().replace("/", "_").split("_"))
    is_smaller, is_larger = bool(words & _SMALLER), bool(words & _LARGER)
    if is_smaller == is_larger:
        return None
    return "minimize" if is_smaller else "maximize"


def _run_here(job: _Job, compare: bool, dry_run: bool) -> DryRun | None:
    """Tune the app in this process; a dry run returns what it would do."""
    typer.echo("reading the app ...", err=True)
    own, settings = job.app, job.settings
    main, client = own.main(), own.client_app()
    context = server_context(own.run_config)
    num, config = settings.num_agents, own.run_config
    grid = InProcessGrid(with_tuner_mod(lambda: client), num, run_config=config)
    if dry_run:
        plan = settings.tuner().plan(main, grid, context)
        return DryRun(settings, plan, job.is_guess, compare, job.earlier)
    path = job.folder / FILE_NAME
    if has_begun(job.folder):
        if has_ended(path):
            text = f"This tuning has ended before. Remove {job.folder} to tune anew"
            if settings.epsilon is not None:
                text += ": that is another release, and their epsilons add up"
            typer.echo(f"{text}.", err=True)
        if _is_answered(job):
            return None
        if job.changed and not has_ended(path):
            _log.warning("%s", changed_in_words(job.changed, job.folder))
        allowed = "left out where the app's files have changed since the tuning"
        require(not (compare and job.changed), "compare", compare, allowed)
    if not has_begun(job.folder) or not job.has_direction:
        warn_outside(settings.trial_space, job.defaults)
        first = FirstRound.of(
            main, InProcessGrid(client, num, run_config=config), context
        )
        _check_first_round(job, first)
        job.check_direction()
        if compare and settings.epsilon is not None:
            _check_comparable(job, FirstRound.hidden(main, grid, context))
        if settings.epsilon is not None and job.earlier:
            _warn(earlier_in_words(job.earlier))
    make_folder(job.folder)
    note_files(own.folder, job.folder)
    began = time.time()
    try:
        result = settings.tuner().start(main, grid, context, folder=job.folder)
    except KeyboardInterrupt:
        text = "Stopped. The same command goes on after the last rung that was decided."
        typer.echo(text, err=True)
        raise
    except JournalError as error:
        text = f"{error} To begin anew, remove {job.folder}, or pass another --folder."
        raise AppError(text) from error
    except ValueError:
        raise
    except Exception as error:  # the app's own, or that of its clients
        text = f"The app has failed: {type(error).__name__}: {error}"
        raise AppError(text) from error
    save_model(result, job.folder)
    note_written(job.folder, began)
    if compare:
        _compare(job)
    return None


def _is_answered(job: _Job) -> bool:
    """Return whether the record has a choice of which the values are the app's now.

    Raises
    ------
    ValueError
        If the app has yet other values than when the tuning began.
    """
    with Journal.snapshot(job.folder / FILE_NAME) as journal:
        before = journal.identity["defaults"]
        result = recorded_result(journal)
    if job.defaults == before:
        return False
    is_chosen = result.rungs and result.is_decided
    if is_chosen and job.defaults in (result.best, short_values(result.best)):
        text = "The values that it has chosen are the app's own now: they were written."
        typer.echo(text, err=True)
        return True
    values = ", ".join(f"{key}={before[key]}" for key in before)
    raise ValueError(
        f"The app's own values have changed since this tuning began: they were {values}"
        f". Put them back, remove {job.folder}, or pass another --folder."
    )


def _check_comparable(job: _Job, first: FirstRound) -> None:
    """Raise ValueError if nothing that is known with privacy tells the two apart."""
    metric = job.settings.metric
    if not math.isfinite(first.values.get(metric, math.nan)):
        raise ValueError(
            f"--compare must be left out with --epsilon: {metric} stays at the clients"
            ", so no score could be compared. An evaluate_fn of the server's strategy "
            "that measures it would show it"
        )


def _compare(job: _Job) -> None:
    """Train the app with its own settings, and put on record how that went."""
    main, client = job.app.main(), job.app.client_app()
    num, config = job.settings.num_agents, job.app.run_config
    path = job.folder / FILE_NAME
    with Journal.snapshot(path) as journal:
        result = recorded_result(journal)
    if result.plain:
        return
    measured = result.measured.get(result.best_trial, {}).values()
    if not any(job.settings.metric in metrics for metrics in measured):
        typer.echo("Nothing to compare: the metric stays at the clients.", err=True)
        return
    typer.echo("the app is trained with its own settings, to compare", err=True)
    grid = InProcessGrid(with_tuner_mod(lambda: client), num, run_config=config)
    is_hidden = job.settings.epsilon is not None
    context = server_context(config)
    save_plain(path, plain_training(main, grid, context, is_hidden=is_hidden))


def _check_first_round(job: _Job, first: FirstRound) -> None:
    """Raise unless all sites work and report the metric; it says what to pass."""
    settings, failed = job.settings, first.failed
    working = first.answered - failed
    # The last sites fail, and others do not: there are too many.
    if failed and working and max(working) < min(failed):
        raise AppError(
            f"{len(failed)} of {settings.num_agents} sites fail in the first round, "
            f"those from partition-id {min(failed)} on ({first.error}). Has the app "
            f"data for {min(failed)} clients? Then pass --num-supernodes {min(failed)}"
        )
    known = first.server if settings.score == "server" else first.evaluate
    metric, is_server = settings.metric, settings.score == "server"
    if first.error and not known:
        raise AppError(f"No client could answer in the first round: {first.error}")
    if first.failure is not None:
        text = f"{type(first.failure).__name__}: {first.failure}"
        if "the server waits for " in text:
            text += ". --num-supernodes sets how many sites there are"
        raise AppError(f"The app has failed in its first round: {text}")
    if metric in known:
        return
    if is_server:
        refuse("metric", metric, f"what the server knows, {nearest(metric, known)}")
    if known:
        asked = None if metric == "?" else metric
        refuse("metric", asked, f"what clients report, {nearest(metric, known)}")
    if first.server:
        own = sorted(first.server - first.train)
        names = own or sorted(first.server)
        text = "reports" if own else "only knows, from replies to train,"
        refuse(
            "score",
            "clients",
            f"server: no client evaluates, and the server {text} {names}. Pass --score "
            f"server --metric {names[0]}",
        )
    if not first.has_trained:
        raise ValueError(
            "Nothing is trained: the server sends no message of type train to a "
            "client, so no setting of a training can be tuned. Where it computes "
            "something else with clients, let the function at @app.main return a "
            "number, and pass --score server"
        )
    if first.has_evaluated:
        refuse("metric", metric, "a number in the reply to evaluate: it has none")
    train = f" Clients report {sorted(first.train)} for train." if first.train else ""
    raise ValueError(
        f"Nothing scores the models: no client is asked to evaluate.{train} Let "
        "clients evaluate (FedAvg(fraction_evaluate=1.0), and an evaluate function "
        "that reports a number); or give the strategy an evaluate_fn, or let the "
        "function at @app.main return a number, and pass --score server"
    )


def _report(job: _Job, as_json: bool, write: bool) -> None:
    """Print what the record has, and what follows from it."""
    with Journal.snapshot(job.folder / FILE_NAME) as journal:
        result, plan = recorded_result(journal), plan_of(journal)
        before = journal.identity["defaults"]
    about = job.path, job.folder, job.settings, before
    summary = Summary(*about, result, plan, job.changed, job.earlier)
    if as_json:
        typer.echo(json_of(summary.values()))
    else:
        for line in summary.lines():
            echo(line)
    chosen = short_values(result.best)
    if write and job.defaults not in (result.best, chosen):
        write_run_config(job.app.folder / "pyproject.toml", chosen)
        typer.echo(f"Wrote them into {job.path / 'pyproject.toml'}.", err=as_json)


def _run_bundle(
    job: _Job, federation: str | None, bundle_only: bool, as_json: bool, write: bool
) -> None:
    """Write the bundle, and run it at a federation as ``flwr run`` would."""
    if job.settings.metric == "?":
        refuse("metric", None, "given with --federation: as the clients report it")
    job.check_direction()
    if has_begun(job.folder) and not bundle_only and _is_answered(job):
        _report(job, as_json, write)
        return
    with tuning_log(verbose=False):
        warn_outside(job.settings.trial_space, job.defaults)
    make_folder(job.folder)
    note_files(job.app.folder, job.folder)
    bundle = write_bundle(job.app, job.settings, job.folder)
    command = ["flwr", "run", str(bundle), *([federation] if federation else [])]
    if _is_simulated(federation):
        number = f"num-supernodes={job.settings.num_agents}"
        command += ["--federation-config", number]
    command.append("--stream")
    typer.echo(f"Wrote the bundle: {bundle}", err=as_json)
    if bundle_only:
        typer.echo("It is the app as it is, and flwr_fbo_tune.py around it. Sites that")
        typer.echo("run reviewed apps only put it on their list:")
        typer.echo(f"  flwr build --app {shlex.quote(str(bundle))}")
        typer.echo("  flwr-fbo trust NAME.fab /etc/fbo/trusted-apps")
        typer.echo("Then run it; with another search or epsilon it is another bundle:")
        typer.echo(f"  {shlex.join(command)}")
        return
    # Of a simulation on this machine: with what is installed here, as this command.
    environment = {"FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", **os.environ}
    done = subprocess.run(command, stdout=sys.stderr, env=environment, check=False)
    if done.returncode != 0:
        raise AppError(f"`{shlex.join(command)}` has ended with {done.returncode}")
    if not has_begun(job.folder):
        typer.echo(
            "The record is at the SuperLink, not here: its log above has the result, "
            f"and `flwr-fbo show {job.folder}` there.",
            err=as_json,
        )
        return
    _report(job, as_json, write)


def _is_simulated(federation: str | None) -> bool:
    """Return whether a SuperLink connection starts a simulation on this machine."""
    home = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")
    try:
        links = tomllib.loads((home / "config.toml").read_text())["superlink"]
    except (OSError, KeyError, tomllib.TOMLDecodeError):
        return federation in (None, "local")  # as Flower's own file has it
    name = links.get("default") if federation is None else federation
    link = links.get(name, {})
    return str(link.get("address", "")).startswith(":local")
