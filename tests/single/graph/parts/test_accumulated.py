"""A step in several passes equals a step in one: graph/parts/accumulated.py, copies.py and part_ops.py. The ranks'
cases are in tests/parallel."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.errors import CaptureError
from parallax_runner.graph.capture import capture
from parallax_runner.graph.parts.accumulated import accumulated
from parallax_runner.graph.parts.part_ops import part_ops
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.graph.traced.capture_step import capture_step
from tests.parallel.concatenated import train

EXAMPLES, ROWS = 6, 5
Build = Callable[[dict[str, tf.Tensor]], dict[str, Any]]


def model(features: dict[str, tf.Tensor]) -> dict[str, Any]:
    """A table that is looked up twice, weights, a statistic and a metric."""
    table = tf.get_variable("table", [ROWS, 2], tf.float64)
    weights = tf.get_variable("weights", [2, 2], tf.float64)
    mean = tf.get_variable("mean", [], tf.float64, initializer=tf.zeros_initializer(), trainable=False)
    rows = tf.gather(table, features["ids"]) * tf.gather(table, (features["ids"] + 1) % ROWS)
    outputs = tf.reduce_sum(tf.tanh(tf.matmul(rows, weights)), axis=1)
    loss = tf.reduce_mean(tf.square(outputs - features["y"]))
    train_op = tf.train.AdagradOptimizer(0.1).minimize(loss, global_step=tf.train.get_or_create_global_step())
    statistic = mean.assign_sub(0.5 * (mean - tf.reduce_mean(features["y"])))
    return {"loss": loss, "train_op": tf.group(train_op, statistic), "validation_loss": loss}


def captured(build: Build, examples: int) -> SingleDeviceGraph:
    return capture(build, {"ids": ((examples,), "int32"), "y": ((examples,), "float64")}, seed=1)


def in_parts(build: Build, parts: int) -> SingleDeviceGraph:
    return accumulated(captured(build, EXAMPLES), captured(build, EXAMPLES // parts), parts)


def batch(step: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(step)
    return {"ids": draw.integers(0, ROWS, EXAMPLES, dtype=np.int32), "y": draw.normal(size=EXAMPLES)}


def initial_of(single: SingleDeviceGraph) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(7)
    return {
        one.name: np.abs(draw.normal(size=one.shape)).astype(one.dtype)
        if one.dtype == "float64"
        else np.zeros([], "i8")
        for one in single.variables
    }


@pytest.mark.parametrize("parts", [1, 2, 3, 6])
def test_several_passes_equal_one(parts: int) -> None:
    whole, divided = captured(model, EXAMPLES), in_parts(model, parts)
    steps = [[batch(step)] for step in range(4)]
    expected, losses = train(whole, initial_of(whole), steps)
    found, found_losses = train(divided, initial_of(whole), steps)
    assert divided.variables == whole.variables  # a checkpoint has no more
    np.testing.assert_allclose(found_losses, losses, rtol=1e-12)
    for name in set(expected) - {"mean"}:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-10, err_msg=name)


def test_a_statistic_is_written_in_each_pass() -> None:
    divided = in_parts(model, 3)
    found, _ = train(divided, initial_of(divided), [[batch(0)]])
    mean = initial_of(divided)["mean"]
    for part in np.split(batch(0)["y"], 3):
        mean = mean - 0.5 * (mean - part.mean())
    np.testing.assert_allclose(found["mean"], mean)


def test_passes_follow_each_other_and_the_whole_pass_is_gone() -> None:
    divided = in_parts(model, 3)
    ops = {node.name: node for node in divided.meta_graph.graph_def.node}
    products = [name for name, node in ops.items() if node.op == "MatMul" and not name.endswith("_1")]
    assert {name.rpartition("/parts/")[2][:12] for name in products if "gradients" not in name} >= {
        "parts/part_0",
        "parts/part_1",
        "parts/part_2",
    }
    assert not [name for name in ops if name.startswith("gradients/MatMul")]
    graph = part_ops(divided).graph
    first, last = (graph.get_operation_by_name(f"parts/after_{number}") for number in (0, 2))
    assert any("parts/part_0/" in control.name for control in first.control_inputs)
    assert any("parts/part_2/" in control.name or "sum_2" in control.name for control in last.control_inputs)


def test_all_processes_build_the_same_graph() -> None:
    assert in_parts(model, 3).fingerprint == in_parts(model, 3).fingerprint


def test_a_step_with_a_tape() -> None:
    def make() -> Any:
        weights = tf.Variable(np.ones([2]), name="weights", use_resource=True)

        def step(features: dict[str, tf.Tensor]) -> tf.Tensor:
            import tensorflow as tf2

            with tf2.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(tf.gather(weights, features["ids"] % 2) - features["y"]))
            weights.assign_sub(0.1 * tf.convert_to_tensor(tape.gradient(loss, weights)))
            return loss

        return step

    def of_size(examples: int) -> SingleDeviceGraph:
        features = {"ids": ((examples,), "int32"), "y": ((examples,), "float64")}
        return capture_step(make, features, seed=1, options={})

    whole = of_size(EXAMPLES)
    divided = accumulated(whole, of_size(2), 3)
    expected, _ = train(whole, {"weights": np.ones([2])}, [[batch(step)] for step in range(3)])
    found, _ = train(divided, {"weights": np.ones([2])}, [[batch(step)] for step in range(3)])
    np.testing.assert_allclose(found["weights"], expected["weights"], rtol=1e-12)


def by_the_loss(features: dict[str, tf.Tensor]) -> dict[str, Any]:
    """The update itself reads the loss."""
    weight = tf.get_variable("weight", [], tf.float64)
    loss = tf.reduce_mean(tf.square(weight - features["y"]))
    return {"loss": loss, "train_op": weight.assign_sub(0.1 * loss * tf.gradients(loss, weight)[0]).op}


def of_its_size(features: dict[str, tf.Tensor]) -> dict[str, Any]:
    """A variable for each example."""
    weight = tf.get_variable("weight", [features["y"].shape[0]], tf.float64)
    loss = tf.reduce_mean(tf.square(weight - features["y"]))
    return {"loss": loss, "train_op": tf.train.GradientDescentOptimizer(0.1).minimize(loss)}


@pytest.mark.parametrize(
    ("build", "told"),
    [(by_the_loss, "in addition to gradients, so the batch cannot"), (of_its_size, "for another batch size")],
)
def test_a_step_that_cannot_be_divided(build: Build, told: str) -> None:
    with pytest.raises(CaptureError, match=told):
        in_parts(build, 2)


def growing(features: dict[str, tf.Tensor]) -> dict[str, Any]:
    """A table whose vocabulary grows."""
    from parallax_runner.layers import growing_lookup  # imports Keras

    rows = growing_lookup(features["ids"], name="table", dim=1, capacity=1024, training=True)
    loss = tf.reduce_mean(tf.square(tf.cast(rows[:, 0], tf.float64) - features["y"]))
    return {"loss": loss, "train_op": tf.train.AdagradOptimizer(0.1).minimize(loss)}


def test_a_vocabulary_that_grows_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"a vocabulary of this model grows .* so the batch cannot be divided"):
        in_parts(growing, 2)
