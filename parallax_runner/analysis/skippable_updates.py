"""Checks that every update in a step can be skipped, as train.on_nan=skip requires."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.errors import PlanError, Setting
from parallax_runner.graph import edit
from parallax_runner.graph.effects import Effects
from parallax_runner.graph.single_device_graph import SingleDeviceGraph

_SKIP = Setting("train.on_nan", "skip")


def check_skippable_updates(single: SingleDeviceGraph) -> None:
    """Raises PlanError if a step writes a variable inside a branch, a loop or a function after the loss is known, or by
    an op whose result the step reads.

    Such a write cannot be made conditional from outside (rewrite/every_route/skip_nonfinite.py). If the loss itself
    waits for a write, the write is allowed, because it happens before the step can know whether it must be skipped.
    """
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(single.meta_graph.graph_def, name="")
    step = edit.ancestors([graph.get_operation_by_name(single.train_op)])
    late = step - edit.ancestors([graph.get_tensor_by_name(single.loss).op])
    effects = Effects.of(graph)
    for op in sorted(late, key=lambda op: op.name):
        written = effects.written_by(op)
        if not written:
            continue
        told = f"«{op.name}» ({op.type}) updates «{written[0]}»"
        if not edit.is_write(op):
            raise PlanError(f"{told} inside a branch, a loop or a function, so this update cannot be skipped").about(
                _SKIP, remedy="move the update out of it, or choose train.on_nan=stop"
            )
        if any(consumer in step for output in op.outputs for consumer in output.consumers()):
            raise PlanError(f"{told} and the step uses its result, so this update cannot be skipped").about(
                _SKIP, remedy="use assign_add and a separate read, or choose train.on_nan=stop"
            )
