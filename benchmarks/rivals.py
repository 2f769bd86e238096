"""Other ways to tune a federated training, at a given work of the clients.

FedEx and FedPop follow their authors' code (`mkhodak/FedEx`, `hyper.py` at 150fac0;
`HaokunChen245/FedPop`, `tuners/pbt.py` and `base.py` at 0bd9f1c), and DP-Hype its code
(`UzL-PrivSec/dp-hype`, `algorithms/dphype_topk` at a1fa5db). The papers' texts could
not be read. None but DP-Hype is private: all read each client's exact scores. What
differs from the code:

- FedEx and FedPop are within one training, so there is no search of the server's
  settings around it: these are the app's defaults. Clients whose models diverge count
  with error 1, and are left out of the mean.
- FedEx chooses among the client settings of the trials. Its step sizes are those of
  its scripts: *aggressive*, with a discount of the baseline drawn from [0, 1).
- FedPop begins with the client settings of the trials, one a client, in place of copies
  of one random setting, to whose neighbourhood the code confines them. Every fifth
  round the worst 30 % of the population become perturbed copies of the best 30 %, or of
  its first setting with probability 0.1. The perturbation is the function's default,
  0.1; that of the authors' runs is not in their code.
- DP-Hype tries eight settings, not 100, and a client votes for its best two, not five;
  each is trained alone for as many local epochs as in a round. The server's settings
  are the app's defaults, as models that are trained alone say nothing of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.trial import TrialState
from scipy.special import logsumexp

from benchmarks.federations import Federation, Training
from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.space.search_space import Params

_SERVER_KEYS = "server-learning-rate", "server-momentum"


def optuna_loop(
    federation: Federation,
    space: dict[str, BaseDistribution],
    defaults: Params,
    sampler: BaseSampler,
    pruner: BasePruner,
    num_rounds: tuple[int, int],
    rng: np.random.Generator,
) -> Params:
    """Return the best setting of a loop around short trainings.

    Parameters
    ----------
    num_rounds : tuple of int
        Of all trainings together, and of each at most.
    """
    study = optuna.create_study(direction="maximize", sampler=sampler, pruner=pruner)
    study.enqueue_trial(defaults)
    left, longest = num_rounds
    while left > 0:
        trial = study.ask(space)
        training, value, is_pruned = Training(federation, trial.params), 0.0, False
        while left > 0 and training.round_number < longest and not is_pruned:
            training.run(training.round_number + 1, rng)
            left -= 1
            value = mean_score(federation, training)
            trial.report(value, training.round_number)
            is_pruned = training.round_number < longest and trial.should_prune()
        state = TrialState.PRUNED if is_pruned else TrialState.COMPLETE
        study.tell(trial, None if is_pruned else value, state=state)
    return study.best_params


def mean_score(federation: Federation, training: Training) -> float:
    """Return the clients' mean accuracy; 0 if the model has diverged."""
    scores = np.maximum(federation.scores(training.model), 0.0)
    return float(np.average(scores, weights=federation.num_validation))


def random_search(
    federation: Federation,
    settings: Sequence[Params],
    num_rounds: int,
    rng: np.random.Generator,
) -> Training:
    """Return the best of as many trainings as there are settings."""
    trainings = [Training(federation, one).run(num_rounds, rng) for one in settings]
    return max(trainings, key=lambda one: mean_score(federation, one))


def fed_ex(
    federation: Federation,
    settings: Sequence[Params],
    num_rounds: int,
    rng: np.random.Generator,
) -> Training:
    """Return a training in which clients draw their settings (Khodak et al., 2021)."""
    num = len(settings)
    log_shares, discount = np.full(num, -math.log(num)), rng.random()
    errors: list[float] = []
    training = Training(federation, settings[0])
    for _ in range(num_rounds):
        shares = np.exp(log_shares)
        clients = federation.sampled(range(federation.num_clients), rng)
        drawn = rng.choice(num, len(clients), p=shares / shares.sum())
        own = [settings[place] for place in drawn]
        accuracies, _ = _mixed_round(training, clients, own, rng)
        weights = federation.num_validation[clients].astype(np.float64)
        weights /= weights.sum()
        baseline = _discounted_mean(errors, discount) if errors else 0.0
        errors.append(float(weights @ (1 - accuracies)))
        gradient = np.zeros(num)
        steps = weights * (1 - accuracies - baseline) / shares[drawn]
        np.add.at(gradient, drawn, steps)
        largest = np.abs(gradient).max()
        if largest > 0:
            log_shares = log_shares - math.sqrt(2 * math.log(num)) / largest * gradient
            log_shares = log_shares - logsumexp(log_shares)
    return training


