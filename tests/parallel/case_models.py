"""The models of the equivalence matrix: small, in float64, each with a feature of users' graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import tensorflow.compat.v1 as tf

if TYPE_CHECKING:
    from tests.parallel.cases import Case

ROWS, WIDTH, BATCH = 13, 3, 8
DEEP_WIDTH = 130


def plain_model(case: Case, features: dict[str, tf.Tensor]) -> tf.Tensor:
    """Two tables, one of them looked up twice, and weights for two dense layers; or a part of that. Returns [BATCH]."""
    x, ids = features["x"], features["ids"]
    if case.gradients in ("sparse", "both"):
        partitioner = tf.fixed_size_partitioner(case.user_parts) if case.user_parts > 1 else None
        table = tf.get_variable("table", [ROWS, WIDTH], tf.float64, partitioner=partitioner)
        other = tf.get_variable("other", [ROWS], tf.float64)
        x = x * tf.nn.embedding_lookup(table, ids) + tf.nn.embedding_lookup(table, (ids * 2 + 1) % ROWS)
        x += tf.expand_dims(tf.gather(other, ids), 1)
    if case.gradients in ("dense", "both"):
        weights = tf.get_variable("weights", [WIDTH, WIDTH], tf.float64)
        bias = tf.get_variable("bias", [WIDTH], tf.float64, initializer=tf.ones_initializer())
        x = tf.tanh(tf.matmul(x, weights) + bias)
    return tf.reduce_sum(x, axis=1)


def batch_norm_model(case: Case, features: dict[str, tf.Tensor]) -> tf.Tensor:
    """Assignments that come from no gradient: each rank has its own, and the chief's are saved."""
    x = plain_model(case, features)
    mean = tf.get_variable("moving_mean", [], tf.float64, initializer=tf.zeros_initializer(), trainable=False)
    update = mean.assign_sub((mean - tf.reduce_mean(x)) * 0.1)
    with tf.control_dependencies([update]):
        return tf.identity(x)


def declared_model(case: Case, features: dict[str, tf.Tensor]) -> tf.Tensor:
    """A count and statistics of the data, which declare how ranks merge them."""
    x = plain_model(case, features)
    kinds = {"seen": tf.VariableAggregation.SUM, "average": tf.VariableAggregation.MEAN}
    made = {
        name: tf.get_variable(
            name, [], tf.float64, initializer=tf.ones_initializer(), trainable=False, aggregation=aggregation
        )
        for name, aggregation in kinds.items()
    }
    seen = made["seen"].assign_add(BATCH)
    average = made["average"].assign_sub((made["average"] - tf.reduce_mean(x)) * 0.1)
    with tf.control_dependencies([seen, average]):
        return tf.identity(x)


def random_model(case: Case, features: dict[str, tf.Tensor]) -> tf.Tensor:
    """Random draws that differ by rank."""
    x = plain_model(case, features)
    return x * tf.random.uniform([BATCH], 0.5, 1.5, tf.float64)


