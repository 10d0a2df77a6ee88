"""What a model's function may say of its outputs."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.errors import CaptureError
from parallax_runner.graph.capture import capture
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from tests.single.small_models import Features


def captured(outputs: Any, *, use_resource: bool = True) -> SingleDeviceGraph:
    """A model with one weight; `outputs` is what it returns as such, or a function of its output and its weight."""

    def build(features: Features) -> dict[str, Any]:
        weight = tf.get_variable("weight", [], use_resource=use_resource, initializer=tf.ones_initializer())
        y = weight * features["x"]
        loss = tf.reduce_mean(tf.square(y))
        train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
        return {"loss": loss, "train_op": train_op, "outputs": outputs(y, weight) if callable(outputs) else outputs}

    return capture(build, {"x": ((3,), "float32")}, seed=1)


def test_outputs_are_kept_by_name() -> None:
    single = captured(lambda y, _: {"y": y, "twice": 2 * y})
    with tf.Graph().as_default(), tf.Session() as session:
        tf.import_graph_def(single.meta_graph.graph_def, name="")
        session.run([variable.initializer for variable in single.variables])
        values = session.run(single.outputs, {single.features["x"]: [1, 2, 3]})
    assert {name: array.tolist() for name, array in values.items()} == {"y": [1, 2, 3], "twice": [2, 4, 6]}


def test_a_reference_as_output_is_its_value() -> None:
    single = captured(lambda y, weight: {"weight": weight._ref()}, use_resource=False)
    with tf.Graph().as_default(), tf.Session() as session:
        tf.import_graph_def(single.meta_graph.graph_def, name="")
        session.run([variable.initializer for variable in single.variables])
        assert session.run(single.outputs["weight"]) == 1


def test_there_need_be_none() -> None:
    assert captured({}).outputs == {}


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (lambda y, _: y, "must be a dict of tensors by name"),
        (lambda y, _: {"log p": y}, "'log p' must be a letter followed by"),
        (lambda y, _: {1: y}, "1 must be a letter followed by"),
        ({"y": 3.0}, "'y' must be a tensor, not 3.0"),
        (lambda _, weight: {"weight": weight}, "'weight' must be a tensor"),
    ],
)
def test_what_cannot_be_served_by_name_is_refused(outputs: Any, message: str) -> None:
    with pytest.raises(CaptureError, match=message):
        captured(outputs)
