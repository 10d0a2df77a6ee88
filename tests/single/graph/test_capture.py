"""What capture learns from a graph while it is built."""

from __future__ import annotations

import functools
import random
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.errors import CaptureError
from parallax_runner.graph import edit
from parallax_runner.graph.boundary import Boundary, find_boundary
from parallax_runner.graph.capture import capture
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.verify.reference import Reference
from tests.parallel import concatenated

FEATURES = {"ids": ((4,), "int64"), "x": ((4, 3), "float32")}
DATA = {"ids": np.array([1, 5, 1, 2]), "x": np.arange(12, dtype=np.float32).reshape(4, 3) / 10}

Builder = Callable[[dict[str, tf.Tensor]], Mapping[str, Any]]


def captured(build: Builder, seed: int = 1) -> SingleDeviceGraph:
    return capture(build, FEATURES, seed=seed)


def variable(name: str, shape: tuple[int, ...], *, resource: bool = True) -> tf.Variable:
    return tf.get_variable(name, shape, initializer=tf.ones_initializer(), use_resource=resource)


def recorded(graph: SingleDeviceGraph) -> dict[str, bool]:
    """Whether the gradient of each variable is sparse; a variable has one gradient."""
    assert len({gradient.variable for gradient in graph.gradients}) == len(graph.gradients)
    return {gradient.variable: gradient.indices is not None for gradient in graph.gradients}


def values_of(graph: SingleDeviceGraph, names: list[str]) -> list[np.ndarray]:
    imported = tf.Graph()
    with imported.as_default(), tf.Session() as sess:
        tf.import_graph_def(graph.meta_graph.graph_def, name="")
        sess.run([item.initializer for item in graph.variables])
        return sess.run(names, {graph.features[key]: value for key, value in DATA.items()})


def boundary_of(graph: SingleDeviceGraph) -> Boundary:
    imported = tf.Graph()
    with imported.as_default():
        tf.import_graph_def(graph.meta_graph.graph_def, name="")
    return find_boundary(imported, graph.train_op, graph.gradients)


def by_minimize(loss: tf.Tensor, optimizer: tf.train.Optimizer) -> tf.Operation:
    return optimizer.minimize(loss)


def by_compute_gradients(loss: tf.Tensor, optimizer: tf.train.Optimizer) -> tf.Operation:
    return optimizer.apply_gradients(optimizer.compute_gradients(loss))


def by_gradients(loss: tf.Tensor, optimizer: tf.train.Optimizer) -> tf.Operation:
    variables = tf.trainable_variables()
    clipped, _ = tf.clip_by_global_norm(tf.gradients(loss, variables), 1.0)
    return optimizer.apply_gradients(zip(clipped, variables, strict=True))


@pytest.mark.parametrize("resource", [True, False])
@pytest.mark.parametrize("train", [by_minimize, by_compute_gradients, by_gradients])
def test_gradients_are_recorded_with_their_kind(train: Callable[..., tf.Operation], resource: bool) -> None:
    def build(features: dict[str, tf.Tensor]) -> dict[str, Any]:
        table = variable("table", (6, 3), resource=resource)
        kernel = variable("kernel", (3, 2), resource=resource)
        rows = tf.nn.embedding_lookup(table, features["ids"]) * features["x"]
        loss = tf.reduce_mean(tf.square(rows @ kernel))
        return {"loss": loss, "train_op": train(loss, tf.train.AdamOptimizer(0.1))}

    graph = captured(build)
    assert recorded(graph) == {"table": True, "kernel": False}
    sparse = next(gradient for gradient in graph.gradients if gradient.indices)
    dense = next(gradient for gradient in graph.gradients if not gradient.indices)
    values, indices, kernel = values_of(graph, [sparse.values, sparse.indices, dense.values])
    x = DATA["x"]
    outputs = x @ np.ones((3, 2))
    np.testing.assert_array_equal(indices, DATA["ids"])
    np.testing.assert_allclose(values, outputs @ np.ones((2, 3)) * x / 4, rtol=1e-5)
    np.testing.assert_allclose(kernel, x.T @ outputs / 4, rtol=1e-5)
    sizes = {item.name: (item.shape, item.dtype, item.saved) for item in graph.variables}
    assert sizes["table"] == ((6, 3), "float32", True)
    assert sizes["table/Adam_1"] == ((6, 3), "float32", True)
    assert boundary_of(graph).gradients == graph.gradients


