"""What whole runs of `FederationTuner` give away, with planted scores or training data.

    python -m benchmarks.tuner_audit [--draws 1500]

Five clients compare two trials of one round: a small and a large learning rate. All
learn the same number; the large rate is better. The canary is one of them. Runs are
drawn in two worlds, and `flwr_fbo.lab.audit.study_audit` bounds from below how well
they can be told apart by what the tuner releases:

``scores``
    The canary trains as all do, and its ballot is for the small rate; or its ballot
    does not come. This is what epsilon is promised for.
``training data``
    The canary learns a number far away, so that the large rate ruins the model that all
    evaluate, and it votes; or it changes nothing, and its ballot does not come. Epsilon
    does not cover this: the ballots of all clients differ.
``training data, private training``
    The same, where `FedAvg` is in Flower's wrapper for client-level differential
    privacy. Promised is the epsilon of all trials' training and of the choice together.

Promised at delta 0.1, as in `flwr-fbo audit`: the larger delta, the more so many draws
show.
"""

from __future__ import annotations

import argparse
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    Strategy,
)
from joblib import Parallel, delayed
from optuna.distributions import FloatDistribution

from flwr_fbo import FederationTuner, Halving, InProcessGrid, PrivateChoice, tuner_mod
from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.lab.audit.evidence import Evidence
from flwr_fbo.lab.audit.study_audit import Progress, StudyPlan, audit
from flwr_fbo.privacy.accounting import PrivacySpent, calibrate_noise_multiplier
from flwr_fbo.privacy.gaussian import gaussian_epsilon
from flwr_fbo.privacy.guarantee import CLIENT, Guarantee
from flwr_fbo.privacy.noise import Entropy, OsEntropy
from flwr_fbo.tuner.message_headers import BALLOT

NUM_CLIENTS, CANARY, EPSILON, DELTA = 5, 4, 2.0, 0.1
RATES = (0.1, 1.0)
# The canary's number where it is planted, and everybody's where it is not.
FAR, GOAL = -100.0, 1.0
CLIPPING_NORM, TRAINING_NOISE = 1.0, 2.0
# Runs that tell what is released in the mean, and are not counted.
_NUM_PILOTS = 50

_TRAINING_DATA = "training data"
_PRIVATE = "training data, private training"
PLANTED = ("scores", _TRAINING_DATA, _PRIVATE)


