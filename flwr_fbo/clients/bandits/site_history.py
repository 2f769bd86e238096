"""Logged trials of a site from before its study, in the journal of its bandit.

Only their sums are kept, however long a log is.

histories   of each log, by name: how many trials it has, the releases that had been
            made when it was added, and a digest of its content
history-j   what the trials of logs that were added between releases j and j + 1 add to
            the running sum
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.validation import require
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.npy import from_json_array, to_json_array
from flwr_fbo.privacy.continual import is_on_grid
from flwr_fbo.privacy.continual_settings import ContinualSettings


@dataclass(frozen=True, eq=False)
class LogSum:
    """What is kept of the trials of a log.

    Attributes
    ----------
    num_trials : int
        T.
    total : ndarray of shape ``ContinualSettings.sum_shape``
        What they add to the running sum. With E > 1 streams trial i is in stream i
        modulo E, which does not depend on what it is.
    digest : str
        Of all actions and rewards, in their order.
    """

    num_trials: int
    total: FloatArray
    digest: str

    @classmethod
    def of(
        cls, settings: ContinualSettings, actions: Iterable[FloatArray], y: FloatArray
    ) -> LogSum:
        """Return that of T rewards, and of their actions in blocks of shape (., d)."""
        streams = np.zeros((settings.num_streams, *settings.sum_shape[-2:]))
        digest, start = hashlib.sha256(), 0
        for x in actions:
            rewards = y[start : start + len(x)]
            for i in range(len(x))[: len(streams)]:
                own = slice(i, None, len(streams))
                stream = (start + i) % len(streams)
                streams[stream] += settings.gram(x[own], rewards[own])
            digest.update(np.column_stack([x, rewards]).tobytes())
            start += len(x)
        total = streams.reshape(settings.sum_shape)
        return cls(start, total, digest.hexdigest())


class SiteHistory:
    """The logs of one site.

    Parameters
    ----------
    journal : Journal
    settings : ContinualSettings
        Of the study's releases.
    """

    def __init__(self, journal: Journal, settings: ContinualSettings) -> None:
        self._journal, self._settings = journal, settings

    @property
    def _logs(self) -> dict[str, dict[str, Any]]:
        known = self._journal.load_array("histories")
        return {} if known is None else from_json_array(known)

    @property
    def num_trials(self) -> int:
        """The trials of all logs."""
        return sum(log["trials"] for log in self._logs.values())

    def since(self, release: int) -> tuple[FloatArray, list[int]]:
        """Return the sum, and by stream the number, of trials of no earlier release."""
        total = np.zeros(self._settings.sum_shape)
        streams = self._settings.num_streams
        counts = [0] * streams
        logs = [log for log in self._logs.values() if log["after"] >= release]
        for made in {log["after"] for log in logs}:
            total += self.between(made)
        for log in logs:
            for i in range(streams):
                counts[i] += len(range(i, log["trials"], streams))
        return total, counts

    def between(self, release: int) -> FloatArray:
        """Return what logs add that were added after a release, before the next."""
        known = self._journal.load_array(f"history-{release}")
        return np.zeros(self._settings.sum_shape) if known is None else known

    def with_log(self, name: str, log: LogSum, release: int) -> dict[str, NDArray[Any]]:
        """Return the arrays that one more log changes; none if it is there already.

        Raises
        ------
        ValueError
            If another log has this name, or this log another name; if all releases are
            made; or if there are more trials than sums can hold.
        """
        logs = self._logs
        if name in logs:
            allowed = "another name, as a log of this one was added with other trials"
            require(logs[name]["digest"] == log.digest, "name", name, allowed)
            return {}
        same = [known for known in logs if logs[known]["digest"] == log.digest]
        allowed = f"{same}, the name under which these trials were added"
        require(not same, "name", name, allowed)
        most = self._settings.max_releases
        allowed = f"below {most}: all releases are made, and would not have the log"
        require(release < most, "num_releases", release, allowed)
        self._check_room(log)
        about = {"trials": log.num_trials, "after": release, "digest": log.digest}
        return {
            "histories": to_json_array({**logs, name: about}),
            f"history-{release}": self.between(release) + log.total,
        }

    def _check_room(self, log: LogSum) -> None:
        """Leave half of what a sum can hold exactly to the trials that are played."""
        grid = self._settings.grid
        if not grid:
            return
        total = log.total + self.since(0)[0]
        allowed = "fewer, as sums hold some two million of the longest trials exactly"
        ok = is_on_grid(2 * total, grid)
        require(ok, "len(rewards)", log.num_trials, allowed)
