"""The content of an eager table is found whatever its types are, and tables that can change are refused."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from parallax_runner.errors import CaptureError
from parallax_runner.graph.capture import capture
from parallax_runner.graph.tables import add_table, content_of, is_table

WORDS = ["ü", "", "a b", "日本"]
VALUES = {
    "string": ["x", "", "é", "z"],
    "int64": [4, -1, 2**40, 0],
    "int32": [4, -1, 7, 0],
    "float32": [0.5, -1.0, 7.0, 0.0],
    "float64": [0.5, -1.0, 7.0, 0.0],
    "bool": [True, False, True, True],
}
KEYS: dict[str, list[Any]] = {"string": WORDS, "int64": [3, 2**40, -5, 0], "int32": [3, 7, -5, 0]}
# The static tables that TensorFlow has.
PAIRS = [
    *itertools.product(["string"], VALUES),
    *itertools.product(["int64"], ["string", "int64", "int32", "float32", "float64"]),
    *itertools.product(["int32"], ["string", "int32", "float32", "float64"]),
]


def static(key_type: str, value_type: str) -> Any:
    keys, values = tf.constant(KEYS[key_type], key_type), tf.constant(VALUES[value_type], value_type)
    default = tf.zeros([], value_type)
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), default)


@pytest.mark.parametrize(("key_type", "value_type"), PAIRS)
def test_a_table_in_a_graph_has_the_content_of_the_eager_table(key_type: str, value_type: str) -> None:
    table = static(key_type, value_type)
    content = content_of(table.resource_handle, "an op")
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        handle = add_table(content, "mine").handle
        keys = tf.constant(KEYS[key_type], key_type)
        found = tf.raw_ops.LookupTableFindV2(table_handle=handle, keys=keys, default_value=tf.zeros([], value_type))
        session.run(tf1.tables_initializer())
        expected = [one.encode() if isinstance(one, str) else one for one in VALUES[value_type]]
        assert session.run(found).tolist() == expected
        assert [op.name for op in graph.get_operations() if op.type == "HashTableV2"] == ["mine/table"]
    assert content.keys.tolist() == sorted(content.keys.tolist())


def test_a_table_of_a_file_and_of_a_saved_model(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("\n".join(["a", *WORDS[2:]]), encoding="utf-8")
    lines = tf.lookup.TextFileInitializer(
        str(tmp_path / "words.txt"),
        *("string", tf.lookup.TextFileIndex.WHOLE_LINE),
        *("int64", tf.lookup.TextFileIndex.LINE_NUMBER),
    )
    module = tf.Module()
    module.table = tf.lookup.StaticHashTable(lines, -1)
    tf.saved_model.save(module, str(tmp_path / "saved"))
    loaded = tf.saved_model.load(str(tmp_path / "saved"))
    for handle in (module.table.resource_handle, loaded.table.resource_handle):
        content = content_of(handle, "an op")
        found = dict(zip(content.keys.tolist(), content.values.tolist(), strict=True))
        assert found == {b"a": 0, b"a b": 1, "日本".encode(): 2}


def test_other_resources_are_no_tables() -> None:
    numbers = iter(tf.data.Dataset.range(3))
    assert not is_table(tf.Variable(1.0).handle)
    assert not is_table(numbers._iterator_resource)
    assert is_table(static("string", "int64").resource_handle)


@pytest.mark.parametrize(
    "table",
    [
        lambda: tf.lookup.experimental.MutableHashTable("string", "int64", -1),
        lambda: tf.lookup.experimental.MutableHashTable("int64", "float32", tf.zeros([2])),
        lambda: tf.lookup.experimental.DenseHashTable("string", "int64", -1, "", "$"),
    ],
)
def test_a_table_that_can_change_is_refused(table: Any) -> None:
    made = table()
    assert is_table(made.resource_handle)
    with pytest.raises(CaptureError, match=r"«an op»: a mutable lookup table .*would differ between the ranks"):
        content_of(made.resource_handle, "an op")


def in_a_graph(features: dict[str, Any]) -> dict[str, Any]:
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 1.0)
    weights = tf1.get_variable("weights", [3])
    loss = tf.reduce_mean(tf.square(weights * table.lookup(features["ids"])))
    return {"loss": loss, "train_op": tf1.train.GradientDescentOptimizer(0.1).minimize(loss)}


def test_a_table_of_a_graph_that_can_change_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"«MutableHashTable»: a mutable lookup table"):
        capture(in_a_graph, {"ids": ((3,), "int64")}, seed=1)


def test_tables_with_other_content_have_other_names() -> None:
    """Two sessions of a server have one table of a name."""
    contents = [content_of(static("string", kind).resource_handle, "an op") for kind in ("int64", "int32", "int64")]
    with tf.Graph().as_default():
        handles = [add_table(content, "mine").handle.op for content in contents]
        names = [handle.get_attr("shared_name") for handle in handles]
    assert names[0] == names[2] != names[1]


def test_content_does_not_depend_on_the_order_in_which_tensorflow_has_it() -> None:
    words = np.array([f"w{number}" for number in np.random.default_rng(1).permutation(500)])
    order = np.random.default_rng(2).permutation(500)
    numbers = np.arange(500)
    made = [
        tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(words[rows], numbers[rows]), -1)
        for rows in (order, order[::-1])
    ]
    one, other = (content_of(table.resource_handle, "an op") for table in made)
    assert one.keys.tolist() == other.keys.tolist() and one.values.tolist() == other.values.tolist()
