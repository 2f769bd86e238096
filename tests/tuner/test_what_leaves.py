"""What reaches the server while trials are compared privately, message by message."""

import json
import logging
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    RecordDict,
)

from flwr_fbo import Halving, PrivateChoice, tuner_mod
from flwr_fbo.tuner.site.hidden_metrics import hide_evaluate_metrics
from tests.support.apps import (
    EXACT_LOSS,
    NUM_CLIENTS,
    TWO_RUNGS,
    RecordingGrid,
    main_of,
    message_app,
    num_examples,
    recording,
    server_context,
    tuner,
)


class Spy:
    """A mod behind `tuner_mod`: what the app itself has said of its data."""

    def __init__(self) -> None:
        self.scores: set[float] = set()

    def __call__(self, message: Message, context: Context, call_next: Any) -> Message:
        """Note the scores of a reply."""
        reply: Message = call_next(message, context)
        for record in reply.content.metric_records.values():
            if "distance" in record:
                self.scores.add(float(str(record["distance"])))
        return reply


def _run(**options: Any) -> tuple[Spy, RecordingGrid, Any]:
    spy = Spy()
    grid = recording(message_app(first=(tuner_mod, spy)))
    options = {"schedule": TWO_RUNGS, **options}
    result = tuner(**options).start(main_of(), grid, server_context())
    return spy, grid, result


def _numbers(content: RecordDict, with_models: bool = False) -> Iterator[float]:
    """Yield every number in a reply; those of trained models only if asked for."""
    for name, record in content.items():
        if isinstance(record, ArrayRecord):
            if with_models or not name.endswith(":arrays"):
                for array in record.values():
                    yield from array.numpy().ravel().tolist()
            continue
        for value in record.values():
            yield from _plain(value)


def _plain(value: Any) -> Iterator[float]:
    if isinstance(value, list):
        for one in value:
            yield from _plain(one)
    elif isinstance(value, dict):
        yield from _plain(list(value.values()))
    elif isinstance(value, str):
        if value.startswith(("{", "[")):
            yield from _plain(json.loads(value))
    elif not isinstance(value, bytes):
        yield float(value)


def _sent(grid: RecordingGrid, with_models: bool = False) -> set[float]:
    return {n for r in grid.replies for n in _numbers(r.content, with_models)}


def test_no_exact_score_is_in_any_message() -> None:
    spy, grid, _ = _run()
    assert len(spy.scores) > 20
    sent = {number for number in _sent(grid) if not math.isnan(number)}
    assert not sent & spy.scores
    assert EXACT_LOSS not in sent
    # Nor in a trained model, which is sent as it is.
    assert not _sent(grid, with_models=True) & spy.scores
    # Exact are num-examples of `train`, and a weight of 1; and the ballots' entries.
    # -1 says that no slot in a secure sum was asked for.
    weights = {float(num_examples(client)) for client in range(NUM_CLIENTS)} | {1.0}
    ballots = {n for n in sent if abs(n) < 1}
    assert sent - ballots == weights | {-1.0}


def test_such_a_reading_finds_scores_where_there_are_some() -> None:
    spy, grid, _ = _run(privacy=None)
    sent = _sent(grid)
    assert spy.scores <= sent
    assert EXACT_LOSS in sent


def test_a_client_sends_one_ballot_a_rung_of_norm_1() -> None:
    _, grid, _ = _run()
    ballots = [
        reply.content.array_records["fbo-ballot"]["ballot"].numpy()
        for reply in grid.replies
        if "fbo-ballot" in reply.content
    ]
    assert [ballot.shape for ballot in ballots] == (
        [(6,)] * NUM_CLIENTS + [(2,)] * NUM_CLIENTS
    )
    for ballot in ballots:
        assert np.linalg.norm(ballot) == pytest.approx(1.0)


def test_no_exact_score_is_in_the_log_or_the_result(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG):
        spy, _, result = _run()
    text = caplog.text + repr(result)
    found = [s for s in spy.scores if f"{s:.6g}"[:7] in text]
    assert found == []
    with caplog.at_level(logging.DEBUG):
        spy, _, result = _run(privacy=None)
    assert any(f"{s:.6g}"[:7] in caplog.text + repr(result) for s in spy.scores) or any(
        "distance" in line and "nan" not in line for line in caplog.messages
    )


def test_a_failure_at_a_client_says_no_value() -> None:
    def fails(message: Message, context: Context, call_next: Any) -> Message:
        reply: Message = call_next(message, context)
        score = reply.content.metric_records["metrics"].get("distance")
        if score is not None and float(context.run_config["learning-rate"]) > 0.1:
            raise OverflowError(f"the score is {score}")
        return reply

    grid = recording(message_app(first=(tuner_mod, fails)))
    tuner().start(main_of(), grid, server_context())
    texts = [
        str(record["fields"])
        for reply in grid.replies
        for name, record in reply.content.config_records.items()
    ]
    assert any("OverflowError" in text for text in texts)
    assert not any("the score is" in text for text in texts)


def test_noise_only_chooses_as_random_choice_does() -> None:
    """Among two trials of which one is far better, over many seeds of the noise."""
    from flwr_fbo import Seeds

    wins = []
    for seed in range(8):
        privacy = PrivateChoice(1000.0, 1e-3, noise_only=True)
        study = tuner(
            privacy=privacy,
            schedule=Halving(2, (1,)),
            seeds=Seeds(study=1, noise=seed),
            enqueue=[{"learning-rate": 0.5, "local-epochs": 5}],
        )
        wins.append(study.start(main_of(), recording(), server_context()).best_trial)
    assert 0 < sum(wins) < len(wins)  # not always the better one


def test_of_a_status_the_code_is_all_that_is_sent() -> None:
    content = RecordDict(
        {
            "evaluateres.status": ConfigRecord({"code": 0, "message": "acc 0.93"}),
            "my.status": ConfigRecord({"acc": 0.93}),
        }
    )
    hidden = hide_evaluate_metrics(content).config_records
    assert hidden["evaluateres.status"] == {"code": 0, "message": ""}
    assert math.isnan(float(str(hidden["my.status"]["acc"])))


def test_of_an_error_that_the_app_replies_the_code_is_all_that_is_sent() -> None:
    def replies_an_error(message: Message, context: Context, call_next: Any) -> Message:
        reply: Message = call_next(message, context)
        score = reply.content.metric_records["metrics"].get("distance")
        if score is not None and float(context.run_config["learning-rate"]) > 0.1:
            return Message(Error(77, f"the score is {score}"), reply_to=message)
        return reply

    grid = recording(message_app(first=(tuner_mod, replies_an_error)))
    tuner().start(main_of(), grid, server_context())
    texts = [str(reply.content["fbo-tuner"]["fields"]) for reply in grid.replies]
    assert any("error 77" in text for text in texts)
    assert not any("the score is" in text for text in texts)
