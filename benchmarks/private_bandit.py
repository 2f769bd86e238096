"""What privacy costs Fed-GO-UCB: regret with noise, without it, and of random play.

    python -m benchmarks.private_bandit --agents 100 --rounds 400 --epsilon 8

On Hartmann-6, one seed, with random initial parameters and no phase I.
"""

import argparse
import math

from flwr_fbo.models.langevin import LangevinSettings
from flwr_fbo.models.network import Network
from flwr_fbo.privacy.neural_privacy import NeuralPrivacy
from flwr_fbo.protocol.neural_ucb_settings import NeuralUCBSettings
from flwr_fbo.simulation.neural_bandits import NeuralBanditSimulation
from flwr_fbo.simulation.turns import Sharing
from flwr_fbo.tasks.nonlinear_bandit import FunctionBanditTask

# What agents draw by; noise makes their ellipsoid narrow, so that they need more.
_BETA = {True: 50.0, False: 0.1}


def regret(agents: int, rounds: int, epsilon: float | None, seed: int) -> float:
    """Return the regret of all agents; of random play for an epsilon of None."""
    if epsilon is None:
        settings = NeuralUCBSettings(
            num_exploration=rounds,
            regression=LangevinSettings(num_iterations=1),
        )
    else:
        privacy = NeuralPrivacy(
            epsilon, delta=1e-4, num_synchronisations=10, num_features=64
        )
        noisy = epsilon < math.inf
        settings = NeuralUCBSettings(
            num_exploration=0,
            ridge=1.0,
            beta=_BETA[noisy],
            privacy=privacy,
        )
    sharing: Sharing = "triggered" if epsilon is not None else "never"
    task, model = FunctionBanditTask(), Network(6)
    ours = NeuralBanditSimulation(settings, task, agents, rounds, sharing, model=model)
    return float(ours.run(seed).regret.sum())


def main() -> None:
    """Print one line each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agents", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--seed", type=int, default=1000)
    options = parser.parse_args()
    for label, epsilon in (
        ("random play", None),
        ("clipped, no noise", math.inf),
        (f"epsilon {options.epsilon:g}", options.epsilon),
    ):
        value = regret(options.agents, options.rounds, epsilon, options.seed)
        print(f"{label:20} {value:10,.0f}", flush=True)


if __name__ == "__main__":
    main()
