"""``flwr-fbo privacy``: what a study would spend, before it starts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Context
from typing import Annotated, Any, get_args

import typer
from optuna.distributions import FloatDistribution
from rich.console import Console
from rich.table import Table

from flwr_fbo._common.text import counted
from flwr_fbo._common.validation import require, require_int, require_number
from flwr_fbo.cli.commands import AsJson
from flwr_fbo.cli.output import RULED, json_of, plain_errors
from flwr_fbo.privacy.accounting import (
    Method,
    ReleaseAccountant,
    smallest_noise_multiplier,
)
from flwr_fbo.privacy.guarantee import (
    CLIENT,
    Guarantee,
    Protects,
    default_delta,
    delta_warning,
    profile_text,
)
from flwr_fbo.privacy.noise import SeededEntropy
from flwr_fbo.privacy.release import Release, ReleaseSettings
from flwr_fbo.privacy.training import plan_training
from flwr_fbo.strategies.fed_vote import FedVote
from flwr_fbo.strategies.fed_warm_start import FedWarmStart
from flwr_fbo.strategies.presets import preset_of, private_strategies
from flwr_fbo.strategies.privacy_options import Privacy
from flwr_fbo.strategies.release_plan import require_below
from flwr_fbo.strategies.seeds import Seeds
from flwr_fbo.study.kinds import kinds, load
from flwr_fbo.study.report.plan import StudyPlan
from flwr_fbo.tuner.private_choice import PrivateChoice
from flwr_fbo.tuning.fed_vote.settings import FedVoteSettings
from flwr_fbo.tuning.fed_vote.vote_schedule import GUIDING
from flwr_fbo.tuning.fed_warm_start.settings import (
    FedWarmStartSettings,
    num_pioneers,
)

HEADINGS = {
    "published": "published noise,\npublished sensitivity",
    "exact": "published noise,\nexact sensitivity",
    "default": "default noise,\nexact sensitivity",
}
# How the strategies of other kinds are planned.
_OTHERS = {name: how for kind in kinds() for name, how in kind.plans.items()}
_STRATEGIES = (*private_strategies(), *_OTHERS)
# A strategy that is only planned draws nothing.
_UNUSED = Seeds(features=0, noise=0)
# Beyond these only memory and patience of whoever asks would end.
_MOST_AGENTS, _MOST_RELEASES, _MOST_DIMENSIONS = 10**6, 10**6, 20


@dataclass(frozen=True)
class Question:
    """Releases that are planned, and either their noise or what they may spend."""

    settings: ReleaseSettings
    num_releases: int
    delta: float
    noise_multiplier: float | None
    epsilon: float | None

    @property
    def worth(self) -> list[float]:
        """The published noise over z times the exact sensitivity, by release."""
        # No entropy is drawn: the noise is not asked for, only its size, which is that
        # of the weights. Few of them are different.
        release = Release(self.settings, SeededEntropy(0))
        weights = self.settings.weights.concentration
        found: dict[float, float] = {}
        for t in range(self.num_releases):
            if weights(t) not in found:
                found[weights(t)] = release.effective_noise_multiplier(t)
        return [found[weights(t)] for t in range(self.num_releases)]

    def answer(self, method: Method, multipliers: Sequence[float]) -> float | None:
        """Return epsilon, or z, if a release's noise is z times its multiplier.

        None if no z is enough by an accountant that cannot count so small an epsilon.
        The tightest raises ValueError then.
        """

        def spends(noise_multiplier: float) -> float:
            q = self.settings.sampling_probability
            accountant = ReleaseAccountant(q, self.delta, method)
            for multiplier in multipliers:
                accountant.charge(noise_multiplier * multiplier)
            return accountant.epsilon()

        if self.noise_multiplier is not None:
            return spends(self.noise_multiplier)
        assert self.epsilon is not None
        try:
            return smallest_noise_multiplier(spends, self.epsilon)
        except ValueError:
            if method == "pld":
                raise
            return None


def privacy(
    strategy: Annotated[
        str,
        typer.Option(help=f"One of {', '.join(_STRATEGIES)}."),
    ],
    num_agents: Annotated[
        int,
        typer.Option("--agents", help="Number N of agents, the slots of the study."),
    ],
    num_releases: Annotated[
        int | None,
        typer.Option("--releases", help="Number T of releases; not with FedWarmStart."),
    ] = None,
    sampling_probability: Annotated[
        float | None,
        typer.Option("--q", help="Sampling probability; the strategy's by default."),
    ] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option("--z", help="Noise multiplier; 1 by default.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Epsilon of all releases; replaces z.")
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="By default 1e-3, or 1/(10 N) if that is less.")
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="Preset of DPFTSDE: paper or paper-synthetic.")
    ] = None,
    dimension: Annotated[
        int | None,
        typer.Option(
            "--dimensions",
            help=f"D of FedVote, 1 to {_MOST_DIMENSIONS}: who must agree; by default "
            "2. With FedUCB the dimension d of an action.",
        ),
    ] = None,
    num_trials: Annotated[
        int | None,
        typer.Option("--trials", help="Trials T of each site; with FedUCB only."),
    ] = None,
    protects: Annotated[
        Protects | None,
        typer.Option(help="client, or example; with FederationTuner only."),
    ] = None,
    with_rdp: Annotated[
        bool,
        typer.Option(
            "--rdp", help="Add Flower's Renyi accountant, which can take a minute."
        ),
    ] = False,
    total_epsilon: Annotated[
        float | None,
        typer.Option(
            help="Epsilon per example of the choice and of training with DP-SGD, "
            "together; with FederationTuner only."
        ),
    ] = None,
    total_delta: Annotated[
        float | None, typer.Option(help="Delta of that; --delta by default.")
    ] = None,
    training_q: Annotated[
        float | None,
        typer.Option(
            "--training-q", help="Sampling probability of an example in a step."
        ),
    ] = None,
    training_steps: Annotated[
        int | None,
        typer.Option(help="Steps that an example can be sampled in, of all trials."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the epsilon of a study by each accountant, or the z for an epsilon.

    Nothing is run. Each row is one accountant, a method that computes epsilon. All of
    them give valid limits, pld the tightest. Figures are rounded up: a study with these
    figures keeps to its budget. A smaller delta costs more epsilon.

    With DPFTSDE the middle column is for the same noise with the exact sensitivity, the
    right one for this package's default noise.

    Each epsilon is printed with whom it protects, what stands in its place in the other
    world, and delta; and the same noise at other deltas.

    With FederationTuner --releases is the number of rungs. With --total-epsilon it says
    which noise multiplier each client should train with, so that training and choice
    keep to that epsilon for an example. With FedUCB it says whether
    a linear bandit pays, for each of its promises, in points of reward. --releases is
    then the number of synchronisations. It assumes sites that are alike, have rewards
    in [0, 1], and fill the encoder's bounds. The formula is in
    flwr_fbo.bandits.linear.sharing_plan.

    Examples
    --------
    $ flwr-fbo privacy --strategy FedVote --agents 20 --releases 2 --epsilon 2
      --delta 1e-3
    $ flwr-fbo privacy --strategy FedWarmStart --agents 30 --epsilon 2 --delta 1e-3
    $ flwr-fbo privacy --strategy FederationTuner --agents 20 --releases 3 --epsilon .5
      --delta 1e-5 --total-epsilon 8 --training-q .05 --training-steps 540
    $ flwr-fbo privacy --strategy FedUCB --agents 50 --releases 10 --trials 500
      --dimensions 8 --epsilon 4 --delta 1e-5
    """
    of_training = {
        "total_epsilon": total_epsilon,
        "total_delta": total_delta,
        "training_q": training_q,
        "training_steps": training_steps,
    }
    with plain_errors(ValueError):
        _check_training(strategy, of_training)
    if strategy in _OTHERS:
        options = {
            "num_releases": num_releases,
            "num_trials": num_trials,
            "dimension": dimension,
            "epsilon": epsilon,
            "delta": delta,
            "sampling_probability": sampling_probability,
            "noise_multiplier": noise_multiplier,
            "preset": preset,
            "protects": protects,
        }
        with plain_errors(ValueError):
            plan: StudyPlan = load(_OTHERS[strategy])(strategy, num_agents, options)
            if total_epsilon is not None:
                plan = _with_training(plan, of_training)
        text = json_of(plan.values) if as_json else "\n".join(plan.lines)
        typer.echo(text)
        return
    with plain_errors(ValueError):
        allowed = f"left out, with {strategy}"
        require(num_trials is None, "num_trials", num_trials, allowed)
        require(protects is None, "protects", protects, allowed)
        base = preset_of(strategy, preset)
        is_vote = isinstance(base.agent, FedVoteSettings)
        once = isinstance(base.agent, FedWarmStartSettings)
        q, z = sampling_probability, noise_multiplier
        if once:
            one = f"{allowed}: a site is in one release"
            require(num_releases is None, "num_releases", num_releases, one)
            require(q in (None, 1.0), "sampling_probability", q, f"1, with {strategy}")
            num_releases = 1
        how_many = "given: how many releases"
        require(num_releases is not None, "num_releases", num_releases, how_many)
        assert num_releases is not None
        q = base.privacy.sampling_probability if q is None else q
        assert q is not None  # each preset has one
        require_int("num_agents", num_agents, 1, _MOST_AGENTS)
        require_int("num_releases", num_releases, 1, _MOST_RELEASES)
        if epsilon is None:
            z = 1.0 if z is None else z
            require_number("noise_multiplier", z, 1e-3, 1e6)
        else:
            only = "only without --z, which decides it"
            require(z is None, "epsilon", epsilon, only)
        settings = ReleaseSettings(
            num_agents=num_agents,
            num_sub_regions=base.agent.num_sub_regions,
            clip_norm=1.0,  # epsilon does not depend on it
            sampling_probability=q,
            calibration="published",
            weights=base.weights,
        )
        if dimension is not None:
            require_int("dimension", dimension, 1, _MOST_DIMENSIONS)
            require(is_vote, "dimension", dimension, allowed)
        delta = default_delta(num_agents) if delta is None else delta
        require_below(delta, q)
        question = Question(settings, num_releases, delta, z, epsilon)
        worth = question.worth
        answers: dict[Method, dict[str, float | None]] = {}
        for method in reversed(get_args(Method)):
            if method == "rdp" and not with_rdp:
                continue
            published = question.answer(method, [1.0] * num_releases)
            is_worth_as_much = set(worth) == {1.0}
            exact = published if is_worth_as_much else question.answer(method, worth)
            # The default charges the same z as the published: only its noise differs.
            row = {"published": published, "exact": exact, "default": published}
            answers[method] = row
    if warning := delta_warning(delta, num_agents, CLIENT):
        typer.echo(f"Warning: {warning}.", err=True)
    least = answers["pld"]["default"] if z is None else z
    assert least is not None
    accountant = ReleaseAccountant(q, delta)
    accountant.charge(least, num_releases)
    spent = accountant.spent(Guarantee(CLIENT, "server"))
    if spent.epsilon_if_replaced is None:  # with sampling: only asked for here
        other = accountant.epsilon_if_replaced()
        spent = replace(spent, epsilon_if_replaced=other)
    if as_json:
        values = {
            "agents": num_agents,
            "releases": num_releases,
            "q": q,
            "strategy": strategy,
            "preset": preset,
            "noise_multiplier": z,
            **spent.to_json(),
            "asked_epsilon": epsilon,
            "answer": "noise_multiplier" if epsilon else "epsilon",
            "accountants": answers,
            "published_noise_over_default_noise": worth,
        }
        if once:
            values["pioneers"], values["cohorts"] = _cohorts(question)
        typer.echo(json_of(values))
        return
    named = strategy if preset is None else f"{strategy}, preset {preset!r}"
    _print(question, named, answers, worth)
    spends = f"Each site spends {spent.text()}, by pld. It holds "
    lines = [f"{spends}{spent.guarantee.against}."]
    if q == 1.0 and spent.epsilon > 0:
        lines.append(f"{profile_text(math.sqrt(num_releases) / least, delta)}.")
    for line in lines:
        Console().print(line, highlight=False)
    more = _cohort_lines(question) if once else []
    for line in _vote_lines(question, dimension or 2) if is_vote else more:
        Console().print(line, highlight=False)


