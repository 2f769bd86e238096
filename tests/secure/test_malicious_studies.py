"""A server that deviates from secure aggregation: each honest site refuses, by name.

Requests pass the whole client app, as in a deployment. What a `Member` refuses by
itself is in ``tests/secure``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from flwr_fbo._common.fields import from_json
from flwr_fbo._compat import to_array_record
from flwr_fbo.secure.masks import ADVERT_BYTES
from flwr_fbo.secure.member import Integers, Member
from flwr_fbo.secure.roster import SIGNATURE_BYTES
from flwr_fbo.secure.sum_settings import SecureSums
from flwr_fbo.secure.wire import (
    cut,
    pack,
    pack_set,
    set_bytes,
    to_payload,
    unpack,
)
from tests.support.secure_studies import (
    AGGREGATION,
    Heard,
    Keys,
    N,
    Private,
    SumGrid,
    Tamper,
    arrays_of,
    configs_of,
    fed_vote,
    logged_errors,
    make_keys,
    node_configs,
)

MINIMA: dict[str, Any] = {
    "fbo-min-agents": 5,
    "fbo-min-threshold": 4,
    "fbo-min-honest": 4,
    "fbo-min-noise-multiplier": 1.0,
}
SLOTS = tuple(range(N))


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return make_keys(tmp_path)


def strategy_with(roster: Path | None, **options: Any) -> Private:
    about = AGGREGATION.colluding, AGGREGATION.threshold, AGGREGATION.honest
    return fed_vote(aggregation=type(AGGREGATION)(*about, roster=roster), **options)


def attacked(keys: Keys, tamper: Tamper) -> tuple[SumGrid, Private]:
    """Play one round with a server that changes what it asks."""
    grid = SumGrid(keys.node_configs(**MINIMA), tamper=tamper)
    strategy = strategy_with(keys.roster_path)
    strategy.start(grid, num_rounds=2)
    return grid, strategy


def changed(message: Message, **entries: Any) -> None:
    """Change entries of a request, such as ``exchange``."""
    for config in configs_of(message):
        for name, value in entries.items():
            config[f"fbo-{name}"] = value


def with_request(message: Message, request: bytes) -> None:
    """Change the array that comes along."""
    for name in list(message.content.array_records):
        message.content[name] = to_array_record([to_payload(request)])


def request_of(message: Message) -> bytes:
    array = next(iter(arrays_of(message)[0].values()))
    return array.numpy().tobytes()


def refused_by(grid: SumGrid, text: str) -> set[int]:
    """Return the slots that refused a request with this public text."""
    return {heard.slot for heard in grid.heard if text in heard.refusal}


Study = dict[str, Any]


def _no_secure(study: Study) -> None:
    study["secure"] = None


def _no_roster(study: Study) -> None:
    study["secure"]["roster"] = ""


def _other_roster(study: Study) -> None:
    study["secure"]["roster"] = "00" * 32


def _fewer_sites(study: Study) -> None:
    study["secure"]["groups"][0] |= {"num_slots": 4, "threshold": 3, "honest": 3}


def _lower_threshold(study: Study) -> None:
    study["secure"]["groups"][0] |= {"threshold": 3}


def _fewer_honest(study: Study) -> None:
    study["secure"]["groups"][0] |= {"honest": 2}


def _less_noise(study: Study) -> None:
    study["secure"]["settings"]["noise_multiplier"] = 0.5


def _less_noise_promised(study: Study) -> None:
    _less_noise(study)
    for charge in study["promise"]["charges"]:
        charge["noise_multiplier"] = 0.5


def _sample_promised(study: Study) -> None:
    for charge in study["promise"]["charges"]:
        charge["sampling_probability"] = 1e-9


CHANGES: list[tuple[Callable[[Study], None], str]] = [
    (_no_secure, "it pins a roster, and the study has no secure aggregation"),
    (_no_roster, "the study does not have the roster that it pins"),
    (_other_roster, "the study does not have the roster that it pins"),
    (_fewer_sites, "min_agents"),
    (_lower_threshold, "min_threshold"),
    (_fewer_honest, "min_honest"),
    (_less_noise, "the sites of a sum add less noise than the study promises"),
    (_less_noise_promised, "min_noise_multiplier"),
    (_sample_promised, "all sites are summed"),
]


@pytest.mark.parametrize(
    ("change", "text", "phase"),
    [
        *((*change, "round") for change in CHANGES),
        *((*CHANGES[i], "sum") for i in (0, 2, 4, 7)),
    ],
)
def test_another_study_than_the_sites_want(
    change: Callable[[Study], None],
    text: str,
    phase: str,
    keys: Keys,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """From the first round on, or when the sum begins."""

    def tamper(heard: Heard, message: Message) -> bool:
        if heard.phase == phase:
            study = json.loads(str(heard.config["fbo-study"]))
            change(study)
            changed(message, study=json.dumps(study))
        return True

    grid, strategy = attacked(keys, tamper)
    assert refused_by(grid, f"RefusedError: This site takes no part: {text}") == (
        set(SLOTS)
    )
    assert text in logged_errors(caplog)
    assert not strategy.server.ledger
    assert not any(heard.replies for heard in grid.heard)


@pytest.mark.parametrize("wants", ["roster", "minima"])
def test_an_exact_value_beside_a_sum(wants: str, keys: Keys) -> None:
    configs = keys.node_configs() if wants == "roster" else node_configs(**MINIMA)
    roster = keys.roster_path if wants == "roster" else None
    grid, strategy = SumGrid(configs), strategy_with(roster, metrics=["best-value"])
    strategy.start(grid, num_rounds=2)
    text = "This site takes no part: the study asks for the metric best-value"
    assert refused_by(grid, text) == set(SLOTS)
    assert not any(heard.replies for heard in grid.heard)


def test_one_site_that_is_told_another_study(
    keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    """It has another journal for it, without the message: there is nothing to sum."""

    def tamper(heard: Heard, message: Message) -> bool:
        if heard.phase == "sum" and heard.slot == 2:
            study = json.loads(str(heard.config["fbo-study"]))
            study["feature_seed"] += 1
            changed(message, study=json.dumps(study))
        return True

    grid, strategy = attacked(keys, tamper)
    [refusal] = {h.refusal for h in grid.heard if h.refusal}
    assert "Error" in refusal
    assert {h.slot for h in grid.heard if h.refusal} == {2}
    assert not [h for h in grid.of("sum", 1) if h.slot == 2 and h.replies]
    [row] = strategy.server.ledger
    assert row.facts["summed"] == [0, 1, 3, 4]
    assert logged_errors(caplog)


def test_a_plain_message_is_not_to_be_had(keys: Keys) -> None:
    grid, strategy = attacked(keys, lambda heard, message: True)
    assert len(strategy.server.ledger) == 1

    def tamper(heard: Heard, message: Message) -> bool:
        if heard.phase == "round":
            changed(message, release=1, iteration=1)
        return True

    assert not any(h.replies for h in grid.of("round"))
    grid, _ = attacked(keys, tamper)
    assert all(not h.refusal for h in grid.of("round"))
    assert not any(h.replies for h in grid.of("round"))


def _no_numbers() -> Integers:
    raise AssertionError


def test_fakes_that_the_server_enrols(
    keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    """Two slots without their keys, whose adverts the server passes on."""
    fakes = (1, 3)
    honest = set(SLOTS) - set(fakes)

    def tamper(heard: Heard, message: Message) -> bool:
        if heard.exchange == 2 and heard.slot in honest:
            size = ADVERT_BYTES + SIGNATURE_BYTES
            adverts = unpack(request_of(message), size, SLOTS)
            secure = json.loads(str(heard.config["fbo-study"]))["secure"]
            unsigned: SecureSums = from_json(SecureSums, {**secure, "roster": ""})
            terms = unsigned.terms("any study", 1, 0, 7)
            for slot in fakes:
                advert = Member(terms, slot).answer(1, to_payload(b""), _no_numbers)
                adverts[slot] = advert.tobytes() + bytes(SIGNATURE_BYTES)
            with_request(message, pack(adverts))
        return True

    grid, strategy = attacked(keys, tamper)
    assert refused_by(grid, "the keys of slot 1 lack its signature") == honest
    assert "lack its signature" in logged_errors(caplog)
    assert not strategy.server.ledger


def _few_summed(heard: Heard, message: Message) -> bool:
    """Claim that two sites dropped out before they sent masked numbers."""
    if heard.exchange == 4:
        size = set_bytes(SLOTS)
        _, signatures = cut(request_of(message), size)
        few = sorted({heard.slot, 0, 1, 2})[:3]
        kept = unpack(signatures, SIGNATURE_BYTES, SLOTS)
        kept = {slot: kept[slot] for slot in few if slot in kept}
        with_request(message, pack_set(few, SLOTS) + pack(kept))
    return True


def _skipped(heard: Heard, message: Message) -> bool:
    if heard.exchange == 4:
        changed(message, exchange=5)
    return True


def _other_attempt(heard: Heard, message: Message) -> bool:
    """Go on with an attempt that did not begin."""
    if heard.exchange == 3:
        changed(message, attempt=int(heard.config["fbo-attempt"]) + 1)
    return True


def _later_release(heard: Heard, message: Message) -> bool:
    """Sum a message that is not on record."""
    if heard.exchange == 1:
        changed(message, release=2)
    return True


def _no_array(heard: Heard, message: Message) -> bool:
    if heard.phase == "sum":
        for name in list(message.content.array_records):
            message.content[name] = to_array_record([])
    return True


def _floats(heard: Heard, message: Message) -> bool:
    if heard.phase == "sum":
        for name in list(message.content.array_records):
            message.content[name] = to_array_record([to_payload(b"12345678") * 0.5])
    return True


@pytest.mark.parametrize(
    ("tamper", "text"),
    [
        (_few_summed, "Exchange 4: 3 members in the sum, fewer than 4"),
        (_skipped, "exchange 5 does not follow 3"),
        (_other_attempt, "exchange 3 of an attempt that did not begin"),
        (_later_release, "Release 2 cannot be summed now"),
        (_no_array, "Release 1 cannot be summed without a payload"),
        (_floats, "Exchange 1: "),
    ],
)
def test_a_sum_that_no_honest_server_asks_for(
    tamper: Tamper, text: str, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    grid, strategy = attacked(keys, tamper)
    # A slot that is left out of the claimed sum says so in place of how few there are.
    named = refused_by(grid, text) | refused_by(grid, "is not in the sum")
    assert named == set(SLOTS)
    assert text in logged_errors(caplog)
    assert not strategy.server.ledger
    assert not any(h.replies for h in grid.of("sum", 5))


def _replay(grid: SumGrid, sent: list[Message], **entries: Any) -> dict[int, Heard]:
    """Send some requests again, with changes."""
    before = len(grid.heard)
    messages = [
        Message(m.content, m.metadata.dst_node_id, m.metadata.message_type)
        for m in sent
    ]
    for message in messages:
        # A site that hears of fewer releases than before refuses at once.
        changed(message, **{"num-released": 2, **entries})
    grid.send_and_receive(messages)
    return {heard.slot: heard for heard in grid.heard[before:]}


@pytest.fixture
def finished(keys: Keys) -> tuple[SumGrid, dict[int, list[Message]]]:
    """Return a grid whose sites have unmasked release 1, and what they were asked."""
    asked: dict[int, list[Message]] = {exchange: [] for exchange in range(6)}

    def tamper(heard: Heard, message: Message) -> bool:
        if heard.phase in ("round", "sum"):
            asked[heard.exchange].append(message)
        return True

    grid, strategy = attacked(keys, tamper)
    assert len(strategy.server.ledger) == 1
    grid._tamper = lambda heard, message: True
    return grid, {exchange: list(sent) for exchange, sent in asked.items()}


def test_the_last_request_again_has_the_same_reply(
    finished: tuple[SumGrid, dict[int, list[Message]]],
) -> None:
    grid, asked = finished
    first = {h.slot: h.replies[0].tobytes() for h in grid.of("sum", 5)}
    again = _replay(grid, asked[5])
    assert {s: h.replies[0].tobytes() for s, h in again.items()} == first


def test_earlier_requests_again_are_refused(
    finished: tuple[SumGrid, dict[int, list[Message]]],
) -> None:
    grid, asked = finished
    for exchange in range(1, 5):
        replies = _replay(grid, asked[exchange])
        text = f"Exchange {exchange}: it is already answered"
        assert [text in replies[slot].refusal for slot in SLOTS] == [True] * N


def test_both_kinds_of_share_of_one_site_are_not_to_be_had(
    finished: tuple[SumGrid, dict[int, list[Message]]],
) -> None:
    """After an unmasking neither another set nor another list of confirmations."""
    grid, asked = finished
    for message in asked[5]:
        signatures = unpack(request_of(message), SIGNATURE_BYTES, SLOTS)
        del signatures[0]
        with_request(message, pack(signatures))
    replies = _replay(grid, asked[5])
    text = "Exchange 5: it is already answered"
    assert [text in replies[slot].refusal for slot in SLOTS] == [True] * N


def test_a_second_attempt_after_an_unmasking_is_refused(
    finished: tuple[SumGrid, dict[int, list[Message]]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    grid, asked = finished
    text = "A sum of release 1 was unmasked: there can be no other"
    for exchange in (1, 5):
        replies = _replay(grid, asked[exchange], attempt=99)
        assert [text in replies[slot].refusal for slot in SLOTS] == [True] * N
    assert text in logged_errors(caplog)


def test_a_release_that_is_over_is_not_summed_again(keys: Keys) -> None:
    asked: list[Message] = []

    def tamper(heard: Heard, message: Message) -> bool:
        if heard.exchange == 1 and heard.config["fbo-release"] == 1:
            asked.append(message)
        return True

    grid = SumGrid(keys.node_configs(**MINIMA), tamper=tamper)
    strategy = strategy_with(keys.roster_path)
    strategy.start(grid, num_rounds=3)
    assert len(strategy.server.ledger) == 2
    replies = _replay(grid, list(asked), attempt=99)
    text = "The sum of release 1 is over: release 2 began"
    assert [text in replies[slot].refusal for slot in SLOTS] == [True] * N


def test_a_site_has_one_slot(
    finished: tuple[SumGrid, dict[int, list[Message]]],
) -> None:
    """Else the server had two of its messages, or two shares of its noise."""
    grid, asked = finished
    for message in asked[1]:
        slot = int(str(configs_of(message)[0]["fbo-slot"]))
        changed(message, slot=(slot + 1) % N)
    replies = _replay(grid, asked[1])
    assert all(h.refusal and not h.replies for h in replies.values())
