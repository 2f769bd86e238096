"""Which node has which slot of a rung's voters."""

import logging

import pytest

from flwr_fbo.tuner.choosers.voters import Voters


def test_a_node_that_comes_back_with_another_id_takes_the_place_that_is_free() -> None:
    voters = Voters(3)
    assert voters.among([30, 10]) == [10, 30]
    assert voters.among([10, 20, 30, 5]) == [5, 10, 30]  # both new: the smaller first
    assert voters.among([10, 20, 30, 5]) == [5, 10, 30]
    assert voters.among([20, 30, 5, 40]) == [5, 20, 30]
    assert voters.among([20, 30, 5, 40, 10]) == [5, 10, 30]


def test_slots_are_kept_for_the_whole_run() -> None:
    voters = Voters(4)
    for node in (11, 12, 13):
        voters.hear(node, -1)
    voters.hear(14, 1)
    voters.assign_slots([11, 12, 13, 14])
    assert voters.slots == {1: 14, 0: 11, 2: 12, 3: 13}
    voters.assign_slots([12, 13, 14])
    assert voters.slots == {1: 14, 0: 11, 2: 12, 3: 13}
    voters.hear(11, 3)  # another one than before: it stays where it is
    voters.assign_slots([11, 12, 13, 14])
    assert voters.slots == {1: 14, 0: 11, 2: 12, 3: 13}
    voters.hear(15, 1)  # its SuperNode came back
    voters.assign_slots([12, 13, 15])
    assert voters.slots == {1: 15, 0: 11, 2: 12, 3: 13}


def test_a_slot_is_one_nodes(caplog: pytest.LogCaptureFixture) -> None:
    voters = Voters(3)
    for node, slot in ((11, 0), (12, 0), (13, 5)):
        voters.hear(node, slot)
    with caplog.at_level(logging.WARNING, "flwr.fbo"):
        voters.assign_slots([11, 12, 13])
        voters.assign_slots([11, 12, 13])
    assert voters.slots == {0: 11}
    assert caplog.text.count("Nodes [12, 13] are not asked") == 1
