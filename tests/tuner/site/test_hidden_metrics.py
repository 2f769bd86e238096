"""Metrics that stay at the client: their length, and arrays too."""

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from flwr_fbo.tuner.site.hidden_metrics import hide_evaluate_metrics


def test_how_long_a_list_is_stays_at_the_client() -> None:
    """As of the examples that a model gets wrong, which is an exact score."""
    content = RecordDict(
        {
            "metrics": MetricRecord({"wrong": [3, 14, 15], "num-examples": 9}),
            "config": ConfigRecord({"wrong": ["a", "b"]}),
        }
    )
    hidden = hide_evaluate_metrics(content)
    assert hidden.metric_records["metrics"] == {"wrong": [], "num-examples": 1}
    assert hidden.config_records["config"] == {"wrong": []}


def test_arrays_of_an_evaluation_stay_at_the_client() -> None:
    """As the losses of its examples would, or its predictions."""
    content = RecordDict({"losses": ArrayRecord([np.array([0.93, 0.25])])})
    assert hide_evaluate_metrics(content) == RecordDict({"losses": ArrayRecord()})
