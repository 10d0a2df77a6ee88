"""Of an optimizer's branch only the one that its condition chooses writes."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.graph.traced.capture_step import capture_step

BATCH, SCALE = 2, 1024.0
FEATURES = {"x": ((BATCH, 1), "float32"), "y": ((BATCH, 1), "float32")}


def _scaled() -> Any:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, name="out")])
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=SCALE)
    model.compile(optimizer=optimizer, loss="mse")
    return model


def test_loss_scaling_either_updates_or_halves_its_scale() -> None:
    single = capture_step(_scaled, FEATURES, seed=7, options={"labels": "y"})
    with tf.Graph().as_default() as graph, tf.Session() as session:
        tf.import_graph_def(single.meta_graph.graph_def, name="")
        session.run([variable.initializer for variable in single.variables])
        reads = {
            variable.name.rpartition("/")[2]: tf.raw_ops.ReadVariableOp(
                resource=graph.get_tensor_by_name(f"{variable.name}:0"),
                dtype=graph.get_operation_by_name(variable.name).get_attr("dtype"),
            )
            for variable in single.variables
        }

        def after_a_step(label: float) -> dict[str, Any]:
            given = {"x": np.ones((BATCH, 1)), "y": np.full((BATCH, 1), label)}
            session.run(single.train_op, {tensor: given[name] for name, tensor in single.features.items()})
            return session.run(reads)

        before = session.run(reads)
        finite = after_a_step(5.0)
        assert (finite["dynamic_scale"], finite["step_counter"]) == (SCALE, 1)
        assert abs(finite["kernel"] - before["kernel"]) > 0.1
        infinite = after_a_step(np.inf)
        assert (infinite["dynamic_scale"], infinite["step_counter"]) == (SCALE / 2, 0)
        assert infinite["kernel"] == finite["kernel"]
