"""Check that decisions of Fed-GO-UCB have regard to rewards.

By the reference problem of `flwr_fbo.bandits.linear.regard_to_rewards`, with rewards of
0 and 1 where no range is declared, and with other actions: four points of the unit
cube. A network tells some points better apart than others, so there are 32 such
problems, and the best action must be ahead in half of them. It must be tried in the
first place, too: what an agent takes to be uncertain then must be three times what the
initial network says against it. Where gradients are not known (a reward model that
sites bring), or do not matter (with privacy an action has a few features), those of the
four points are taken to be at right angles, with norm 1.
"""

from __future__ import annotations

import math

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo.bandits.fed_go_ucb.agent import posterior
from flwr_fbo.bandits.fed_go_ucb.settings import FedGOUCBSettings
from flwr_fbo.bandits.linear.regard_to_rewards import (
    EFFECT,
    FEW_TRIALS,
    MANY_TRIALS,
    MARGIN,
    SHARES,
)
from flwr_fbo.models.network import CONSTANT_SHARE, Network

_NUM_ACTIONS, _NUM_PROBLEMS = len(SHARES), 32
# Of an action's mean reward, from the middle of the range: the first is the best one.
_SIGNS = np.array([1.0, -1.0, -1.0, -1.0])
# More features than that add nothing that the four points tell.
_MOST_FEATURES = 32


def has_regard(
    settings: FedGOUCBSettings, network: Network | None, seed: int, num_agents: int
) -> bool:
    """Return whether a site's decisions have regard to rewards.

    Parameters
    ----------
    settings : FedGOUCBSettings
        Settings of all agents of the study.
    network : Network, optional
        Network of the study, if it has one.
    seed : int
        Seed of the study.
    num_agents : int
        N >= 1, whose sums are added, with privacy.
    """
    if settings.num_random_actions > 0:  # the server says when they are over
        return False
    if settings.privacy is not None:
        few = _is_ahead_by_sums(settings, 1, FEW_TRIALS, 0.0)
        std = math.sqrt(num_agents) * settings.privacy.releases.largest_std(1)
        return few and _is_ahead_by_sums(settings, num_agents, MANY_TRIALS, std)
    if network is None:
        unknown = np.zeros(_NUM_ACTIONS), np.eye(_NUM_ACTIONS)
        return _is_ahead(settings, *unknown)
    w0 = settings.regression.initial(network, seed)
    rng = generator(0, Purpose.REFERENCE_POINTS)
    points = rng.random((_NUM_PROBLEMS * _NUM_ACTIONS, network.dimension))
    values, gradients = network.values_and_gradients(w0, points)
    shape = _NUM_PROBLEMS, _NUM_ACTIONS
    problems = zip(values.reshape(shape), gradients.reshape(*shape, -1), strict=True)
    ahead = [_is_ahead(settings, f, g @ g.T) for f, g in problems]
    return sum(ahead) >= _NUM_PROBLEMS / 2


def _is_ahead(
    settings: FedGOUCBSettings, values: FloatArray, kernel: FloatArray
) -> bool:
    """Return whether the first action, the best one, is ahead after T trials.

    Parameters
    ----------
    settings : FedGOUCBSettings
        Without privacy.
    values : ndarray of shape (K,)
        f(x; w0) of each action.
    kernel : ndarray of shape (K, K)
        Products of their gradients.
    """
    means = 0.5 + 0.5 * EFFECT * _SIGNS
    counts = FEW_TRIALS * np.array(SHARES)
    # Ridge regression on four vectors, by their products: g'(w_hat - w0) and
    # g'Sigma^-1 g = (K (K + ridge N^-1)^-1 N^-1).
    noisy = kernel + np.diag(settings.ridge / counts)
    smoother = np.linalg.solve(noisy, kernel).T
    believed = values + smoother @ (means - values)
    covariance = settings.beta * smoother / counts
    variances = np.maximum(np.diag(covariance), 0.0)
    if settings.exploration == "optimism":
        added = np.sqrt(variances) - math.sqrt(variances[0])
    else:
        apart = variances + variances[0] - 2 * covariance[0]
        added = np.sqrt(np.maximum(apart, 0.0))
    ahead = believed[0] - believed
    # Else the initial network, which knows no reward, would decide what is tried.
    norms = np.diag(kernel)
    at_first = settings.beta / settings.ridge * (norms + norms[0] - 2 * kernel[0])
    is_tried = MARGIN * (values - values[0]) <= np.sqrt(np.maximum(at_first, 0.0))
    is_ahead = (ahead > 0) & (ahead >= MARGIN * added) & is_tried
    return bool(np.all(is_ahead[1:]))


def _is_ahead_by_sums(
    settings: FedGOUCBSettings, num_agents: int, num_trials: int, noise_std: float
) -> bool:
    """Return the same with privacy, by sums over agents, with noise in them."""
    assert settings.privacy is not None
    size = min(max(settings.privacy.releases.dimension, 5), _MOST_FEATURES)
    features = math.sqrt(1 - CONSTANT_SHARE) * np.eye(_NUM_ACTIONS, size, 1)
    features[:, 0] = math.sqrt(CONSTANT_SHARE)
    z = np.column_stack([features, EFFECT * _SIGNS])
    counts = num_agents * num_trials * np.array(SHARES)
    believed = posterior((z.T * counts) @ z, noise_std)
    apart = features[0] - features[1:]
    deviations = np.linalg.norm(believed.whitened(apart.T), axis=0)
    # What is drawn more narrowly than by the posterior is not better known.
    added = max(math.sqrt(settings.beta), 1.0) * deviations
    return bool(np.all(apart @ believed.estimate >= MARGIN * added))
