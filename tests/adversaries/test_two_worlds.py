"""Two worlds at small size, and whether they show faults that were planted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message
from flwr.clientapp import ClientApp

from flwr_fbo.privacy.spending_ledger import SpendingLedger
from flwr_fbo.secure import SumIdentity
from flwr_fbo.tuner.site import client_mod, hidden_metrics, trial_replies
from flwr_fbo.tuning.site.recorded_tuner import RecordedTuner
from tests.adversaries.honest_servers import Tuning
from tests.adversaries.two_worlds import KINDS, prove

Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("kind", KINDS)
def test_no_reply_tells_two_worlds_apart(kind: str) -> None:
    tally = prove(kind, messages=150)
    assert not tally.findings, str(tally.findings[0])
    # Else nothing would be tried but refusals.
    assert tally.answered > tally.asked / 4
    assert tally.differing > 0
    assert tally.rows > 0


def test_a_dialogue_can_be_played_again() -> None:
    tallies = [prove("linear", messages=20, dialogue=3) for _ in range(2)]
    figures = [(tally.asked, tally.answered, tally.rows) for tally in tallies]
    assert figures[0] == figures[1]
    assert figures[0][0] > 0


def _quote_a_value(patch: pytest.MonkeyPatch) -> None:
    """As an error's text does that has a score in it."""
    made: Any = Tuning.app

    def app(self: Any, setting: Any, which: int) -> ClientApp:
        inner = made(self, setting, which)

        def quoting(message: Message, context: Any) -> Message:
            reply: Message = inner(message, context)
            config: Any = message.content.config_records.get("config", {})
            if not reply.has_error() or config.get("fbo-iteration", 0) != 2:
                return reply
            text = f"{reply.error.reason} The best is {setting.datum[which]}."
            return Message(Error(reply.error.code, text), reply_to=message)

        return quoting  # type: ignore[return-value]

    patch.setattr(Tuning, "app", app)


def _send_a_metric(patch: pytest.MonkeyPatch) -> None:
    """As a metric does that nobody thought of."""
    hide: Any = hidden_metrics.hide_evaluate_metrics

    def hidden(content: Any) -> Any:
        found = hide(content)
        for name, record in content.metric_records.items():
            found[name]["is-good"] = int(np.nanmax([*_numbers(record), 0]) > 0.5)
        return found

    for module in (client_mod, trial_replies):
        patch.setattr(module, "hide_evaluate_metrics", hidden)


def _numbers(record: Any) -> list[float]:
    return [one for one in record.values() if isinstance(one, float)]


def _send_fewer_numbers(patch: pytest.MonkeyPatch) -> None:
    """As an array does whose length depends on data."""
    message: Any = RecordedTuner.message

    def shorter(self: Any, release: int) -> Any:
        is_good = (self.agent.best_value or 0.0) > 0.9
        return message(self, release)[: -1 if is_good else None]

    patch.setattr(RecordedTuner, "message", shorter)


def _charge_after_the_reply(patch: pytest.MonkeyPatch) -> None:
    """As where the ledger is written later, or not at all."""
    patch.setattr(SpendingLedger, "add", lambda *_: None)


def _mark_a_key(patch: pytest.MonkeyPatch) -> None:
    """As where what is no part of a sum depends on a ballot."""
    reply: Any = SumIdentity.reply

    def marked(who: Any, journal: Any, sums: Any, asked: Any, contribution: Any) -> Any:
        sent = np.array(reply(who, journal, sums, asked, contribution))
        if asked.begins and contribution()[0] > 0:
            sent[-1] ^= 1
        return sent

    patch.setattr(SumIdentity, "reply", marked)


@pytest.mark.parametrize(
    ("kind", "plant", "told"),
    [
        ("tuning", _quote_a_value, "errors differ"),
        ("tuner", _send_a_metric, "is-good differs"),
        ("tuning", _send_fewer_numbers, "shapes differ"),
        ("linear", _charge_after_the_reply, "no row of the ledger"),
        ("secure", _mark_a_key, "differs, and no row of the ledger"),
    ],
)
def test_what_is_planted_is_found(
    kind: str, plant: Plant, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    tally = prove(kind, messages=10_000)
    [finding] = tally.findings
    assert told in finding.text
    assert len(finding.letters) < 10
    print(f"{plant.__name__}: after {finding.message} messages, {finding}")
