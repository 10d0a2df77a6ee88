"""A read of a weight moves out of a loop or branch only if nothing there writes the weight."""

from __future__ import annotations

from typing import Any

import keras
import pytest
import tensorflow as tf

from parallax_runner.graph import edit
from tests.single.graph.traced.untouched_steps import Build, captured, largest_difference, loss_of, table, weights

Made = tuple[Any, list[tf.Variable]]


def power_iteration() -> Made:
    """A loop writes a vector and reads it again."""
    matrix = weights()
    vector = tf.Variable([1.0, 2.0, 3.0], dtype=tf.float64, name="vector")

    @tf.function
    def step(given: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(1.0, matrix / tf.norm(tf.linalg.matvec(matrix, vector)), given)
        matrix.assign_sub(0.05 * tape.gradient(loss, matrix))
        for _ in tf.range(3):
            vector.assign(tf.math.l2_normalize(tf.linalg.matvec(matrix, vector)))
        return loss

    return step, [matrix, vector]


def keras_loop() -> Made:
    """The same in a loop of Keras, in a layer."""

    class Normalized(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.vector = self.add_weight(shape=(3,), name="vector", initializer="ones", dtype="float64")

        def call(self, matrix: Any) -> Any:
            def refine(_: Any, state: Any) -> Any:
                self.vector.assign(tf.math.l2_normalize(tf.linalg.matvec(matrix, self.vector)))
                return state

            keras.ops.fori_loop(0, 3, refine, tf.constant(0))
            return matrix / tf.norm(tf.linalg.matvec(matrix, tf.stop_gradient(self.vector.value)))

    matrix, layer = weights(), Normalized(name="normalized", dtype="float64")
    layer.build((3, 3))

    @tf.function
    def step(given: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(1.0, layer(matrix), given)
        matrix.assign_sub(0.05 * tape.gradient(loss, matrix))
        return loss

    return step, [matrix]


def branch_writes_then_reads() -> Made:
    """Every second step, a branch halves the weights and copies them."""
    matrix, copy = weights(), weights("copy", trainable=False)
    count = tf.Variable(0, trainable=False, name="count")

    @tf.function
    def step(given: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(1.0, matrix, given)
        matrix.assign_sub(0.05 * tape.gradient(loss, matrix))
        count.assign_add(1)
        if count % 2 == 0:
            matrix.assign(0.5 * matrix)
            copy.assign(matrix + 0.0)
        return loss

    return step, [matrix, copy, count]


def nested_branches() -> Made:
    """The write is in a branch within a loop, and the read is in the loop."""
    matrix, copy = weights(), weights("copy", trainable=False)

    @tf.function
    def step(given: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(1.0, matrix, given)
        matrix.assign_sub(0.05 * tape.gradient(loss, matrix))
        for number in tf.range(3):
            if number != 1:
                matrix.assign(0.9 * matrix)
            copy.assign_add(matrix + 0.0)
        return loss

    return step, [matrix, copy]


def applied_if_finite() -> Made:
    """An optimizer and a moving average in a branch."""
    matrix, rows, average = weights(), table(), weights("average", trainable=False)
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    optimizer.build([matrix, rows])

    @tf.function
    def step(given: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(tf.gather(rows, given["ids"]), matrix, given)
        gradients = [tf.convert_to_tensor(one) for one in tape.gradient(loss, [matrix, rows])]
        if tf.reduce_all([tf.reduce_all(tf.math.is_finite(one)) for one in gradients]):
            optimizer.apply(gradients, [matrix, rows])
            average.assign(0.9 * average + 0.1 * matrix)
        return loss

    return step, [matrix, rows, average]


def accumulated() -> Made:
    """Gradients of two steps are summed up by hand, then applied and set to zero in a branch."""
    matrix = weights()
    total = tf.Variable(tf.zeros([3, 3], tf.float64), name="total")
    count = tf.Variable(0, trainable=False, name="count")

    @tf.function
    def step(given: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(1.0, matrix, given)
        total.assign_add(tape.gradient(loss, matrix))
        count.assign_add(1)
        if count % 2 == 0:
            matrix.assign_sub(0.05 * total)
            matrix.assign(tf.clip_by_value(matrix, -1.0, 1.0))
            total.assign(tf.zeros_like(total))
        return loss

    return step, [matrix, total, count]


@pytest.mark.parametrize(
    "build",
    [
        power_iteration,
        keras_loop,
        branch_writes_then_reads,
        nested_branches,
        applied_if_finite,
        accumulated,
    ],
)
def test_what_a_loop_or_branch_writes_is_read_after_the_write(build: Build) -> None:
    assert largest_difference(build) < 1e-13


def test_a_weight_that_a_loop_only_reads_is_read_before_the_loop() -> None:
    def build() -> Made:
        matrix = weights()

        @tf.function
        def step(given: Any) -> Any:
            with tf.GradientTape() as tape:
                x = given["x"]
                for _ in tf.range(2):
                    x = tf.matmul(x, matrix)
                loss = tf.reduce_mean(tf.square(tf.reduce_sum(x, axis=1) - given["y"]))
            matrix.assign_sub(0.01 * tape.gradient(loss, matrix))
            return loss

        return step, [matrix]

    assert largest_difference(build) < 1e-13
    single = captured(build)
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(single.meta_graph.graph_def, name="")
    step = edit.ancestors([graph.get_operation_by_name(single.train_op)])
    users = {op.type for op in graph.get_tensor_by_name("weights:0").consumers() if op in step}
    assert users == {"ReadVariableOp", "AssignSubVariableOp"}
