"""Servers that would move a ballot further than its noise hides one example."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flwr_fbo import tuner_mod
from flwr_fbo.privacy.guarantee import EXAMPLE
from flwr_fbo.privacy.spending_ledger import Charge, Promise
from flwr_fbo.tuner.ballots.example_ballots import ExampleBallots
from flwr_fbo.tuner.message_headers import (
    BALLOT,
    HEADER,
    TrialsHeader,
    header_record,
    pack,
)
from tests.support.federation import charges_in
from tests.support.gate import Site, ballot_of

NUM_EXAMPLES, TRIALS = 80, (0, 1, 2, 3)
PROMISE = Promise((Charge(1.0),), private=True, delta=1e-5, unit=EXAMPLE)
ACCURACY = ExampleBallots(0.0, 1.0, 10_000)
LIMITS = {"fbo-max-epsilon-per-example": 8.0, "fbo-max-delta": 1e-5}


def _app(num_right: int) -> ClientApp:
    app = ClientApp(mods=[tuner_mod])

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        mean = num_right / NUM_EXAMPLES
        metrics = MetricRecord({"acc": mean, "num-examples": NUM_EXAMPLES})
        return Message(RecordDict({"m": metrics}), reply_to=message)

    return app


class _Lied:
    """A site that a server asks with one range and weight, each maybe a lie.

    Parameters
    ----------
    folder : Path
        Folder of the site.
    num_right : int
        Number of examples that the models get right.
    config : mapping
        Entries of the node config besides.
    """

    def __init__(
        self, folder: Path, num_right: int = 40, config: Mapping[str, Any] = LIMITS
    ) -> None:
        self.folder = folder
        given = {"fbo-folder": str(folder), **LIMITS, **config}
        self.site = Site(_app(num_right), **given)

    def trials(
        self,
        examples: ExampleBallots | None = ACCURACY,
        metric: dict[str, float] | None = None,
        attempt: str = "a",
        promise: Promise = PROMISE,
    ) -> Message:
        settings, metric = ({"x": 0.0},) * len(TRIALS), metric or {"acc": 1.0}
        about = attempt, TRIALS, settings, TRIALS, metric, True, promise
        header = TrialsHeader(*about, examples=examples)
        return self.site.ask(pack(header, {n: RecordDict() for n in TRIALS}))

    def ballot(self, examples: Any = ACCURACY, **fields: Any) -> Message:
        given = {"trials": TRIALS, "promise": PROMISE, "examples": examples, **fields}
        return self.site.ask(RecordDict({HEADER: header_record(ballot_of(**given))}))

    def is_charged(self) -> bool:
        exists = (self.folder / "spending.sqlite").exists()
        return exists and bool(charges_in(self.folder))


def _vector(reply: Message) -> np.ndarray[Any, Any]:
    assert not reply.has_error(), reply.error
    return reply.content.array_records[BALLOT]["ballot"].numpy()


LIES: dict[str, tuple[ExampleBallots, dict[str, float]]] = {
    "a narrow range": (ExampleBallots(0.505, 0.515, 10_000), {"acc": 1.0}),
    "a wider range": (ExampleBallots(0.0, 2.0, 10_000), {"acc": 1.0}),
    "a range for another sign": (ACCURACY.negated(), {"acc": 1.0}),
    "a weight": (ExampleBallots(0.0, 500_001.0, 10_000), {"acc": 1e6}),
    "a weight in the range": (ACCURACY, {"acc": 1e6}),
    "several metrics": (ACCURACY, {"acc": 1.0, "num-examples": 1.0}),
}


def test_without_a_lie_one_example_moves_a_ballot_as_the_noise_expects(
    tmp_path: Path,
) -> None:
    for maximize in (True, False):
        vectors = []
        for num_right in (0, 1):  # 0 is an end of the range, with either sign
            asked = _Lied(tmp_path / f"{num_right}{maximize}", num_right)
            assert not asked.trials().has_error()
            vectors.append(_vector(asked.ballot(maximize=maximize)))
        moved = np.linalg.norm(vectors[0] - vectors[1])
        assert moved <= ACCURACY.distance(len(TRIALS))


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize(
    "config", [{}, {"fbo-max-epsilon-per-example": float("inf"), "fbo-max-delta": 0.1}]
)
def test_a_range_or_a_weight_that_a_server_chooses_is_refused(
    lie: str, config: dict[str, Any], tmp_path: Path
) -> None:
    """At a site with a limit, and at one that only counts; nothing is charged."""
    (examples, metric), asked = LIES[lie], _Lied(tmp_path, config=config)
    assert asked.trials(examples, metric).has_error()
    ballot = asked.ballot(examples)
    if examples == ACCURACY:  # then the weight was the lie, and there are no scores
        assert not _vector(ballot).any()
    else:
        assert ballot.has_error()
        assert not asked.is_charged()


def test_a_ballot_is_refused_for_scores_that_were_made_for_another(
    tmp_path: Path,
) -> None:
    """Of a metric with a weight, where no promise is per example, for example."""
    config: dict[str, Any] = {"fbo-max-epsilon-per-example": float("inf")}
    asked, of_client = (
        _Lied(tmp_path, config=config),
        Promise((Charge(1.0),), True, 1e-5),
    )
    assert not asked.trials(None, {"acc": 1.5}, promise=of_client).has_error()
    reply = asked.ballot()
    assert reply.has_error()
    assert "were not made for such ballots" in str(reply.error.reason)
    assert asked.trials().has_error()  # some of the scores would be the old ones
    assert not asked.is_charged()
    # Another run of the tuner has scores of its own.
    assert not asked.trials(attempt="b").has_error()
    assert not asked.ballot(attempt="b").has_error()


def test_another_range_needs_the_word_of_the_site(tmp_path: Path) -> None:
    loss = ExampleBallots(0.0, 10.0, 100)
    asked, own = _Lied(tmp_path / "silent"), {"fbo-metric-range": "0..10"}
    reply = asked.trials(loss)
    assert "fbo-metric-range" in str(reply.error.reason)
    allowed = _Lied(tmp_path / "allowed", config=own)
    assert not allowed.trials(loss).has_error()
    assert not allowed.ballot(loss).has_error()
    # Values up to 10 could move a mean in the default range by ten times as much.
    strict = _Lied(tmp_path / "strict", config=own)
    assert strict.trials(ACCURACY).has_error()


def test_where_nothing_is_counted_any_range_will_do() -> None:
    """As in a simulation: such a site would send the exact scores, too."""
    site = Site(_app(40))
    loss = ExampleBallots(0.0, 10.0, 100)
    asked = ballot_of(trials=TRIALS, promise=PROMISE, examples=loss)
    assert not site.ask(RecordDict({HEADER: header_record(asked)})).has_error()
