"""The sums of a site's trials, stream by stream."""

import numpy as np
import pytest

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.bandits import ContinualSettings
from flwr_fbo.bandits.site.running_sums import RunningSums
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.tables import LedgerRow

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


def test_what_rewards_lack_is_kept_beside_the_open_window() -> None:
    """Over restarts, late rewards, corrections and the next release."""
    settings = ContinualSettings(2, 3, 1.0, 1e-5)
    promised, rewards = ACTIONS.sum(axis=1), REWARDS.copy()
    with Journal({"kind": "sums"}) as journal:

        def opened() -> RunningSums:
            state = journal.load_unnumbered()
            return RunningSums(journal, settings, state, lambda x: x.sum(axis=1))

        def reward(numbers: list[int], release: int = 0) -> None:
            sums, values = opened(), [float(rewards[n]) for n in numbers]
            trials = [journal.trials()[n] for n in numbers]
            arrays = sums.with_rewards(trials, values)
            journal.complete_trials(
                release, [*zip(numbers, values, strict=True)], arrays
            )
            sums.recorded(arrays)
            np.testing.assert_array_equal(
                sums.missing(release), opened().missing(release)
            )

        journal.add_trials(0, [({}, action) for action in ACTIONS], {})
        assert not opened().missing(0).any()
        reward([4, 1])
        reward([0])
        total, count = opened().missing(0)
        some = [0, 1, 4]
        assert total == pytest.approx((promised - rewards)[some].sum())
        assert count == 3
        trial = journal.trials()[1]
        arrays = opened().with_other_reward(trial, 0.125)
        journal.complete_trials(0, [(1, 0.125)], arrays)
        rewards[1] = 0.125
        total, count = opened().missing(0)
        assert total == pytest.approx((promised - rewards)[some].sum())
        assert count == 3
        journal.add_release(LedgerRow(1, {}, np.zeros(0)), {})
        assert not opened().missing(1).any()
        reward([6, 2], release=1)
        total, count = opened().missing(1)
        assert total == pytest.approx((promised - rewards)[[2, 6]].sum())
        assert count == 2
        # Those of a window that is over are in no block to come.
        assert not opened().missing(0).any()


def test_nothing_is_kept_where_nothing_is_promised() -> None:
    with Journal({"kind": "sums"}) as journal:
        sums = RunningSums(journal, ContinualSettings(2, 3, 1.0, 1e-5), {})
        journal.add_trials(0, [({}, action) for action in ACTIONS], {})
        arrays = sums.with_rewards(journal.trials(), REWARDS.tolist())
        assert "open-missing" not in arrays
