"""Checks the losses and outputs that a model's function returns. Metrics are checked in metric.py."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import tensorflow.compat.v1 as tf

from parallax_runner.errors import CaptureError

RETURNED = ("loss", "train_op", "validation_loss", "validation_metric", "outputs", "metrics", "validation_metrics")
# Valid both as an op name and as a keyword argument.
OUTPUT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


def checked(returned: Any) -> Mapping[str, Any]:
    """Returns the result of the model's function. Raises CaptureError unless the result describes a training graph."""
    if not isinstance(returned, Mapping) or "loss" not in returned or "train_op" not in returned:
        raise CaptureError(f"the model's function must return a dict with 'loss' and 'train_op', not {returned!r}")
    unknown = sorted(set(returned) - set(RETURNED))
    if unknown:
        raise CaptureError(f"the model's function returned the unknown keys {unknown}; known keys are {list(RETURNED)}")
    loss, train_op = returned["loss"], returned["train_op"]
    if not _is_scalar(loss):
        raise CaptureError(f"the model's loss must be a scalar tensor (the mean over the batch), not {loss!r}")
    if not isinstance(getattr(train_op, "op", train_op), tf.Operation):
        raise CaptureError(f"the model's train_op must be an op, not {train_op!r}: combine several with tf.group")
    validation_loss = returned.get("validation_loss")
    if validation_loss is not None and not _is_scalar(validation_loss):
        raise CaptureError(
            f"the model's validation_loss must be a scalar tensor (the mean over the batch), not {validation_loss!r}"
        )
    _check_outputs(returned.get("outputs", {}))
    return returned


def _is_scalar(value: Any) -> bool:
    return isinstance(value, tf.Tensor) and value.shape.rank == 0


def _check_outputs(outputs: Any) -> None:
    if not isinstance(outputs, Mapping):
        raise CaptureError(f"the model's outputs must be a dict of tensors by name, not {outputs!r}")
    for name, tensor in outputs.items():
        if not isinstance(name, str) or not OUTPUT_NAME.fullmatch(name):
            raise CaptureError(
                f"the name of the model's output {name!r} must be a letter followed by letters, digits and «_»"
            )
        if not isinstance(tensor, tf.Tensor):
            raise CaptureError(f"the model's output {name!r} must be a tensor, not {tensor!r}")
