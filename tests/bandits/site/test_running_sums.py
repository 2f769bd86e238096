"""The sums of a site's trials, stream by stream."""

import numpy as np
import pytest

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.bandits import ContinualSettings
from flwr_fbo.bandits.site.running_sums import RunningSums
from flwr_fbo.journal.journal import Journal

NUM_TRIALS = 7
ACTIONS = np.random.default_rng(0).uniform(-0.5, 0.5, (NUM_TRIALS, 3))
REWARDS = np.linspace(-1.0, 1.0, NUM_TRIALS)


def sums_of(settings: ContinualSettings, rewards: FloatArray) -> FloatArray:
    """Return the sum of each stream: trial t is in that of number t modulo E."""
    products = settings.outer_products(ACTIONS, rewards)
    streams = settings.num_streams
    each = [products[stream::streams].sum(axis=0) for stream in range(streams)]
    return np.array(each).reshape(settings.sum_shape)


@pytest.mark.parametrize("num_streams", [1, 3])
def test_a_corrected_reward_changes_the_stream_of_its_trial(num_streams: int) -> None:
    settings = ContinualSettings(2, 3, 1.0, 1e-5, num_streams=num_streams)
    with Journal({"kind": "sums"}) as journal:
        sums = RunningSums(journal, settings, {})
        journal.add_trials(0, [({}, action) for action in ACTIONS], {})
        arrays = sums.with_rewards(journal.trials(), REWARDS.tolist())
        journal.complete_trials(0, [*enumerate(REWARDS.tolist())], arrays)
        sums.recorded(arrays)
        np.testing.assert_array_equal(sums.running_sum(1), sums_of(settings, REWARDS))
        counts = [len(range(i, NUM_TRIALS, num_streams)) for i in range(num_streams)]
        assert sums.counts(0, 1) == counts
        right = REWARDS.copy()
        for number in (1, 5, 6):
            trial, right[number] = journal.trial(number), 0.125
            assert trial is not None
            arrays = sums.with_other_reward(trial, 0.125)
            journal.complete_trials(0, [(number, 0.125)], arrays)
            sums.recorded(arrays)
        np.testing.assert_array_equal(sums.running_sum(1), sums_of(settings, right))
        assert sums.counts(0, 1) == counts
