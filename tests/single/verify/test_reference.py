"""The reference against plain TensorFlow sessions and against arithmetic done by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.errors import ParallaxError
from parallax_runner.graph import gradients_hook
from parallax_runner.graph.capture import capture, from_graph
from parallax_runner.graph.seeds import derive_seeds
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


# One rank is plain TensorFlow.


@pytest.mark.parametrize("parts", ["dense", "sparse", "both", "clipped"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_one_rank_is_a_plain_session(optimizer: str, parts: str) -> None:
    single = captured(
        model(
            sparse=parts != "dense",
            dense=parts != "sparse",
            clip=0.3 if parts == "clipped" else None,
            optimizer=optimizer,
        )
    )
    plain = Plain(single)
    initial = plain.values()
    with started(single) as reference:
        assert_equal(reference.values(), initial, tolerance=0)
        for step in range(4):
            losses = reference.step([distinct(step)])
            assert losses == pytest.approx([plain.step(distinct(step))], abs=1e-12)
            assert_equal(reference.values(), plain.values())
            assert int(reference.values()["global_step"]) == step + 1
        assert moved(initial, reference.values())


def test_a_norm_is_taken_over_merged_rows() -> None:
    """Stock TensorFlow clips by the norm of the unmerged rows."""
    single = captured(model(dense=False, clip=0.1))
    table = Plain(single).values()["table"]
    data = repeated(0)
    slopes = 2 * (0.5 * data["target"] + table[data["ids"]] - data["target"]) / EXAMPLES
    gradient = np.zeros_like(table)
    np.add.at(gradient, data["ids"], slopes)
    assert abs(np.linalg.norm(slopes) - np.linalg.norm(gradient)) > 0.1
    with started(single) as reference:
        reference.step([data])
        expected = table - 0.5 * gradient * 0.1 / np.linalg.norm(gradient)
        np.testing.assert_allclose(reference.values()["table"], expected, atol=1e-12)


# N ranks are one session on the concatenated batch.


@pytest.mark.parametrize("batches", [distinct, repeated])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_ranks_are_a_plain_session_on_the_whole_batch(optimizer: str, batches: Callable[[int, int], Batch]) -> None:
    single = captured(model(optimizer=optimizer))
    plain = Plain(single)
    with started(single, ranks=3) as reference:
        for step in range(3):
            data = [batches(step, rank) for rank in range(3)]
            losses = reference.step(data)
            assert len(set(losses)) == 3
            assert np.mean(losses) == pytest.approx(plain.step(joined(data)), abs=1e-12)
            assert_equal(reference.values(), plain.values(), tolerance=1e-11)


def test_dense_gradients_are_clipped_after_aggregation() -> None:
    single = captured(model(sparse=False, clip=0.05))
    plain = Plain(single)
    data = [distinct(0, rank) for rank in range(2)]
    with started(single, ranks=2) as reference:
        reference.step(data)
        plain.step(joined(data))
        assert_equal(reference.values(), plain.values())


@pytest.mark.parametrize("average_sparse", [True, False])
def test_sparse_gradients_are_merged_over_ranks_and_averaged_or_summed(average_sparse: bool) -> None:
    single = captured(model(dense=False))
    table = Plain(single).values()["table"]
    data = [batch([3, 3, 7, 0], 1), batch([3, 7, 7, 5], 2)]
    gradient = np.zeros_like(table)
    for one in data:
        slopes = 2 * (0.5 * one["target"] + table[one["ids"]] - one["target"]) / EXAMPLES
        np.add.at(gradient, one["ids"], slopes / (2 if average_sparse else 1))
    with started(single, ranks=2, average_sparse=average_sparse) as reference:
        reference.step(data)
        np.testing.assert_allclose(reference.values()["table"], table - 0.5 * gradient, atol=1e-12)


def test_summing_leaves_dense_gradients_averaged() -> None:
    single = captured(model())
    data = [distinct(0, rank) for rank in range(2)]
    results = {}
    for average_sparse in (True, False):
        with started(single, ranks=2, average_sparse=average_sparse) as reference:
            reference.step(data)
            results[average_sparse] = reference.values()
    np.testing.assert_array_equal(results[True]["matrix"], results[False]["matrix"])
    assert not np.allclose(results[True]["table"], results[False]["table"])


def test_all_ranks_hold_the_same_variables_after_a_step() -> None:
    with started(captured(model(optimizer="adam")), ranks=2) as reference:
        reference.step([distinct(0, 0), distinct(0, 1)])
        data = distinct(1)
        first, second = reference.step([data, data])
        assert first == second


def test_a_table_that_is_looked_up_twice() -> None:
    def build(features: dict[str, tf.Tensor]) -> dict[str, Any]:
        table = tf.get_variable("table", initializer=np.random.RandomState(0).normal(size=(ROWS, WIDTH)))
        rows = tf.nn.embedding_lookup(table, features["ids"]) * tf.nn.embedding_lookup(table, features["ids"][::-1])
        loss = tf.reduce_mean((rows - features["target"]) ** 2)
        return {"loss": loss, "train_op": tf.train.AdagradOptimizer(0.5).minimize(loss)}

    single = captured(build)
    assert [gradient.indices is not None for gradient in single.gradients] == [True]
    plain = Plain(single)
    with started(single, ranks=2) as reference:
        # The rows of a batch meet their mirror image, so both ranks have the same ids to be equal to the whole.
        data = [repeated(0), repeated(0)]
        reference.step(data)
        plain.step(data[0])
        assert_equal(reference.values(), plain.values())


def test_a_raw_gradient_that_the_backward_pass_reads_too() -> None:
    """The gradient of `matrix` is applied, and penalised by way of `offset`: the penalty is of each rank's own."""

    def build(features: dict[str, tf.Tensor]) -> dict[str, Any]:
        matrix = tf.get_variable("matrix", initializer=np.eye(WIDTH))
        offset = tf.get_variable("offset", initializer=np.zeros(WIDTH))
        loss = tf.reduce_mean((tf.matmul(features["target"], matrix) + offset - 1) ** 2)
        (first,) = tf.gradients(loss, [matrix])
        (second,) = tf.gradients(tf.reduce_sum(first**2), [offset])
        apply = tf.train.GradientDescentOptimizer(0.5).apply_gradients([(first, matrix), (second, offset)])
        return {"loss": loss, "train_op": apply}

    single = captured(build)
    data = [distinct(0, rank) for rank in range(2)]
    each = []
    for one in data:
        plain = Plain(single)
        plain.step(one)
        each.append(plain.values())
    with started(single, ranks=2) as reference:
        reference.step(data)
        assert_equal(reference.values(), {name: (each[0][name] + each[1][name]) / 2 for name in each[0]})


