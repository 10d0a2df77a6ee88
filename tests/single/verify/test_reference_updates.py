"""What updates variables without a gradient, under conditions or in loops, in the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.errors import ParallaxError
from parallax_runner.graph.single_device_graph import Gradient
from parallax_runner.verify.reference import Reference
from parallax_runner.verify.split_step import split
from tests.single.verify.reference_cases import (
    EXAMPLES,
    ROWS,
    WIDTH,
    Plain,
    assert_equal,
    batch,
    captured,
    distinct,
    joined,
    model,
    repeated,
    started,
)


@pytest.mark.parametrize("placed", ["train_op", "loss"])
def test_moving_averages_are_updated_once_from_the_ranks_own_batch(placed: str) -> None:
    def build(features: dict[str, tf.Tensor]) -> dict[str, Any]:
        matrix = tf.get_variable("matrix", initializer=np.random.RandomState(0).normal(size=(WIDTH, WIDTH)))
        moving = tf.get_variable("moving", initializer=np.zeros(WIDTH), trainable=False)
        hidden = tf.matmul(features["target"], matrix)
        batch_mean = tf.reduce_mean(hidden, axis=0)
        loss = tf.reduce_mean((hidden - batch_mean - 1) ** 2)
        update = tf.assign_sub(moving, 0.1 * (moving - batch_mean))
        train_op = tf.train.MomentumOptimizer(0.5, 0.9).minimize(loss, tf.train.get_or_create_global_step())
        if placed == "train_op":
            return {"loss": loss, "train_op": tf.group(train_op, update)}
        with tf.control_dependencies([update]):
            return {"loss": tf.identity(loss), "train_op": train_op}

    single = captured(build)
    moving = np.zeros(WIDTH)
    with started(single, ranks=2) as reference:
        for step in range(4):
            data = [distinct(step, rank) for rank in range(2)]
            # With the matrix before this step's update.
            batch_mean = (data[0]["target"] @ reference.values()["matrix"]).mean(axis=0)
            moving -= 0.1 * (moving - batch_mean)
            reference.step(data)
            np.testing.assert_allclose(reference.values()["moving"], moving, atol=1e-12)
            assert int(reference.values()["global_step"]) == step + 1


def test_forward_values_are_from_before_the_update() -> None:
    """What follows the update ops may use the forward pass, which must not be computed from updated variables."""

    def build(features: dict[str, tf.Tensor]) -> dict[str, Any]:
        matrix = tf.get_variable("matrix", initializer=np.eye(WIDTH))
        last = tf.get_variable("last", initializer=np.float64(0), trainable=False)
        loss = tf.reduce_mean((tf.matmul(features["target"], matrix) - 1) ** 2)
        apply = tf.train.GradientDescentOptimizer(0.5).minimize(loss)
        with tf.control_dependencies([apply]):
            return {"loss": loss, "train_op": tf.assign(last, loss)}

    with started(captured(build), ranks=2) as reference:
        for step in range(3):
            losses = reference.step([distinct(step, 0), distinct(step, 1)])
            assert reference.values()["last"] == pytest.approx(losses[0], abs=1e-12)


def test_a_loss_that_waits_for_the_updates_does_not_run_them_on_raw_gradients() -> None:
    def build(features: dict[str, tf.Tensor]) -> dict[str, Any]:
        outputs = model(optimizer="adam")(features)
        with tf.control_dependencies([outputs["train_op"]]):
            return {"loss": tf.identity(outputs["loss"]), "train_op": outputs["train_op"]}

    single = captured(build)
    plain = Plain(single)
    data = [repeated(0, rank) for rank in range(2)]
    with started(single, ranks=2) as reference:
        losses = reference.step(data)
        assert np.mean(losses) == pytest.approx(plain.step(joined(data)), abs=1e-12)
        assert_equal(reference.values(), plain.values())


def test_updates_in_a_branch_and_in_a_loop_of_the_old_kind() -> None:
    """Clipping in a v1 while loop, and applying under a v1 cond: values inside can be neither fetched nor fed."""

    def build(features: dict[str, tf.Tensor]) -> dict[str, Any]:
        tf.disable_control_flow_v2()
        try:
            matrix = tf.get_variable("matrix", initializer=np.random.RandomState(0).normal(size=(WIDTH, WIDTH)))
            table = tf.get_variable("table", initializer=np.random.RandomState(1).normal(size=(ROWS, WIDTH)))
            scale = tf.reduce_mean(features["target"])
            hidden = tf.cond(scale > -9, lambda: tf.matmul(features["target"], matrix), lambda: features["target"])
            hidden += tf.nn.embedding_lookup(table, features["ids"])
            loss = tf.reduce_mean((hidden - 1) ** 2)
            gradients = tf.gradients(loss, [matrix, table])
            # Halves the gradient `turns` times, with a counter and a forward value that do not depend on it.
            _, halved = tf.while_loop(
                lambda turn, _: turn < 3, lambda turn, g: (turn + 1, g * 0.5 * tf.tanh(scale)), (0, gradients[0])
            )
            step = tf.train.get_or_create_global_step()
            optimizer = tf.train.GradientDescentOptimizer(0.5)
            train_op = tf.cond(
                tf.reduce_sum(halved) < 100,
                lambda: tf.group(optimizer.apply_gradients([(halved, matrix), (gradients[1], table)], step)),
                lambda: tf.no_op(),
            )
        finally:
            tf.enable_control_flow_v2()
        return {"loss": loss, "train_op": train_op}

    single = captured(build)
    assert {"Enter", "Switch"} <= {node.op for node in single.meta_graph.graph_def.node}
    plain = Plain(single)
    with started(single) as reference:
        for step in range(3):
            assert reference.step([distinct(step)]) == pytest.approx([plain.step(distinct(step))], abs=1e-12)
            assert_equal(reference.values(), plain.values())
            assert int(reference.values()["global_step"]) == step + 1


def test_a_draw_in_a_branch_of_post_processing_is_made_only_when_the_branch_is_taken() -> None:
    def build(features: dict[str, tf.Tensor]) -> dict[str, Any]:
        tf.disable_control_flow_v2()
        try:
            matrix = tf.get_variable("matrix", initializer=np.eye(WIDTH))
            loss = tf.reduce_mean((tf.matmul(features["target"], matrix) - 1) ** 2)
            (gradient,) = tf.gradients(loss, [matrix])
            scaled = tf.cond(
                tf.equal(features["ids"][0], 1),
                lambda: gradient * tf.random.uniform((), dtype=tf.float64, seed=3),
                lambda: gradient * 1.0,
            )
        finally:
            tf.enable_control_flow_v2()
        return {"loss": loss, "train_op": tf.train.GradientDescentOptimizer(0.5).apply_gradients([(scaled, matrix)])}

    single = captured(build)
    plain = Plain(single)
    with started(single) as reference:
        for taken in (1, 0, 0, 1, 0, 1):
            reference.step([batch([taken] * EXAMPLES)])
            plain.step(batch([taken] * EXAMPLES))
            assert_equal(reference.values(), plain.values())


@pytest.mark.parametrize("kind", ["v1", "v2"])
def test_draws_inside_a_loop_of_the_forward_pass(kind: str) -> None:
    def build(features: dict[str, tf.Tensor]) -> dict[str, Any]:
        if kind == "v1":
            tf.disable_control_flow_v2()
        try:
            matrix = tf.get_variable("matrix", initializer=np.eye(WIDTH))
            _, hidden, noise = tf.while_loop(
                lambda turn, *_: turn < 3,
                lambda turn, h, noise: (
                    turn + 1,
                    tf.tanh(tf.matmul(h, matrix)) + tf.random.uniform((), dtype=tf.float64, seed=3),
                    noise + tf.random.uniform((), dtype=tf.float64, seed=4),
                ),
                (0, features["target"], np.float64(0)),
                parallel_iterations=1,  # more of them would draw in any order
            )
            loss = tf.reduce_mean(hidden**2)
            (gradient,) = tf.gradients(loss, [matrix])
        finally:
            tf.enable_control_flow_v2()
        scaled = gradient * noise * tf.reduce_mean(hidden)
        return {"loss": loss, "train_op": tf.train.GradientDescentOptimizer(0.5).apply_gradients([(scaled, matrix)])}

    single = captured(build)
    assert ("Enter" in {node.op for node in single.meta_graph.graph_def.node}) == (kind == "v1")
    plain = Plain(single)
    with started(single) as reference:
        for step in range(3):
            assert reference.step([distinct(step)]) == pytest.approx([plain.step(distinct(step))], abs=1e-12)
            assert_equal(reference.values(), plain.values())


def test_a_draw_in_a_branch_that_both_passes_need_is_refused() -> None:
    def build(features: dict[str, tf.Tensor]) -> dict[str, Any]:
        matrix = tf.get_variable("matrix", initializer=np.eye(WIDTH))
        wanted = tf.reduce_mean(features["target"]) > -9
        no, yes = tf.raw_ops.Switch(data=features["target"], pred=wanted)
        noise = tf.random.uniform(tf.shape(yes), dtype=tf.float64, name="noise")
        data, _ = tf.raw_ops.Merge(inputs=[no, yes * noise])
        loss = tf.reduce_mean((tf.matmul(data, matrix) - 1) ** 2)
        (gradient,) = tf.gradients(loss, [matrix])
        plain, scaled = tf.raw_ops.Switch(data=gradient, pred=wanted)
        merged, _ = tf.raw_ops.Merge(inputs=[plain, scaled * tf.reduce_mean(noise)])
        merged.set_shape(matrix.shape)
        return {"loss": loss, "train_op": tf.train.GradientDescentOptimizer(0.5).apply_gradients([(merged, matrix)])}

    with pytest.raises(ParallaxError, match="noise"):
        Reference(captured(build), ranks=1, average_sparse=True)


def test_a_gradient_after_the_update_with_another_one_is_refused() -> None:
    """As in a GAN: the generator's gradient is that of the discriminator that the step has just updated."""
    with tf.Graph().as_default() as graph:
        critic, actor = (tf.Variable(1.0, name=name, use_resource=True) for name in ("critic", "actor"))
        first = tf.identity(critic * 0.5, name="first")
        update = critic.assign_sub(first, read_value=False)
        with tf.control_dependencies([update]):
            second = tf.identity(actor * critic.read_value(), name="second")
        train_op = tf.group(update, actor.assign_sub(second, read_value=False))
        gradients = [Gradient("critic", first.name, None), Gradient("actor", second.name, None)]
        with pytest.raises(ParallaxError, match="updates a variable before a gradient of the same step is computed"):
            split(graph, train_op=train_op.name, loss=first.name, gradients=gradients)