def fed_pop(
    federation: Federation,
    settings: Sequence[Params],
    num_rounds: int,
    rng: np.random.Generator,
) -> Training:
    """Return a training whose clients' settings evolve (Chen et al., 2025)."""
    training = Training(federation, settings[0])
    size = federation.num_asked
    population = [settings[place % len(settings)] for place in range(size)]
    losses: list[list[float]] = [[] for _ in range(size)]
    order = rng.permutation(size)
    for number in range(1, num_rounds + 1):
        clients = federation.sampled(range(federation.num_clients), rng)
        own = [population[place] for place in order]
        _, found = _mixed_round(training, clients, own, rng)
        for place, loss in zip(order, found, strict=True):
            losses[place].append(float(loss))
        if number % 5 == 0:
            means = [_discounted_mean(one, 0.9) for one in losses]
            ranked = np.argsort(means)
            num = math.ceil(0.3 * size)
            for place in ranked[-num:]:
                is_new = rng.random() <= 0.1
                parent = settings[0] if is_new else population[rng.choice(ranked[:num])]
                population[place] = _perturbed(parent, rng)
            losses = [[] for _ in range(size)]
            order = rng.permutation(size)
    return training


def _perturbed(settings: Params, rng: np.random.Generator) -> Params:
    """Return another client setting nearby, within the space of all."""
    rate = settings["learning-rate"] * 10 ** rng.uniform(-0.4, 0.4)
    epochs = settings["local-epochs"] + rng.integers(-1, 2)
    size = settings["batch-size"] * 2.0 ** rng.integers(-1, 2)
    return {
        **settings,
        "learning-rate": float(np.clip(rate, 1e-3, 1.0)),
        "local-epochs": int(np.clip(epochs, 1, 8)),
        "batch-size": int(np.clip(size, 8, 64)),
    }


def dp_hype(
    federation: Federation,
    settings: Sequence[Params],
    num_rounds: int,
    noise_multiplier: float,
    rng: np.random.Generator,
) -> Training:
    """Return a training after one vote on models trained alone (Liebenow et al., 2026).

    ``num_rounds`` are those of the training.
    """
    clients = np.arange(federation.num_clients)
    scores = np.zeros((len(clients), len(settings)))
    for place, one in enumerate(settings):
        with np.errstate(all="ignore"):
            models = federation.trained(federation.initial_model(), clients, one, rng)
        scores[:, place] = federation.own_scores(models, clients)[0]
    num_votes = 2
    votes: FloatArray = np.zeros(scores.shape)
    best = np.argsort(-scores, axis=1, kind="stable")[:, :num_votes]
    np.put_along_axis(votes, best, 1.0, axis=1)
    std = noise_multiplier * math.sqrt(2 * num_votes)
    noisy = votes.sum(axis=0) + std * rng.standard_normal(len(settings))
    server = {key: settings[0][key] for key in _SERVER_KEYS}
    chosen = {**settings[int(noisy.argmax())], **server}
    return Training(federation, chosen).run(num_rounds, rng)


def _mixed_round(
    training: Training,
    clients: np.ndarray,
    settings: Sequence[Params],
    rng: np.random.Generator,
) -> tuple[FloatArray, FloatArray]:
    """Train for a round in which each client has its own settings.

    Returns the validation accuracy and loss of each client's own model.
    """
    federation = training.federation
    accuracies, losses = np.zeros(len(clients)), np.zeros(len(clients))
    kept, stacks = list[int](), list[list[np.ndarray]]()
    keys = [tuple(sorted(one.items())) for one in settings]
    with np.errstate(all="ignore"):
        for key in dict.fromkeys(keys):
            places = [place for place, own in enumerate(keys) if own == key]
            own = clients[places]
            models = federation.trained(training.model, own, dict(key), rng)
            accuracies[places], losses[places] = federation.own_scores(models, own)
            for place, number in enumerate(places):
                if np.isfinite(losses[number]):
                    kept.append(number)
                    stacks.append([array[place] for array in models])
    if kept:
        joined = [np.stack(arrays) for arrays in zip(*stacks, strict=True)]
        training.step(federation.mean(joined, clients[kept]))
    return accuracies, losses


def _discounted_mean(values: Sequence[float], factor: float) -> float:
    """Return a mean in which each value weighs ``factor`` times the one after it."""
    weights = factor ** np.arange(len(values))[::-1]
    return float(np.inner(values, weights) / weights.sum())
