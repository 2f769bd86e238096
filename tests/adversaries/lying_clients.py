"""Let up to a third of the clients lie, and see what becomes of the others.

    python -m tests.adversaries.lying_clients [--replies 5000] [--study NAME]

Plays short seeded studies of every strategy, open and private. From the first round on
all that the liars answer is replaced. In one half of the studies by what no honest
client sends (an array of another shape, NaN, no sum of outer products, other bytes, an
error, ...): that must be refused, and all that the honest clients do must be, to the
bit, what they do where the liars are silent. In the other half by anything at all.
Nobody but a liar may ever fail. The exit status is 1 if one of this does not hold.

Then a table: the honest clients' mean regret a trial, where the others lie by the book:
a well-formed reply, the same lie in every round.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from joblib import Parallel, delayed
from optuna.distributions import FloatDistribution

from flwr_fbo import (
    DPFTSDE,
    FTS,
    DecentralizedFedUCB,
    FedGOUCB,
    FedUCB,
    FedVote,
    FedWarmStart,
    InProcessGrid,
    Limits,
    Privacy,
    Seeds,
    linear_bandit_app,
    tuning_app,
)
from flwr_fbo._compat import reply_arrays, reply_metrics, to_array_record
from flwr_fbo.bandits import (
    ContinualSettings,
    FedGOUCBSettings,
    LinearUCBSettings,
    Network,
    NeuralPrivacy,
    PeerGraph,
    neural_bandit_app,
)
from flwr_fbo.lab.tasks.linear_bandit import LinearBanditEnvironment, LinearBanditTask
from flwr_fbo.lab.tasks.nonlinear_bandit import (
    FunctionBanditTask,
    NonlinearBanditEnvironment,
)
from flwr_fbo.models.langevin_regression import LangevinSettings
from flwr_fbo.tuning import (
    DPFTSDESettings,
    FedVoteSettings,
    FedWarmStartSettings,
    FTSSettings,
)

NUM_AGENTS, MOST_LIARS = 6, 2
_NUM_ITERATIONS, _NUM_TRIALS, _TIMES = 6, 16, [2, 4, 6, 8, 10, 12, 14]
_ERROR_CODE = 2  # a ClientApp that has raised

Lie = Callable[[np.random.Generator, RecordDict], RecordDict | None]


# What liars say


def _with(content: RecordDict, arrays: list[np.ndarray[Any, Any]]) -> RecordDict:
    """Return a reply with other arrays, and the metrics as they were."""
    changed = RecordDict(dict(content))
    changed["arrays"] = to_array_record(arrays)
    return changed


def _each(change: Callable[[Any, Any], Any]) -> Lie:
    """Return the lie that changes every array by itself, and leaves no metrics."""

    def lie(rng: np.random.Generator, content: RecordDict) -> RecordDict:
        arrays = [change(rng, array) for array in reply_arrays(content)]
        return RecordDict({"arrays": to_array_record(arrays)})

    return lie


def _poked(value: float) -> Callable[[Any, Any], Any]:
    """Return what puts a number somewhere into an array."""

    def change(rng: np.random.Generator, array: Any) -> Any:
        if array.dtype == np.uint8:  # a message of a peer, in bytes
            return array[:-1]
        array = np.array(array)
        if array.size:
            array.flat[rng.integers(array.size)] = value
        return array

    return change


def _raw(
    data: bytes, dtype: str = "float64", stype: str = "numpy.ndarray"
) -> RecordDict:
    array = Array(dtype=dtype, shape=(3,), stype=stype, data=data)
    return RecordDict({"arrays": ArrayRecord({"0": array})})


# Of every strategy: what no honest client sends.
MALFORMED: dict[str, Lie] = {
    "error": lambda rng, content: None,
    "nothing": lambda rng, content: RecordDict(),
    "other records": lambda rng, content: RecordDict({"arrays": ConfigRecord()}),
    "one array more": lambda rng, content: RecordDict(
        {"arrays": to_array_record([*reply_arrays(content), np.ones(2), np.ones(2)])}
    ),
    "longer": _each(lambda rng, array: np.append(array, array)),
    "an axis more": _each(lambda rng, array: array[None]),
    "text": _each(lambda rng, array: np.full(array.shape, "a")),
    "complex": _each(lambda rng, array: array * 1j),
    "nan": _each(_poked(math.nan)),
    "infinite": _each(_poked(-math.inf)),
    "garbage": lambda rng, content: _raw(rng.bytes(int(rng.integers(300)))),
    "pickle": lambda rng, content: _raw(b"\x80\x04N.", "object"),
    "unknown form": lambda rng, content: _raw(rng.bytes(40), stype="x"),
}


def _asymmetric(rng: np.random.Generator, array: Any) -> Any:
    if array.dtype == np.uint8:
        return array[::-1]
    array = np.array(array)
    if array.ndim == 1:
        return array[:-1]
    array[..., 0, -1] += 1.0
    return array


def _negative(rng: np.random.Generator, array: Any) -> Any:
    if array.dtype == np.uint8:
        # After the header: the diagonal is somewhere, and never negative.
        return np.append(array[:24], (-np.abs(_entries(array)) - 1).view(np.uint8))
    array = np.array(array)
    if array.ndim == 1:
        return array * np.nan
    array[0, 0] = -1000.0
    return array


def _entries(array: Any) -> Any:
    return np.frombuffer(array[24:].tobytes(), "<f8")


def _huge(rng: np.random.Generator, array: Any) -> Any:
    if array.dtype == np.uint8:
        return np.append(array[:24], (_entries(array) + 1e150).view(np.uint8))
    return array * 1e150 + 1e150


SUMS: dict[str, Lie] = {"asymmetric": _each(_asymmetric), "huge": _each(_huge)}
RAW_SUMS: dict[str, Lie] = {**SUMS, "negative": _each(_negative)}


# Of messages of norm 1, or 0.
LONG: dict[str, Lie] = {
    "norm 1.0000001": _each(lambda rng, array: array * (1.0 + 1e-7)),
    "norm 1e160": _each(_huge),
    "shorter": _each(lambda rng, array: array[:-1]),
}


def _kept(change: Callable[[Any, Any], Any]) -> Lie:
    """Return the lie that changes every array, and keeps the metrics."""

    def lie(rng: np.random.Generator, content: RecordDict) -> RecordDict:
        return _with(content, [change(rng, array) for array in reply_arrays(content)])

    return lie


def _numbers(change: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a change of an array's numbers, those within a peer's bytes too."""

    def changed(rng: np.random.Generator, array: Any) -> Any:
        if array.dtype != np.uint8:
            return change(rng, array)
        entries = change(rng, _entries(array)).astype("<f8")
        return np.append(array[:24], np.ascontiguousarray(entries).view(np.uint8))

    return changed