def decay_rows(gradient: tf.Tensor | tf.IndexedSlices, variable: tf.Variable) -> tf.Tensor | tf.IndexedSlices:
    """Applies weight decay to the rows that the step touches: a lookup by the ids of the aggregated gradient."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient + 0.01 * variable
    rows = tf.gather(variable, gradient.indices)
    return tf.IndexedSlices(gradient.values + 0.01 * rows, gradient.indices, gradient.dense_shape)


def by_largest(gradient: tf.Tensor | tf.IndexedSlices) -> tf.Tensor | tf.IndexedSlices:
    """Divides the gradient by its largest element: this is no sum over rows, so all rows must be gathered for it."""
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    scaled = values / tf.reduce_max(tf.abs(values))
    if not isinstance(gradient, tf.IndexedSlices):
        return scaled
    return tf.IndexedSlices(scaled, gradient.indices, gradient.dense_shape)


def update_every_third_step(
    case: Case,
    pairs: list[tuple[tf.Tensor | tf.IndexedSlices, tf.Variable]],
    optimizer: tf.train.Optimizer,
    global_step: tf.Variable,
) -> tf.Operation:
    """Adds gradients up as they leave the backward pass; every third step updates by their mean.

    This uses a branch, or else a mean that is zero in the other steps.
    """
    due = tf.equal(global_step % 3, 2)
    sums = [_sum_for(variable, number) for number, (_, variable) in enumerate(pairs)]

    def update(factor: tf.Tensor) -> tf.Operation:
        means = [total.read_value() / 3 * factor for total in sums]
        if case.clip:
            means, _ = tf.clip_by_global_norm(means, 0.3)
        updated = optimizer.apply_gradients([(mean, v) for mean, (_, v) in zip(means, pairs, strict=True)])
        with tf.control_dependencies([updated]):
            return tf.group(*[total.assign(total.read_value() * (1 - factor)) for total in sums])

    with tf.control_dependencies([_added(total, gradient) for total, (gradient, _) in zip(sums, pairs, strict=True)]):
        if case.model == "accumulated_branch":
            done = tf.cond(due, lambda: update(tf.constant(1.0, tf.float64)), tf.no_op)
        else:
            done = update(tf.cast(due, tf.float64))
    with tf.control_dependencies([done]):
        return global_step.assign_add(1).op


def _sum_for(variable: tf.Variable, number: int) -> tf.Variable:
    # A name that extends the variable's makes it one of its slots, if it has the same shape.
    with tf.variable_scope(variable.op.name if number % 2 else "", reuse=False):
        zeros = np.zeros(variable.shape.as_list())
        return tf.get_variable(
            f"sum_{number}_of_{variable.op.name.replace('/', '_')}", initializer=zeros, trainable=False
        )


def _added(total: tf.Variable, gradient: tf.Tensor | tf.IndexedSlices) -> tf.Operation:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.scatter_add(total, gradient.indices, gradient.values).op
    return tf.assign_add(total, gradient).op


def joined(
    case: Case, parts: list[tf.Tensor | tf.IndexedSlices], variable: tf.Variable
) -> tf.Tensor | tf.IndexedSlices:
    """Returns one gradient from those of several micro-batches."""
    if not isinstance(parts[0], tf.IndexedSlices):
        return tf.add_n(parts) / len(parts)
    scaled = [part.values * (1.0 - 0.1 * number) for number, part in enumerate(parts)]
    values = tf.concat(scaled, axis=0) / len(parts)
    ids = tf.concat([part.indices for part in parts], axis=0)
    if case.model == "joined_once":  # without repeated ids, and with a decay of the rows
        ids, places = tf.unique(ids)
        values = tf.math.unsorted_segment_sum(values, places, tf.shape(ids)[0])
        values += 0.01 * tf.gather(variable, ids)
    if case.model == "joined_in_order":  # each row by its position, under ids that are not the ids of any gradient
        weights = 1.0 + 0.1 * tf.cast(tf.range(tf.size(ids)), tf.float64)
        values *= tf.reshape(weights, [-1, *[1] * (values.shape.rank - 1)])
        ids = tf.maximum(ids, 0)
    return tf.IndexedSlices(values, ids, parts[0].dense_shape)


def keep_padding(variable: tf.Variable) -> tf.Operation:
    """Sets some rows to fixed values: the padding's row by one number, and others by a list of ids."""
    rows = tf.ones([2, 2, *variable.shape[1:]], tf.float64) * 0.5
    with tf.control_dependencies([tf.scatter_update(variable, 0, tf.zeros(variable.shape[1:], tf.float64)).op]):
        return tf.scatter_add(variable, [[1, 7], [4, ROWS - 1]], rows).op


def function_model(case: Case, features: dict[str, tf.Tensor]) -> tf.Tensor:
    """A table that is looked up inside a function, which no server can run."""
    table = tf.get_variable("inner", [ROWS], tf.float64)
    lookup = tf.function(lambda ids: tf.gather(table, ids), autograph=False)
    return plain_model(case, features) + lookup(features["ids"])


def loop_model(case: Case, features: dict[str, tf.Tensor]) -> tf.Tensor:
    """A loop and a function, which TensorFlow identifies by name."""
    x = plain_model(case, features)
    _, x = tf.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, tf.tanh(x)), [0, x])
    return tf.function(lambda x: x * tf.random.uniform([BATCH], 0.5, 1.5, tf.float64), autograph=False)(x)