def test_the_region_holds_updates_and_post_processing_but_no_backward_pass() -> None:
    def build(features: dict[str, tf.Tensor]) -> dict[str, Any]:
        kernel = variable("kernel", (3, 2))
        loss = tf.reduce_mean(tf.square(features["x"] @ kernel, name="forward"))
        return {"loss": loss, "train_op": by_gradients(loss, tf.train.MomentumOptimizer(0.1, 0.9))}

    graph = captured(build)
    region = boundary_of(graph).region
    names = {op.name for op in region}
    assert {graph.train_op, "global_norm/global_norm", "Momentum/learning_rate"} <= names
    assert "forward" not in names
    assert not any(name.startswith("gradients/") for name in names)
    assert [op.type for op in region if op.type.startswith("ResourceApply")] == ["ResourceApplyMomentum"]


def test_a_variable_looked_up_twice_has_one_gradient() -> None:
    def build(features: dict[str, tf.Tensor]) -> dict[str, Any]:
        table = variable("table", (6, 3))
        ids = features["ids"]
        loss = tf.reduce_sum(tf.nn.embedding_lookup(table, ids) * tf.nn.embedding_lookup(table, ids + 0))
        return {"loss": loss, "train_op": tf.train.AdagradOptimizer(0.1).minimize(loss)}

    graph = captured(build)
    assert recorded(graph) == {"table": True}
    values, indices = values_of(graph, [graph.gradients[0].values, graph.gradients[0].indices])
    merged = np.zeros((6, 3))
    np.add.at(merged, indices, values)
    assert merged[:, 0].tolist() == [0, 4, 2, 0, 0, 2]


def test_only_the_last_gradient_of_a_gradient_penalty_is_kept() -> None:
    def build(features: dict[str, tf.Tensor]) -> dict[str, Any]:
        kernel = variable("kernel", (3, 1))
        loss = tf.reduce_mean(tf.square(features["x"] @ kernel))
        (first,) = tf.gradients(loss, [kernel], name="first")
        total = loss + 0.1 * tf.reduce_sum(tf.square(first))
        return {"loss": total, "train_op": tf.train.GradientDescentOptimizer(0.1).minimize(total)}

    graph = captured(build)
    assert recorded(graph) == {"kernel": False}
    assert not graph.gradients[0].values.startswith("first")


def test_a_train_op_that_also_waits_for_a_penalty_keeps_only_the_last_gradient() -> None:
    def build(features: dict[str, tf.Tensor]) -> dict[str, Any]:
        kernel = variable("kernel", (3, 1))
        loss = tf.reduce_mean(tf.square(features["x"] @ kernel))
        (first,) = tf.gradients(loss, [kernel], name="first")
        total = loss + 0.1 * tf.reduce_sum(tf.square(first))
        average = tf.train.ExponentialMovingAverage(0.9).apply([total])
        train = tf.train.GradientDescentOptimizer(0.1).minimize(total)
        return {"loss": total, "train_op": tf.group(train, average)}

    graph = captured(build)
    assert [gradient.values.startswith("first") for gradient in graph.gradients] == [False]


def test_a_tensor_that_is_the_gradient_of_two_variables_and_part_of_the_backward_pass() -> None:
    def build(features: dict[str, tf.Tensor]) -> dict[str, Any]:
        kernel = variable("kernel", (3, 2))
        hidden = tf.tanh(features["x"] @ kernel) + variable("bias_1", (4, 2)) + variable("bias_2", (4, 2))
        loss = tf.reduce_mean(tf.square(hidden))
        variables = tf.trainable_variables()
        pairs = zip(tf.gradients(loss, variables), variables, strict=True)  # Without the identities that gates add.
        return {"loss": loss, "train_op": tf.train.GradientDescentOptimizer(0.1).apply_gradients(pairs)}

    graph = captured(build)
    assert recorded(graph) == {"kernel": False, "bias_1": False, "bias_2": False}
    values = {gradient.variable: gradient.values for gradient in graph.gradients}
    assert values["bias_1"] == values["bias_2"]
    boundary = boundary_of(graph)
    shared = next(iter(boundary.region)).graph.get_tensor_by_name(values["bias_1"])
    inside = [consumer.type for consumer in shared.consumers() if consumer in boundary.region]
    outside = [consumer.type for consumer in shared.consumers() if consumer not in boundary.region]
    assert inside == ["ResourceApplyGradientDescent"] * 2
    assert "TanhGrad" in outside