def _check_training(strategy: str, options: Mapping[str, Any]) -> None:
    """Raise ValueError unless the options of a training are given together, or none."""
    asks = options["total_epsilon"] is not None
    for name, value in options.items():
        is_given = value is not None
        if is_given:
            allowed = "left out: only FederationTuner trains"
            require(strategy == "FederationTuner", name, value, allowed)
            require(asks, name, value, "given together with --total-epsilon")
        allowed = "given together with --total-epsilon"
        require(is_given or not asks or name == "total_delta", name, value, allowed)


# Parameters of `plan_training`, and the options that they come from.
_OF_PLAN = {
    "epsilon": "total_epsilon",
    "delta": "total_delta",
    "sampling_probability": "training_q",
    "num_steps": "training_steps",
}


def _with_training(plan: StudyPlan, options: Mapping[str, Any]) -> StudyPlan:
    """Return the plan of a choice, with the training that fits beside it."""
    choice = PrivateChoice(
        plan.values["epsilon"],
        plan.values["delta"],
        plan.values["unit"],
        allow_large_delta=True,  # the plan of the choice says that it is
    )
    delta = options["total_delta"]
    try:
        found = plan_training(
            options["total_epsilon"],
            choice.delta if delta is None else delta,
            sampling_probability=options["training_q"],
            num_steps=options["training_steps"],
            choice=choice,
        )
    except ValueError as error:
        name, is_named, rest = str(error).partition("=")
        option = _OF_PLAN.get(name, name)
        raise ValueError(f"{option}{is_named}{rest}") from None
    parts = {
        "training": found.of_training,
        "choice": found.of_choice,
        "together": found.together,
    }
    # Rounded up: a client that trains with what is printed keeps to the total.
    z = _rounded_up(found.training.noise_multiplier)
    steps = counted(found.training.num_steps, "step")
    lines = [
        f"Training: noise multiplier {z} in each of {steps} of DP-SGD, q = "
        f"{found.training.sampling_probability:g}.",
        *(
            f"{name.capitalize()}: {spent.text('.3g')}."
            for name, spent in parts.items()
        ),
        "Charge it at each site, with all these steps as its plan: "
        "flwr_fbo.charge_training.",
    ]
    values = {
        "noise_multiplier": found.training.noise_multiplier,
        "sampling_probability": found.training.sampling_probability,
        "num_steps": found.training.num_steps,
        **{name: spent.to_json() for name, spent in parts.items()},
    }
    return StudyPlan({**plan.values, "with_training": values}, [*plan.lines, *lines])


