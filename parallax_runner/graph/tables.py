"""Static lookup tables: reads the content of an eager table, adds a table with this content to a graph, and refuses
tables whose content can change."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.eager import context

from parallax_runner.errors import CaptureError

# The types of the keys and of the values of TensorFlow's static tables.
KEY_TYPES = (tf.string, tf.int64, tf.int32)
VALUE_TYPES = (tf.int64, tf.string, tf.int32, tf.float32, tf.float64, tf.bool)
# Types of ops that make tables: those whose content never changes once they are filled, and all others.
STATIC = frozenset({"HashTable", "HashTableV2"})
MUTABLE = frozenset(
    {
        *("MutableHashTable", "MutableHashTableV2", "MutableHashTableOfTensors", "MutableHashTableOfTensorsV2"),
        *("MutableDenseHashTable", "MutableDenseHashTableV2", "AnonymousMutableHashTable"),
        *("AnonymousMutableHashTableOfTensors", "AnonymousMutableDenseHashTable"),
    }
)
WHY_REFUSED = (
    "it is a mutable lookup table (such as tf.lookup.experimental.MutableHashTable or DenseHashTable), whose content "
    "would differ between the ranks. Use a tf.lookup.StaticHashTable: its content is the same on all ranks and is "
    "saved with the model"
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
            raise CaptureError(f"«{used_by}» uses a table that cannot be distributed: {WHY_REFUSED}")
        key_type, value_type = types
        if not _is_initialized(handle, key_type, value_type):
            raise CaptureError(
                f"«{used_by}» uses a lookup table that has no content yet: call adapt() of the layer, or give it a "
                "vocabulary, before training"
            )
        keys, values = tf.raw_ops.LookupTableExportV2(table_handle=handle, Tkeys=key_type, Tvalues=value_type)
    order = np.argsort(keys.numpy())
    return StaticTable(keys.numpy()[order], values.numpy()[order], key_type, value_type)


def add_table(table: StaticTable, name: str) -> AddedTable:
    """Adds a table with this content to the default graph. The op that fills the table is in the collection
    TABLE_INITIALIZERS."""
    with tf.name_scope(f"{name}/"), tf.device(DEVICE):
        handle = tf.raw_ops.HashTableV2(
            key_dtype=table.key_type, value_dtype=table.value_type, use_node_name_sharing=True, name="table"
        )
        keys = tf.constant(table.keys, table.key_type, name="keys")
        values = tf.constant(table.values, table.value_type, name="values")
        filled = tf.raw_ops.InitializeTableV2(table_handle=handle, keys=keys, values=values, name="fill")
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, filled)
    return AddedTable(handle)


def refuse_mutable_tables(nodes: Iterable[Any]) -> None:
    """Raises CaptureError if one of these nodes of a GraphDef is a mutable table."""
    for node in nodes:
        if node.op in MUTABLE:
            raise CaptureError(f"«{node.name}» cannot be distributed: {WHY_REFUSED}")


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
