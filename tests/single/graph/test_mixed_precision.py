"""Products and convolutions in 16 bits, and nothing else: graph/mixed_precision.py. The ranks' cases are in
tests/parallel."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from models import lm
from parallax_runner.graph.capture import capture
from parallax_runner.graph.mixed_precision import PRODUCTS, with_short_products
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from tests.parallel.concatenated import train

EXAMPLES, WIDTH = 4, 8
X = {"x": ((EXAMPLES, WIDTH), "float32")}
IMAGES, FILTERS = (2, 4, 4, 3), (2, 2, 3, 3)
VOLUMES, CUBES = (2, 3, 4, 4, 3), (2, 2, 2, 3, 3)
SAME = {"padding": "SAME"}
CALLS: dict[str, tuple[tuple[tuple[int, ...], tuple[int, ...]], Callable[..., Any]]] = {
    "MatMul": (((3, 4), (4, 2)), lambda a, b: tf.raw_ops.MatMul(a=a, b=b)),
    "BatchMatMul": (((2, 3, 4), (2, 4, 2)), lambda a, b: tf.raw_ops.BatchMatMul(x=a, y=b)),
    "BatchMatMulV2": (((2, 3, 4), (4, 2)), lambda a, b: tf.raw_ops.BatchMatMulV2(x=a, y=b)),
    "Einsum": (((2, 3, 4), (4, 2)), lambda a, b: tf.raw_ops.Einsum(inputs=[a, b], equation="abc,cd->abd")),
    "Conv2D": ((IMAGES, FILTERS), lambda a, b: tf.raw_ops.Conv2D(input=a, filter=b, strides=[1] * 4, **SAME)),
    "Conv2DBackpropInput": (
        (FILTERS, IMAGES),
        lambda a, b: tf.raw_ops.Conv2DBackpropInput(
            input_sizes=IMAGES, filter=a, out_backprop=b, strides=[1] * 4, **SAME
        ),
    ),
    "Conv2DBackpropFilter": (
        (IMAGES, IMAGES),
        lambda a, b: tf.raw_ops.Conv2DBackpropFilter(
            input=a, filter_sizes=FILTERS, out_backprop=b, strides=[1] * 4, **SAME
        ),
    ),
    "Conv3D": ((VOLUMES, CUBES), lambda a, b: tf.raw_ops.Conv3D(input=a, filter=b, strides=[1] * 5, **SAME)),
    "Conv3DBackpropInputV2": (
        (CUBES, VOLUMES),
        lambda a, b: tf.raw_ops.Conv3DBackpropInputV2(
            input_sizes=VOLUMES, filter=a, out_backprop=b, strides=[1] * 5, **SAME
        ),
    ),
    "Conv3DBackpropFilterV2": (
        (VOLUMES, VOLUMES),
        lambda a, b: tf.raw_ops.Conv3DBackpropFilterV2(
            input=a, filter_sizes=CUBES, out_backprop=b, strides=[1] * 5, **SAME
        ),
    ),
    "DepthwiseConv2dNative": (
        (IMAGES, (2, 2, 3, 1)),
        lambda a, b: tf.raw_ops.DepthwiseConv2dNative(input=a, filter=b, strides=[1] * 4, **SAME),
    ),
    "DepthwiseConv2dNativeBackpropInput": (
        ((2, 2, 3, 1), IMAGES),
        lambda a, b: tf.raw_ops.DepthwiseConv2dNativeBackpropInput(
            input_sizes=IMAGES, filter=a, out_backprop=b, strides=[1] * 4, **SAME
        ),
    ),
    "DepthwiseConv2dNativeBackpropFilter": (
        (IMAGES, IMAGES),
        lambda a, b: tf.raw_ops.DepthwiseConv2dNativeBackpropFilter(
            input=a, filter_sizes=(2, 2, 3, 1), out_backprop=b, strides=[1] * 4, **SAME
        ),
    ),
}


def graph_of(loss: tf.Tensor, *updates: tf.Operation) -> dict[str, Any]:
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    return {"loss": loss, "train_op": tf.group(train_op, *updates)}


def by_product(build: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], features: dict[str, tf.Tensor]) -> dict[str, Any]:
    weights = tf.get_variable("weights", [WIDTH, WIDTH])
    return graph_of(tf.reduce_mean(tf.square(build(features["x"], weights))))


def captured(build: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]) -> SingleDeviceGraph:
    return capture(functools.partial(by_product, build), X, seed=1)


def trained(single: SingleDeviceGraph) -> tuple[dict[str, np.ndarray], list[float]]:
    draw = np.random.default_rng(1)
    initial = {"weights": draw.normal(size=[WIDTH, WIDTH]).astype(np.float32)}
    steps = [[{"x": draw.normal(size=[EXAMPLES, WIDTH]).astype(np.float32)}] for _ in range(3)]
    return train(single, initial, steps)


def short(call: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], one: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    return tf.cast(call(tf.cast(one, tf.bfloat16), tf.cast(other, tf.bfloat16)), tf.float32)


def types(single: SingleDeviceGraph) -> dict[str, int]:
    """Returns the dtypes of all products, by the names of their ops."""
    return {node.name: node.attr["T"].type for node in single.meta_graph.graph_def.node if node.op in PRODUCTS}


def test_every_product_is_tried() -> None:
    assert CALLS.keys() == PRODUCTS


@pytest.mark.parametrize("kind", sorted(PRODUCTS))
def test_a_product_equals_the_same_product_of_inputs_that_are_cast_by_hand(kind: str) -> None:
    (one, other), call = CALLS[kind]
    draw = np.random.default_rng(1)
    given = [draw.normal(size=shape).astype(np.float32) for shape in (one, other)]

    def build(features: dict[str, tf.Tensor]) -> dict[str, Any]:
        scale = tf.get_variable("scale", [])
        result = tf.stop_gradient(call(*map(tf.constant, given)))
        return graph_of(tf.reduce_sum(result * result) + scale * features["x"][0, 0])

    single = with_short_products(capture(build, X, seed=1))
    _, losses = train(single, {"scale": np.float32(1)}, [[{"x": np.zeros([EXAMPLES, WIDTH], np.float32)}]])
    with tf.Graph().as_default(), tf.Session() as session:
        by_hand = session.run(tf.reduce_sum(tf.square(short(call, *map(tf.constant, given)))))
        exact = session.run(tf.reduce_sum(tf.square(call(*map(tf.constant, given)))))
    assert losses[0] == pytest.approx(by_hand, rel=1e-6)
    assert losses[0] != pytest.approx(exact, rel=1e-6)


def test_a_step_equals_one_whose_casts_are_written_by_hand() -> None:
    """The gradient of a cast is a cast, so both have the same products in both directions."""
    found, losses = trained(with_short_products(captured(tf.matmul)))
    expected, expected_losses = trained(captured(functools.partial(short, tf.matmul)))
    exact, _ = trained(captured(tf.matmul))
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-6)
    np.testing.assert_allclose(found["weights"], expected["weights"], rtol=1e-6)
    assert np.abs(found["weights"] - exact["weights"]).max() > 1e-4


def in_function(x: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    return tf.function(lambda x, w: tf.tanh(tf.matmul(tf.matmul(x, w), w)), autograph=False)(x, weights)


def in_loop(x: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    return tf.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, tf.tanh(tf.matmul(x, weights))), [0, x])[1]


@pytest.mark.parametrize("build", [in_function, in_loop])
def test_products_in_functions(build: Callable[..., tf.Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = trained(with_short_products(captured(build)))
    exact, _ = trained(captured(build))
    matmul = tf.matmul
    monkeypatch.setattr(tf, "matmul", functools.partial(short, matmul))
    expected, _ = trained(captured(build))
    np.testing.assert_allclose(found["weights"], expected["weights"], rtol=1e-5)
    assert np.abs(found["weights"] - exact["weights"]).max() > 1e-4


def test_the_update_and_initial_values_stay_exact() -> None:
    def build(features: dict[str, tf.Tensor]) -> dict[str, Any]:
        start = tf.random.stateless_normal([WIDTH, WIDTH], [1, 2])
        weights = tf.get_variable("weights", initializer=tf.matmul(start, start, name="initial"))
        loss = tf.reduce_mean(tf.square(tf.matmul(features["x"], weights)))
        (gradient,) = tf.gradients(loss, [weights])
        update = weights.assign_sub(0.1 * tf.matmul(gradient, gradient, transpose_b=True, name="update"))
        return {"loss": loss, "train_op": update.op}

    found = types(with_short_products(capture(build, X, seed=1)))
    full = {name for name, dtype in found.items() if dtype == tf.float32.as_datatype_enum}
    assert full == {"initial", "update", "gradients/MatMul_grad/MatMul"}  # nobody needs the last, a gradient of x
    assert found.keys() - full == {"MatMul/short", "gradients/MatMul_grad/MatMul_1/short"}


def test_other_dtypes_and_names_stay() -> None:
    single = captured(lambda x, w: tf.cast(tf.matmul(tf.cast(x, tf.float64), tf.cast(w, tf.float64)), tf.float32))
    assert set(types(with_short_products(single)).values()) == {tf.float64.as_datatype_enum}
    rounded = with_short_products(captured(tf.matmul))
    plain = captured(tf.matmul)
    assert (rounded.variables, rounded.gradients, rounded.loss) == (plain.variables, plain.gradients, plain.loss)
    assert rounded.fingerprint != plain.fingerprint


def test_the_loss_of_the_language_model_is_finite() -> None:
    """Its sampled softmax adds the smallest number of float32 to some products, which is minus infinity in bfloat16."""
    shapes = {name: ((4, 5), "int32") for name in ("words", "next_words")}
    sizes = {"vocab_size": 30, "embedding_size": 8, "num_units": 8, "projection_size": 8, "num_sampled": 20}
    single = capture(lambda features: lm.build(features, tf.train.AdagradOptimizer(0.2), **sizes), shapes, seed=1)
    draw = np.random.default_rng(1)
    initial = {
        one.name: np.abs(draw.normal(size=one.shape) * 0.1).astype(one.dtype) + np.asarray(0.1).astype(one.dtype)
        for one in single.variables
    }
    steps = [[{name: draw.integers(0, 30, [4, 5]) for name in shapes}] for _ in range(3)]
    values, losses = train(with_short_products(single), initial, steps)
    assert np.isfinite(losses).all()
    assert all(np.isfinite(value).all() for value in values.values())
    _, exact = train(single, initial, steps)
    np.testing.assert_allclose(losses, exact, rtol=2e-2)