def _print(
    question: Question,
    named: str,
    answers: dict[Method, dict[str, float | None]],
    worth: Sequence[float],
) -> None:
    console, s = Console(), question.settings
    console.print(
        f"{s.num_agents} agents, {counted(question.num_releases, 'release')}, q = "
        f"{s.sampling_probability:g}, delta = {question.delta:.3g}; "
        f"{counted(s.num_sub_regions, 'sub-region')} and weights of {named}"
    )
    if question.epsilon is None:
        title = f"epsilon at z = {question.noise_multiplier:g}"
    else:
        title = f"z for {Guarantee(CLIENT).text(question.epsilon, question.delta)}"
    console.print(f"{title}:", highlight=False)
    table = Table(box=RULED, padding=(0, 1, 0, 0))
    table.add_column("accountant")
    # Where a message counts as much in each release, all columns are the same.
    headings = HEADINGS if set(worth) != {1.0} else {"default": title.split()[0]}
    for heading in headings.values():
        table.add_column(heading, justify="right", no_wrap=True)
    for method, row in answers.items():
        table.add_row(method, *(_rounded_up(row[column]) for column in headings))
    console.print(table)
    if any(None in row.values() for row in answers.values()):
        console.print("-: by this accountant no noise is enough for this epsilon.")
    for line in _legend(question, worth) if headings is HEADINGS else ():
        console.print(line, highlight=False)