# Draws and data.


def noisy(features: dict[str, tf.Tensor]) -> dict[str, Any]:
    """Dropout in the forward pass; the mask is used by an update op, too, so that a second draw would be seen."""
    matrix = tf.get_variable("matrix", initializer=np.random.RandomState(0).normal(size=(WIDTH, WIDTH)))
    seen = tf.get_variable("seen", shape=(WIDTH,), dtype=tf.float64, initializer=tf.zeros_initializer, trainable=False)
    mask = tf.cast(tf.random.uniform((WIDTH,), dtype=tf.float64, seed=5) < 0.5, tf.float64)
    mask += tf.random.uniform((), dtype=tf.float64, seed=6)
    loss = tf.reduce_mean((tf.matmul(features["target"], matrix) * mask - features["target"]) ** 2)
    (gradient,) = tf.gradients(loss, [matrix])
    apply = tf.train.GradientDescentOptimizer(0.5).apply_gradients([(gradient * mask, matrix)])
    with tf.control_dependencies([apply]):
        train_op = tf.group(apply, tf.assign_add(seen, mask))
    return {"loss": loss, "train_op": train_op}


def test_random_ops_are_drawn_once_a_step() -> None:
    single = captured(noisy)
    plain = Plain(single)
    with started(single) as reference:
        for step in range(5):
            assert reference.step([distinct(step)]) == pytest.approx([plain.step(distinct(step))], abs=1e-12)
            assert_equal(reference.values(), plain.values())


def test_ranks_draw_what_their_seeds_say() -> None:
    single = captured(noisy)

    def seeds(graph_def: tf.GraphDef, rank: int) -> tf.GraphDef:
        initializers = [variable.initializer for variable in single.variables]
        return derive_seeds(graph_def, seed=7, rank=rank, first_step=0, initializers=initializers)

    data = distinct(0)
    plain = [Plain(single, seeds(single.meta_graph.graph_def, rank)) for rank in range(2)]
    expected = [session.step(data) for session in plain]
    assert expected[0] != expected[1]
    with started(single, ranks=2, seeds=seeds) as reference:
        assert reference.step([data, data]) == pytest.approx(expected, abs=1e-12)
        # Each rank's own mask was added to its own counter, and post-processing used the rank's own mask.
        np.testing.assert_array_equal(reference.values()["seen"], plain[0].values()["seen"])
    with started(single, ranks=2) as reference:
        first, second = reference.step([data, data])
        assert first == second


