"""Trials that were logged before a study, as a sum of what they add to it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.conversion import float_array, mappings
from flwr_fbo._common.validation import require
from flwr_fbo.bandits.linear.arm_table import ArmTable
from flwr_fbo.bandits.linear.settings import LinearUCBSettings
from flwr_fbo.bandits.site.arm_versions import ArmVersions


@dataclass(frozen=True, eq=False)
class LoggedTrials:
    """A log, as the journal keeps it.

    Attributes
    ----------
    total : ndarray of shape ``sum_shape``
        Sum of what its trials add to the running sum.
    num_trials : int
        Number of its trials.
    digest : str
        SHA-256 digest of the trials, in their order.
    outside : Counter of str
        Values outside of their bounds, by field.
    """

    total: FloatArray
    num_trials: int
    digest: str
    outside: Counter[str]

    @classmethod
    def summed(
        cls,
        settings: LinearUCBSettings,
        offered: ArmVersions,
        *,
        actions: Any,
        rewards: Any,
        contexts: Any,
        arms: ArmTable | None,
    ) -> LoggedTrials:
        """Check and sum the trials of a log; see `LinearBanditPolicy.add_history`.

        With E > 1 streams trial i is in stream i modulo E, which does not depend on
        what it is.

        Raises
        ------
        ValueError
            If a trial is not within the bounds; the message names it.
        """
        releases = settings.releases
        y = releases.without_excess(float_array("rewards", rewards))
        require(y.ndim == 1 and len(y) > 0, "rewards", y.shape, "(T,), with T >= 1")
        releases.check_rewards(y)
        outside: Counter[str] = Counter()
        if settings.encoder is None:
            for given, value in (("contexts", contexts), ("arms", arms)):
                require(value is None, given, value, "None, without an encoder")
            blocks = iter([_checked_vectors(settings, actions, len(y))])
        else:
            table = offered.current if arms is None else arms
            require(isinstance(table, ArmTable), "arms", arms, "an ArmTable")
            blocks = _encoded(settings, table, actions, contexts, len(y), outside)
        streams = np.zeros((releases.num_streams, *releases.sum_shape[-2:]))
        digest, start = hashlib.sha256(), 0
        for x in blocks:
            of_block = y[start : start + len(x)]
            for i in range(len(x))[: len(streams)]:
                own = slice(i, None, len(streams))
                gram = releases.gram(x[own], of_block[own])
                streams[(start + i) % len(streams)] += gram
            digest.update(np.column_stack([x, of_block]).tobytes())
            start += len(x)
        total = streams.reshape(releases.sum_shape)
        return cls(total, len(y), digest.hexdigest(), outside)


def _checked_vectors(
    settings: LinearUCBSettings, actions: Any, num_trials: int
) -> FloatArray:
    x, releases = float_array("actions", actions), settings.releases
    shape = (num_trials, releases.dimension)
    require(x.shape == shape, "actions", x.shape, f"an array of shape {shape}")
    x = releases.without_excess(x)
    releases.check_norms(x)
    return x


def _encoded(
    settings: LinearUCBSettings,
    table: ArmTable,
    actions: Any,
    contexts: Any,
    num_trials: int,
    outside: Counter[str],
) -> Iterator[FloatArray]:
    """Yield the actions of a log in blocks, and count values that are outside."""
    chosen, expected = list(actions), f"{num_trials}"
    require(len(chosen) == num_trials, "len(actions)", len(chosen), expected)
    rows = mappings("contexts", contexts)
    require(len(rows) == num_trials, "len(contexts)", len(rows), expected)
    assert settings.encoder is not None
    longest = settings.releases.max_action_norm
    blocks = settings.encoder.encode_log(rows, chosen, table.eligible(), longest)
    for features, of_block in blocks:
        outside.update(of_block)
        yield features