def _vote_lines(question: Question, dimensions: int) -> list[str]:
    """Say what a study of FedVote comes to, beside epsilon."""
    s = question.settings
    strategy = FedVote(
        {f"x{i}": FloatDistribution(0.0, 1.0) for i in range(dimensions)},
        "maximize",
        s.num_agents,
        epsilon=question.epsilon,
        delta=question.delta,
        privacy=Privacy(
            noise_multiplier=question.noise_multiplier,
            sampling_probability=s.sampling_probability,
            release_after=range(1, question.num_releases + 1),
            allow_large_delta=True,  # it was warned of
        ),
        seeds=_UNUSED,
    )
    strategy.plan(question.num_releases)
    crowd = strategy.smallest_crowd
    rounds = " and ".join(map(str, GUIDING))
    return [
        f"With {dimensions} tuned parameters, the others try a setting if at least "
        f"{crowd} of {s.num_agents} sites vote for it."
        + (" Nobody will be heard." if crowd > s.num_agents else ""),
        "Evaluations of an agent: one in each round. FedVote makes a release after "
        f"rounds {rounds} unless told otherwise, earlier in a short study, and one "
        "round before the last in a study of more than 20 rounds.",
    ]


def _cohorts(question: Question) -> tuple[int, tuple[int, ...]]:
    """Return the pioneers that FedWarmStart needs, and the cohorts that send."""
    strategy = FedWarmStart(
        {"x": FloatDistribution(0.0, 1.0)},
        "maximize",
        question.settings.num_agents,
        epsilon=question.epsilon,
        delta=question.delta,
        privacy=Privacy(noise_multiplier=question.noise_multiplier),
        seeds=_UNUSED,
    )
    z = strategy.server.release.settings.noise_multiplier
    return num_pioneers(z), strategy.cohort_sizes


