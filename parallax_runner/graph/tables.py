"""Static lookup tables: reads the content of an eager table, adds a table with this content to a graph, and refuses
tables whose content can change."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.eager import context

from parallax_runner.data.digest import digest_of
from parallax_runner.errors import CaptureError
from parallax_runner.graph.all_nodes import all_nodes

# The types of the keys and of the values of TensorFlow's static tables.
KEY_TYPES = (tf.string, tf.int64, tf.int32)
VALUE_TYPES = (tf.int64, tf.string, tf.int32, tf.float32, tf.float64, tf.bool)
# Types of ops: those that make tables whose content never changes once they are filled, those that make other tables,
# and those that only read a table.
STATIC = frozenset({"HashTable", "HashTableV2"})
MUTABLE = frozenset(
    {
        *("MutableHashTable", "MutableHashTableV2", "MutableHashTableOfTensors", "MutableHashTableOfTensorsV2"),
        *("MutableDenseHashTable", "MutableDenseHashTableV2", "AnonymousMutableHashTable"),
        *("AnonymousMutableHashTableOfTensors", "AnonymousMutableDenseHashTable"),
    }
)
WHY_REFUSED = (
    "a mutable lookup table (such as tf.lookup.experimental.MutableHashTable or DenseHashTable) cannot be distributed, "
    "because its content would differ between the ranks. Use a tf.lookup.StaticHashTable: its content is the same on "
    "all ranks and is saved with the model"
)
READS = frozenset({"LookupTableFind", "LookupTableFindV2", "LookupTableSize", "LookupTableSizeV2"})
HAS_NO_CONTENT = "call adapt() of the layer, or give it a vocabulary, before training"
# Ops that fill a table, whose first input is the table.
FILLS = frozenset(
    {
        *("InitializeTable", "InitializeTableV2", "InitializeTableFromTextFile", "InitializeTableFromTextFileV2"),
        *("InitializeTableFromDataset", "LookupTableImport", "LookupTableImportV2"),
    }
)
# A worker reads a table in its own memory. Tables have no kernels for GPUs.
DEVICE = "/device:CPU:0"


@dataclass(frozen=True)
class StaticTable:
    """The content of a static table: `values[i]` belongs to `keys[i]`. Strings are objects of type bytes. The keys are
    sorted, because TensorFlow returns them in another order in each process."""

    keys: np.ndarray
    values: np.ndarray
    key_type: Any
    value_type: Any


@dataclass(frozen=True)
class AddedTable:
    """A table in a graph. `handle` is its resource."""

    handle: Any


def is_table(handle: Any) -> bool:
    """Returns whether an eager resource is a lookup table."""
    try:
        with context.eager_mode():
            tf.raw_ops.LookupTableSizeV2(table_handle=handle)
    except tf.errors.OpError:
        return False
    return True


def content_of(handle: Any, used_by: str) -> StaticTable:
    """Returns the content of an eager table. `used_by` is the name of the op or layer that uses it.

    Raises CaptureError if the table is mutable or has no content yet.
    """
    with context.eager_mode(), tf.device(DEVICE):
        types = _static_types(handle)
        if types is None:
            raise CaptureError(f"«{used_by}»: {WHY_REFUSED}")
        key_type, value_type = types
        if not _is_initialized(handle, key_type, value_type):
            raise CaptureError(f"«{used_by}» uses a lookup table that has no content yet: {HAS_NO_CONTENT}")
        keys, values = tf.raw_ops.LookupTableExportV2(table_handle=handle, Tkeys=key_type, Tvalues=value_type)
    order = np.argsort(keys.numpy())
    return StaticTable(keys.numpy()[order], values.numpy()[order], key_type, value_type)


def add_table(table: StaticTable, name: str) -> AddedTable:
    """Adds a table with this content to the default graph. The op that fills the table is in the collection
    TABLE_INITIALIZERS."""
    # In a cluster, a table outlives its session. The next session in the same process can have another table of the
    # same name.
    content = digest_of({"keys": table.keys, "values": table.values})
    with tf.name_scope(f"{name}/"), tf.device(DEVICE):
        handle = tf.raw_ops.HashTableV2(
            key_dtype=table.key_type, value_dtype=table.value_type, shared_name=f"{name}/{content}", name="table"
        )
        keys = tf.constant(table.keys, table.key_type, name="keys")
        values = tf.constant(table.values, table.value_type, name="values")
        filled = tf.raw_ops.InitializeTableV2(table_handle=handle, keys=keys, values=values, name="fill")
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, filled)
    return AddedTable(handle)


def refuse_mutable_tables(graph_def: Any) -> None:
    """Raises CaptureError if a graph contains a mutable table."""
    for node in all_nodes(graph_def):
        if node.op in MUTABLE:
            raise CaptureError(f"«{node.name}»: {WHY_REFUSED}")


def why_tables_fail(pipeline: Any) -> str | None:
    """Returns the reason why a `tf.data` pipeline with these lookup tables cannot be used, or None. `pipeline` is the
    GraphDef that TensorFlow has written for it, with the content of its tables."""
    if any(node.op in MUTABLE for node in all_nodes(pipeline)):
        return WHY_REFUSED
    filled = {node.input[0] for node in pipeline.node if node.op in FILLS}
    if any(node.op in STATIC and node.name not in filled for node in pipeline.node):
        return f"a lookup table has no content yet: {HAS_NO_CONTENT}"
    return None


def _static_types(handle: Any) -> tuple[Any, Any] | None:
    """Returns the types of the keys and values of a table, or None if the table is mutable.

    The types are found by inserting nothing: TensorFlow tells wrong types first, and that a table is static then. A
    wrong type in an export would end the process.
    """
    for key_type, value_type in itertools.product(KEY_TYPES, VALUE_TYPES):
        try:
            tf.raw_ops.LookupTableInsertV2(
                table_handle=handle, keys=tf.zeros([0], key_type), values=tf.zeros([0], value_type)
            )
        except tf.errors.UnimplementedError:
            return key_type, value_type
        except tf.errors.InvalidArgumentError:
            continue
        return None
    return None


def _is_initialized(handle: Any, key_type: Any, value_type: Any) -> bool:
    try:
        tf.raw_ops.LookupTableFindV2(
            table_handle=handle, keys=tf.zeros([0], key_type), default_value=tf.zeros([], value_type)
        )
    except tf.errors.FailedPreconditionError:
        return False
    return True
