"""Replies of an app without its private metrics.

That is while trials are compared privately, in the training after that, and at a site
with limits whenever its app answers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from flwr_fbo._common.errors import PublicError
from flwr_fbo._compat import SECURE_AGGREGATION_KEYS, SECURE_AGGREGATION_RECORD

# How many examples a client has, as Flower's strategies and `NumPyClient` name it.
WEIGHT_KEYS = ("num-examples", "num_examples")

# What training needs exactly: those weights, and what Flower's adaptive clipping adds.
# They are not covered by the tuner's guarantee.
TRAIN_KEYS = (*WEIGHT_KEYS, "norm_bit")


class MetricError(PublicError, ValueError):
    """A reply has no usable number to compare trials or weight models by.

    Its text has keys and types, but no values.
    """


def merged(records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what is in several records of a reply."""
    return {key: value for record in records for key, value in record.items()}


def numbers_of(metrics: Mapping[Any, Any]) -> dict[str, float]:
    """Return the numbers that may be scores."""
    return {
        str(key): float(value)
        for key, value in metrics.items()
        if isinstance(value, int | float)
        and not isinstance(value, bool)
        and key not in (*WEIGHT_KEYS, "code")
    }


def number_of(metrics: Mapping[str, Any], key: str, source: str) -> float:
    """Return a metric.

    Parameters
    ----------
    metrics : mapping
        Metrics of a reply, by name.
    key : str
        Name of the metric.
    source : str
        Where the metrics are from, for the error.

    Raises
    ------
    MetricError
        If it is missing, or not a number.
    """
    if key not in metrics:
        raise MetricError.told(f"{source} has no {key!r}; it has {sorted(metrics)}")
    value = metrics[key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise MetricError.told(
            f"{key!r} in {source} is a {type(value).__name__}, not a number"
        )
    return float(value)


def score_of(
    metrics: Mapping[str, Any], weights: Mapping[str, float], source: str
) -> float:
    """Return the weighted sum of metrics; see `number_of`."""
    return sum(w * number_of(metrics, key, source) for key, w in weights.items())


def weight_of(metrics: Mapping[str, Any], source: str) -> float:
    """Return how many examples a reply is about; 1 where it has no key.

    Raises
    ------
    MetricError
        If it is not a number, negative, NaN or infinite.
    """
    key = next((key for key in WEIGHT_KEYS if key in metrics), None)
    if key is None:
        return 1.0
    weight = number_of(metrics, key, source)
    if not 0 <= weight < math.inf:
        raise MetricError.told(f"{key!r} in {source} is negative or not finite")
    return weight


def check_number(metrics: Mapping[str, Any], weight: float) -> None:
    """Raise `MetricError` unless a score is a mean over a known number of examples.

    Only its number tells how far one of them moves it.
    """
    if metrics.keys().isdisjoint(WEIGHT_KEYS) or weight != int(weight):
        raise MetricError.told(
            f"a reply to evaluate needs a whole number of examples in {WEIGHT_KEYS} "
            "where one example is protected: the score is the mean of their values"
        )


def check_weight(content: RecordDict) -> None:
    """Raise `MetricError` if a reply to ``train`` has no usable weight.

    A strategy that weights replies by another key would get NaN, and so a model of NaN.
    """
    metrics = merged(content.metric_records.values())
    has_model = set(content) != {SECURE_AGGREGATION_RECORD}
    if has_model and metrics.keys().isdisjoint(WEIGHT_KEYS):
        raise MetricError.told(
            f"a reply to train needs one of {WEIGHT_KEYS} in its metrics where trials "
            f"are compared privately; it has {sorted(metrics)}"
        )
    weight_of(metrics, "a reply to train")


def hide_train_metrics(content: RecordDict) -> RecordDict:
    """Return a reply to ``train`` whose metrics are NaN, but for `TRAIN_KEYS`.

    What Flower's secure aggregation sends stays too: keys, their encrypted shares, and
    the masked model. Replies in three of its four stages have nothing else.
    """
    return RecordDict(
        {
            name: record
            if isinstance(record, ArrayRecord)
            else _hidden(name, record, TRAIN_KEYS)
            for name, record in content.items()
        }
    )


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
_STATUS = ("fitres.status", "evaluateres.status", "getparametersres.status")


def _hidden(
    name: str, record: MetricRecord | ConfigRecord, kept: tuple[str, ...]
) -> MetricRecord | ConfigRecord:
    kept = ("code",) if name in _STATUS else kept
    kept = SECURE_AGGREGATION_KEYS if name == SECURE_AGGREGATION_RECORD else kept
    values: dict[str, Any] = {
        key: value if key in kept else _constant(value) for key, value in record.items()
    }
    return type(record)(values)


def _constant(value: Any) -> Any:
    """Return a value of the same kind that says nothing."""
    if isinstance(value, str | bytes | bool | list):
        return type(value)()
    return math.nan
