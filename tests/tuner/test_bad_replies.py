"""Whatever one client answers, the trials of the others go on."""

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from flwr_fbo import Halving, PrivateChoice, tuner_mod
from flwr_fbo.tuner.message_headers import BALLOT, HEADER, BallotHeader, read_header
from tests.support.apps import in_process, main_of, message_app, server_context, tuner


def _header(kind: str, fields: str) -> RecordDict:
    return RecordDict({HEADER: ConfigRecord({"kind": kind, "fields": fields})})


def _ballot(array: Array) -> RecordDict:
    content = _header("reply", "{}")
    content[BALLOT] = ArrayRecord({"ballot": array})
    return content


_HUGE = (
    np.lib.format.magic(1, 0)
    + b"\x56\x00"
    + (
        b"{'descr': '<f8', 'fortran_order': False, 'shape': (9000000000000,), }".ljust(
            86
        )
    )
)


PRIVATE = PrivateChoice(1000.0, 1e-3)


@pytest.mark.parametrize(
    ("content", "privacy"),
    [
        (RecordDict(), None),
        (RecordDict({HEADER: ConfigRecord()}), PRIVATE),
        (_header("no such kind", "{}"), PRIVATE),
        (_header("ballot", "{}"), PRIVATE),
        (_header("reply", "no JSON"), PRIVATE),
        (_header("reply", "[" * 100_000), PRIVATE),
        (_header("reply", '{"more": 1}'), PRIVATE),
        (_header("reply", '{"errors": {"0": 1}}'), PRIVATE),
        (_header("reply", '{"errors": {"x": "", "0": "", "1": ""}}'), PRIVATE),
        (_header("reply", '{"read": [[]]}'), PRIVATE),
        (_ballot(Array("float64", (6,), "numpy.ndarray", b"no array")), PRIVATE),
        (_ballot(Array("float64", (6,), "pickle", b"no array")), PRIVATE),
        (_ballot(Array("float64", (6,), "numpy.ndarray", _HUGE)), PRIVATE),
        (_ballot(Array("float64", (6,), "numpy.ndarray", _HUGE)), None),
        (_ballot(Array(np.array(["a"] * 6))), None),
        (_ballot(Array(np.full(6, np.nan))), PRIVATE),
        (_ballot(Array(np.full(6, np.nan))), None),
    ],
)
def test_one_client_that_answers_anything(
    content: RecordDict, privacy: PrivateChoice | None
) -> None:
    def liar(message: Message, context: Context, call_next: Any) -> Message:
        is_lie = context.node_config["partition-id"] == 0
        if BALLOT in content:  # a lie about the ballot alone
            is_lie &= isinstance(read_header(message.content), BallotHeader)
        if is_lie:
            return Message(content, reply_to=message)
        return tuner_mod(message, context, call_next)

    result = tuner(
        schedule=Halving(2, (1,)),
        privacy=privacy,
        enqueue=[{"learning-rate": 0.5, "local-epochs": 5}],
    ).start(
        main_of(),
        in_process(message_app(first=(liar,))),
        server_context(**{"num-server-rounds": 1}),
    )
    assert result.best_trial == 1