def _flipped(rng: np.random.Generator, array: Any) -> Any:
    data = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8).copy()
    if len(data):
        data[rng.integers(len(data), size=3)] ^= np.uint8(1 << rng.integers(8))
    return np.frombuffer(data.tobytes(), array.dtype).reshape(array.shape)


def _along(rng: np.random.Generator, array: Any) -> Any:
    """Return +-s vv', as large as may be or larger, in place of a sum."""
    if array.ndim < 2:
        return rng.standard_normal(array.shape) * 10.0 ** rng.uniform(-9, 99)
    k = array.shape[-1]
    v = rng.standard_normal(array.shape[-2])
    v /= np.abs(v).max()
    sign = rng.choice([-1.0, 1.0])
    return sign * 10.0 ** rng.uniform(-3, 99) * np.outer(v, v[:k])


def _metrics(rng: np.random.Generator, content: RecordDict) -> RecordDict:
    values: list[Any] = [-1, 0, 1, 7, 2**62, -(2**62), math.nan, 1e300, [1, 2], [0.5]]
    names = ["agent-id", "journal", "num-evaluations", "wants-synchronisation"]
    names += [*reply_metrics(content), "best-value", "num-examples"]
    picked = {n: values[rng.integers(len(values))] for n in names}
    return RecordDict({**dict(content), "metrics": MetricRecord(picked)})


