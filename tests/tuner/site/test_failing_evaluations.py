"""Clients whose apps fail in evaluate: examples for which they count, where they do."""

import logging
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.exception import AggregationError

from flwr_fbo import PrivateChoice, tuner_mod
from flwr_fbo.privacy.guarantee import EXAMPLE
from flwr_fbo.privacy.spending_ledger import Charge, Promise
from flwr_fbo.tuner.ballots.example_ballots import ExampleBallots
from flwr_fbo.tuner.choosers.private import PrivateChooser
from flwr_fbo.tuner.decisions.rung_evidence import check_evidence
from flwr_fbo.tuner.message_headers import (
    BALLOT,
    HEADER,
    ReplyHeader,
    TrialsHeader,
    header_record,
    pack,
    read_header,
)
from tests.support.gate import Site, ballot_of

N, K, NUM_EXAMPLES = 6, 4, 80
TRIALS = tuple(range(K))
PROMISE = Promise((Charge(1.0, num_releases=2),), True, delta=1e-5, unit=EXAMPLE)
EXAMPLES = ExampleBallots(0.0, 1.0, 10_000)
HALF = [NUM_EXAMPLES / 2] * K


class _Client:
    """A client whose app fails in some trials, by an exception or by NaN."""

    def __init__(self) -> None:
        self.raises: set[int] = set()
        self.is_nan = False
        self.num_examples = NUM_EXAMPLES
        app = ClientApp(mods=[tuner_mod])

        @app.evaluate()
        def evaluate(message: Message, context: Context) -> Message:
            trial = int(context.run_config["x"])
            if trial in self.raises:
                raise ArithmeticError
            score = float("nan") if self.is_nan else trial / 10
            metrics = MetricRecord({"acc": score, "num-examples": self.num_examples})
            return Message(RecordDict({"m": metrics}), reply_to=message)

        self.site = Site(app)

    def ballot(
        self, release: int = 1, failed: tuple[int, ...] = (), examples: Any = EXAMPLES
    ) -> tuple[Any, int]:
        """Return a ballot, and with how many examples the client says it counts."""
        settings = tuple({"x": float(n)} for n in TRIALS)
        about = "a", TRIALS, settings, TRIALS, {"acc": 1.0}, True, PROMISE
        trials = TrialsHeader(*about, examples=examples)
        self.site.ask(pack(trials, {n: RecordDict() for n in TRIALS}))
        asked = ballot_of(
            trials=TRIALS,
            failed=failed,
            promise=PROMISE,
            release=release,
            examples=examples,
        )
        reply = self.site.ask(RecordDict({HEADER: header_record(asked)}))
        assert not reply.has_error(), reply.error
        header = read_header(reply.content)
        assert isinstance(header, ReplyHeader)
        vector = reply.content.array_records[BALLOT]["ballot"].numpy()
        return vector, header.num_examples


def test_a_client_of_nan_counts_with_its_examples_whatever_else_has_failed() -> None:
    for failed in ((), (1,), TRIALS):
        client = _Client()
        client.is_nan = True
        vector, count = client.ballot(failed=failed)
        assert (vector.tolist(), count) == (HALF, NUM_EXAMPLES)


def test_a_client_that_fails_later_counts_as_it_did_before() -> None:
    client = _Client()
    assert client.ballot()[1] == NUM_EXAMPLES
    client.raises = set(TRIALS)
    vector, count = client.ballot(release=2)
    assert (vector.tolist(), count) == (HALF, NUM_EXAMPLES)


def test_a_client_that_fails_in_all_trials_but_one_counts_as_there() -> None:
    client = _Client()
    client.is_nan, client.raises = True, {0, 1, 2}
    vector, count = client.ballot()
    assert (vector.tolist(), count) == (HALF, NUM_EXAMPLES)
    client.is_nan = False
    vector, count = client.ballot(release=2)
    # The failures have the worst value of all examples.
    np.testing.assert_allclose(vector, [-6.0, -6.0, -6.0, 18.0])
    assert count == NUM_EXAMPLES


def _row(said: dict[int, tuple[Any, int]]) -> Any:
    chooser = PrivateChooser(PrivateChoice(8.0, 1e-5, "example"), N, 1, noise_seed=0)
    ballots = {client: vector for client, (vector, _) in said.items()}
    counts = {client: count for client, (_, count) in said.items()}
    return chooser.choose(0, ballots, K, counts)


def test_clients_whose_apps_raise_everywhere_are_counted_by_the_server(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They have told no number of examples: how many they are is exact."""
    tied = EXAMPLES.vector(np.full(K, 0.5), np.full(K, 80.0)), 80
    failing = _Client()
    failing.raises = set(TRIALS)
    nothing = failing.ballot()
    assert (nothing[0].tolist(), nothing[1]) == ([0.0] * K, 0)
    told = "5 of 6 clients tell no number of examples"
    with pytest.raises(AggregationError, match=told):
        check_evidence(_row({0: tied, **dict.fromkeys(range(1, N), nothing)}), N)
    with pytest.raises(AggregationError, match="6 of 6 clients"):
        check_evidence(_row(dict.fromkeys(range(N), nothing)), N)
    with caplog.at_level(logging.WARNING, "flwr.fbo"):
        check_evidence(_row({**dict.fromkeys(range(5), tied), 5: nothing}), N)
    assert "In rung 1 1 of 6 clients tell no number of examples." in caplog.text
    check_evidence(_row(dict.fromkeys(range(N), tied)), N)


@pytest.mark.parametrize("had_weight", [False, True])
def test_with_ranks_an_exception_still_ranks_last(had_weight: bool) -> None:
    """Else a client could be silent about a bad trial."""
    client, promise = _Client(), Promise((Charge(1.0),), True, delta=1e-5)
    settings = tuple({"x": float(n)} for n in TRIALS)
    about = "a", TRIALS, settings, TRIALS, {"acc": 1.0}, True, promise
    trials = pack(TrialsHeader(*about), {n: RecordDict() for n in TRIALS})
    if had_weight:
        client.num_examples = 0
        client.site.ask(trials)
    client.raises, client.num_examples = {3}, NUM_EXAMPLES
    client.site.ask(trials)
    asked = ballot_of(trials=TRIALS, promise=promise)
    reply = client.site.ask(RecordDict({HEADER: header_record(asked)}))
    vector = reply.content.array_records[BALLOT]["ballot"].numpy()
    assert vector.argmin() == 3
    assert vector.argmax() == 2
