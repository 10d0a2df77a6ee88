"""Checks initial values that a graph reads from a checkpoint, as `tf.train.init_from_checkpoint` makes them."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow.compat.v1 as tf

from parallax_runner.errors import CaptureError, reason_in
from parallax_runner.graph.single_device_graph import Variable


def check_restored_values(graph: tf.Graph, variables: Iterable[Variable]) -> None:
    """Raises CaptureError if a variable's initial value cannot be read from its checkpoint: the checkpoint cannot be
    read, or its tensor is missing or has another dtype. TensorFlow itself would find this only in the workers."""
    readers: dict[str, tf.train.CheckpointReader] = {}
    for variable in variables:
        restore = _restore_behind(graph.get_operation_by_name(variable.initializer))
        if restore is None:
            continue
        prefix, names = (tf.get_static_value(tensor) for tensor in restore.inputs[:2])
        if prefix is None or names is None:  # they are computed, so they are known only when the initializer runs
            continue
        path, name = prefix.item().decode(), names[0].decode()
        if path not in readers:
            readers[path] = _opened(path, variable)
        _check_dtype(readers[path], path, name, variable)


def _restore_behind(initializer: tf.Operation) -> tf.Operation | None:
    """Returns the op that reads the value of an initializer from a checkpoint, or None. Between the two there may be
    copies."""
    if len(initializer.inputs) < 2:
        return None
    op = initializer.inputs[1].op
    while op.type == "Identity":
        op = op.inputs[0].op
    return op if op.type == "RestoreV2" and len(op.outputs) == 1 else None


def _opened(path: str, variable: Variable) -> tf.train.CheckpointReader:
    try:
        return tf.train.load_checkpoint(path)
    except (tf.errors.OpError, ValueError) as error:
        told = error.message if isinstance(error, tf.errors.OpError) else str(error)
        raise CaptureError(
            f"the initial value of variable «{variable.name}» is in the checkpoint {path}, which cannot be read: "
            f"{reason_in(told)}"
        ) from error


def _check_dtype(reader: tf.train.CheckpointReader, path: str, name: str, variable: Variable) -> None:
    dtypes = reader.get_variable_to_dtype_map()
    if name not in dtypes:
        raise CaptureError(
            f"the initial value of variable «{variable.name}» is «{name}» in the checkpoint {path}, which has no such "
            "variable"
        )
    if dtypes[name] != tf.as_dtype(variable.dtype):
        raise CaptureError(
            f"the initial value of variable «{variable.name}» ({variable.dtype}) is «{name}» in the checkpoint {path}, "
            f"which is {dtypes[name].name}: give the variable the dtype {dtypes[name].name}, or write the checkpoint "
            f"again with {variable.dtype}"
        )
