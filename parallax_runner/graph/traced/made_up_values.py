"""Values for which a loss can be evaluated as well as for the true values: whether a loss is a mean over examples does
not depend on them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.graph.growing.key_calls import table_rows
from parallax_runner.graph.growing.marks import key_calls

# Rows of tables that have more bytes are made up.
LARGE_TABLE_BYTES = 2**20
# The result of a random op, for each element. An example then has the same loss in a batch and in a half of it.
DRAWN = 0.37
# Largest made-up numbers in rows of tables, and largest changes of looked-up rows and of other vectors and numbers.
ROWS, NUMBERS = 0.5, 0.1
_DRAWING = frozenset(
    {
        *("RandomUniform", "RandomStandardNormal", "TruncatedNormal"),
        *("StatelessRandomUniform", "StatelessRandomNormal", "StatelessTruncatedNormal"),
        *("StatelessRandomUniformV2", "StatelessRandomNormalV2", "StatelessTruncatedNormalV2"),
    }
)
_BUCKETS = 1009  # number of distinct values in made-up rows; prime


def bytes_of(variable: Any) -> int:
    """Returns the size of a variable in bytes."""
    return int(variable.dtype.size * (variable.shape.num_elements() or 0))


def make_up_rows_of_keys(graph: tf.Graph) -> None:
    """Replaces lookups of keys in vocabularies that grow, so that their maps need no values. The row of a key depends
    only on the key."""
    calls = key_calls(graph.get_operations())
    edit.reconnect_all([(call.rows, tf.math.floormod(call.keys, table_rows(call.table.shape))) for call in calls])


def make_up_rows(graph: tf.Graph, variables: Iterable[Any]) -> None:
    """Replaces lookups in large tables, so that the tables need no values. A made-up row depends only on its id."""
    large = {one.handle.op: one for one in variables if bytes_of(one) > LARGE_TABLE_BYTES and one.dtype.is_floating}
    made: list[tuple[Any, Any]] = []
    for lookup in [op for op in graph.get_operations() if op.type == "ResourceGather"]:
        table = large.get(lookup.inputs[0].op)
        if table is not None and not lookup.get_attr("batch_dims"):
            made.append((lookup.outputs[0], _made_up_rows(lookup.inputs[1], table)))
    edit.reconnect_all(made)


def replace_draws(graph: tf.Graph) -> None:
    """Replaces the results of random ops outside of functions by constants."""
    drawing = [op for op in graph.get_operations() if op.type in _DRAWING]
    edit.reconnect_all([(op.outputs[0], tf.fill(op.inputs[0], tf.cast(DRAWN, op.outputs[0].dtype))) for op in drawing])


def varied(variables: Sequence[Any]) -> list[Any]:
    """Returns ops that change the trained variables by random numbers, the same in each process."""
    return [
        one.assign_add(_largest_change(one) * _noise(one, number))
        for number, one in enumerate(variables)
        if one.trainable and one.dtype.is_floating
    ]


def _made_up_rows(ids: Any, table: Any) -> Any:
    width = tf.range(table.shape[1:].num_elements(), dtype=tf.int64)
    bucket = tf.math.floormod(tf.cast(ids, tf.int64)[..., None] * 7919 + width * 619, _BUCKETS)
    numbers = (tf.cast(bucket, tf.float32) / _BUCKETS * 2 - 1) * ROWS
    shape = tf.concat([tf.shape(ids), tf.constant(table.shape[1:].as_list(), tf.int32)], axis=0)
    return tf.cast(tf.reshape(numbers, shape), table.dtype.base_dtype)


def _noise(variable: Any, number: int) -> Any:
    return tf.random.stateless_uniform(variable.shape, [number, 1], -1, 1, dtype=variable.dtype.base_dtype)


def _largest_change(variable: Any) -> float:
    """Returns the largest change of an element. It keeps the size of what passes through a layer, because a loss that
    is nearly the same for all examples would show nothing."""
    if any(op.type == "ResourceGather" for op in variable.handle.consumers()):
        return ROWS
    if variable.shape.rank < 2:
        return NUMBERS
    inputs = variable.shape[:-1].num_elements() or 1
    return float(np.sqrt(3 / inputs))
