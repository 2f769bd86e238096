"""The sums of one site's trials, from which releases and beliefs are made.

In the journal are

    open-window    what trials rewarded since the last of ``open-after`` releases add to
    open-rewarded  the running sum, and how many these are, by stream
    open-missing  where sites sum their blocks: by how much the rewards of the open
                  window were below what the totals promised, and of how many trials
    window-j, rewarded-j  the same of earlier windows: between releases j and j + 1
    histories      logs from before the study, by name: how many trials each has, the
                   releases that had been made when it was added, and a digest of its
                   content
    history-j      what logs that were added between releases j and j + 1 add to that
                   sum: sums only, however long a log is

The open window is an array without a number, which are all read when a journal is
opened: so a reward reads and writes no more, however many releases there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.validation import require
from flwr_fbo.bandits.site.decision import action_of
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.npy import from_json_array, to_json_array
from flwr_fbo.journal.tables import Trial
from flwr_fbo.privacy.continual import is_on_grid
from flwr_fbo.privacy.continual_settings import ContinualSettings

Counts = NDArray[np.int64]


class RunningSums:
    """Sums of [x; y][x; y]' over a site's trials, by the releases they came between.

    Parameters
    ----------
    journal : Journal
        Journal of the site's bandit.
    releases : ContinualSettings
        Settings of the study's releases.
    state : dict of str to ndarray
        Arrays of `Journal.load_unnumbered`; what is recorded here is added.
    promised : callable, optional
        Returns the rewards that the totals of blocks promise for actions of shape
        (T, d), or None where they promise nothing: as always unless given.
    """

    def __init__(
        self,
        journal: Journal,
        releases: ContinualSettings,
        state: dict[str, NDArray[Any]],
        promised: Callable[[FloatArray], FloatArray | None] = lambda actions: None,
    ) -> None:
        self._journal, self._releases, self._state = journal, releases, state
        self._promised = promised
        # Of windows that are closed, which do not change.
        self._closed: dict[int, Counts] = {}

    # What is added to them

    def checked_actions(self, actions: FloatArray) -> FloatArray:
        """Return actions without an excess by rounding; beliefs refuse longer ones."""
        return self._releases.without_excess(actions)

    def checked_rewards(self, rewards: FloatArray) -> FloatArray:
        """Return rewards without an excess by rounding; sums refuse larger ones."""
        return self._releases.without_excess(rewards)

    def with_rewards(
        self, trials: Sequence[Trial], values: Sequence[float]
    ) -> dict[str, NDArray[Any]]:
        """Return what is to be recorded with rewards that have just come."""
        release = self._journal.num_releases
        total, counts = self.window(release)
        streams = total.reshape(-1, *total.shape[-2:])
        for trial, value in zip(trials, values, strict=True):
            # One by one: the products of many would take much memory.
            [product] = self._releases.outer_products([action_of(trial)], [value])
            streams[trial.number % len(streams)] += product
            counts[trial.number % len(streams)] += 1
        changed: dict[str, NDArray[Any]] = {}
        if release != self._open_after:
            changed["open-after"] = np.array(release)
            if self._open_after >= 0:  # these are the first since a release
                window, rewarded = _names(self._open_after)
                changed[window] = self._state["open-window"]
                changed[rewarded] = self._state["open-rewarded"]
        missing, actions = self.missing(release), list(map(action_of, trials))
        promised = self._promised(np.array(actions)) if actions else None
        if promised is not None:
            missing += np.sum(promised - values), len(trials)
        if missing.any() or "open-missing" in self._state:
            changed["open-missing"] = missing
        return {**changed, "open-window": total, "open-rewarded": counts}

    def with_other_reward(self, trial: Trial, value: float) -> dict[str, NDArray[Any]]:
        """Return the open window, with another reward of a trial that is in it."""
        action, total = action_of(trial), self._state["open-window"].copy()
        before, after = self._releases.outer_products(
            [action, action], [trial.value, value]
        )
        streams = total.reshape(-1, *total.shape[-2:])
        streams[trial.number % len(streams)] += after - before
        missing = self.missing(self._open_after)
        if not missing.any():
            return {"open-window": total}
        # Also of a trial that came before the totals: it counts for 2 B at most, too.
        missing[0] += trial.value - value
        return {"open-window": total, "open-missing": missing}

    def recorded(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take note that arrays, as the methods above return them, are on disk."""
        unnumbered = ("open-after", "open-window", "open-rewarded", "open-missing")
        self._state |= {name: arrays[name] for name in unnumbered if name in arrays}

    @property
    def num_logged(self) -> int:
        """The trials of all logs."""
        return sum(log["trials"] for log in self._logs.values())

    @property
    def _logs(self) -> dict[str, dict[str, Any]]:
        known = self._state.get("histories")
        return {} if known is None else from_json_array(known)

    def add_log(
        self,
        name: str,
        total: FloatArray,
        *,
        num_trials: int,
        digest: str,
        arrays: Mapping[str, NDArray[Any]],
    ) -> bool:
        """Record the sum of a log, and arrays; return False if it is there already.

        Raises
        ------
        ValueError
            If another log has this name, or this log another name; if all releases are
            made; or if there are more trials than sums can hold.
        """
        logs, release = self._logs, self._journal.num_releases
        if name in logs:
            allowed = "another name, as a log of this one was added with other trials"
            require(logs[name]["digest"] == digest, "name", name, allowed)
            return False
        same = [known for known in logs if logs[known]["digest"] == digest]
        allowed = f"{same}, the name under which these trials were added"
        require(not same, "name", name, allowed)
        most = self._releases.max_releases
        allowed = f"below {most}: all releases are made, and would not have the log"
        require(release < most, "num_releases", release, allowed)
        # Half of what a sum can hold exactly is left to the trials that are played.
        grid = self._releases.grid
        histories = self._load(*_names_of("history", range(release + 1)))
        zero = np.zeros(self._releases.sum_shape)
        logged = sum(histories.values(), zero)
        is_exact = not grid or is_on_grid(2 * (total + logged), grid)
        allowed = "fewer, as sums hold some two million of the longest trials exactly"
        require(is_exact, "len(rewards)", num_trials, allowed)
        log = {"trials": num_trials, "after": release, "digest": digest}
        changed = {**arrays, "histories": to_json_array({**logs, name: log})}
        of_release = f"history-{release}"
        self._journal.put(
            {**changed, of_release: histories.get(of_release, zero) + total}
        )
        self._state |= changed
        return True

    # What they are

    def window(self, release: int) -> tuple[FloatArray, Counts]:
        """Return what trials rewarded after a release, and before the next, add.

        And how many these are, by stream.
        """
        if release == self._open_after:
            known = self._state["open-window"], self._state["open-rewarded"]
            return known[0].copy(), known[1].copy()
        window, rewarded = _names(release)
        found = {} if release > self._open_after else self._load(window, rewarded)
        zero, none = np.zeros(self._releases.sum_shape), self._none()
        return found.get(window, zero), found.get(rewarded, none)

    def missing(self, release: int) -> FloatArray:
        """Return by how much rewards after a release were below what was promised.

        Their sum, and of how many trials, shape (2,): zeros but for the open window.
        """
        if release != self._open_after or "open-missing" not in self._state:
            return np.zeros(2)
        return self._state["open-missing"].copy()

    @property
    def _open_after(self) -> int:
        """After how many releases the open window began; -1 without a reward."""
        return int(self._state.get("open-after", -1))

    def _load(self, *names: str) -> dict[str, NDArray[Any]]:
        return self._journal.load_arrays(names)

    def window_of(self, last: int) -> tuple[int, int]:
        """Return the releases between which the trials of release ``last`` are."""
        return max(0, last - (self._releases.sliding_window or last)), last

    def running_sum(self, last: int) -> FloatArray:
        """Return what release ``last`` is made of; zero for 0."""
        return self.total(*self.window_of(last))

    def total(self, first: int, last: int) -> FloatArray:
        """Return what trials from release ``first`` on, before ``last``, add.

        Logs among them.
        """
        releases, zero = range(first, last), np.zeros(self._releases.sum_shape)
        names = [*_names_of("window", releases), *_names_of("history", releases)]
        found = self._load(*names)
        if self._open_after in releases:
            found[f"window-{self._open_after}"] = self._state["open-window"]
        sums = [found.get(name, zero) for name in names]
        return np.asarray(np.sum([zero, *sums], axis=0))

    def counts(self, first: int, last: int) -> list[int]:
        """Return how many trials `total` is of, by stream."""
        releases, opened = range(first, last), self._open_after
        closed = range(first, min(last, opened))
        unknown = [j for j in closed if j not in self._closed]
        if unknown:
            found = self._load(*_names_of("rewarded", unknown))
            for j in unknown:
                self._closed[j] = found.get(f"rewarded-{j}", self._none())
        counts = sum((self._closed[j] for j in closed), self._none())
        if opened in releases:
            counts += self._state["open-rewarded"]
        streams = range(len(counts))
        for log in self._logs.values():
            if log["after"] in releases:
                counts += [len(range(i, log["trials"], len(streams))) for i in streams]
        return [int(count) for count in counts]

    def _none(self) -> Counts:
        return np.zeros(self._releases.num_streams, dtype=np.int64)


def _names(release: int) -> tuple[str, str]:
    return f"window-{release}", f"rewarded-{release}"


def _names_of(kind: str, releases: Iterable[int]) -> list[str]:
    return [f"{kind}-{j}" for j in releases]
