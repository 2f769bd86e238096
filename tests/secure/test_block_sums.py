"""What the sites of a bandit study agree on, and sums of blocks from end to end."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.fields import from_json, to_json
from flwr_fbo.journal.journal import Journal
from flwr_fbo.privacy.continual_settings import ContinualSettings
from flwr_fbo.secure import BlockSums, SecureAggregation, SumIdentity, SumRequest
from flwr_fbo.secure.sum_settings import SumGroup

RELEASES = ContinualSettings(8, 3, 4.0, 1e-5, mechanism="blocks", reward_range=(0, 1))
GROUP = SumGroup(0, 5, 3, 1, 4)
SUMS = BlockSums(RELEASES, 200, (GROUP,), roster="ab")


def test_sums_of_blocks_travel_as_json() -> None:
    assert from_json(BlockSums, json.loads(json.dumps(to_json(SUMS)))) == SUMS


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"releases": replace(RELEASES, mechanism="toeplitz")}, "mechanism="),
        ({"releases": replace(RELEASES, epsilon=math.inf)}, "epsilon=inf"),
        ({"releases": 3}, "releases=3"),
        ({"most_trials": 2**31}, "most_trials="),
        ({"most_trials": 2**30}, "num_bits=64"),
        ({"groups": ()}, "groups="),
        ({"roster": 1}, "roster=1"),
    ],
)
def test_a_site_learns_at_once_what_it_cannot_sum(
    changes: dict[str, Any], words: str
) -> None:
    """Before anything is computed, so whatever a server writes."""
    with pytest.raises(ValueError, match="is not allowed") as error:
        replace(SUMS, **changes)
    assert words in str(error.value)


def test_the_noise_is_calibrated_to_the_honest_sites() -> None:
    noise = SUMS.noise(0)
    assert (noise.num_sites, noise.honest, noise.most_trials) == (5, 3, 200)
    std = RELEASES.noise_std
    assert std <= noise.std(3) <= 1.001 * std
    assert noise.std(5) <= GROUP.excess * std
    # As the study is charged: one Gaussian mechanism for all releases.
    assert SUMS.noise_multiplier == 1 / RELEASES.mu
    assert SUMS.noise_multiplier == pytest.approx(std / RELEASES.sensitivity)


def test_terms_of_blocks_say_how_long_they_are() -> None:
    terms = SUMS.terms("study", 1, 0, 7)
    assert (terms.length, terms.num_bits) == (10, SUMS.noise(0).num_bits)
    assert (terms.threshold, terms.min_summed, terms.roster) == (4, 4, "ab")


def played(option: SecureAggregation, absent: Sequence[int], length: int) -> Any:
    """Play releases in which some sites are away; return rows, blocks and failures."""
    num_sites = 5
    server = option.collector([range(num_sites)])
    sums = server.block_sums(RELEASES, 200)
    journals = [Journal({"slot": n}) for n in range(num_sites)]
    rng = np.random.default_rng(0)
    rows, all_blocks, failures = [], [], []
    for release in range(1, length + 1):
        blocks = [
            RELEASES.gram(rng.random((40, 3)) / 2, rng.random(40))
            for _ in range(num_sites)
        ]

        def ask(
            requests: Sequence[SumRequest], blocks: list[FloatArray] = blocks
        ) -> dict[int, Any]:
            return {
                one.slot: SumIdentity().reply(
                    journals[one.slot], sums, one, partial(blocks.__getitem__, one.slot)
                )
                for one in requests
                if one.slot not in absent
            }

        summed = server.collect(sums, "blocks", release, ask=ask, keep=lambda: None)
        failures.append(server.failure)
        all_blocks.append(blocks)
        if summed is not None:
            rows.append(sums.row(release, 0, summed.slots, summed.total))
    return rows, all_blocks, failures


def test_a_total_is_that_of_who_answered_under_one_noise() -> None:
    option = SecureAggregation(threshold=4, honest=3, colluding=1)
    rows, blocks, _ = played(option, absent=[2], length=6)
    assert [row.iteration for row in rows] == [1, 2, 3, 4, 5, 6]
    units = []
    for row, each in zip(rows, blocks, strict=True):
        assert row.facts["summed"] == [0, 1, 3, 4]
        assert row.facts["aggregation"] == "secure"
        std = row.facts["noise_std"]
        assert std == pytest.approx(math.sqrt(4 / 3) * RELEASES.noise_std, rel=1e-3)
        noise = row.vectors - sum(each[slot] for slot in (0, 1, 3, 4))
        np.testing.assert_array_equal(noise, noise.T)
        units.append(np.diagonal(noise) / std)
    # Of 24 normals: beyond 2.2 or below .3 with probability 1e-7.
    assert 0.3 < np.std(units) < 2.2


def test_a_release_waits_where_too_few_sites_answer() -> None:
    """Nothing is unmasked: so no noise is ever short, and none is made up for."""
    option = SecureAggregation(threshold=4, honest=3, colluding=1)
    rows, _, failures = played(option, absent=[2, 4], length=2)
    assert rows == []
    assert all("has 3 valid replies and needs 4" in text for text in failures)