def mixed_model(case: Case, features: dict[str, tf.Tensor]) -> tf.Tensor:
    """Variables that the model only uses after a cast to half their size."""
    table = tf.cast(tf.get_variable("table", [ROWS, WIDTH], tf.float64), tf.float32)
    weights = tf.cast(tf.get_variable("weights", [WIDTH, WIDTH], tf.float64), tf.float32)
    looked_up = tf.get_variable("other", [ROWS, WIDTH], tf.float64)
    x = tf.cast(tf.nn.embedding_lookup(looked_up, features["ids"]), tf.float32)
    x = tf.tanh(tf.matmul(x + tf.gather(table, features["ids"]), weights) + tf.cast(features["x"], tf.float32))
    return tf.cast(tf.reduce_sum(x, axis=1), tf.float64)


def short_model(case: Case, features: dict[str, tf.Tensor]) -> tf.Tensor:
    """16-bit variables, of the dtype in the model's name; the loss is computed in a larger dtype."""
    table = tf.get_variable("table", [ROWS, WIDTH], case.model)
    other = tf.get_variable("other", [ROWS], case.model)
    weights = tf.get_variable("weights", [WIDTH, WIDTH], case.model)
    x = tf.cast(features["x"], case.model) * tf.nn.embedding_lookup(table, features["ids"])
    x = tf.tanh(tf.matmul(x + tf.gather(table, (features["ids"] * 2 + 1) % ROWS), weights))
    return tf.reduce_sum(tf.cast(x, tf.float64), axis=1) + tf.cast(tf.gather(other, features["ids"]), tf.float64)


def halves_model(case: Case, features: dict[str, tf.Tensor]) -> tf.Tensor:
    """Two halves on two devices of each worker."""
    with tf.device("/cpu:0"):
        table = tf.get_variable("table", [ROWS, WIDTH], tf.float64)
        weights = tf.get_variable("weights", [WIDTH, WIDTH], tf.float64)
        x = tf.tanh(tf.matmul(features["x"] + tf.nn.embedding_lookup(table, features["ids"]), weights))
    with tf.device("/cpu:1"):
        other = tf.get_variable("other", [ROWS], tf.float64)
        bias = tf.get_variable("bias", [WIDTH], tf.float64, initializer=tf.ones_initializer())
        return tf.reduce_sum(tf.sigmoid(x + bias), axis=1) + tf.gather(other, features["ids"])


def on_tasks_model(case: Case, features: dict[str, tf.Tensor]) -> tf.Tensor:
    """Variables and ops on tasks of the cluster: all workers use those of one task."""
    with tf.device("/job:ps/task:1"):
        table = tf.get_variable("table", [ROWS, WIDTH], tf.float64)
        weights = tf.get_variable("weights", [WIDTH, WIDTH], tf.float64)
        tf.get_variable("untrained", [], tf.float64, initializer=tf.zeros_initializer(), trainable=False)
        x = tf.matmul(features["x"] + tf.nn.embedding_lookup(table, features["ids"]), weights)
    with tf.device("/job:worker/task:1/cpu:2"):
        x = tf.tanh(x)
    with tf.device("/job:worker"):
        bias = tf.get_variable("bias", [WIDTH], tf.float64, initializer=tf.ones_initializer())
        return tf.reduce_sum(tf.sigmoid(x + bias), axis=1)


