"""`replica_device_setter` in a model's function names no task of a cluster: the plan places the variables."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.python.training import device_setter


class ModelGraph(tf.Graph):
    """The graph that a model's function builds. Other device scopes mean what they say: docs/design/0023."""

    def device(self, device_name_or_function: Any) -> AbstractContextManager[None]:
        """As TensorFlow's, which is called for each scope."""
        return super().device(_without_tasks(device_name_or_function))


def _without_tasks(scope: Any) -> Any:
    """The same scope; in place of a setter, one that puts nothing on servers and keeps the worker's device."""
    chooser = getattr(scope, "__self__", None)
    if not isinstance(chooser, device_setter._ReplicaDeviceChooser):
        return scope
    worker = tf.DeviceSpec.from_string(chooser._worker_device or "").replace(job=None, replica=None, task=None)

    def device_of(op: tf.Operation) -> str:
        if op.type in chooser._ps_ops:
            return op.device
        return worker.make_merged_spec(tf.DeviceSpec.from_string(op.device)).to_string()

    return device_of