def test_a_train_op_that_stores_a_part_of_the_backward_pass_leaves_it_outside() -> None:
    def build(features: dict[str, tf.Tensor]) -> dict[str, Any]:
        inner = features["x"] @ variable("kernel", (3, 2))
        loss = tf.reduce_mean(tf.square(tf.tanh(inner) + variable("bias", (4, 2))))
        variables = tf.trainable_variables()
        *gradients, of_inner = tf.gradients(loss, [*variables, inner])
        stored = tf.get_variable("stored", (4, 2), trainable=False, use_resource=True).assign(of_inner)
        train = tf.train.GradientDescentOptimizer(0.1).apply_gradients(zip(gradients, variables, strict=True))
        return {"loss": loss, "train_op": tf.group(train, stored)}

    graph = captured(build)
    boundary = boundary_of(graph)
    (of_bias,) = (gradient.values for gradient in graph.gradients if gradient.variable == "bias")
    consumers = next(iter(boundary.region)).graph.get_tensor_by_name(of_bias).consumers()
    assert {op.type for op in consumers if op in boundary.region} == {"ResourceApplyGradientDescent"}
    assert "TanhGrad" in {op.type for op in consumers}
    assert "AssignVariableOp" in {op.type for op in boundary.region}


def test_gradients_that_are_not_applied_are_dropped() -> None:
    def build(features: dict[str, tf.Tensor]) -> dict[str, Any]:
        kernel, unused = variable("kernel", (3, 1)), variable("unused", (3, 1))
        loss = tf.reduce_mean(features["x"] @ (kernel * unused))
        tf.gradients(loss, [kernel, unused])
        optimizer = tf.train.GradientDescentOptimizer(0.1)
        pairs = optimizer.compute_gradients(loss)
        return {"loss": loss, "train_op": optimizer.apply_gradients(pairs[:1])}

    graph = captured(build)
    assert recorded(graph) == {"kernel": False}


def chained(features: dict[str, tf.Tensor], *, both: bool) -> dict[str, Any]:
    """A critic is trained before an actor's gradients are computed."""
    critic, actor = variable("critic", (3,)), variable("actor", (3,))
    first = tf.reduce_mean(tf.reduce_sum(features["x"] * critic, axis=1))
    second = tf.reduce_mean(tf.reduce_sum(features["x"] * critic * actor, axis=1))
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    trained = optimizer.minimize(first, var_list=[critic])
    with tf.control_dependencies([trained]):
        pairs = optimizer.compute_gradients(second, var_list=[actor])
    train_op = optimizer.apply_gradients(pairs)
    return {"loss": second, "train_op": tf.group(train_op, trained) if both else train_op}


def test_an_update_that_only_gradients_wait_for_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"gradients depend on «.*critic.*», an update that uses other gradients"):
        captured(functools.partial(chained, both=False))
    assert set(recorded(captured(functools.partial(chained, both=True)))) == {"critic", "actor"}


@pytest.mark.parametrize("version", [1, 2])
def test_loop_bodies_add_no_records(version: int) -> None:
    def build(features: dict[str, tf.Tensor]) -> dict[str, Any]:
        kernel = variable("kernel", (3, 3))
        _, hidden = tf.while_loop(lambda i, _: i < 3, lambda i, h: (i + 1, tf.tanh(h @ kernel)), [0, features["x"]])
        loss = tf.reduce_mean(hidden)
        return {"loss": loss, "train_op": tf.train.GradientDescentOptimizer(0.1).minimize(loss)}

    was_on = tf.control_flow_v2_enabled()
    (tf.enable_control_flow_v2 if version == 2 else tf.disable_control_flow_v2)()
    try:
        graph = captured(build)
    finally:
        (tf.enable_control_flow_v2 if was_on else tf.disable_control_flow_v2)()
    assert recorded(graph) == {"kernel": False}
    (value,) = values_of(graph, [graph.gradients[0].values])
    assert value.shape == (3, 3)


def test_a_graph_without_recorded_gradients_is_refused() -> None:
    def build(features: dict[str, tf.Tensor]) -> dict[str, Any]:
        kernel = variable("kernel", (3, 1))
        loss = tf.reduce_mean(features["x"] @ kernel)
        return {"loss": loss, "train_op": kernel.assign_sub(tf.ones((3, 1)) * loss, read_value=False)}

    with pytest.raises(CaptureError, match="no gradient reaches"):
        captured(build)


def model(features: dict[str, tf.Tensor], *, scale: float = 1.0) -> dict[str, Any]:
    kernel = tf.get_variable("kernel", (3, 1))
    constant = tf.constant(np.random.normal(size=(4, 1)).astype(np.float32))
    loss = tf.reduce_mean(tf.square(features["x"] @ kernel - constant)) * scale
    return {"loss": loss, "train_op": tf.train.AdamOptimizer(0.1).minimize(loss)}


