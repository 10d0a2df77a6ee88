"""Metrics that a model function or a training step can return: `{"metrics": {"auc": metrics.auc(labels, logits)}}`.

Each metric is computed from sums over examples, so its value is exact over all batches and ranks. No metric is
an average of per-batch values. Optional weights are non-negative numbers, one for each value or example.

Metrics of groups, such as the impressions of a user, are no sums. Validations compute them from the rows of all
examples, and training steps leave them out.
"""

from parallax_runner.graph.metric_functions import (
    accuracy,
    auc,
    calibration,
    calibration_error,
    gauc,
    group_log_loss,
    group_mean,
    group_ndcg_at_k,
    group_recall_at_k,
    log_loss,
    mean,
    perplexity,
    precision_at_k,
    recall_at_k,
    rmse,
)

__all__ = [
    "accuracy",
    "auc",
    "calibration",
    "calibration_error",
    "gauc",
    "group_log_loss",
    "group_mean",
    "group_ndcg_at_k",
    "group_recall_at_k",
    "log_loss",
    "mean",
    "perplexity",
    "precision_at_k",
    "recall_at_k",
    "rmse",
]