def test_a_draw_that_only_post_processing_needs() -> None:
    def build(features: dict[str, tf.Tensor]) -> dict[str, Any]:
        matrix = tf.get_variable("matrix", initializer=np.eye(WIDTH))
        loss = tf.reduce_mean((tf.matmul(features["target"], matrix) - 1) ** 2)
        (gradient,) = tf.gradients(loss, [matrix])
        gradient += tf.random.normal(tf.shape(gradient), dtype=tf.float64, seed=3)
        return {"loss": loss, "train_op": tf.train.GradientDescentOptimizer(0.5).apply_gradients([(gradient, matrix)])}

    single = captured(build)
    plain = Plain(single)
    with started(single) as reference:
        for step in range(4):
            reference.step([distinct(step)])
            plain.step(distinct(step))
            assert_equal(reference.values(), plain.values())


@pytest.mark.parametrize("iterator", ["one_shot", "initializable"])
def test_an_iterator_in_the_graph_advances_once_a_step(iterator: str) -> None:
    def build(_: dict[str, tf.Tensor]) -> dict[str, Any]:
        dataset = tf.data.Dataset.from_tensor_slices(np.arange(1.0, 9.0))
        make = tf.data.make_one_shot_iterator if iterator == "one_shot" else tf.data.make_initializable_iterator
        element = make(dataset).get_next()
        weight = tf.get_variable("weight", initializer=np.float64(0))
        total = tf.get_variable("total", initializer=np.float64(0), trainable=False)
        loss = weight * element
        apply = tf.train.GradientDescentOptimizer(1.0).minimize(loss)
        with tf.control_dependencies([apply]):
            return {"loss": loss, "train_op": tf.group(apply, tf.assign_add(total, element))}

    single = capture(build, {}, seed=1)
    with started(single, ranks=2) as reference:
        for step in range(1, 8):
            reference.step([{}, {}])
            # The sum of 1, 2, … step: every element is seen, and once.
            assert reference.values() == {"weight": -step * (step + 1) / 2, "total": step * (step + 1) / 2}
        reference.step([{}, {}])
        with pytest.raises(tf.errors.OutOfRangeError):
            reference.step([{}, {}])


def test_an_iterator_that_is_read_after_the_updates() -> None:
    def build(features: dict[str, tf.Tensor]) -> dict[str, Any]:
        iterator = tf.data.make_initializable_iterator(tf.data.Dataset.from_tensor_slices([1.0, 2.0, 3.0]))
        outputs = model(sparse=False)(features)
        last = tf.get_variable("last", initializer=0.0, trainable=False)
        with tf.control_dependencies([outputs["train_op"]]):
            return {"loss": outputs["loss"], "train_op": tf.assign(last, iterator.get_next())}

    with started(captured(build)) as reference:
        for step in range(3):
            reference.step([distinct(step)])
            assert reference.values()["last"] == step + 1


# Updates that come from no gradient.


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


# Variables.


def partitioned(features: dict[str, tf.Tensor]) -> dict[str, Any]:
    """A table that the user's own partitioner cuts into three, with slots, and a local variable."""
    table = tf.get_variable(
        "table",
        shape=(ROWS, WIDTH),
        dtype=tf.float64,
        initializer=tf.random_normal_initializer(seed=3, dtype=tf.float64),
        partitioner=tf.fixed_size_partitioner(3),
    )
    bias = tf.get_local_variable("bias", initializer=np.arange(WIDTH) * 1.0)
    rows = tf.nn.embedding_lookup(table, features["ids"], partition_strategy="div")
    loss = tf.reduce_mean((rows + bias - features["target"]) ** 2)
    return {"loss": loss, "train_op": tf.train.AdagradOptimizer(0.5).minimize(loss)}