ANYTHING: dict[str, Lie] = {
    "flipped bits": _kept(_flipped),
    "scaled": _kept(_numbers(lambda rng, a: a * 10.0 ** rng.uniform(-300, 300))),
    "negated": _kept(_numbers(lambda rng, a: -a)),
    "zeros": _kept(_numbers(lambda rng, a: np.zeros_like(a))),
    "large": _kept(
        _numbers(lambda rng, a: np.full(a.shape, 10.0 ** rng.uniform(0, 99)))
    ),
    "along": _kept(_numbers(_along)),
    "noise": _kept(
        _numbers(lambda rng, a: a + rng.standard_normal(a.shape) * rng.choice([1, 1e9]))
    ),
    "metrics": _metrics,
}


def _outer(rng: np.random.Generator, array: Any, scale: float) -> Any:
    """Return what pulls all estimates one way, in place of any array."""
    if array.ndim < 2:
        return np.full(array.shape, math.sqrt(scale))
    v = np.ones(array.shape[-2])
    if array.shape[-2] == array.shape[-1] + 1 or array.shape[-1] > 1:
        v[-1] = -1.0
    return scale * np.outer(v, v[: array.shape[-1]])


# What an honest client could have sent, to harm: the same in every round.
WELL_FORMED: dict[str, Lie] = {
    "zeros": ANYTHING["zeros"],
    "negated": ANYTHING["negated"],
    "ten times": _kept(_numbers(lambda rng, a: 10.0 * a)),
    "one way, 10": _kept(_numbers(partial(_outer, scale=10.0))),
    "one way, 1e6": _kept(_numbers(partial(_outer, scale=1e6))),
}


# The federation


@dataclass
class Watched:
    """What the honest clients of one study did."""

    regrets: list[float] = field(default_factory=list)
    digest: Any = field(default_factory=hashlib.sha256)
    num_lies: int = 0
    failures: list[str] = field(default_factory=list)


class LyingGrid(InProcessGrid):
    """Some of whose nodes lie, or are silent, from the first round on."""

    def __init__(
        self,
        app: ClientApp,
        watched: Watched,
        lie: Callable[[RecordDict], RecordDict | None] | None,
        liars: tuple[int, ...],
    ) -> None:
        super().__init__(app, NUM_AGENTS)
        self._watched, self._lie, self._liars = watched, lie, liars

    def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
        """Deliver all messages, and what is made of the replies."""
        asked = list(messages)
        replies = list(super().send_and_receive(asked, timeout=timeout))
        to = {m.metadata.message_id: m.metadata.dst_node_id for m in asked}
        enrols = any("fbo-slot" in _config(m) and _slot(m) < 0 for m in asked)
        heard = []
        for reply in replies:
            node = to[reply.metadata.reply_to_message_id]
            if int(self.contexts[node].node_config["partition-id"]) in self._liars:
                if not enrols:
                    heard += self._lied(reply)
                    continue
            elif reply.has_error():
                self._watched.failures.append((reply.error.reason or "").strip()[-300:])
            else:
                self._note(reply.content)
            heard.append(reply)
        return heard

    def _lied(self, reply: Message) -> list[Message]:
        """Return what comes of a liar's reply: nothing where liars are silent."""
        if self._lie is None or reply.has_error():
            return []
        self._watched.num_lies += 1
        content = self._lie(reply.content)
        if content is None:
            return [_failed(reply)]
        reply.content = content
        return [reply]

    def _note(self, content: RecordDict) -> None:
        for array in reply_arrays(content):
            self._watched.digest.update(np.ascontiguousarray(array).tobytes())


def _failed(reply: Message) -> Message:
    failed = Message(RecordDict(), reply.metadata.dst_node_id, "train")
    failed.metadata.__dict__.update(reply.metadata.__dict__)
    failed.__dict__["_content"] = None
    failed.__dict__["_error"] = Error(_ERROR_CODE, "a lie \x1b[31m\n" * 50)
    return failed


def _config(message: Message) -> Mapping[str, Any]:
    records = message.content.config_records
    for name in ("config", "fitins.config"):
        if name in records:
            return records[name]
    return {}


def _slot(message: Message) -> int:
    return int(_config(message)["fbo-slot"])


# The studies: a strategy, its app, and its rounds