def two_waves_model(case: Case, features: dict[str, tf.Tensor]) -> tf.Tensor:
    """A lookup by the result of another lookup; tables of two dtypes, one with fewer rows than ranks."""
    ids = features["ids"]
    links = tf.get_variable("links", [ROWS], tf.float32, tf.constant_initializer(np.arange(ROWS)[::-1]))
    table = tf.get_variable("table", [ROWS, WIDTH], tf.float64)
    tiny = tf.get_variable("tiny", [2, 1, WIDTH], tf.float64)
    nexts = tf.cast(tf.gather(links, ids), tf.int64) % ROWS
    x = tf.gather(table, tf.reshape(nexts, [2, -1])) + tf.gather(tiny, tf.reshape(ids % 2, [2, -1]))[:, :, 0]
    scale = tf.cast(tf.reduce_mean(tf.gather(links, ids // 2)), tf.float64)
    return tf.reduce_sum(tf.reshape(x, [BATCH, WIDTH]) * features["x"], axis=1) * scale * 0.1


def sampled_model(case: Case, features: dict[str, tf.Tensor]) -> tf.Tensor:
    """Rows by the batch's ids and by random ids, as in a sampled softmax."""
    table = tf.get_variable("table", [ROWS, WIDTH], tf.float64)
    scale = tf.get_variable("scale", [WIDTH], tf.float64)
    classes = tf.expand_dims(tf.cast(features["ids"], tf.int64), 1)
    drawn, _, _ = tf.random.log_uniform_candidate_sampler(classes, 1, num_sampled=3, unique=True, range_max=ROWS)
    x = scale * features["x"] * tf.nn.embedding_lookup(table, features["ids"])
    return tf.reduce_sum(x, axis=1) - 0.3 * tf.reduce_sum(tf.gather(table, drawn))


def deep_model(case: Case, features: dict[str, tf.Tensor]) -> tf.Tensor:
    """Layers of 135 kB each, whose gradients leave in several buckets while others are computed."""
    x = plain_model(case, features)[:, tf.newaxis] * tf.ones([1, DEEP_WIDTH], tf.float64)
    for layer in range(6):
        kernel = tf.get_variable(f"layer_{layer}", [DEEP_WIDTH, DEEP_WIDTH], tf.float64)
        x = tf.tanh(tf.matmul(x, kernel))
    return tf.reduce_mean(x, axis=1)


def unseeded_model(case: Case, features: dict[str, tf.Tensor]) -> tf.Tensor:
    """Initial values without a seed: each rank has others, until all get the chief's."""

    def drawn(shape: list[int], dtype: tf.DType, partition_info: object = None) -> tf.Tensor:
        return tf.reshape(tf.py_func(lambda: np.random.default_rng().normal(size=shape), [], dtype), shape)

    weights = tf.get_variable("unseeded", [WIDTH, WIDTH], tf.float64, drawn)
    table = tf.get_variable("unseeded_table", [ROWS, WIDTH], tf.float64, drawn)
    x = tf.matmul(features["x"] + tf.gather(table, features["ids"]), weights)
    return tf.reduce_sum(tf.tanh(x), axis=1) + plain_model(case, features)


def table_model(case: Case, features: dict[str, tf.Tensor]) -> tf.Tensor:
    """The plain model, whose ids are words that a table turns into ids again; the last two are for unknown words."""
    words = tf.strings.join(["word ü ", tf.strings.as_string(features["ids"])])
    known = [f"word ü {number}" for number in range(ROWS - 2)]
    entries = tf.lookup.KeyValueTensorInitializer(known, tf.range(ROWS - 2, dtype=tf.int64))
    numbers = tf.lookup.StaticVocabularyTable(entries, 2).lookup(words)
    return plain_model(case, {**features, "ids": tf.cast(numbers, tf.int32)})


MODELS = {
    "table": table_model,
    "deep": deep_model,
    "unseeded": unseeded_model,
    "normalized": plain_model,
    "two_waves": two_waves_model,
    "sampled": sampled_model,
    "halves": halves_model,
    "on_tasks": on_tasks_model,
    "mixed": mixed_model,
    "bfloat16": short_model,
    "float16": short_model,
    "loop": loop_model,
    "plain": plain_model,
    "configured": plain_model,
    "in_2_parts": plain_model,
    "in_4_parts": plain_model,
    "short_products": plain_model,
    "short_products_in_2_parts": plain_model,
    "statistics_in_2_parts": batch_norm_model,
    "sampled_in_4_parts": sampled_model,
    "chained": plain_model,
    "joined": plain_model,
    "joined_once": plain_model,
    "joined_in_order": plain_model,
    "accumulated": plain_model,
    "accumulated_branch": plain_model,
    "batch_norm": batch_norm_model,
    "declared": declared_model,
    "random": random_model,
    "decay_after": plain_model,
    "row_decay": plain_model,
    "padding": plain_model,
    "function": function_model,
}
