"""The metrics that `model.validation_metrics`, or the argument of `fit`, names, of the label and the prediction of a
Keras model."""

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
Parts = tuple[Any, Any, Any]

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
    """The metrics with these names. `parts_of` returns the label, the weight and the group of each example of a batch
    from its features by name. The last two are None if there are none. `setting` contains the names."""

    names: tuple[str, ...]
    parts_of: Callable[[Mapping[str, Any]], Parts]
    setting: Setting

    @classmethod
    def of(cls, names: Sequence[str], *, labels: Any, sample_weight: Any, groups: Any, features: Any) -> NamedMetrics:
        """Returns the metrics of data whose features `labels`, `sample_weight` and `groups` name.

        Raises CaptureError for an unknown name, if there is not one label, or if a metric needs groups and no feature
        has them.
        """
        setting = Setting.of(KEY, list(names))
        _check_names(names, setting)
        has_one_weight = sample_weight is None or isinstance(sample_weight, str)
        if not isinstance(labels, str) or not has_one_weight:
            raise CaptureError("these metrics need one label, the name of one feature").about(
                setting, Setting("model.labels", labels)
            )
        if any(map(_is_of_groups, names)):
            _check_groups(groups, features, setting)

        def parts_of(tensors: Mapping[str, Any]) -> Parts:
            weights = None if sample_weight is None else tensors[sample_weight]
            return tensors[labels], weights, None if groups is None else tensors[groups]

        return cls(tuple(names), parts_of, setting)

    @classmethod
    def of_elements(cls, names: Sequence[str], element: Callable[..., Any], groups: str | None) -> NamedMetrics:
        """Returns the metrics of the elements that `element` makes of features: x, (x, y) or (x, y, sample_weight).
        `groups` is the key of x that has the group of an example.

        Raises CaptureError for an unknown name, or if a metric needs groups and `groups` is None. `parts_of` raises
        CaptureError if there is not one label, or if x lacks the key.
        """
        setting = Setting("validation_metrics", repr(list(names)), where="fit")
        _check_names(names, setting)
        if groups is None and any(map(_is_of_groups, names)):
            raise CaptureError("a metric of groups needs the group of each example").about(
                setting, remedy="pass groups, the key of x that has them"
            )
        return cls(tuple(names), lambda tensors: _parts_of_element(element(tensors), groups, setting), setting)

    def in_batch(self, model: Any, predictions: Any, tensors: Mapping[str, Any]) -> dict[str, AnyMetric]:
        """Returns the metrics of a batch by name. Raises CaptureError if the model has several outputs, or if labels
        and predictions do not fit together."""
        labels, weights, groups = self.parts_of(tensors)
        given = Examples(
            labels,
            _only_output(predictions, self.setting),
            weights,
            groups,
            from_logits=bool(getattr(model.loss, "from_logits", False)),
        )
        try:
            functions.check_sizes(labels=given.labels, predictions=given.predictions)
            return {name: _made(name, given) for name in self.names}
        except ValueError as error:
            raise CaptureError(str(error)).about(self.setting) from error


def _parts_of_element(element: Any, groups: str | None, setting: Setting) -> Parts:
    import keras

    x, y, weights = keras.utils.unpack_x_y_sample_weight(element)
    if not tf.is_tensor(y) or not (weights is None or tf.is_tensor(weights)):
        raise CaptureError("these metrics need one label, so y must be one array").about(setting)
    if groups is None:
        return y, weights, None
    if not isinstance(x, Mapping) or groups not in x:
        found = f"it has the keys {sorted(x)}" if isinstance(x, Mapping) else "it is no dict"
        raise CaptureError(f"expected a key of x, but {found}").about(Setting("groups", groups, where="fit"))
    return y, weights, x[groups]


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


def _check_names(names: Sequence[str], setting: Setting) -> None:
    for name in names:
        _check_name(name, setting)


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


def _only_output(predictions: Any, setting: Setting) -> Any:
    outputs = list(predictions.values()) if isinstance(predictions, Mapping) else predictions
    if not isinstance(outputs, list | tuple):
        return outputs
    if len(outputs) != 1:
        raise CaptureError(f"these metrics need one output, and the model has {len(outputs)}").about(setting)
    return outputs[0]