@dataclass(frozen=True)
class Case:
    """A kind of study.

    Attributes
    ----------
    make : callable
        Takes a seed and a function that notes an agent's regret.
    malformed : dict of str to callable
        The lies that must be refused.
    released : bool
        Whether what the server has released must be the same, too: those that a lie is
        released to may take no notice of it.
    """

    make: Callable[[int, Callable[[int, float], None]], tuple[Any, ClientApp, Any]]
    malformed: Mapping[str, Lie]
    released: bool = False


_SPACE = {"x": FloatDistribution(-1.0, 1.0), "y": FloatDistribution(-1.0, 1.0)}
_SEARCH: dict[str, Any] = {
    "num_initial": 4,
    "num_candidates": 50,
    "num_features": 20,
    "num_surrogate_features": 20,
}


def _tuning(
    seed: int,
    note: Callable[[int, float], None],
    *,
    kind: Any,
    agent: Any,
    **how: Any,
) -> tuple[Any, ClientApp, Any]:
    optima = np.random.default_rng(seed).uniform(-0.1, 0.5, (NUM_AGENTS, 2))

    def make_objective(context: Context) -> Callable[[Mapping[str, Any]], float]:
        slot = int(context.node_config["partition-id"])

        def objective(params: Mapping[str, Any]) -> float:
            away = np.array([params["x"], params["y"]]) - optima[slot]
            note(slot, float(away @ away))
            return -float(away @ away)

        return objective

    noise = {} if kind is FTS else {"noise": seed}
    seeds = Seeds(study=seed, features=seed, **noise)
    strategy = kind(_SPACE, "maximize", NUM_AGENTS, agent=agent, seeds=seeds, **how)
    return strategy, tuning_app(make_objective), _NUM_ITERATIONS + 1


_VOTING = FedVoteSettings(**{**_SEARCH, "num_features": 64})
# Two of four pioneers are enough for their release, whoever of them lies.
_WARM = FedWarmStartSettings(num_features=16, num_candidates=50, share_after=3)
_PRIVATE_TUNING: dict[str, Any] = {"epsilon": 8.0, "delta": 1e-3}
_OPEN_TUNING: dict[str, Any] = {
    "privacy": Privacy(noise_multiplier=0.0, clip_norm=math.inf, sampling_probability=1)
}


class _LinearEnvironment(LinearBanditEnvironment):
    def __init__(self, seed: int, slot: int, note: Callable[[int, float], None]):
        task = LinearBanditTask(dimension=3, num_actions=6)
        super().__init__(task, seed, slot)
        self._slot, self._note = slot, note

    def reward(self, x: np.ndarray[Any, Any]) -> float:
        """Return what an action gives; note what it costs."""
        means = self.contexts(self._t) @ self._bandits.theta
        self._note(self._slot, float(means.max() - x @ self._bandits.theta))
        return super().reward(x)


def _linear(
    seed: int,
    note: Callable[[int, float], None],
    *,
    epsilon: float,
    graph: PeerGraph | None = None,
) -> tuple[Any, ClientApp, Any]:
    def environment(context: Context) -> LinearBanditEnvironment:
        return _LinearEnvironment(seed, int(context.node_config["partition-id"]), note)

    releases = ContinualSettings(
        num_releases=len(_TIMES), dimension=3, epsilon=epsilon, delta=0.1
    )
    settings = LinearUCBSettings(
        releases, local_data="released" if epsilon < math.inf else "raw"
    )
    how: dict[str, Any] = {
        "schedule": _TIMES,
        "num_trials": _NUM_TRIALS,
        "noise_seed": seed,
    }
    everyone = Limits(max_epsilon_per_example=math.inf)
    app = linear_bandit_app(make_environment=environment, limits=everyone)
    if graph is not None:
        return DecentralizedFedUCB(settings, graph, **how), app, None
    return FedUCB(settings, NUM_AGENTS, **how), app, None


class _NeuralEnvironment(NonlinearBanditEnvironment):
    def __init__(self, seed: int, slot: int, note: Callable[[int, float], None]):
        task = FunctionBanditTask(noise_std=0.01, num_actions=12)
        super().__init__(task, seed, slot)
        self._note = note

    def reward(self, x: np.ndarray[Any, Any]) -> float:
        """Return what an action gives; note what it costs."""
        chosen = int(np.all(self._bandit.actions == x, axis=1).argmax())
        self._note(self._agent, self._bandit.regret(chosen))
        return super().reward(x)


