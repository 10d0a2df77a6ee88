"""The metrics that `model.validation_metrics` names, of the label and the prediction of a Keras model."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import tensorflow as tf

from parallax_runner.errors import CaptureError, Setting
from parallax_runner.graph import metric_functions as functions
from parallax_runner.graph.metric import AnyMetric

KEY, GROUPS = "model.validation_metrics", "model.groups"


@dataclass(frozen=True)
class Examples:
    """The labels, predictions, weights and groups of a batch. The last two are None if there are none. The predictions
    are logits if `from_logits` is set."""

    labels: Any
    predictions: Any
    weights: Any
    groups: Any
    from_logits: bool


Make = Callable[[Examples], AnyMetric]

OF_SUMS: Mapping[str, Make] = {
    "auc": lambda one: functions.auc(one.labels, one.predictions, one.weights, from_logits=one.from_logits),
    "calibration": lambda one: functions.calibration(
        one.labels, one.predictions, one.weights, from_logits=one.from_logits
    ),
    "calibration_error": lambda one: functions.calibration_error(
        one.labels, one.predictions, one.weights, from_logits=one.from_logits
    ),
    "log_loss": lambda one: functions.log_loss(one.labels, one.predictions, one.weights, from_logits=one.from_logits),
    "rmse": lambda one: functions.rmse(
        tf.reshape(one.labels, [-1]), tf.reshape(tf.cast(one.predictions, tf.float32), [-1]), one.weights
    ),
}
OF_GROUPS: Mapping[str, Make] = {
    "gauc": lambda one: functions.gauc(one.labels, one.predictions, one.groups, one.weights),
    "group_log_loss": lambda one: functions.group_log_loss(
        one.labels, one.predictions, one.groups, one.weights, from_logits=one.from_logits
    ),
}
AT_K: Mapping[str, Callable[[Examples, int], AnyMetric]] = {
    "group_ndcg_at": lambda one, k: functions.group_ndcg_at_k(one.labels, one.predictions, one.groups, k),
    "group_recall_at": lambda one, k: functions.group_recall_at_k(one.labels, one.predictions, one.groups, k),
}
_AT_K = re.compile(rf"({'|'.join(AT_K)})_([1-9][0-9]*)")


@dataclass(frozen=True)
class NamedMetrics:
    """The metrics with these names, and the features with the label, the weight and the group of an example."""

    names: tuple[str, ...]
    labels: str
    sample_weight: str | None
    groups: str | None

    @classmethod
    def of(cls, names: Sequence[str], *, labels: Any, sample_weight: Any, groups: Any, features: Any) -> NamedMetrics:
        """Raises CaptureError for an unknown name, if there is not one label, or if a metric needs groups and no
        feature has them."""
        setting = Setting.of(KEY, list(names))
        for name in names:
            _check_name(name, setting)
        has_one_weight = sample_weight is None or isinstance(sample_weight, str)
        if not isinstance(labels, str) or not has_one_weight:
            raise CaptureError("these metrics need one label, the name of one feature").about(
                setting, Setting("model.labels", labels)
            )
        if any(map(_is_of_groups, names)):
            _check_groups(groups, features, setting)
        return cls(tuple(names), labels, sample_weight, groups)

    def in_batch(self, model: Any, predictions: Any, tensors: Mapping[str, Any]) -> dict[str, AnyMetric]:
        """Returns the metrics of a batch by name. Raises CaptureError if the model has several outputs, or if labels
        and predictions do not fit together."""
        given = Examples(
            tensors[self.labels],
            _only_output(predictions, self.names),
            None if self.sample_weight is None else tensors[self.sample_weight],
            None if self.groups is None else tensors[self.groups],
            from_logits=bool(getattr(model.loss, "from_logits", False)),
        )
        try:
            functions.check_sizes(labels=given.labels, predictions=given.predictions)
            return {name: _made(name, given) for name in self.names}
        except ValueError as error:
            raise CaptureError(str(error)).about(Setting.of(KEY, list(self.names))) from error


@contextmanager
def predictions_noted(model: Any) -> Iterator[list[Any]]:
    """Provides a list to which `test_step` adds the predictions from which the model computes its own metrics, so that
    a batch need not be predicted twice."""
    noted: list[Any] = []
    compute = model.compute_metrics

    def noting(x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        noted.append(y_pred)
        return compute(x, y, y_pred, sample_weight)

    with mock.patch.dict(vars(model), {"compute_metrics": noting}):
        yield noted


def _check_name(name: str, setting: Setting) -> None:
    if name in OF_SUMS or _is_of_groups(name):
        return
    known = ", ".join([*OF_SUMS, *OF_GROUPS, *(f"{one}_10" for one in AT_K)])
    raise CaptureError(f"«{name}» is no metric; expected {known} (or another number than 10)").about(setting)


def _check_groups(groups: str | None, features: Collection[str], setting: Setting) -> None:
    if groups is None:
        raise CaptureError("a metric of groups needs the group of each example").about(
            setting, remedy=f"set {GROUPS} to a feature, or give data.columns a column of the kind group"
        )
    if groups not in features:
        raise CaptureError(f"the data has no such feature; it has {sorted(features)}").about(Setting.of(GROUPS, groups))


def _is_of_groups(name: str) -> bool:
    return name in OF_GROUPS or _AT_K.fullmatch(name) is not None


def _made(name: str, given: Examples) -> AnyMetric:
    at_k = _AT_K.fullmatch(name)
    if at_k is not None:
        return AT_K[at_k[1]](given, int(at_k[2]))
    make = OF_SUMS[name] if name in OF_SUMS else OF_GROUPS[name]
    return make(given)


def _only_output(predictions: Any, names: Sequence[str]) -> Any:
    outputs = list(predictions.values()) if isinstance(predictions, Mapping) else predictions
    if not isinstance(outputs, list | tuple):
        return outputs
    if len(outputs) != 1:
        raise CaptureError(f"these metrics need one output, and the model has {len(outputs)}").about(
            Setting.of(KEY, list(names))
        )
    return outputs[0]
