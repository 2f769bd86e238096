"""How an app trains: what `main` shows before its first message, which is never sent.

`main` is called, and ended at its first training. So it is known how many clients it
asks, for how many rounds, and whether a part of the clients would do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from flwr.app import Context, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    Bulyan,
    FedMedian,
    FedTrimmedAvg,
    FedXgbCyclic,
    Krum,
    MultiKrum,
    Strategy,
)

from flwr_fbo._compat import running_strategy, secure_aggregation_stage
from flwr_fbo.tuner.candidates import rounds_keys
from flwr_fbo.tuner.parked_arrays import ParkedArrays
from flwr_fbo.tuner.progress import TrialLog
from flwr_fbo.tuner.schedule import AppShape, Schedule
from flwr_fbo.tuner.trial_context import Overlay, trial_context
from flwr_fbo.tuner.trial_grid import Main, Share, ShareOf, TrialGrid
from flwr_fbo.tuner.trial_thread import Send, TrialThread

# Strategies whose result depends on how many models there are.
_OF_MANY = Bulyan, FedMedian, FedTrimmedAvg, FedXgbCyclic, Krum, MultiKrum
# How often `main` looks for nodes before its first message, at most: a strategy that
# waits for more nodes looks once a second.
_MOST_LOOKS = 6


class _WaitsForNodesError(RuntimeError):
    """`main` waits for more nodes than it has been given."""


class _Beginning:
    """The first training of `main`, up to its first message.

    Parameters
    ----------
    main : callable
    grid : Grid
    context : Context
        Its run config is that of a trial.
    folder : Path or None
        The working directory.
    nodes : sequence of int, optional
        What `main` sees. None: all, and it may wait for more.

    Attributes
    ----------
    asked : list of Message
        Of the first training; empty where `main` has ended before.
    strategy : Strategy or None
        Of Flower, that has asked.
    num_rounds : int or None
        That the strategy was given.
    error : BaseException or None
        What has ended `main`.
    """

    def __init__(
        self,
        main: Main,
        grid: Grid,
        context: Context,
        folder: Path | None,
        nodes: Sequence[int] | None = None,
    ) -> None:
        self.asked: list[Message] = []
        self.strategy: Strategy | None = None
        self.num_rounds: int | None = None
        looks = [0]

        def share(_grid: Grid, _round: int) -> Share:
            looks[0] += 1
            if looks[0] > _MOST_LOOKS:
                raise _WaitsForNodesError
            return Share(list(nodes or ()))

        def run(send: Send) -> None:
            def noted(messages: list[Message], timeout: float | None) -> Any:
                self.strategy, self.num_rounds, _ = running_strategy()
                return send(messages, timeout)

            seen: ShareOf | None = None if nodes is None else share
            trial_grid = TrialGrid(grid, noted, True, lambda _metrics: None, seen)
            try:
                main(cast(Grid, trial_grid), context)
            finally:
                trial_grid.close()

        trial = TrialThread(0, run, folder, ParkedArrays())
        with TrialLog():
            trial.begin()
            while trial.waits_for_evaluate:
                trial.skip()
            self.asked, self.error = trial.pending, trial.error
            trial.end()


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
    context : Context
    settings : mapping
        The app's defaults.
    folder : Path or None
        The working directory of the trial with the defaults.
    """

    def begun(nodes: Sequence[int] | None = None) -> _Beginning:
        tried = trial_context(context, Overlay(context.run_config, settings))
        return _Beginning(main, grid, tried, folder, nodes)

    nodes = sorted(grid.get_node_ids())
    keys = rounds_keys(context.run_config)
    whole = begun()
    nodes = sorted(grid.get_node_ids())  # main may have waited for more
    num_rounds = whole.num_rounds
    if num_rounds is None and len(keys) == 1:
        num_rounds = int(context.run_config[keys[0]])
    same = [key for key in keys if context.run_config[key] == num_rounds]
    shape = AppShape(
        len(nodes),
        len(whole.asked),
        num_rounds,
        same[0] if len(same) == 1 else "",
        _reason(whole),
    )
    size = schedule.min_group(shape)
    if not 0 < size <= len(nodes) // 2:
        return shape
    part = begun(nodes[:size])
    asked = {message.metadata.dst_node_id for message in part.asked}
    least = -(-size * len(whole.asked) // len(nodes))
    if isinstance(part.error, _WaitsForNodesError) or not asked:
        return replace(shape, reason=f"main waits for more than {size} nodes")
    if not asked <= set(nodes[:size]):
        return replace(shape, reason="main asks other nodes than grid.get_node_ids()")
    if len(asked) > least:
        text = f"main asks {len(asked)} of {size} nodes, and {least} would be its part"
        return replace(shape, reason=text)
    return shape


def _reason(begun: _Beginning) -> str:
    """Return why the clients cannot be shared out; empty where they can."""
    if not begun.asked:
        return "main has ended before it asked clients to train"
    strategy = begun.strategy
    if secure_aggregation_stage(begun.asked[0].content) is not None:
        return "Flower's secure aggregation sums the models of all clients"
    if strategy is None:
        return "main trains without a strategy of flwr.serverapp"
    while hasattr(strategy, "strategy"):  # Flower's wrappers for privacy
        if hasattr(strategy, "num_sampled_clients"):
            name = type(strategy).__name__
            return f"{name} adds noise for num_sampled_clients models"
        strategy = strategy.strategy
    if isinstance(strategy, _OF_MANY):
        return f"{type(strategy).__name__} needs the models of all clients"
    return ""
