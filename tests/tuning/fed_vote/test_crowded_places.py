"""Places with more votes than chance and noise explain, the most voted first."""

import numpy as np

from flwr_fbo.tuning import FedVoteSettings
from flwr_fbo.tuning.fed_vote.crowded_places import crowded_places
from flwr_fbo.tuning.fed_vote.settings import VoteCount
from tests.support.votes import PLANE, agent


def _crowded(*voted: tuple[float, float]) -> np.ndarray:
    """Return the crowded places if the best settings of all 30 agents are there."""
    votes = agent()._shared(np.array(voted)).mean(axis=0)
    settings = FedVoteSettings()
    return crowded_places(settings, VoteCount(30), PLANE, 7, 1, votes.tobytes())


def test_the_greater_of_two_crowds_comes_first() -> None:
    places = _crowded((0.1, 0.5), (0.9, 0.5), (0.9, 0.5))
    assert abs(places[0, 0] - 0.9) < 0.05
    assert abs(places[-1, 0] - 0.9) > 0.05
    assert np.any(np.abs(places[:, 0] - 0.1) < 0.1)


def test_votes_that_are_spread_evenly_make_no_crowd() -> None:
    axis = np.linspace(0.1, 0.9, 5)
    assert len(_crowded(*[(a, b) for a in axis for b in axis])) == 0