def _cohort_lines(question: Question) -> list[str]:
    """Say who waits for whom, and what that costs."""
    after, num_agents = FedWarmStartSettings().share_after, question.settings.num_agents
    pioneers, sizes = _cohorts(question)
    lines = [f"Pioneers, who search alone first: {pioneers}."]
    if not sizes:
        few = f"Too few sites: nobody would be left to follow them. All {num_agents} "
        return [*lines, f"{few}search alone, and nothing is released."]
    for k, size in enumerate(sizes):
        lines.append(
            f"Group {k + 1}{'' if k else ', the pioneers'}: {size} sites start in "
            f"round {after * k + 1}, and each sends one message."
        )
    return [
        *lines,
        f"Last group: {num_agents - sum(sizes)} sites start in round "
        f"{after * len(sizes) + 1}, and send nothing.",
        "Each site's message is in one release, so a site spends epsilon once.",
    ]


def _rounded_up(value: float | None) -> str:
    """Return four digits: a z that is copied from here must keep to its budget."""
    if value is None:
        return "-"
    upwards = Context(prec=4, rounding=ROUND_CEILING)
    return f"{float(upwards.create_decimal_from_float(value)):.4g}"


def _legend(question: Question, worth: Sequence[float]) -> list[str]:
    """Say what the columns have in common, and what is theirs."""
    all_fixed = "N, T, q, delta, clip norm and weights"
    if question.epsilon is None:
        fixed = f"Fixed throughout: {all_fixed}. Columns 1 and 2 are the same noise."
    else:
        fixed = f"Fixed throughout: epsilon, {all_fixed}. z is to 0.1 %, upwards."
    less_noise = [1.0 / times for times in worth]
    return [
        fixed,
        "1. Noise z phi_max S / q in every vector, charged as if phi_max S were the "
        "sensitivity: at z a release. By moments, this is what the paper reports.",
        "2. Noise as in 1, charged at what it is over the exact sensitivity of the "
        f"vectors together: at {_span(worth)} times z, by release.",
        "3. calibration='joint', the default: noise z times the exact sensitivity, "
        f"charged at z a release. The same epsilon as 1 at the same z, with "
        f"{_span(less_noise)} times the noise.",
    ]


def _span(values: Sequence[float]) -> str:
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} to {high}"