def _neural(
    seed: int,
    note: Callable[[int, float], None],
    *,
    private: bool,
    num_refinements: int = 0,
) -> tuple[Any, ClientApp, Any]:
    def environment(context: Context) -> NonlinearBanditEnvironment:
        return _NeuralEnvironment(seed, int(context.node_config["partition-id"]), note)

    privacy = None
    if private:
        privacy = NeuralPrivacy(
            epsilon=50.0, delta=1e-3, num_synchronisations=2, num_features=4
        )
    settings = FedGOUCBSettings(
        num_exploration=0 if private else 2,
        regression=LangevinSettings(num_iterations=6),
        threshold=1.0,
        exploration="optimism" if num_refinements else "sampling",
        num_refinements=num_refinements,
        privacy=privacy,
    )
    strategy = FedGOUCB(
        settings,
        Network(6, width=3),
        NUM_AGENTS,
        num_evaluations=12,
        seed=seed,
        noise_seed=seed if private else None,
    )
    return strategy, neural_bandit_app(environment), None


# Whose messages hold as many arrays as come.
_OF_PEERS = {name: lie for name, lie in MALFORMED.items() if name != "one array more"}
_RING = PeerGraph(
    NUM_AGENTS,
    tuple((i, (i + 1) % NUM_AGENTS) for i in range(NUM_AGENTS)),
    hops=2,
    pooling="neighbourhood",
    num_estimators=1,
)
CASES = {
    "FTS": Case(
        partial(_tuning, kind=FTS, agent=FTSSettings(**_SEARCH)),
        MALFORMED,
    ),
    "DPFTSDE": Case(
        partial(
            _tuning, kind=DPFTSDE, agent=DPFTSDESettings(**_SEARCH), **_PRIVATE_TUNING
        ),
        MALFORMED,
    ),
    "DPFTSDE, open": Case(
        partial(
            _tuning, kind=DPFTSDE, agent=DPFTSDESettings(**_SEARCH), **_OPEN_TUNING
        ),
        MALFORMED,
    ),
    "FedVote": Case(
        partial(_tuning, kind=FedVote, agent=_VOTING, **_PRIVATE_TUNING),
        MALFORMED,
    ),
    "FedVote, open": Case(
        partial(_tuning, kind=FedVote, agent=_VOTING, **_OPEN_TUNING),
        MALFORMED,
    ),
    "FedWarmStart": Case(
        partial(
            _tuning, kind=FedWarmStart, agent=_WARM, cohorts=(4,), **_PRIVATE_TUNING
        ),
        MALFORMED | LONG,
        released=True,
    ),
    "FedUCB": Case(partial(_linear, epsilon=30.0), MALFORMED | SUMS),
    "FedUCB, open": Case(partial(_linear, epsilon=math.inf), MALFORMED | RAW_SUMS),
    "DecentralizedFedUCB": Case(
        partial(_linear, epsilon=30.0, graph=_RING), _OF_PEERS | SUMS
    ),
    "DecentralizedFedUCB, open": Case(
        partial(_linear, epsilon=math.inf, graph=_RING), _OF_PEERS | RAW_SUMS
    ),
    "FedGOUCB": Case(partial(_neural, private=True), MALFORMED | SUMS),
    "FedGOUCB, open": Case(partial(_neural, private=False), MALFORMED | RAW_SUMS),
    "FedGOUCB, open, refined": Case(
        partial(_neural, private=False, num_refinements=2), MALFORMED | RAW_SUMS
    ),
}


# Playing them


def play(
    case: Case,
    seed: int,
    liars: tuple[int, ...],
    lie: Callable[[RecordDict], RecordDict | None] | None,
) -> Watched:
    """Play one study; ``lie`` is what liars make of their replies, None for silence."""
    watched = Watched()

    def note(slot: int, regret: float) -> None:
        if slot not in liars:
            watched.regrets.append(regret)
            watched.digest.update(np.float64(regret).tobytes())

    strategy, app, rounds = case.make(seed, note)
    grid = LyingGrid(app, watched, lie, liars)
    try:
        strategy.start(grid, num_rounds=rounds)
    except Exception as error:
        watched.failures.append(f"the study ended: {type(error).__name__}: {error}")
    if case.released:
        watched.digest.update(strategy.server.vectors.tobytes())
    return watched