@pytest.mark.parametrize(
    "change",
    [
        lambda outputs: None,
        lambda outputs: (outputs["loss"], outputs["train_op"]),
        lambda outputs: {"loss": outputs["loss"]},
        lambda outputs: outputs | {"losss": outputs["loss"]},
        lambda outputs: outputs | {"loss": tf.ones((4,))},
        lambda outputs: outputs | {"loss": 1.0},
        lambda outputs: outputs | {"train_op": None},
        lambda outputs: outputs | {"train_op": [outputs["train_op"]]},
    ],
    ids=["nothing", "tuple", "no train_op", "unknown key", "vector", "float", "None", "list"],
)
def test_wrong_results_are_refused(change: Callable[[dict[str, Any]], Any]) -> None:
    with pytest.raises(CaptureError):
        captured(lambda features: change(model(features)))


def test_a_feature_that_the_data_lacks_is_named() -> None:
    with pytest.raises(CaptureError, match="'words'"):
        captured(lambda features: model({"x": features["words"]}))
    # The model's own mistake is told as what it is, with its place.
    with pytest.raises(CaptureError, match=r"test_capture\.py:\d+ .*KeyError: 'y'"):
        captured(lambda features: {}["y"])


def test_a_placeholder_that_is_no_feature_is_refused() -> None:
    def build(features: dict[str, tf.Tensor]) -> dict[str, Any]:
        rate = tf.placeholder(tf.float32, [], name="rate")
        loss = tf.reduce_sum(features["x"] * variable("w", (3,)))
        return {"loss": loss, "train_op": tf.train.GradientDescentOptimizer(rate).minimize(loss)}

    with pytest.raises(CaptureError, match="placeholder «rate» that is not fed"):
        captured(build)


def test_a_shape_that_is_not_known_is_refused() -> None:
    def build(features: dict[str, tf.Tensor]) -> dict[str, Any]:
        start = tf.placeholder_with_default(tf.ones((3, 1)), (None, 1))
        tf.get_variable("free", initializer=start, validate_shape=False, use_resource=True)
        return model(features)

    with pytest.raises(CaptureError, match="«free»"):
        captured(build)


def with_table(features: dict[str, tf.Tensor]) -> dict[str, Any]:
    keys = tf.constant([0, 1, 2, 5], tf.int64)
    tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, keys), -1).lookup(features["ids"])
    return model(features)


def with_loop(features: dict[str, tf.Tensor], times: float = 2.0) -> dict[str, Any]:
    kernel = tf.get_variable("square", (3, 3))
    _, x = tf.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, tf.tanh(x @ kernel) * times), [0, features["x"]])
    return model({"x": tf.cond(tf.reduce_sum(x) > 0.0, lambda: x, lambda: -x)})


