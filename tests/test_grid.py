"""The in-process grid keeps to Flower's `Grid`."""

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from flwr_fbo import InProcessGrid
from flwr_fbo._compat import CLIENT_APP_RAISED, Run


def _echo() -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: object) -> Message:
        config = message.content.config_records["config"]
        if config["fail"]:
            raise RuntimeError("on purpose")
        config["seen"] = True
        return Message(message.content, reply_to=message)

    return app


def _message(grid: InProcessGrid, node: int, fail: bool) -> Message:
    content = RecordDict({"config": ConfigRecord({"fail": fail})})
    return Message(content, node, "train", group_id="7")


def test_messages_are_answered_and_replies_given_once() -> None:
    grid = InProcessGrid(_echo(), 2, run_config={"lr": 0.1})
    nodes = list(grid.get_node_ids())
    assert [c.node_config["partition-id"] for c in grid.contexts.values()] == [0, 1]
    assert grid.contexts[nodes[0]].run_config == {"lr": 0.1}
    asked = [_message(grid, nodes[0], False), _message(grid, nodes[1], True)]
    ids = list(grid.push_messages(asked))
    good, bad = grid.pull_messages(ids)
    assert list(grid.pull_messages(ids)) == []
    assert good.metadata.reply_to_message_id == ids[0] == asked[0].metadata.message_id
    assert (good.metadata.src_node_id, good.metadata.group_id) == (nodes[0], "7")
    assert bad.has_error()
    assert bad.error.code == CLIENT_APP_RAISED
    assert "on purpose" in str(bad.error.reason)


def test_the_run_can_be_set() -> None:
    grid = InProcessGrid(_echo(), 1)
    grid.set_run(Run.create_empty(5))
    assert grid.run.run_id == 5
    made = grid.create_message(RecordDict(), "train", 1001, "1")
    assert made.metadata.dst_node_id == 1001


def test_nodes_are_needed() -> None:
    with pytest.raises(ValueError, match="num_nodes=0"):
        InProcessGrid(_echo(), 0)
