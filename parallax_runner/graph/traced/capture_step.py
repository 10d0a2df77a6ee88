"""From what a model's function makes to the `SingleDeviceGraph` of its training step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow.compat.v1 as tf

from parallax_runner.errors import CaptureError
from parallax_runner.graph import capture
from parallax_runner.graph.generators import seeded_generators
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.graph.traced.batch_metrics import start_anew
from parallax_runner.graph.traced.imported import add_variables, first_of, import_step
from parallax_runner.graph.traced.kinds import step_of
from parallax_runner.graph.traced.lookups import look_up_rows
from parallax_runner.graph.traced.order import keep_only_needed, wait_for_values
from parallax_runner.graph.traced.row_probe import RowProbe
from parallax_runner.graph.traced.row_updates import sparse_updates_of
from parallax_runner.graph.traced.trace import Features, eager_on_cpu, trace
from parallax_runner.graph.traced.variables import Variables


def capture_step(
    make: Callable[[], Any], features: Features, *, seed: int, options: Mapping[str, Any]
) -> SingleDeviceGraph:
    """Makes a Keras model or a training step, and captures one step of it for one replica.

    `features` gives shape and dtype of each feature, `options` the keys `labels`, `sample_weight` and `sparse_updates`
    of the model's group. Python's, NumPy's and TensorFlow's generators are seeded while the model is made.

    Raises CaptureError where the result cannot be distributed.
    """
    if not tf.executing_eagerly():
        raise CaptureError(
            "a Keras model or a training step is made eagerly, and TensorFlow is not eager here: remove "
            "disable_v2_behavior() and disable_eager_execution() from the model's module"
        )
    capture.begin_afresh()
    variables = Variables()
    with seeded_generators(seed), eager_on_cpu(), variables.created():
        tf.random.set_random_seed(seed)
        step = step_of(capture.called(make, sorted(features)), features, options)
        traced = trace(step, features, sparse_updates_of(options), RowProbe(variables.unrecorded))
        made = variables.all()
        start_anew(traced.graph, [one for one in made if one.is_metric])
        firsts = [first_of(one) for one in made if not one.is_metric]
        graph = tf.Graph()
        with graph.as_default():
            tf.set_random_seed(seed)
            placeholders = {
                name: tf.placeholder(dtype, shape, name=f"features/{name}") for name, (shape, dtype) in features.items()
            }
            with tf.device(None):
                added = add_variables(firsts)
                loss, train_op = import_step(traced, added, placeholders)
    look_up_rows(graph)
    keep_only_needed(graph, [train_op, loss.op])
    wait_for_values(graph)
    single = capture.from_graph(
        graph,
        features={name: tensor.name for name, tensor in placeholders.items()},
        loss=loss,
        train_op=train_op,
    )
    return dataclasses.replace(single, has_optimizer=True)
