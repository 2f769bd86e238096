"""The order of sends: the trials that share the next one."""

from __future__ import annotations

from collections.abc import Sequence

from flwr_fbo.tuner.trials.trial_thread import TrialThread

# Of the models of all trials that share a send: those that come back from all nodes,
# and those that one node evaluates. Sharing saves what each send costs whatever its
# size, which hardly counts where more is sent.
_MOST_BYTES, _MOST_BYTES_A_NODE = 100e6, 50e6


def next_trials(
    waiting: Sequence[TrialThread], parallel: int, score_first: bool = False
) -> list[TrialThread]:
    """Return the trials that share the next send: all of one message type.

    Where most wait, and evaluations before training, as a trial keeps the replies to
    training until then; among them those that have come least far, so that none is left
    to run alone at the end. At most ``parallel``, and fewer where the models are large
    that come back from all nodes, or that one node evaluates. With ``score_first``
    those that wait for an evaluation, or have come furthest without one: they show
    whether there are scores at all, before all trials are trained.
    """
    by_type: dict[str, list[TrialThread]] = {}
    for trial in waiting:
        if trial.pending:
            by_type.setdefault(trial.pending_type, []).append(trial)

    def progress(trial: TrialThread) -> tuple[int, ...]:
        if score_first:
            return trial.num_scores, -trial.num_sends, trial.number
        return trial.num_sends, trial.number

    if score_first:
        evaluations = {
            kind: group for kind, group in by_type.items() if _is_evaluation(group)
        }
        by_type = evaluations or by_type
    groups = [sorted(group, key=progress)[:parallel] for group in by_type.values()]
    # Of large models fewer share a send.
    groups = [_small(group) for group in groups]
    return min(
        groups,
        key=lambda group: (-len(group), not _is_evaluation(group), progress(group[0])),
    )


def _is_evaluation(trials: Sequence[TrialThread]) -> bool:
    return trials[0].waits_for_evaluate


def _small(trials: Sequence[TrialThread]) -> list[TrialThread]:
    """Return the first of some trials, whose models are small together.

    Trials that share the nodes out come along whatever their size: together they are no
    more than one trial that all nodes train.
    """
    is_evaluation = _is_evaluation(trials)
    most = _MOST_BYTES_A_NODE if is_evaluation else _MOST_BYTES
    found, nodes, total = list[TrialThread](), set[int](), 0.0
    for trial in trials:
        own = {message.metadata.dst_node_id for message in trial.pending}
        total += trial.num_bytes / (len(own) if is_evaluation else 1)
        if found and total > most and own & nodes:
            break
        found.append(trial)
        nodes |= own
    return found