@tf.custom_gradient
def doubled(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    return x * 2.0, lambda dy: dy * 2.0


def with_custom_gradient(features: dict[str, tf.Tensor]) -> dict[str, Any]:
    return model({"x": doubled(features["x"])})


@pytest.mark.parametrize("build", [model, with_table, with_loop, with_custom_gradient])
def test_two_builds_have_equal_fingerprints(build: Builder) -> None:
    assert captured(build).fingerprint == captured(build).fingerprint


def test_a_changed_constant_changes_the_fingerprint() -> None:
    builds: list[Builder] = [model, lambda features: model(features, scale=2.0)]
    assert len({captured(build).fingerprint for build in builds}) == 2
    assert captured(model, seed=1).fingerprint != captured(model, seed=2).fingerprint


def test_another_seed_of_what_is_drawn_does_not_change_the_fingerprint() -> None:
    def draws(features: dict[str, tf.Tensor]) -> dict[str, Any]:
        kernel = tf.get_variable("kernel", (3, 1), initializer=tf.random_normal_initializer())
        loss = tf.reduce_mean(features["x"] @ kernel * tf.random.uniform([]))
        return {"loss": loss, "train_op": tf.train.GradientDescentOptimizer(0.1).minimize(loss)}

    assert len({captured(draws, seed=seed).fingerprint for seed in (1, 2)}) == 1


def test_a_changed_constant_in_a_function_changes_the_fingerprint() -> None:
    builds: list[Builder] = [lambda features, times=times: with_loop(features, times) for times in (2.0, 3.0)]
    assert len({captured(build).fingerprint for build in builds}) == 2


SCRIPT = """
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
from parallax_runner.graph.capture import capture

def build(features):
    table = tf.get_variable("table", (6, 3), partitioner=tf.fixed_size_partitioner(2))
    kernel = tf.get_variable("kernel", (3, 1))
    rows = tf.cond(tf.reduce_sum(features["x"]) > 0.0, lambda: tf.nn.embedding_lookup(table, features["ids"]),
                   lambda: features["x"])
    loss = tf.reduce_mean(tf.square(rows @ kernel))
    step = tf.train.get_or_create_global_step()
    return {"loss": loss, "train_op": tf.train.AdamOptimizer(0.1).minimize(loss, global_step=step)}

graph = capture(build, {"ids": ((4,), "int64"), "x": ((4, 3), "float32")}, seed=1)
print(graph.fingerprint)
trained = [item for item in graph.variables if item.full_name in ("table", "kernel")]
print([(item.full_name, item.full_shape, item.offset) for item in trained])
print(sorted((gradient.variable, gradient.indices is not None) for gradient in graph.gradients))
"""


def test_two_processes_have_equal_fingerprints(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    root = Path(__file__).parents[3]
    processes = [
        subprocess.Popen(
            [sys.executable, script], cwd=root, env={"PYTHONPATH": str(root), "PYTHONHASHSEED": seed}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for seed in ("1", "2")
    ]  # fmt: skip
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs[0][1]
    fingerprint, variables, gradients = outputs[0][0].splitlines()
    assert outputs[0][0] == outputs[1][0]
    assert len(fingerprint) == 64
    assert variables == "[('table', (6, 3), (0, 0)), ('table', (6, 3), (3, 0)), ('kernel', (3, 1), (0, 0))]"
    assert gradients == "[('kernel', False), ('table/part_0', True), ('table/part_1', True)]"


def test_the_graph_is_left_as_the_boundary_found_it() -> None:
    graph = captured(model)
    before = graph.meta_graph.SerializeToString(deterministic=True)
    region = edit.in_order(set(boundary_of(graph).region))
    assert region[-1].name == graph.train_op or graph.train_op in {op.name for op in region}
    assert graph.meta_graph.SerializeToString(deterministic=True) == before


def test_capture_leaves_the_callers_generators_as_they_were() -> None:
    drawn: list[tuple[float, float]] = []

    def draws(features: dict[str, tf.Tensor]) -> Mapping[str, Any]:
        drawn.append((random.random(), float(np.random.random())))
        return model(features)

    def next_draws() -> tuple[float, float, float]:
        return random.random(), float(np.random.random()), float(np.random.normal())

    random.seed(7)
    np.random.seed(7)
    expected = next_draws()
    random.seed(7)
    np.random.seed(7)
    captured(draws)
    captured(draws)
    assert drawn[0] == drawn[1], "each build begins alike"
    with pytest.raises(CaptureError):
        captured(lambda _: {})
    assert next_draws() == expected
    with tf.Graph().as_default():
        assert tf.get_default_graph().seed is None


@pytest.mark.parametrize("use_resource", [False, True])
def test_gradients_of_looked_up_rows_are_aggregated(use_resource: bool) -> None:
    """Also of a reference variable, and of ids with two dimensions."""
    features = {"pairs": ((None, 2), "int32"), "y": ((None,), "float64")}

    def build(given: dict[str, tf.Tensor]) -> dict[str, Any]:
        table = tf.get_variable("table", [5, 3], tf.float64, use_resource=use_resource)
        weights = tf.get_variable("weights", [3], tf.float64, use_resource=use_resource)
        rows = tf.nn.embedding_lookup(table, given["pairs"])
        loss = tf.reduce_mean(tf.square(tf.reduce_sum(rows * weights, axis=[1, 2]) - given["y"]))
        of_rows, of_weights = tf.gradients(loss, [rows, weights])
        ids = tf.reshape(given["pairs"], [-1])
        updates = [
            tf.scatter_sub(table, ids, 0.1 * tf.reshape(of_rows, [-1, 3])),
            weights.assign_sub(0.1 * of_weights),
        ]
        return {"loss": loss, "train_op": tf.group(*updates)}

    single = capture(build, features, seed=1)
    assert {one.variable: one.indices is None for one in single.gradients} == {"table": False, "weights": True}
    draw = np.random.default_rng(0)
    initial = {"table": draw.normal(size=(5, 3)), "weights": draw.normal(size=3)}
    steps = [
        [{"pairs": draw.integers(0, 4, (4, 2)).astype(np.int32), "y": draw.normal(size=4)} for _ in range(2)]
        for _ in range(3)
    ]
    expected, _ = concatenated.train(single, initial, steps)
    with Reference(single, ranks=2, average_sparse=True) as reference:
        reference.load(initial)
        for batches in steps:
            reference.step(batches)
        found = reference.values()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-13, atol=1e-14)
