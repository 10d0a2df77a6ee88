"""An embedding looks up rows, and its table is read as a whole only where a step needs all of it."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf2
import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.graph.traced.capture_step import capture_step

FEATURES = {"ids": ((4,), "int32"), "y": ((4,), "float32")}


def _read_by(table: str, output: Any) -> set[str]:
    """The types of ops by which the loss and the train op read a variable of the model that ends with `output`."""

    def make() -> Any:
        ids = keras.Input((), dtype="int32", name="ids")
        rows = keras.layers.Embedding(5, 3, name="table")(ids)
        model = keras.Model(ids, output(rows))
        model.compile(optimizer="sgd", loss="mse")
        return model

    single = capture_step(make, FEATURES, seed=7, options={"labels": "y"})
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(single.meta_graph.graph_def, name="")
    handle = graph.get_tensor_by_name(f"{table}:0")
    step = edit.ancestors([graph.get_tensor_by_name(single.loss).op, graph.get_operation_by_name(single.train_op)])
    return {op.type for op in handle.consumers() if op in step and not edit.is_write(op)}


def test_a_table_is_looked_up_and_not_read() -> None:
    assert _read_by("table/embeddings", keras.layers.Dense(1)) == {"ResourceGather"}


class Columns(keras.layers.Layer):
    """Takes columns of a weight, which is no lookup of rows."""

    def build(self, shape: Any) -> None:
        self.matrix = self.add_weight(shape=(2, 3), name="matrix")

    def call(self, rows: Any) -> Any:
        return tf2.reduce_sum(rows, axis=1, keepdims=True) * tf2.reduce_sum(tf2.gather(self.matrix.value, [2], axis=1))


def test_what_takes_columns_reads_the_whole() -> None:
    assert _read_by("columns/matrix", Columns(name="columns")) == {"ReadVariableOp"}
