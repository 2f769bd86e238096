"""What the sites of a study agree on: groups, noise and terms of secure sums."""

import json
from dataclasses import replace
from typing import Any

import pytest

from flwr_fbo._common.fields import from_json, to_json
from flwr_fbo.privacy.release import ReleaseSettings
from flwr_fbo.privacy.weights import WeightSchedule
from flwr_fbo.secure.sum_settings import SecureSums, SumGroup
from flwr_fbo.tuning.dp_fts_de.server import DPFTSDEServer

SETTINGS = ReleaseSettings(
    num_agents=9,
    num_sub_regions=2,
    clip_norm=1.0,
    noise_multiplier=1.5,
    sampling_probability=1.0,
    weights=WeightSchedule(),
)
GROUPS = (SumGroup(0, 5, 3, 1, 4), SumGroup(5, 3, 3, 0, 3))
SUMS = SecureSums(SETTINGS, 4, GROUPS, roster="ab")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"first_slot": -1}, "first_slot"),
        ({"num_slots": 1}, "num_slots"),
        ({"threshold": 3}, "threshold"),  # C < 2 T - n
        ({"colluding": 3}, "threshold"),  # C < T - 1
        ({"threshold": 6}, "threshold"),
        ({"honest": 5}, "honest"),
        ({"honest": True}, "honest"),
    ],
)
def test_a_group_that_does_not_fit_is_refused(
    changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(ValueError, match=f"^{field}="):
        replace(GROUPS[0], **changes)


def test_a_sum_has_enough_honest_sites() -> None:
    for honest, least in ((1, 4), (3, 4), (4, 5)):
        group = SumGroup(0, 5, honest, 1, 4)
        assert group.min_summed == least
        assert group.min_summed - group.colluding >= honest


def test_the_noise_is_calibrated_to_the_honest_sites_of_a_group() -> None:
    for i, group in enumerate(GROUPS):
        noise = SUMS.noise(i)
        assert (noise.num_sites, noise.honest) == (group.num_slots, group.honest)
        assert noise.length == 2 * 4
        z = SETTINGS.noise_multiplier
        assert z <= noise.std(group.honest) <= 1.001 * z
        assert noise.std(group.num_slots) <= group.excess * z


def test_each_slot_is_in_one_group() -> None:
    found = [SUMS.group_of(slot) for slot in range(8)]
    assert found == [0] * 5 + [1] * 3
    with pytest.raises(ValueError, match="slot=8 is not allowed"):
        SUMS.group_of(8)


def test_terms_differ_with_all_that_is_said() -> None:
    terms = SUMS.terms("study", 1, 0, 7)
    assert terms.slots == tuple(range(5))
    assert (terms.threshold, terms.min_summed, terms.roster) == (4, 4, "ab")
    others = [
        SUMS.terms("Study", 1, 0, 7),
        SUMS.terms("study", 2, 0, 7),
        SUMS.terms("study", 1, 1, 7),
    ]
    contexts = {terms.context, *(other.context for other in others)}
    assert len(contexts) == 4
    again = SUMS.terms("study", 1, 0, 8)
    assert again == replace(terms, attempt=again.attempt)
    assert again != terms


def test_sums_travel_as_json() -> None:
    assert from_json(SecureSums, json.loads(json.dumps(to_json(SUMS)))) == SUMS


def test_a_server_takes_the_sum_of_each_release_once_and_in_order() -> None:
    """A row of another release would be charged as this one."""
    server = DPFTSDEServer(SUMS.release, 4, 1e-3, iterations=(2, 5))
    total = SUMS.noise(0).wrapped(SUMS.noise(0).draw_share())
    first, second = (SUMS.row(t, 0, tuple(range(5)), total) for t in (2, 5))
    step = server.step(3)
    with pytest.raises(ValueError, match=r"^row\.iteration=5 is not allowed: 2"):
        server.receive_sum(step, second)
    server.receive_sum(step, first)
    with pytest.raises(ValueError, match=r"^release=1 is not allowed: 2"):
        server.receive_sum(step, first)
    server.receive_sum(server.step(5), second)
    assert [row.facts["made_after"] for row in server.ledger] == [3, 5]
    assert [row.iteration for row in server.ledger] == [2, 5]
