"""Rounds of trials that clients have trained, in files: they are not trained again.

Flower's strategies begin at round 1. So a tuner that goes on calls `main` from its
start, and answers each round that is on file with one reply: what the clients' replies
came to. For a strategy that uses the weighted mean of the replies and nothing else of
them, the model is the same to the last bit, and so is the strategy's momentum.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from zipfile import BadZipFile

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedYogi,
    Strategy,
)

from flwr_fbo._common.errors import log_once
from flwr_fbo._common.files import make_folder
from flwr_fbo._common.text import write_whole
from flwr_fbo._compat import (
    aggregate_arrayrecords,
    aggregate_metricrecords,
    running_training,
    validate_message_reply_consistency,
)
from flwr_fbo.tuner.trials.trial_thread import is_evaluation

_log = logging.getLogger("flwr.fbo")

# Their models are functions of the means of the replies, and, but for the first, of the
# model that they begin with.
_FORGETFUL = FedAvg.aggregate_train
_OF_MEANS = (
    _FORGETFUL,
    FedAvgM.aggregate_train,
    FedAdagrad.aggregate_train,
    FedAdam.aggregate_train,
    FedYogi.aggregate_train,
)

# The name, in a file, of everything but the arrays.
_ABOUT = "about"


@dataclass(frozen=True)
class KeptReply:
    """The mean of the replies of clients to a round's messages.

    Attributes
    ----------
    content : RecordDict
        Content of one reply that stands for all.
    is_empty : bool
        Whether none had come.
    basis : str
        Digest of what it follows from: the strategy, and the arrays that were sent.
    """

    content: RecordDict
    is_empty: bool
    basis: str

    def replies(self, asked: Sequence[Message]) -> list[Message]:
        """Return it as the replies to messages."""
        return [] if self.is_empty else [Message(self.content, reply_to=asked[0])]

    def to_bytes(self) -> bytes:
        """Return it as the content of a file."""
        records = self.content.array_records
        named = [(r, name) for r, record in records.items() for name in record]
        description = {
            "basis": self.basis,
            "is_empty": self.is_empty,
            "arrays": named,
            "metrics": {r: dict(m) for r, m in self.content.metric_records.items()},
        }
        arrays = {str(i): records[r][name].numpy() for i, (r, name) in enumerate(named)}
        arrays[_ABOUT] = np.frombuffer(json.dumps(description).encode(), dtype=np.uint8)
        file = io.BytesIO()
        np.savez(file, allow_pickle=False, **arrays)
        return file.getvalue()

    @classmethod
    def from_file(cls, path: Path) -> KeptReply | None:
        """Return what is in a file; None where there is none that can be read."""
        content = RecordDict()
        try:
            with np.load(path, allow_pickle=False) as file:
                description = json.loads(file[_ABOUT].tobytes())
                for number, (record, name) in enumerate(description["arrays"]):
                    arrays = content.array_records.setdefault(record, ArrayRecord())
                    arrays[name] = Array(file[str(number)])
        except (OSError, ValueError, KeyError, BadZipFile):
            return None
        for record, metrics in description["metrics"].items():
            content[record] = MetricRecord(metrics)
        return cls(content, description["is_empty"], description["basis"])


class KeptRounds:
    """The rounds of one trial: those of an earlier run, and then those of this one.

    Parameters
    ----------
    folder : Path
        Folder of this trial; made when there is something to keep.
    may_keep : callable
        Says whether rounds may be kept.
    """

    def __init__(self, folder: Path, may_keep: Callable[[], bool]) -> None:
        self._folder = folder
        self._may_keep = may_keep
        # Whether clients have trained the trial in this run, and so do from there on.
        self._is_live = not folder.exists()

    def replies(self, number: int, asked: Sequence[Message]) -> list[Message] | None:
        """Return the replies to a round's messages; None: clients must be asked.

        An evaluation is on file only where the trial has gone on after it: the last one
        must leave scores at the clients.

        Parameters
        ----------
        number : int
            Number of the round, from 1.
        asked : sequence of Message
            All of one type.
        """
        if self._is_live:
            return None
        if is_evaluation(asked):
            has_gone_on = self._file(number + 1, "trained").exists()
            kept = KeptReply.from_file(self._file(number, "evaluated"))
            return kept.replies(asked) if kept is not None and has_gone_on else None
        # Another strategy, or another first model, is another training.
        strategy = _strategy_of_means(number, "train")
        kept = KeptReply.from_file(self._file(number, "trained"))
        if (
            strategy is not None
            and kept is not None
            and kept.basis == _basis(strategy, number, asked)
        ):
            return kept.replies(asked)
        # From this round on clients train; what is on file is of another training.
        self._is_live = True
        if number > 1:
            _log.info(
                "%s goes on after round %d, which an earlier run has trained",
                self._folder.name,
                number - 1,
            )
        while (file := self._file(number, "trained")).exists():
            file.unlink()
            number += 1
        return None

    def keep(
        self, number: int, asked: Sequence[Message], replies: Sequence[Message]
    ) -> None:
        """Keep what the replies to a round's messages come to.

        Not where that is not all that `main` sees of them: then no later round is kept,
        either.
        """
        is_train = not is_evaluation(asked)
        strategy = _strategy_of_means(number, "train" if is_train else "evaluate")
        # Without a gap: a run that goes on answers rounds from the first one on.
        before = self._file(number - 1 if is_train else number, "trained")
        is_next = before.exists() or (is_train and number == 1)
        if strategy is None or not is_next or not self._may_keep():
            return
        found = [reply.content for reply in replies if reply.has_content()]
        try:
            key = strategy.weighted_by_key
            content = _mean(found, key, is_train) if found else RecordDict()
        except Exception:  # of many kinds: main fails of such replies, too
            return
        basis = _basis(strategy, number, asked)
        # Whole or not at all: a killed run must not leave half a mean.
        path = self._file(number, "trained" if is_train else "evaluated")
        try:
            make_folder(self._folder)
            write_whole(path, KeptReply(content, not found, basis).to_bytes())
        except OSError as error:  # a full disk, say
            log_once("a round of a trial is not kept:", f"no file: {error}")

    def _file(self, number: int, what: Literal["trained", "evaluated"]) -> Path:
        return self._folder / f"round-{number}-{what}.npz"


def _strategy_of_means(number: int, kind: str) -> FedAvg | None:
    """Return the strategy that runs, if it uses nothing but means of such replies.

    Its `start` is Flower's and has come to this round of the trial: between two calls
    of `start` it is the app's own code that makes the next model.
    """
    training = running_training()
    strategy = training.strategy
    if not isinstance(strategy, FedAvg) or training.current_round != number:
        return None
    used = getattr(getattr(strategy, f"aggregate_{kind}"), "__func__", None)
    metrics = getattr(strategy, f"{kind}_metrics_aggr_fn")
    of_means = _OF_MEANS if kind == "train" else (FedAvg.aggregate_evaluate,)
    is_flowers = type(strategy).start is Strategy.start and used in of_means
    return strategy if is_flowers and metrics is aggregate_metricrecords else None


def _mean(contents: list[RecordDict], weight_key: str, is_train: bool) -> RecordDict:
    """Return the content of one reply that has the weight and the mean of all.

    Raises
    ------
    AppExitException
        If Flower's strategies refuse to aggregate such replies.
    """
    validate_message_reply_consistency(contents, weight_key, is_train)
    (metrics_name,) = contents[0].metric_records
    metrics = aggregate_metricrecords(contents, weight_key)
    weights = [content.metric_records[metrics_name][weight_key] for content in contents]
    # The one reply weighs as much as all: strategies may use the sum of weights.
    metrics[weight_key] = float(np.sum(weights))
    mean = RecordDict({metrics_name: metrics})
    if is_train:
        (arrays_name,) = contents[0].array_records
        mean[arrays_name] = aggregate_arrayrecords(contents, weight_key)
    return mean


def _basis(strategy: FedAvg, number: int, asked: Sequence[Message]) -> str:
    """Return what the model after a round follows from, besides the clients' replies.

    The form of the model that was sent; in the first round also its values, unless the
    strategy forgets it.
    """
    digest = hashlib.sha256(f"{type(strategy).__qualname__}".encode())
    used = getattr(strategy.aggregate_train, "__func__", None)
    has_values = number == 1 and used is not _FORGETFUL
    for record in asked[0].content.array_records.values():
        for name, array in record.items():
            digest.update(json.dumps([name, array.dtype, array.shape]).encode())
            digest.update(array.data if has_values else b"")
    return digest.hexdigest()
