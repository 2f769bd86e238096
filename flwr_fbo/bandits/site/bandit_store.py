"""What a site's linear bandit keeps in its journal, and reads back.

trial       one row a decision; its number is the ticket, and it has

            params  {"chosen": index, "propensity": p}; of named arms also "context",
                    and "arms", the version of their table; and "eligible", the names,
                    where they are not all
                    of vectors that are those of an earlier trial, "actions", its number
            point   the chosen action, shape (d,), where the others follow from the
                    context or an earlier trial; else all actions, shape (K, d)

newest-arms  the version of the named arms that are offered now
arms-v      version v of them
outside     how many values were outside of their bounds, by field
timed-out   how many rewards did not come in time
corrected   how many rewards were corrected before their release
window-j    what trials rewarded between releases j and j + 1 add to the running sum
rewarded-j  how many these are, by stream
histories   logs from before the study, by name: how many trials each has, the releases
            that had been made when it was added, and a digest of its content
history-j   what logs that were added between releases j and j + 1 add to that sum:
            sums only, however long a log is
"""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.conversion import (
    float_array,
    mapping,
    mappings,
    number,
    plain,
    whole_number,
)
from flwr_fbo._common.validation import require, require_instance, require_name
from flwr_fbo.bandits.linear.arm_table import ArmTable
from flwr_fbo.bandits.linear.feature_encoder import FeatureEncoder
from flwr_fbo.bandits.linear.settings import LinearUCBSettings
from flwr_fbo.bandits.site.decision import Choice, Decision
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.npy import from_json_array, to_json_array
from flwr_fbo.journal.tables import Trial
from flwr_fbo.privacy.continual import is_on_grid

# The version of the table that the encoder's blocks make, where none was set.
_OF_BLOCKS = 0
# How many different sets of vectors a process looks for among earlier ones.
_SETS_KEPT = 16


class LateRewardError(ValueError):
    """A reward came after the study's `RewardTimeout`, and nothing is recorded.

    Examples
    --------
    >>> from flwr_fbo import LateRewardError
    >>> print(LateRewardError(7, 0.0))
    ticket=7 is not allowed: its time is over, and its reward was taken to be 0.
    """

    def __init__(self, ticket: int, reward: float) -> None:
        text = f"its time is over, and its reward was taken to be {reward:g}"
        super().__init__(f"ticket={ticket} is not allowed: {text}.")


@dataclass(frozen=True, eq=False)
class Offer:
    """The actions that one decision is among.

    Attributes
    ----------
    features : ndarray of shape (K, d)
    arms : tuple of K str
        Their names; "0", "1", ... where actions were given as vectors.
    record : dict
        What `Trial.params` has besides the choice.
    outside : mapping of str to int
        Values outside of their bounds, by field.
    """

    features: FloatArray
    arms: tuple[str, ...]
    record: dict[str, Any] = field(default_factory=dict)
    outside: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of_vectors(cls, actions: Any) -> Offer:
        """Return that of actions without names.

        Raises
        ------
        ValueError
            If they are not an array of shape (K, d).
        """
        allowed = "an array of shape (K, d), as there is no encoder"
        require(not isinstance(actions, Mapping), "context", actions, allowed)
        features = float_array("actions", actions)
        require(features.ndim == 2, "actions", features.shape, allowed)
        return cls(features, tuple(map(str, range(len(features)))))

    def without(self, index: int) -> Offer:
        """Return the offer without one of its actions."""
        arms = self.arms[:index] + self.arms[index + 1 :]
        features = np.delete(self.features, index, axis=0)
        return Offer(features, arms, {**self.record, "eligible": list(arms)})


