"""The unchanged graph on one device, fed with the concatenated batches of all ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.data.shares import SHARE
from parallax_runner.graph.single_device_graph import SingleDeviceGraph

Values = dict[str, np.ndarray]


def train(single: SingleDeviceGraph, initial: Values, steps: Sequence[Sequence[Values]]) -> tuple[Values, list[float]]:
    """Returns all variables after steps from `initial`, each with the batches of all ranks, and the steps' losses."""
    graph, losses = tf.Graph(), []
    with graph.as_default():
        tf.import_graph_def(single.meta_graph.graph_def, name="")
        handles = {one.name: graph.get_tensor_by_name(f"{one.name}:0") for one in single.variables}
        load = [tf.raw_ops.AssignVariableOp(resource=handles[name], value=initial[name]) for name in handles]
        reads = {
            one.name: tf.raw_ops.ReadVariableOp(resource=handles[one.name], dtype=one.dtype) for one in single.variables
        }
        with tf.Session(graph=graph) as session:
            session.run(load)
            for batches in steps:
                filled = [one for one in batches if one.get(SHARE, 1.0) > 0]
                feed = {
                    tensor: np.concatenate([one[name] for one in filled])
                    for name, tensor in single.features.items()
                    if name != SHARE
                }
                losses.append(session.run([single.loss, single.train_op], feed)[0])
            return session.run(reads), losses
