"""What of a client's reply may reach the server while trials are compared privately."""

from __future__ import annotations

import math
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from flwr_fbo._errors import PublicError

# How many examples a client has, as Flower's strategies and `NumPyClient` name it.
WEIGHT_KEYS = ("num-examples", "num_examples")

# What training needs exactly: those weights, and what Flower's adaptive clipping adds.
# They are not covered by the tuner's guarantee.
TRAIN_KEYS = (*WEIGHT_KEYS, "norm_bit")


class MissingMetricError(PublicError, KeyError):
    """A reply lacks what trials are compared or models are weighted by."""


def hide_train_metrics(content: RecordDict) -> RecordDict:
    """Return a reply to ``train`` whose metrics are NaN, but for `TRAIN_KEYS`.

    Raises
    ------
    MissingMetricError
        If no weight is in it: a strategy that weights replies by another key would get
        NaN, and so a model of NaN.
    """
    keys = {key for record in content.metric_records.values() for key in record}
    if keys.isdisjoint(WEIGHT_KEYS):
        text = (
            f"a reply to train needs one of {WEIGHT_KEYS} in its metrics where trials "
            f"are compared privately; it has {sorted(keys)}"
        )
        raise MissingMetricError(text, public=text)
    kept = RecordDict()
    for name, record in content.items():
        if isinstance(record, ArrayRecord):
            kept[name] = record
        else:
            kept[name] = _hidden(name, record, TRAIN_KEYS)
    return kept


def hide_evaluate_metrics(content: RecordDict) -> RecordDict:
    """Return a reply to ``evaluate`` with all keys, NaN metrics and the weight 1."""
    hidden = RecordDict()
    for name, record in content.items():
        if isinstance(record, ArrayRecord):
            hidden[name] = ArrayRecord()
            continue
        hidden[name] = _hidden(name, record, ())
        for key in WEIGHT_KEYS:
            if key in record:
                hidden[name][key] = 1  # type: ignore[assignment]
    return hidden


# What a `NumPyClient` says of itself, whose code Flower reads.
_STATUS = ("fitres.status", "evaluateres.status")


def _hidden(
    name: str, record: MetricRecord | ConfigRecord, kept: tuple[str, ...]
) -> MetricRecord | ConfigRecord:
    kept = ("code",) if name in _STATUS else kept
    values: dict[str, Any] = {
        key: value if key in kept else _constant(value) for key, value in record.items()
    }
    return type(record)(values)


def _constant(value: Any) -> Any:
    """Return a value of the same kind that says nothing."""
    if isinstance(value, str | bytes | bool | list):
        return type(value)()
    return math.nan
