"""What analysis reads off a captured graph."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.analysis.classify import classify
from parallax_runner.errors import PlanError
from parallax_runner.graph.capture import capture
from parallax_runner.graph.script_graph import capture_script
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from tests.single.small_models import (
    BATCH,
    FEATURES,
    OPTIMIZERS,
    ROWS,
    WIDTH,
    Features,
    as_they_are,
    captured,
    clip,
    dense_model,
    infos,
    lookup_model,
    sparse_model,
)

SLOTS = {
    "gradient_descent": (),
    "momentum": ("Momentum",),
    "adagrad": ("Adagrad",),
    "adam": ("Adam", "Adam_1"),
    "rmsprop": ("RMSProp", "RMSProp_1"),
    "ftrl": ("Ftrl", "Ftrl_1"),
}


@pytest.mark.parametrize("process", [as_they_are, clip])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_kinds_and_slots_of_each_optimizer(optimizer: str, process: Callable[[list[Any]], list[Any]]) -> None:
    found = infos(captured(optimizer=optimizer, process=process))
    beta_powers = {"beta1_power", "beta2_power"} if optimizer == "adam" else set()
    assert set(found) == {"table", "weights", "global_step"} | beta_powers
    kinds = {name: info.gradient.value for name, info in found.items()}
    assert kinds == dict.fromkeys(beta_powers | {"global_step"}, "none") | {"table": "sparse", "weights": "dense"}
    for name in ("table", "weights"):
        assert sorted(found[name].slots) == [f"{name}/{slot}" for slot in SLOTS[optimizer]]
    assert all(found[name].slots == () for name in beta_powers | {"global_step"})


@pytest.mark.parametrize("optimizer", ["adagrad", "adam"])
def test_reference_variables_are_seen_alike(optimizer: str) -> None:
    tf.disable_resource_variables()
    try:
        single = captured(optimizer=optimizer, process=clip)
    finally:
        tf.enable_resource_variables()
    found = infos(single)
    assert found["table"].gradient == "sparse"
    assert sorted(found["table"].slots) == [f"table/{slot}" for slot in SLOTS[optimizer]]
    assert sorted(found["weights"].slots) == [f"weights/{slot}" for slot in SLOTS[optimizer]]


def test_slots_under_a_scope_and_with_another_name() -> None:
    """Variables of equal shapes are not mixed up."""

    def build(features: Features) -> dict[str, Any]:
        with tf.variable_scope("outer"):
            tables = [tf.get_variable(name, [ROWS, WIDTH], tf.float64) for name in ("a", "a_1")]
            rows = [tf.nn.embedding_lookup(table, features["ids"]) for table in tables]
            loss = tf.reduce_mean(rows[0] * rows[1])
            train_op = tf.train.AdamOptimizer(0.1, name="mine").minimize(loss)
        return {"loss": loss, "train_op": train_op}

    found = infos(capture(build, FEATURES, seed=1))
    for name in ("outer/a", "outer/a_1"):
        assert sorted(found[name].slots) == [f"outer/{name}/mine", f"outer/{name}/mine_1"]


def test_shapes_and_bytes() -> None:
    found = infos(captured())
    table, weights, step = found["table"], found["weights"], found["global_step"]
    assert (table.shape, table.dtype, table.size_bytes, table.row_bytes) == ((ROWS, WIDTH), "float64", 96, 16)
    assert (weights.shape, weights.size_bytes) == ((WIDTH,), 16)
    assert (step.shape, step.dtype, step.size_bytes) == ((), "int64", 8)
    assert {info.pieces for info in found.values()} == {1}
    assert list(found) == ["table", "weights", "global_step"]  # As they were created.


def test_gradient_rows_are_the_ids_looked_up() -> None:
    found = infos(captured())
    assert {name: info.gradient_rows for name, info in found.items()} == {
        "table": BATCH,
        "weights": None,
        "global_step": None,
    }


def test_two_lookups_of_one_table() -> None:
    def model(features: Features) -> tf.Tensor:
        table = tf.get_variable("table", [ROWS, WIDTH], tf.float64)
        pairs = tf.stack([features["ids"], features["ids"]], axis=1)
        once, twice = tf.nn.embedding_lookup(table, features["ids"]), tf.nn.embedding_lookup(table, pairs)
        return tf.reduce_sum(once + tf.reduce_sum(twice, axis=1), axis=1)

    (table,) = [info for info in infos(captured(model)).values() if info.name == "table"]
    assert table.gradient == "sparse"
    assert table.gradient_rows == BATCH + 2 * BATCH
    assert table.slots == ("table/Adagrad",)


def test_rows_of_two_sparse_gradients_that_are_applied_apart_add_up() -> None:
    def build(features: Features) -> dict[str, Any]:
        table = tf.get_variable("table", [ROWS, WIDTH], tf.float64)
        loss = tf.reduce_mean(tf.nn.embedding_lookup(table, features["ids"]))
        pairs = tf.stack([features["ids"], features["ids"]], axis=1)
        other = tf.reduce_sum(tf.nn.embedding_lookup(table, pairs))
        optimizer = tf.train.GradientDescentOptimizer(0.1)
        grads = [optimizer.compute_gradients(one) for one in (loss, other)]
        return {"loss": loss, "train_op": tf.group(*map(optimizer.apply_gradients, grads))}

    table = infos(capture(build, FEATURES, seed=1))["table"]
    assert (table.gradient, table.gradient_rows) == ("sparse", BATCH + 2 * BATCH)


def test_gradient_rows_that_only_running_tells() -> None:
    def model(features: Features) -> tf.Tensor:
        table = tf.get_variable("table", [ROWS, WIDTH], tf.float64)
        kept = tf.boolean_mask(features["ids"], features["y"] > 0)
        return tf.reduce_sum(tf.nn.embedding_lookup(table, kept)) + features["y"]

    table = infos(captured(model))["table"]
    assert (table.gradient, table.gradient_rows) == ("sparse", None)


def test_a_variable_that_is_also_read_whole_is_dense() -> None:
    def model(features: Features) -> tf.Tensor:
        table = tf.get_variable("table", [ROWS, WIDTH], tf.float64)
        rows = tf.nn.embedding_lookup(table, features["ids"])
        return tf.reduce_sum(rows, axis=1) + tf.reduce_sum(tf.square(table))

    table = infos(captured(model))["table"]
    assert (table.gradient, table.gradient_rows, table.nonlinear_op) == ("dense", None, None)


def test_dense_and_sparse_gradients_applied_apart_are_dense() -> None:
    def build(features: Features) -> dict[str, Any]:
        table = tf.get_variable("table", [ROWS, WIDTH], tf.float64)
        loss = tf.reduce_mean(tf.nn.embedding_lookup(table, features["ids"]))
        optimizer = tf.train.GradientDescentOptimizer(0.1)
        train_op = tf.group(optimizer.minimize(loss), optimizer.minimize(tf.reduce_sum(tf.square(table))))
        return {"loss": loss, "train_op": train_op}

    single = capture(build, FEATURES, seed=1)
    assert sorted(gradient.indices is None for gradient in single.gradients) == [False, True]
    table = infos(single)["table"]
    assert (table.gradient, table.gradient_rows) == ("dense", None)


def test_pieces_of_a_partitioned_variable() -> None:
    found = infos(captured(lambda features: lookup_model(features, pieces=4), optimizer="adam"))
    pieces = [info for info in found.values() if info.full_name == "table"]
    assert [info.name for info in pieces] == [f"table/part_{number}" for number in range(4)]
    assert [info.shape for info in pieces] == [(2, 2), (2, 2), (1, 2), (1, 2)]
    for info in pieces:
        assert (info.pieces, info.gradient) == (4, "sparse")
        assert sorted(info.slots) == [f"{info.name}/Adam", f"{info.name}/Adam_1"]
    assert found["weights"].pieces == 1


def accumulating(features: Features, *, of: Callable[[Any], Any] = lambda gradient: gradient) -> dict[str, Any]:
    """A model that adds up its gradients, as they are or what `of` makes of them, and updates by the sums."""
    loss = tf.reduce_mean(tf.square(lookup_model(features) - features["y"]))
    optimizer = tf.train.AdagradOptimizer(0.1)
    (by_rows, table), (dense, weights) = optimizer.compute_gradients(loss)
    sums = [
        tf.get_variable(name, variable.shape, tf.float64, trainable=False)
        for name, variable in (("of_rows", table), ("of_all", weights))
    ]
    added = [tf.scatter_add(sums[0], by_rows.indices, of(by_rows.values)), tf.assign_add(sums[1], of(dense))]
    with tf.control_dependencies([one.op for one in added]):
        means = [total.read_value() / 2 for total in sums]
    return {"loss": loss, "train_op": optimizer.apply_gradients(zip(means, (table, weights), strict=True))}


@pytest.mark.parametrize("of", [tf.identity, lambda gradient: gradient])
def test_sums_of_raw_gradients_are_alike_on_all_ranks(of: Callable[[Any], Any]) -> None:
    found = infos(capture(functools.partial(accumulating, of=of), FEATURES, seed=1))
    assert found["table"].gradient == "sparse"
    assert "of_rows" in found["table"].slots
    assert "of_all" in found["weights"].slots


def test_sums_of_gradients_with_noise_are_refused() -> None:
    def noisy(gradient: tf.Tensor) -> tf.Tensor:
        return gradient + tf.random.uniform([], dtype=tf.float64)

    with pytest.raises(PlanError, match="differs by rank"):
        infos(capture(functools.partial(accumulating, of=noisy), FEATURES, seed=1))


def nonlinear_op(process: Callable[[list[Any]], list[Any]], optimizer: str = "adagrad") -> str | None:
    found = infos(captured(optimizer=optimizer, process=process))
    assert found["weights"].nonlinear_op is None
    assert found["global_step"].nonlinear_op is None
    return found["table"].nonlinear_op


def on_values(change: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[list[Any]], list[Any]]:
    """Applies `change` to the values of the sparse gradient (the first), and leaves the other."""

    def process(gradients: list[Any]) -> list[Any]:
        sparse, dense = gradients
        return [tf.IndexedSlices(change(sparse.values), sparse.indices, sparse.dense_shape), dense]

    return process


def test_a_norm_over_a_sparse_gradient_is_named_for_every_update_that_it_scales() -> None:
    found = infos(captured(process=clip))
    assert [found[name].nonlinear_op for name in ("table", "weights")] == 2 * ["global_norm/L2Loss"]
    assert found["global_step"].nonlinear_op is None


def test_whether_all_rows_are_finite_does_not_depend_on_merging() -> None:
    def checked(values: tf.Tensor) -> tf.Tensor:
        return tf.where(tf.reduce_all(tf.math.is_finite(values)), 1.0, 0.0) * tf.cast(values, tf.float32)

    assert nonlinear_op(on_values(lambda values: tf.cast(checked(values), tf.float64))) is None


def test_a_norm_over_the_dense_gradients_only_is_not() -> None:
    assert nonlinear_op(lambda gradients: [gradients[0], *clip(gradients[1:])]) is None


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_optimizers_themselves_merge(optimizer: str) -> None:
    assert nonlinear_op(as_they_are, optimizer) is None


@pytest.mark.parametrize(
    ("change", "op"),
    [
        (lambda values: values * 2.0, None),
        (lambda values: -values / 3.0, None),
        (lambda values: tf.cast(tf.cast(values, tf.float32), tf.float64), None),
        (lambda values: values * values, "nonlinear"),
        (lambda values: 1.0 / values, "nonlinear"),
        (lambda values: values / (values + 1.0), "nonlinear"),
        (lambda values: tf.clip_by_value(values, -1.0, 1.0), "nonlinear"),
        (lambda values: tf.tanh(2.0 * values), "nonlinear"),
    ],
    ids=["scaled", "negated", "cast", "squared", "reciprocal", "ratio", "clipped", "tanh of scaled"],
)
def test_what_depends_on_merging_is_named(change: Callable[[tf.Tensor], tf.Tensor], op: str | None) -> None:
    def named(values: tf.Tensor) -> tf.Tensor:
        with tf.name_scope("nonlinear"):
            return change(values)

    found = nonlinear_op(on_values(named))
    assert (found and found.split("/")[0]) == op


def test_gradients_that_are_joined_may_be_merged_later() -> None:
    def doubled(gradients: list[Any]) -> list[Any]:
        sparse, dense = gradients
        values = tf.concat([sparse.values, tf.zeros([1, WIDTH], tf.float64)], axis=axis)
        indices = tf.concat([sparse.indices, [0]], axis=0)
        return [tf.IndexedSlices(values / 2, indices, sparse.dense_shape), dense]

    axis = 0
    assert nonlinear_op(doubled) is None
    axis = 1
    assert (nonlinear_op(doubled) or "").startswith("concat")


def refused(process: Callable[[list[Any]], list[Any]], *, rate: Callable[[Features], Any] = lambda _: 0.1) -> str:
    def build(features: Features) -> dict[str, Any]:
        loss = tf.reduce_mean(tf.square(lookup_model(features) - features["y"]), name="loss")
        optimizer = tf.train.MomentumOptimizer(rate(features), 0.9)
        gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
        train_op = optimizer.apply_gradients(zip(process(list(gradients)), variables, strict=True))
        return {"loss": loss, "train_op": train_op}

    with pytest.raises(PlanError) as caught:
        classify(capture(build, FEATURES, seed=1))
    return str(caught.value)


def test_a_learning_rate_out_of_the_data_is_refused() -> None:
    message = refused(as_they_are, rate=lambda features: tf.reduce_mean(features["y"]))
    assert "«features/y»" in message
    assert "«table»" in message or "«weights»" in message


def test_a_learning_rate_out_of_a_mean_of_what_each_rank_has_seen_is_refused() -> None:
    def rate(features: Features) -> tf.Tensor:
        zeros = {"dtype": tf.float64, "initializer": tf.zeros_initializer(), "trainable": False}
        seen, smooth = (tf.get_variable(name, [], **zeros) for name in ("seen", "smooth"))
        with tf.control_dependencies([seen.assign(tf.reduce_mean(features["y"]))]):
            kept = seen.read_value()
        with tf.control_dependencies([smooth.assign(0.9 * smooth + 0.1 * kept)]):
            return 0.1 * smooth.read_value()

    message = refused(as_they_are, rate=rate)
    assert "«smooth»" in message or "«seen»" in message
    assert "differs by rank" in message


def test_a_learning_rate_out_of_a_count_of_steps_is_fine() -> None:
    def build(features: Features) -> dict[str, Any]:
        loss = tf.reduce_mean(tf.square(lookup_model(features) - features["y"]), name="loss")
        done = tf.get_variable("done", [], tf.float64, initializer=tf.zeros_initializer(), trainable=False)
        with tf.control_dependencies([done.assign_add(1.0)]):
            rate = 0.1 / done.read_value()
        return {"loss": loss, "train_op": tf.train.MomentumOptimizer(rate, 0.9).minimize(loss)}

    assert infos(capture(build, FEATURES, seed=1))["table"].gradient == "sparse"


def branching(predicate: Callable[[tf.Tensor, list[Any]], tf.Tensor]) -> Callable[[Features], dict[str, Any]]:
    """A model that updates only in steps of which `predicate` (of the loss and the gradients) holds."""

    def build(features: Features) -> dict[str, Any]:
        loss = tf.reduce_mean(tf.square(dense_model(features) - features["y"]))
        optimizer, step = tf.train.GradientDescentOptimizer(0.1), tf.train.get_or_create_global_step()
        pairs = optimizer.compute_gradients(loss)
        chosen = predicate(loss, [gradient for gradient, _ in pairs])
        train_op = tf.cond(chosen, lambda: optimizer.apply_gradients(pairs, step), lambda: tf.no_op())
        return {"loss": loss, "train_op": train_op}

    return build


@pytest.mark.parametrize("v2", [False, True])
def test_an_update_in_a_branch_that_each_rank_chooses_is_refused(v2: bool) -> None:
    (tf.enable_control_flow_v2 if v2 else tf.disable_control_flow_v2)()
    try:
        by_loss = capture(branching(lambda loss, _: loss < 10.0), FEATURES, seed=1)
        alike = (
            capture(branching(lambda _, gradients: tf.linalg.global_norm(gradients) < 10.0), FEATURES, seed=1),
            capture(branching(lambda _, __: tf.train.get_global_step() % 2 < 1), FEATURES, seed=1),
        )
    finally:
        tf.enable_control_flow_v2()
    with pytest.raises(PlanError, match=r"«weights» reads «features/\w» \(Placeholder\), which differs by rank"):
        infos(by_loss)
    for single in alike:
        assert infos(single)["weights"].gradient == "dense"


def test_what_counts_by_a_variable_of_each_ranks_own_does_not_count() -> None:
    def build(features: Features) -> dict[str, Any]:
        seen, total = (
            tf.get_variable(name, [], tf.float64, initializer=tf.zeros_initializer(), trainable=False)
            for name in ("seen", "total")
        )
        with tf.control_dependencies([seen.assign(tf.reduce_sum(features["y"]))]):
            counted = total.assign_add(seen.read_value())
        loss = tf.reduce_mean(tf.square(dense_model(features) - features["y"]))
        step = tf.train.GradientDescentOptimizer(0.1).minimize(loss, tf.train.get_or_create_global_step())
        return {"loss": loss, "train_op": tf.group(step, counted)}

    found = infos(capture(build, FEATURES, seed=1))
    assert {name for name, info in found.items() if info.counts} == {"global_step"}


def test_of_what_a_script_feeds_its_update_may_read_single_numbers() -> None:
    def script(shape: list[int]) -> SingleDeviceGraph:
        graph = tf.Graph()
        with graph.as_default():
            fed = tf.placeholder(tf.float32, shape, name="fed")
            loss = tf.reduce_sum(tf.square(tf.get_variable("w", [3])))
            tf.train.GradientDescentOptimizer(tf.reduce_max(fed)).minimize(loss)
        return capture_script(graph)

    assert classify(script([]))[0].name == "w"
    with pytest.raises(PlanError, match=r"reads «fed» \(Placeholder\), which differs by rank"):
        classify(script([1]))


def test_a_learning_rate_out_of_a_queue_is_refused() -> None:
    graph = tf.Graph()
    with graph.as_default():
        rate = tf.FIFOQueue(1, [tf.float32], [[]]).dequeue(name="next")
        tf.train.GradientDescentOptimizer(rate).minimize(tf.reduce_sum(tf.square(tf.get_variable("w", [3]))))
    with pytest.raises(PlanError, match=r"reads «next» \(QueueDequeueV2\), which differs by rank"):
        classify(capture_script(graph))


def test_noise_in_a_branch_is_refused() -> None:
    def noisy(gradients: list[Any]) -> list[Any]:
        early = tf.train.get_or_create_global_step() < 10
        noise = tf.cond(
            early, lambda: tf.random.normal([WIDTH], dtype=tf.float64), lambda: tf.zeros([WIDTH], tf.float64)
        )
        return [gradients[0], gradients[1] + noise]

    assert "«weights»" in refused(noisy) and "differs by rank" in refused(noisy)


def test_noise_on_a_gradient_is_refused() -> None:
    def noisy(gradients: list[Any]) -> list[Any]:
        return [gradients[0], gradients[1] + tf.random.normal([WIDTH], dtype=tf.float64, name="noise")]

    message = refused(noisy)
    assert "«noise/RandomStandardNormal»" in message
    assert "«weights»" in message


def test_noise_on_sparse_rows_is_refused() -> None:
    message = refused(on_values(lambda values: values * tf.random.uniform([], dtype=tf.float64, name="noise")))
    assert "«noise/RandomUniform»" in message
    assert "«table»" in message


def test_draws_and_data_in_the_forward_pass_are_fine() -> None:
    def model(features: Features) -> tf.Tensor:
        return sparse_model(features) * tf.random.uniform([BATCH], dtype=tf.float64)

    assert infos(captured(model))["table"].gradient == "sparse"


def test_assignments_of_data_to_other_variables_are_fine() -> None:
    def model(features: Features) -> tf.Tensor:
        mean = tf.get_variable("mean", [], tf.float64, initializer=tf.zeros_initializer(), trainable=False)
        with tf.control_dependencies([mean.assign(tf.reduce_mean(features["x"]))]):
            return sparse_model(features)

    assert infos(captured(model))["mean"].gradient == "none"
