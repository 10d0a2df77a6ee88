"""Models, batches and plain sessions that the tests of the reference share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.graph import gradients_hook
from parallax_runner.graph.capture import capture
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.verify.compare import compare
from parallax_runner.verify.reference import Reference

gradients_hook.install()

OPTIMIZERS: dict[str, Callable[[], tf.train.Optimizer]] = {
    "gradient_descent": lambda: tf.train.GradientDescentOptimizer(0.5),
    "momentum": lambda: tf.train.MomentumOptimizer(0.5, 0.9),
    "adagrad": lambda: tf.train.AdagradOptimizer(0.5),
    "adam": lambda: tf.train.AdamOptimizer(0.1),
    "rms_prop": lambda: tf.train.RMSPropOptimizer(0.1, momentum=0.5),
    "ftrl": lambda: tf.train.FtrlOptimizer(0.5, l1_regularization_strength=0.01),
}
ROWS, WIDTH, EXAMPLES = 12, 3, 4

Batch = dict[str, np.ndarray]


class Plain:
    """One session of TensorFlow as it comes: `step` runs the train op on raw gradients."""

    def __init__(self, single: SingleDeviceGraph, graph_def: tf.GraphDef | None = None) -> None:
        self.single = single
        with tf.Graph().as_default() as graph:
            tf.import_graph_def(graph_def or single.meta_graph.graph_def, name="")
            self.reads = {
                variable.name: tf.raw_ops.ReadVariableOp(
                    resource=graph.get_tensor_by_name(f"{variable.name}:0"), dtype=tf.as_dtype(variable.dtype)
                )
                for variable in single.variables
                if variable.saved
            }
        self.session = tf.Session(graph=graph)
        self.session.run([variable.initializer for variable in single.variables])

    def step(self, batch: Batch) -> float:
        feeds = {self.single.features[name]: value for name, value in batch.items()}
        return float(self.session.run([self.single.loss, self.single.train_op], feeds)[0])

    def values(self) -> dict[str, np.ndarray]:
        return self.session.run(self.reads)


def model(
    *, sparse: bool = True, dense: bool = True, clip: float | None = None, optimizer: str = "gradient_descent"
) -> Callable[[dict[str, tf.Tensor]], dict[str, Any]]:
    """A mean loss over examples; `sparse` puts in a table that is looked up, `dense` a matrix; float64."""

    def build(features: dict[str, tf.Tensor]) -> dict[str, Any]:
        rng = np.random.RandomState(0)
        variables = []
        hidden = tf.cast(features["target"], tf.float64) * 0.5
        if sparse:
            table = tf.get_variable("table", initializer=rng.normal(size=(ROWS, WIDTH)))
            hidden += tf.nn.embedding_lookup(table, features["ids"])
            variables.append(table)
        if dense:
            matrix = tf.get_variable("matrix", initializer=rng.normal(size=(WIDTH, WIDTH)))
            hidden = tf.tanh(tf.matmul(hidden, matrix))
            variables.append(matrix)
        loss = tf.reduce_mean(tf.reduce_sum((hidden - features["target"]) ** 2, axis=1))
        gradients = tf.gradients(loss, variables)
        if clip is not None:
            gradients, _ = tf.clip_by_global_norm(gradients, clip)
        step = tf.train.get_or_create_global_step()
        return {
            "loss": loss,
            "train_op": OPTIMIZERS[optimizer]().apply_gradients(zip(gradients, variables, strict=True), step),
        }

    return build


def captured(build: Callable[..., Any]) -> SingleDeviceGraph:
    return capture(build, {"ids": ((None,), "int32"), "target": ((None, WIDTH), "float64")}, seed=1)


def batch(ids: Sequence[int], seed: int = 0) -> Batch:
    rng = np.random.RandomState(seed)
    return {"ids": np.asarray(ids, np.int32), "target": rng.normal(size=(len(ids), WIDTH))}


def distinct(step: int, rank: int = 0) -> Batch:
    """A batch without an id that repeats."""
    seed = 100 * step + rank
    return batch(np.random.RandomState(seed).choice(ROWS, EXAMPLES, replace=False), seed)


def repeated(step: int, rank: int = 0) -> Batch:
    """A batch with ids that repeat, within it and in those of other ranks."""
    seed = 100 * step + rank
    return batch([3, 3, 3, *np.random.RandomState(seed).randint(0, 5, EXAMPLES - 3)], seed)


def joined(batches: Sequence[Batch]) -> Batch:
    return {name: np.concatenate([one[name] for one in batches]) for name in batches[0]}


def started(single: SingleDeviceGraph, *, ranks: int = 1, average_sparse: bool = True, **options: Any) -> Reference:
    reference = Reference(single, ranks=ranks, average_sparse=average_sparse, **options)
    reference.initialize()
    return reference


def assert_equal(
    actual: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], tolerance: float = 1e-12
) -> None:
    comparison = compare(actual, expected, tolerance=tolerance)
    assert comparison.ok, (str(comparison.first_difference), comparison.missing, comparison.unexpected)


def moved(before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray]) -> bool:
    return any(not np.array_equal(before[name], after[name]) for name in before if name != "global_step")
