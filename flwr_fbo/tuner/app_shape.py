"""How an app trains: what `main` shows before its first message, which is never sent.

`main` is called, and ended at its first training. So it is known how many clients it
asks, for how many rounds, and whether a part of the clients would do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from flwr.app import Context, Message, MessageType
from flwr.server import strategy as legacy
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    Bulyan,
    FedMedian,
    FedTrimmedAvg,
    FedXgbCyclic,
    Krum,
    MultiKrum,
)

from flwr_fbo._compat import (
    GET_PARAMETERS,
    Training,
    clients_of_a_part,
    has_plain_rounds,
    secure_aggregation_stage,
)
from flwr_fbo.tuner.candidates.candidates import rounds_keys
from flwr_fbo.tuner.lone_trial import LoneTrial
from flwr_fbo.tuner.rungs.trial_log import TrialLog
from flwr_fbo.tuner.schedules.schedule import AppShape, Schedule
from flwr_fbo.tuner.trials.trial_grid import Main, Share

# Strategies whose result depends on how many models there are.
_OF_MANY = (
    *(Bulyan, FedMedian, FedTrimmedAvg, FedXgbCyclic, Krum, MultiKrum),
    *(legacy.Bulyan, legacy.FedMedian, legacy.FedTrimmedAvg, legacy.FedXgbCyclic),
    legacy.Krum,
)
# How often `main` looks for nodes before its first message, at most: a strategy that
# waits for more nodes looks once a second.
_MOST_LOOKS = 6


class _WaitsForNodesError(RuntimeError):
    """`main` waits for more nodes than it has been given."""


@dataclass(frozen=True)
class _Beginning:
    """The first training of `main`, up to its first message.

    Attributes
    ----------
    asked : list of Message
        Of the first training; empty where `main` has ended before.
    training : Training
        Of Flower's, as far as it is known.
    error : BaseException or None
        What has ended `main`.
    """

    asked: list[Message]
    training: Training
    error: BaseException | None

    @classmethod
    def of(
        cls,
        main: Main,
        grid: Grid,
        context: Context,
        folder: Path | None,
        settings: Mapping[str, Any],
        nodes: Sequence[int] | None = None,
    ) -> Self:
        """Call `main` with settings, and end it at its first message.

        It sees the nodes that are given. Without any it sees all, and may wait for
        more.
        """
        looks = [0]

        def share(_grid: Grid, _round: int) -> Share:
            looks[0] += 1
            if looks[0] > _MOST_LOOKS:
                raise _WaitsForNodesError
            return Share(list(nodes or ()))

        shown = None if nodes is None else share
        trial = LoneTrial(main, grid, context, folder, settings=settings, share=shown)
        with TrialLog():
            trial.begin()
            while trial.waits_for_evaluate:
                trial.skip()
            found = cls(trial.pending, trial.grid.watched.training, trial.error)
            trial.end()
        return found


def app_shape(
    schedule: Schedule,
    main: Main,
    grid: Grid,
    context: Context,
    settings: Mapping[str, Any],
    folder: Path | None,
) -> AppShape:
    """Return how an app trains; no message is sent.

    Parameters
    ----------
    schedule : Schedule
        Says how many nodes a group has at least.
    main : callable
        Is called with all nodes, and with such a group.
    grid : Grid
        Grid of the app's clients.
    context : Context
        Context of the ServerApp.
    settings : mapping
        The app's defaults.
    folder : Path or None
        The working directory of the trial with the defaults.
    """
    begun = partial(_Beginning.of, main, grid, context, folder, settings)
    nodes = sorted(grid.get_node_ids())
    keys = rounds_keys(context.run_config)
    whole = begun()
    nodes = sorted(grid.get_node_ids())  # main may have waited for more
    strategy, num_rounds = whole.training.strategy, whole.training.num_rounds
    is_legacy = isinstance(strategy, legacy.Strategy)
    known = clients_of_a_part(strategy, len(nodes))
    if num_rounds is None and len(keys) == 1:
        num_rounds = int(context.run_config[keys[0]])
    same = [key for key in keys if context.run_config[key] == num_rounds]
    shape = AppShape(
        len(nodes),
        len(whole.asked) if known is None else known[0],
        num_rounds,
        same[0] if len(same) == 1 else "",
        _reason(whole),
    )
    size = schedule.min_group(shape)
    if not 0 < size <= len(nodes) // 2:
        return shape
    waits = f"the server waits for more than {size} nodes"
    if is_legacy:  # main could wait in a way that nothing ends
        _, waits_for = clients_of_a_part(strategy, size) or (0, len(nodes))
        if waits_for > size:
            return replace(shape, reason=waits)
        return shape
    part = begun(nodes[:size])
    asked = {message.metadata.dst_node_id for message in part.asked}
    least = -(-size * shape.num_asked // len(nodes))
    if isinstance(part.error, _WaitsForNodesError) or not asked:
        return replace(shape, reason=waits)
    if not asked <= set(nodes[:size]):
        text = "the server asks other nodes than grid.get_node_ids()"
        return replace(shape, reason=text)
    if len(asked) > least:
        text = f"the server asks {len(asked)} of {size} nodes"
        return replace(shape, reason=f"{text}, and {least} would be its part")
    return shape


def _reason(begun: _Beginning) -> str:
    """Return why the clients cannot be shared out; empty where they can."""
    if not begun.asked:
        return "the server has ended before it asked clients to train"
    strategy: Any = begun.training.strategy
    kind = begun.asked[0].metadata.message_type
    if secure_aggregation_stage(begun.asked[0].content) is not None:
        return "Flower's secure aggregation sums the models of all clients"
    if strategy is None:
        return "the server trains without a strategy of Flower's"
    if not kind.startswith((MessageType.TRAIN, GET_PARAMETERS)):
        return f"the server asks clients for {kind!r} before they train"
    if not has_plain_rounds(begun.training.server):
        return "the Server has rounds of its own"
    while hasattr(strategy, "strategy"):  # Flower's wrappers for privacy
        if hasattr(strategy, "num_sampled_clients"):
            name = type(strategy).__name__
            return f"{name} adds noise for num_sampled_clients models"
        strategy = strategy.strategy
    if isinstance(strategy, _OF_MANY):
        return f"{type(strategy).__name__} needs the models of all clients"
    return ""