def drawn_liars(rng: np.random.Generator) -> tuple[int, ...]:
    """Return the slots of the liars, mostly as many as may be."""
    count = MOST_LIARS if rng.random() < 0.75 else 1
    return tuple(sorted(rng.choice(NUM_AGENTS, count, replace=False).tolist()))


def fuzz(name: str, seed: int, num_replies: int) -> tuple[int, list[str]]:
    """Play studies until so many replies were lies; return how many, and what is wrong.

    Of as many studies in which lies must be refused as of those with any lies.

    Parameters
    ----------
    name : str
        Of `CASES`.
    seed : int
        Of what the liars say; all studies have the same.
    num_replies : int
    """
    case, rng = CASES[name], np.random.default_rng(seed)
    silent: dict[tuple[int, ...], bytes] = {}
    wrong, done, refuses = [], 0, False
    while refuses or done < num_replies:
        refuses = not refuses
        liars = drawn_liars(rng)
        lies = case.malformed if refuses else {**case.malformed, **ANYTHING}
        said: list[str] = []

        def lie(content: RecordDict) -> RecordDict | None:
            picked = str(rng.choice(list(lies)))  # noqa: B023
            said.append(picked)  # noqa: B023
            return lies[picked](rng, content)  # noqa: B023

        watched = play(case, 0, liars, lie)
        done += watched.num_lies
        about = f"{name}, liars {liars}, {said}"
        wrong += [f"{about}: {failure}" for failure in watched.failures]
        if refuses:
            if liars not in silent:
                silent[liars] = play(case, 0, liars, None).digest.digest()
            if watched.digest.digest() != silent[liars]:
                wrong.append(f"{about}: the others' curves differ")
    return done, wrong


def regrets(name: str, num_seeds: int) -> dict[str, tuple[float, float]]:
    """Return the honest agents' mean regret, and its standard error, by what is said.

    Beside studies in which nobody lies, and in which the liars are silent.
    """
    case, liars = CASES[name], tuple(range(MOST_LIARS))
    said: dict[str, Any] = {"the truth": lambda rng, content: content, "nothing": None}
    table = {}
    for title, lie in {**said, **WELL_FORMED}.items():
        rng = np.random.default_rng(0)
        bound = None if lie is None else partial(lie, rng)
        means = [
            np.mean(play(case, seed, liars, bound).regrets) for seed in range(num_seeds)
        ]
        error = float(np.std(means, ddof=1) / math.sqrt(num_seeds))
        table[title] = float(np.mean(means)), error
    return table


def _quietly(job: Callable[..., Any], *arguments: Any) -> Any:
    """Do a job in a worker, where nobody reads the log."""
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    return job(*arguments)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.adversaries.lying_clients")
    parser.add_argument("--replies", type=int, default=5_000, help="of each strategy")
    parser.add_argument("--study", choices=CASES, help="only this one")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=20, help="of the table")
    given = parser.parse_args()
    names = [given.study] if given.study else list(CASES)
    parts = 8
    size = -(-given.replies // parts)
    workers = Parallel(given.jobs, inner_max_num_threads=1)
    jobs = [(name, part) for name in names for part in range(parts)]
    results = workers(delayed(_quietly)(fuzz, name, part, size) for name, part in jobs)
    failed = False
    for name in names:
        mine = [r for (n, _), r in zip(jobs, results, strict=True) if n == name]
        wrong = [line for _, lines in mine for line in lines]
        failed |= bool(wrong)
        print(f"{name:26} {sum(d for d, _ in mine):6} replies, {len(wrong)} wrong")
        for line in wrong[:5]:
            print("   ", line)
    tables = workers(delayed(_quietly)(regrets, name, given.seeds) for name in names)
    print("\nMean regret a trial of four honest agents, while two say")
    for name, table in zip(names, tables, strict=True):
        print(f"{name}:")
        for title, (mean, error) in table.items():
            print(f"    {title:14} {mean:.3f} +- {error:.3f}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
