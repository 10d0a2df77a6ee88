"""Each static table that traced steps read is added once; other captures are left alone."""

from __future__ import annotations

from typing import Any

import keras
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from parallax_runner.errors import CaptureError
from parallax_runner.graph.tables import AddedTable
from parallax_runner.graph.traced.tables import add_tables

WORDS = ["é", "b", "日本"]


def static(values: list[int]) -> Any:
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(WORDS, tf.constant(values, tf.int64)), -1)


def captures_of(function: Any, dtype: str = "string") -> Any:
    """The pairs of a trace: the eager tensor, and its placeholder."""
    return tf.function(function).get_concrete_function(tf.TensorSpec([None], dtype)).graph.captures


def added(captures: Any, variables: Any = ()) -> tuple[dict[int, AddedTable], list[str], tf.Graph]:
    with tf.Graph().as_default() as graph:
        found = add_tables(captures, variables)
    return found, [op.name for op in graph.get_operations() if op.type == "HashTableV2"], graph


def looked_up(table: AddedTable, graph: tf.Graph, words: list[str]) -> list[int]:
    with graph.as_default(), tf1.Session() as session:
        keys, default = tf.constant(words), tf.constant(-1, tf.int64)
        ids = tf.raw_ops.LookupTableFindV2(table_handle=table.handle, keys=keys, default_value=default)
        session.run(tf1.tables_initializer())
        return list(session.run(ids).tolist())


def test_each_table_is_added_once_with_its_content() -> None:
    one, other = static([3, 4, 5]), static([7, 8, 9])
    first = captures_of(lambda words: one.lookup(words) + other.lookup(words))
    second = captures_of(lambda words: other.lookup(words))
    found, names, graph = added([*first, *second])
    assert names == ["lookup_tables/0/table", "lookup_tables/1/table"]
    assert set(found) == {one.resource_handle._id, other.resource_handle._id}
    for table, expected in ((one, [4, -1, 5]), (other, [8, -1, 9])):
        assert looked_up(found[table.resource_handle._id], graph, ["b", "a", "日本"]) == expected


def test_variables_constants_and_iterators_are_no_tables() -> None:
    variable, constant = tf.Variable([1.0]), tf.constant([2.0])
    captures = list(captures_of(lambda numbers: numbers * variable * constant, "float32"))
    assert {outer.dtype for outer, _ in captures} == {tf.resource, tf.float32}
    assert added(captures)[:2] == ({}, [])
    assert added([])[:2] == ({}, [])


def test_a_handle_that_is_known_as_a_variable_is_not_asked() -> None:
    table = static([1, 2, 3])
    captures = captures_of(lambda words: table.lookup(words))
    assert added(captures, {table.resource_handle._id})[:2] == ({}, [])


def test_the_table_of_a_keras_layer() -> None:
    layer = keras.layers.StringLookup(vocabulary=WORDS)
    found, _, graph = added(captures_of(lambda words: layer(words)))
    (table,) = found.values()
    assert looked_up(table, graph, ["日本", "é"]) == [3, 1]


def test_a_mutable_table_is_refused_with_the_op_that_reads_it() -> None:
    table = tf.lookup.experimental.MutableHashTable("string", "int64", -1)
    captures = list(captures_of(lambda words: table.lookup(words)))
    (name,) = {op.name for _, inner in captures for op in inner.consumers()}
    with pytest.raises(CaptureError, match=f"«{name}»: a mutable lookup table"):
        added(captures)