def test_a_partitioned_variable_is_one() -> None:
    single = captured(partitioned)
    assert sum(variable.full_name == "table" for variable in single.variables) == 3
    pieces = Plain(single)
    data = [repeated(0, rank) for rank in range(2)]
    with started(single, ranks=2) as reference:
        initial = reference.values()
        assert {name: value.shape for name, value in initial.items()} == dict.fromkeys(
            ["table", "table/Adagrad"], (ROWS, WIDTH)
        )
        reference.step(data)
        pieces.step(joined(data))
        for name, value in reference.values().items():
            order = [variable for variable in single.variables if variable.saved and variable.full_name == name]
            expected = np.concatenate([pieces.values()[variable.name] for variable in order])
            np.testing.assert_allclose(value, expected, atol=1e-12)
        after = reference.values()
        assert moved(initial, after)
        reference.load(initial)
        assert_equal(reference.values(), initial, tolerance=0)
        reference.step(data)
        assert_equal(reference.values(), after, tolerance=0)


def test_both_copies_of_the_graph_have_the_same_variables_even_where_their_resources_have_no_name() -> None:
    def nameless(graph_def: tf.GraphDef, _: int) -> tf.GraphDef:
        copy = tf.GraphDef.FromString(graph_def.SerializeToString())
        for node in copy.node:
            if node.op == "VarHandleOp":
                node.attr["shared_name"].s = b""
        return copy

    single = captured(model(optimizer="adam"))
    plain = Plain(single)
    with started(single, seeds=nameless) as reference:
        reference.step([distinct(0)])
        plain.step(distinct(0))
        assert_equal(reference.values(), plain.values())


def test_load_sets_all_ranks_and_initialises_local_variables() -> None:
    single = captured(partitioned)
    data = repeated(0)
    values = {"table": np.random.RandomState(5).normal(size=(ROWS, WIDTH)), "table/Adagrad": np.ones((ROWS, WIDTH))}
    with Reference(single, ranks=2, average_sparse=True) as reference:
        reference.load(values)
        assert_equal(reference.values(), values, tolerance=0)
        expected = np.mean((values["table"][data["ids"]] + np.arange(WIDTH) - data["target"]) ** 2)
        assert reference.step([data, data]) == pytest.approx([expected, expected], abs=1e-12)


def test_initial_values_of_all_ranks_are_those_of_rank_0() -> None:
    def seeds(graph_def: tf.GraphDef, rank: int) -> tf.GraphDef:
        seeded = tf.GraphDef.FromString(graph_def.SerializeToString())
        for node in seeded.node:
            if "seed2" in node.attr:
                node.attr["seed2"].i = rank + 1
        return seeded

    single = captured(partitioned)
    data = repeated(0)
    with started(single, ranks=2, seeds=seeds) as reference:
        first, second = reference.step([data, data])
        assert first == second


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"table": None}, "missing.*'table'"),
        ({"other": np.zeros(())}, "unknown.*'other'"),
        ({"table": np.zeros((WIDTH, ROWS))}, "«table» has shape"),
    ],
)
def test_load_refuses_values_that_do_not_fit(change: dict[str, Any], message: str) -> None:
    with started(captured(model())) as reference:
        values = {**reference.values(), **change}
        with pytest.raises(ParallaxError, match=message):
            reference.load({name: value for name, value in values.items() if value is not None})


@pytest.mark.parametrize("batches", [[], [{}], [{"ids": np.zeros(1)}], [distinct(0), distinct(1)]])
def test_step_refuses_batches_that_do_not_fit(batches: list[Batch]) -> None:
    with started(captured(model())) as reference, pytest.raises(ParallaxError, match="batch"):
        reference.step(batches)


def test_reference_variables() -> None:
    """A graph of the old kind of variable, which capture converts, and a candidate sampler."""
    with tf.Graph().as_default() as graph:
        tf.set_random_seed(1)
        ids = tf.placeholder(tf.int32, (None,))
        table = tf.get_variable("table", (50, WIDTH), use_resource=False)
        bias = tf.get_variable("bias", (50,), use_resource=False)
        loss = tf.reduce_mean(
            tf.nn.sampled_softmax_loss(
                table, bias, tf.cast(ids, tf.int64)[:, None], tf.nn.embedding_lookup(table, ids), 5, 50
            )
        )
        train_op = tf.train.AdagradOptimizer(0.5).minimize(loss, tf.train.get_or_create_global_step())
    single = from_graph(graph, features={"ids": ids.name}, loss=loss, train_op=train_op)
    plain = Plain(single)
    with started(single) as reference:
        for step in range(4):
            data = {"ids": distinct(step)["ids"]}
            assert reference.step([data]) == pytest.approx([plain.step(data)], rel=1e-5)
            assert_equal(reference.values(), plain.values(), tolerance=1e-5)