class World(InProcessGrid):
    """The clients of a run.

    Parameters
    ----------
    planted : str
        One of ``PLANTED``.
    is_present : bool
        Whether the canary takes part.
    """

    def __init__(self, planted: str, is_present: bool) -> None:
        self._is_present = is_present
        app = _client_app(planted, is_present)
        super().__init__(app, NUM_CLIENTS, run_config={"learning-rate": RATES[0]})
        self._canary = list(self.contexts)[CANARY]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Deliver all messages and replies, but for the ballot of an absent canary."""
        for reply in super().send_and_receive(messages, timeout=timeout):
            is_canary = reply.metadata.src_node_id == self._canary
            if self._is_present or not is_canary or BALLOT not in reply.content:
                yield reply


def _client_app(planted: str, is_present: bool) -> ClientApp:
    app = ClientApp(mods=[tuner_mod])

    def is_canary(context: Context) -> bool:
        return context.node_config["partition-id"] == CANARY

    @app.train()
    def train(message: Message, context: Context) -> Message:
        w = message.content.array_records["arrays"]["w"].numpy()
        rate = float(context.run_config["learning-rate"])
        if not is_canary(context) or planted == "scores":
            w = w + rate * (GOAL - w)
        elif is_present:
            w = w + rate * (FAR - w)
        else:  # Flower's wrapper divides by the length of what is changed
            w = w + 1e-9
        arrays = ArrayRecord({"w": Array(w)})
        metrics = MetricRecord({"num-examples": 1})
        content = RecordDict({"arrays": arrays, "metrics": metrics})
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        w = message.content.array_records["arrays"]["w"].numpy()
        distance = float(abs(w[0] - GOAL))
        if is_canary(context):
            distance = -distance
        metrics = MetricRecord({"distance": distance, "num-examples": 1})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def _main(planted: str) -> Callable[[Grid, Context], None]:
    def main(grid: Grid, context: Context) -> None:
        strategy: Strategy = FedAvg()
        if planted == _PRIVATE:
            strategy = DifferentialPrivacyServerSideFixedClipping(
                strategy, TRAINING_NOISE, CLIPPING_NORM, NUM_CLIENTS
            )
        arrays = ArrayRecord({"w": Array(np.zeros(1))})
        strategy.start(grid=grid, initial_arrays=arrays, num_rounds=1)

    return main


def run(planted: str, is_present: bool) -> tuple[float, ...]:
    """Return what one whole run of the tuner releases: a score a trial."""
    logging.disable(logging.WARNING)
    tuner = FederationTuner(
        space={"learning-rate": FloatDistribution(*RATES)},
        metric="distance",
        direction="minimize",
        num_agents=NUM_CLIENTS,
        schedule=Halving(trials=2, rounds=(1,)),
        privacy=PrivateChoice(EPSILON, DELTA, allow_large_delta=True),
        enqueue=[{"learning-rate": RATES[1]}],
    )
    context = Context(1, 0, {}, RecordDict(), {"learning-rate": RATES[0]})
    result = tuner.start(_main(planted), World(planted, is_present), context)
    return result.rungs[0].scores


def runs(planted: str, is_present: bool, num: int) -> FloatArray:
    """Return what several runs release, shape (R, 2)."""
    found = Parallel(n_jobs=-1)(delayed(run)(planted, is_present) for _ in range(num))
    return np.array(found)


@dataclass(frozen=True)
class TunerAuditPlan(StudyPlan):
    """Runs of the tuner, and what is planted.

    Attributes
    ----------
    planted : str
        One of ``PLANTED``.
    """

    planted: str

    faults: ClassVar[Mapping[str, Callable[..., Any]]] = {}

    @property
    def promised(self) -> PrivacySpent:
        """Epsilon of the choice, and of the trials' training where it is private."""
        mu = 1 / self._noise_multiplier
        if self.planted == _PRIVATE:
            mu = math.hypot(mu, math.sqrt(len(RATES)) / TRAINING_NOISE)
        about = gaussian_epsilon(DELTA, mu), DELTA, 1, "mu-GDP"
        return PrivacySpent(*about, guarantee=Guarantee(CLIENT, "server"))

    @property
    def _noise_multiplier(self) -> float:
        return calibrate_noise_multiplier(EPSILON, DELTA, 1.0, 1)

    def describe(self) -> dict[str, str]:
        """Return what is drawn, in words."""
        return {
            "Study": f"FederationTuner, {NUM_CLIENTS} clients, planted: {self.planted}"
        }

    def draw(
        self,
        entropy: Entropy,
        build: Callable[..., Any] | None,
        progress: Progress,
    ) -> tuple[Evidence, Evidence]:
        """Return runs with the canary and without; see `StudyPlan`."""
        std = self._noise_multiplier / NUM_CLIENTS
        pilots = [runs(self.planted, here, _NUM_PILOTS) for here in (True, False)]
        means = [pilot.mean(axis=0) for pilot in pilots]
        shift = (means[0] - means[1])[None, None] / std
        worlds = []
        for is_present in (True, False):
            released = runs(self.planted, is_present, self.num_draws)[:, None]
            shifts = np.broadcast_to(shift, released.shape)
            noise = (released - means[1]) / std
            worlds.append(Evidence.of(released, noise, shifts))
            progress(self.num_draws)
        return worlds[0], worlds[1]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draws", type=int, default=1500)
    asked = parser.parse_args()
    print("| planted | epsilon that covers it | found at least |")
    print("| --- | --- | --- |")
    for planted in PLANTED:
        result = audit(TunerAuditPlan(planted, num_draws=asked.draws), OsEntropy())
        promised = f"{result.promised.epsilon:.2f}"
        if planted == _TRAINING_DATA:
            promised = f"none (of the choice: {promised})"
        found = f"{result.epsilon_lower:.2f}"
        print(f"| {planted} | {promised} | {found} |", flush=True)


if __name__ == "__main__":
    # By its name, so that other processes find what they are to do.
    from benchmarks.tuner_audit import main as named_main

    named_main()
