"""What `tests/tuner/rungs/test_shared_sends.py` and others share."""

from typing import Any

from tests.support.apps import (
    RecordingGrid,
)

SECONDS_A_SEND = 10.0


class SlowGrid(RecordingGrid):
    """Whose clock goes on by 10 s with each send, whatever is in it."""

    clock = 0.0

    def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
        """Deliver all messages and replies."""
        self.clock += SECONDS_A_SEND
        return super().send_and_receive(messages, timeout=timeout)
