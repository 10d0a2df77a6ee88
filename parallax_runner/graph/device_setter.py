"""Prevents `replica_device_setter` in a model's function from naming cluster tasks, because the plan places
variables."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.python.training import device_setter


class ModelGraph(tf.Graph):
    """The graph that a model's function builds. Device scopes other than `replica_device_setter` keep their meaning
    (docs/design/0023)."""

    def device(self, device_name_or_function: Any) -> AbstractContextManager[None]:
        """Overrides the method that TensorFlow calls for each device scope."""
        return super().device(_without_tasks(device_name_or_function))


def _without_tasks(scope: Any) -> Any:
    """Replaces a `replica_device_setter` with a scope that places nothing on servers and keeps the worker's device.

    Other scopes are returned unchanged.
    """
    chooser = getattr(scope, "__self__", None)
    if not isinstance(chooser, device_setter._ReplicaDeviceChooser):
        return scope
    worker = tf.DeviceSpec.from_string(chooser._worker_device or "").replace(job=None, replica=None, task=None)

    def device_of(op: tf.Operation) -> str:
        if op.type in chooser._ps_ops:
            return op.device
        return worker.make_merged_spec(tf.DeviceSpec.from_string(op.device)).to_string()

    return device_of