class BanditStore:
    """Decisions, rewards, arms and logged trials of one site.

    Parameters
    ----------
    journal : Journal
    settings : LinearUCBSettings
        Settings of the study.
    state : dict of str to ndarray
        What `Journal.load_unnumbered` returned; `put` keeps it up to date.
    learn : callable
        Called with a trial and its reward, once that is recorded.
    """

    def __init__(
        self,
        journal: Journal,
        settings: LinearUCBSettings,
        state: dict[str, NDArray[Any]],
        learn: Callable[[Trial, float], None],
    ) -> None:
        self.state = state
        self._journal, self._settings, self._learn = journal, settings, learn
        self._releases = settings.releases
        self._tables: dict[int, ArmTable] = {}
        # The window that was read last: its number, sum, and trials by stream.
        self._window: tuple[int, FloatArray, NDArray[np.int64]] | None = None
        # The trials that have the last different sets of vectors, by their bytes.
        self._sets: dict[bytes, int] = {}

    def put(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Record arrays: all at once."""
        self._journal.put(arrays)
        self.state |= arrays

    def forget_window(self) -> None:
        """Read the newest window again where it is needed: it may have changed."""
        self._window = None

    @property
    def num_releases(self) -> int:
        """Releases made so far."""
        return self._journal.num_releases

    # Arms: a table in several versions

    @property
    def arms(self) -> ArmTable:
        """The arms that are offered now; with blocks, those unless others were set.

        Raises
        ------
        ValueError
            If the study has no encoder; if there are no blocks, and no arms were set.
        """
        return self._table(self._newest_arms)

    def set_arms(self, arms: ArmTable) -> None:
        """Offer these arms from now on: the next version, unless they are the same.

        Raises
        ------
        ValueError
            If there is no encoder, or it does not take them.
        """
        require_instance("arms", arms, ArmTable)
        arms.check(self._encoder)
        newest = self._newest_arms
        if newest != _OF_BLOCKS and arms.arms == self.arms.arms:
            return
        # A table that was written anew begins at 1; others are changes of one.
        ok = arms.version == 1 or arms.version > newest
        allowed = f"above {newest}: the site's arms have changed. Change those"
        require(ok, "arms.version", arms.version, allowed)
        version = max(newest + 1, arms.version)
        content = to_json_array(replace(arms, version=version).to_dict())
        # `state` has no numbered arrays: tables are read where they are needed.
        self._journal.put(
            {"newest-arms": np.array(version), f"arms-{version}": content}
        )
        self.state["newest-arms"] = np.array(version)

    @property
    def _newest_arms(self) -> int:
        return int(self.state.get("newest-arms", _OF_BLOCKS))

    def _table(self, version: int) -> ArmTable:
        if version in self._tables:
            return self._tables[version]
        if version == _OF_BLOCKS:
            if not self._encoder.blocks or self._encoder.arm:
                raise ValueError("This site has no arms yet: give `set_arms` a table.")
            table = ArmTable({name: {} for name in self._encoder.blocks})
        else:
            content = self._journal.load_array(f"arms-{version}")
            assert content is not None
            table = ArmTable.from_dict(from_json_array(content))
        self._tables[version] = table
        return table

    @property
    def _encoder(self) -> FeatureEncoder:
        if self._settings.encoder is None:
            text = "The study has no encoder: actions are vectors, without names."
            raise ValueError(text)
        return self._settings.encoder

    # Decisions

    def offer(self, context: Any, eligible: Collection[str] | None = None) -> Offer:
        """Return what a decision is among; see `LinearBanditPolicy.choose`."""
        if self._settings.encoder is None:
            require(eligible is None, "eligible", eligible, "None, without an encoder")
            offer = Offer.of_vectors(context)
            features = self._releases.without_excess(offer.features)
            return replace(offer, features=features)
        given, newest = mapping("context", context), self._newest_arms
        offer = self._named(newest, given, eligible)
        values = {name: plain(value) for name, value in given.items()}
        record: dict[str, Any] = {"context": values, "arms": newest}
        if eligible is not None:
            record["eligible"] = list(offer.arms)
        return replace(offer, record=record)

    def _named(
        self, version: int, context: Any, eligible: Collection[str] | None
    ) -> Offer:
        """Return the eligible arms of a table, with their features in a context."""
        arms = self._table(version).eligible(eligible)
        longest = self._releases.max_action_norm
        features, outside = self._encoder.encode(context, arms, longest)
        names = tuple(name for name, _ in arms)
        return Offer(features, names, {}, outside)

    def add(
        self, offers: Sequence[Offer], chosen: Sequence[tuple[int, float]]
    ) -> list[Choice]:
        """Record which action of each offer was chosen, by index, and its propensity.

        All at once, so that a failed write records no part of a slate.
        """
        outside = Counter(self.outside)
        for offer in offers:
            outside.update(offer.outside)
        counts = {"outside": to_json_array(outside)}
        arrays = counts if outside != self.outside else {}
        rows: list[tuple[dict[str, Any], FloatArray]] = []
        number = self._journal.num_trials
        for offer, (index, propensity) in zip(offers, chosen, strict=True):
            params = {"chosen": index, "propensity": propensity, **offer.record}
            if "context" not in params:
                params |= self._as_earlier(offer.features, number + len(rows))
            is_known = "context" in params or "actions" in params
            rows.append((params, offer.features[index] if is_known else offer.features))
        tickets = self._journal.add_trials(self.num_releases, rows, arrays)
        self.state |= arrays
        return [
            Choice(index, offer.arms[index], ticket, propensity)
            for offer, (index, propensity), ticket in zip(
                offers, chosen, tickets, strict=True
            )
        ]

    def _as_earlier(self, features: FloatArray, number: int) -> dict[str, int]:
        """Return which earlier trial has these vectors, if one of the last few has.

        Else they are remembered as those of trial ``number``.
        """
        if not self._sets and number > 0:  # those of another process
            last = self._journal.trial(number - 1)
            if last is not None and "actions" in last.params:
                last = self._journal.trial(last.params["actions"])
            if last is not None and last.point.ndim == 2:
                self._sets[last.point.tobytes()] = last.number
        content = features.tobytes()
        known = self._sets.pop(content, None)
        self._sets[content] = number if known is None else known
        if len(self._sets) > _SETS_KEPT:
            del self._sets[next(iter(self._sets))]
        return {} if known is None else {"actions": known}

    @property
    def outside(self) -> dict[str, int]:
        """How many values were outside of their bounds so far, by field."""
        counts = self.state.get("outside")
        return {} if counts is None else from_json_array(counts)

    @property
    def awaited(self) -> dict[int, FloatArray]:
        """The actions whose rewards have not come, by ticket."""
        self.expire()
        running = self._journal.trials(running=True)
        return {trial.number: action_of(trial) for trial in running}

    def decisions(self, settled: bool = False) -> list[Decision]:
        """Return decisions so far; see `LinearBanditPolicy.decisions`."""
        self.expire()
        timeout, trials = self._settings.reward_timeout, self._journal.trials()
        if settled and timeout is not None:
            now = time.time()
            is_over = [now - trial.started >= timeout.seconds for trial in trials]
            last = max((k for k, over in enumerate(is_over) if over), default=-1)
            # A date that is still to come was written by a clock that was ahead: such a
            # decision is older than the next one.
            trials = [
                trial
                for k, trial in enumerate(trials)
                if is_over[k] or (trial.started > now and k < last)
            ]
        return [self._decision(trial) for trial in trials]

    def _decision(self, trial: Trial) -> Decision:
        record, eligible = trial.params, trial.params.get("eligible")
        if "context" in record:
            offer = self._named(record["arms"], record["context"], eligible)
        elif "actions" in record:
            earlier = self._journal.trial(record["actions"])
            assert earlier is not None
            offer = Offer.of_vectors(earlier.point)
        else:
            offer = Offer.of_vectors(trial.point)
        return Decision(
            number=trial.number,
            time=trial.started,
            context=record.get("context"),
            arms=offer.arms if eligible is None else tuple(eligible),
            features=offer.features,
            chosen=record["chosen"],
            propensity=record["propensity"],
            reward=trial.value,
        )

    # Rewards

    def reward(self, values: Mapping[int, float]) -> None:
        """Record what actions were rewarded with, by ticket: all at once, or none."""
        rewards = np.array([number("value", value) for value in values.values()])
        trials = [self._awaited(ticket) for ticket in values]
        self._complete(trials, self._releases.without_excess(rewards).tolist(), {})

    def correct(self, given: Any, value: Any) -> None:
        """Replace a reward that no release has yet; see `LinearBanditPolicy.correct`.

        Agents know of it by the number of corrections.
        """
        ticket, reward = whole_number("ticket", given), number("value", value)
        trial = self._journal.trial(ticket) if 0 <= ticket < 2**63 else None
        allowed = "a ticket whose reward has come, and is in no release yet"
        release = self.num_releases
        is_open = trial is not None and trial.state == "complete"
        ok = trial is not None and is_open and trial.iteration == release
        require(ok, "ticket", given, allowed)
        assert trial is not None
        if self._is_over(trial.finished - trial.started):
            raise LateRewardError(ticket, trial.value)
        [reward] = self._releases.without_excess(np.array([reward])).tolist()
        action = action_of(trial)
        before, after = self._releases.outer_products(
            [action, action], [trial.value, reward]
        )
        window, counts = self.window(release)
        window = window.copy()
        streams = window.reshape(-1, *window.shape[-2:])
        streams[ticket % len(streams)] += after - before
        count = {"corrected": np.array(int(self.state.get("corrected", 0)) + 1)}
        changed = {f"window-{release}": window, **count}
        self._journal.complete_trials(release, [(ticket, reward)], changed)
        self.state |= count
        self._window = release, window, counts

    def cancel(self, ticket: int) -> None:
        """Record that a decision gets no reward."""
        self._journal.end_trial(self._awaited(ticket).number, math.nan)

    def _awaited(self, given: Any) -> Trial:
        """Return the trial of a ticket, if its reward is still awaited."""
        ticket = whole_number("ticket", given)
        require(0 <= ticket < 2**63, "ticket", given, "an int, as `choose` gave it")
        trial = self._journal.trial(ticket)
        if trial is not None and self._is_late(trial):
            self.expire()
            trial = self._journal.trial(ticket)
        # A trial that has not ended has NaN for its end, and so does not compare.
        if trial is not None and self._is_over(trial.finished - trial.started):
            raise LateRewardError(ticket, trial.value)
        allowed = "a ticket of `choose` whose reward has not come yet"
        ok = trial is not None and trial.state == "running"
        require(ok, "ticket", ticket, allowed)
        assert trial is not None
        return trial

    def expire(self) -> None:
        """Take rewards as known that did not come in time."""
        timeout = self._settings.reward_timeout
        if timeout is None:
            return
        running, now = self._journal.trials(running=True), time.time()
        early = [trial.number for trial in running if trial.started > now]
        if early:  # the clock was ahead: they would be awaited until that date, and on
            self._journal.begin_again(early)
            running = self._journal.trials(running=True)
        late = [trial for trial in running if self._is_late(trial)]
        if late:
            count = {"timed-out": np.array(self.num_timed_out + len(late))}
            self._complete(late, [timeout.reward] * len(late), count)

    def _is_late(self, trial: Trial) -> bool:
        """Return whether a reward is awaited, and does not come in time."""
        return trial.state == "running" and self._is_over(time.time() - trial.started)

    def _is_over(self, seconds: float) -> bool:
        timeout = self._settings.reward_timeout
        return timeout is not None and seconds >= timeout.seconds

    @property
    def num_timed_out(self) -> int:
        """How many rewards did not come in time."""
        return int(self.state.get("timed-out", 0))

    def _complete(
        self,
        trials: Sequence[Trial],
        values: Sequence[float],
        arrays: dict[str, NDArray[Any]],
    ) -> None:
        """Record the rewards of trials, what they add, and arrays: at once."""
        if not trials:
            return
        release = self.num_releases
        window, rewarded = self.window(release)
        added, counts = window.copy(), rewarded.copy()
        streams = added.reshape(-1, *added.shape[-2:])
        for trial, value in zip(trials, values, strict=True):
            # One by one: the products of many would take much memory.
            [product] = self._releases.outer_products([action_of(trial)], [value])
            streams[trial.number % len(streams)] += product
            counts[trial.number % len(streams)] += 1
        changed = {**arrays, f"window-{release}": added, f"rewarded-{release}": counts}
        pairs = [(trial.number, v) for trial, v in zip(trials, values, strict=True)]
        self._journal.complete_trials(release, pairs, changed)
        self.state |= arrays
        self._window = release, added, counts
        for trial, value in zip(trials, values, strict=True):
            self._learn(trial, value)

    # Logs from before the study

    @property
    def _logs(self) -> dict[str, dict[str, Any]]:
        known = self.state.get("histories")
        return {} if known is None else from_json_array(known)

    @property
    def num_logged(self) -> int:
        """The trials of all logs."""
        return sum(log["trials"] for log in self._logs.values())

    def add_history(
        self,
        actions: Any,
        rewards: Any,
        contexts: Any,
        arms: ArmTable | None,
        name: str,
    ) -> int:
        """Record what logged trials add; see `LinearBanditPolicy.add_history`."""
        require_name("name", name)
        outside = Counter(self.outside)
        y = self._releases.without_excess(float_array("rewards", rewards))
        require(y.ndim == 1 and len(y) > 0, "rewards", y.shape, "(T,), with T >= 1")
        self._releases.check_rewards(y)
        blocks = self._logged(actions, len(y), contexts, arms, outside)
        total, digest = self._log_sum(blocks, y)
        if not self.put_log(name, total, len(y), digest, outside):
            return 0
        return len(y)

    def _logged(
        self,
        actions: Any,
        num_trials: int,
        contexts: Any,
        arms: ArmTable | None,
        outside: Counter[str],
    ) -> Iterator[FloatArray]:
        """Yield the actions of a log in blocks, and count values that are outside."""
        if self._settings.encoder is None:
            for given, value in (("contexts", contexts), ("arms", arms)):
                require(value is None, given, value, "None, without an encoder")
            x = float_array("actions", actions)
            shape = (num_trials, self._releases.dimension)
            require(x.shape == shape, "actions", x.shape, f"an array of shape {shape}")
            x = self._releases.without_excess(x)
            self._releases.check_norms(x)
            yield x
            return
        chosen, expected = list(actions), f"{num_trials}"
        require(len(chosen) == num_trials, "len(actions)", len(chosen), expected)
        table = self.arms if arms is None else arms
        require(isinstance(table, ArmTable), "arms", arms, "an ArmTable")
        rows = mappings("contexts", contexts)
        require(len(rows) == num_trials, "len(contexts)", len(rows), expected)
        longest = self._releases.max_action_norm
        blocks = self._encoder.encode_log(rows, chosen, table.eligible(), longest)
        for features, of_block in blocks:
            outside.update(of_block)
            yield features

    def _log_sum(
        self, blocks: Iterable[FloatArray], y: FloatArray
    ) -> tuple[FloatArray, str]:
        """Return what the trials of a log add, and a digest of them, in their order.

        With E > 1 streams trial i is in stream i modulo E, which does not depend on
        what it is.
        """
        releases = self._releases
        streams = np.zeros((releases.num_streams, *releases.sum_shape[-2:]))
        digest, start = hashlib.sha256(), 0
        for x in blocks:
            rewards = y[start : start + len(x)]
            for i in range(len(x))[: len(streams)]:
                own = slice(i, None, len(streams))
                streams[(start + i) % len(streams)] += releases.gram(
                    x[own], rewards[own]
                )
            digest.update(np.column_stack([x, rewards]).tobytes())
            start += len(x)
        return streams.reshape(releases.sum_shape), digest.hexdigest()

    def put_log(
        self,
        name: str,
        total: FloatArray,
        num_trials: int,
        digest: str,
        outside: Mapping[str, int],
    ) -> bool:
        """Record the sum of a log; return False if it is there already.

        Raises
        ------
        ValueError
            If another log has this name, or this log another name; if all releases are
            made; or if there are more trials than sums can hold.
        """
        logs, release = self._logs, self.num_releases
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
        logged = sum(self._array(f"history-{made}") for made in range(release + 1))
        ok = not grid or is_on_grid(2 * (total + logged), grid)
        allowed = "fewer, as sums hold some two million of the longest trials exactly"
        require(ok, "len(rewards)", num_trials, allowed)
        log = {"trials": num_trials, "after": release, "digest": digest}
        arrays = {
            "histories": to_json_array({**logs, name: log}),
            "outside": to_json_array(outside),
        }
        so_far = self._array(f"history-{release}")
        self._journal.put({**arrays, f"history-{release}": so_far + total})
        self.state |= arrays
        return True

    # Sums

    def window(self, release: int) -> tuple[FloatArray, NDArray[np.int64]]:
        """Return what trials rewarded after a release, and before the next, add.

        And how many these are, by stream.
        """
        if self._window is None or self._window[0] != release:
            names = f"window-{release}", f"rewarded-{release}"
            known = self._journal.load_arrays(names)
            total = known.get(names[0], np.zeros(self._releases.sum_shape))
            none = np.zeros(self._releases.num_streams, dtype=np.int64)
            self._window = release, total, known.get(names[1], none)
        return self._window[1:]

    def _array(self, name: str) -> FloatArray:
        known = self._journal.load_array(name)
        return np.zeros(self._releases.sum_shape) if known is None else known

    def window_of(self, last: int) -> tuple[int, int]:
        """Return the releases between which the trials of release ``last`` are."""
        return max(0, last - (self._releases.sliding_window or last)), last

    def running_sum(self, last: int) -> FloatArray:
        """Return what release ``last`` is made of; zero for 0."""
        return self.sum_of(*self.window_of(last))[0]

    def sum_of(self, first: int, last: int) -> tuple[FloatArray, list[int]]:
        """Return what trials between two releases add, and how many, by stream.

        From release ``first`` on, before release ``last``, logs among them.
        """
        releases = range(first, last)
        sums = [f"{kind}-{j}" for kind in ("window", "history") for j in releases]
        names = {*sums, *(f"rewarded-{j}" for j in releases)}
        found = self._journal.load_arrays(names)
        zero = np.zeros(self._releases.sum_shape)
        total = np.sum([zero, *(found.get(name, zero) for name in sums)], axis=0)
        counts = np.zeros(self._releases.num_streams, dtype=np.int64)
        for j in releases:
            counts += found.get(f"rewarded-{j}", 0)
        for log in self._logs.values():
            if log["after"] in releases:
                counts += self._by_stream(log["trials"])
        return np.asarray(total), counts.tolist()

    def _by_stream(self, num_trials: int) -> NDArray[np.int64]:
        """Return how many trials of a log each stream has."""
        streams = range(self._releases.num_streams)
        each = [len(range(i, num_trials, len(streams))) for i in streams]
        return np.array(each, dtype=np.int64)


def action_of(trial: Trial) -> FloatArray:
    """Return the action that a decision chose, shape (d,)."""
    return trial.point if trial.point.ndim == 1 else trial.point[trial.params["chosen"]]
