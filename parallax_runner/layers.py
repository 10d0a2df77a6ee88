"""Keras layers for training with parallax_runner. They also work in plain Keras, on one device."""

from __future__ import annotations

import math
import random
from typing import Any

import keras
import tensorflow as tf

from parallax_runner.errors import ConfigError
from parallax_runner.graph.growing.hashed_keys import BUCKETS, initial_rows
from parallax_runner.graph.growing.key_calls import UNKNOWN, rows_of_known, rows_with_inserts, table_rows
from parallax_runner.graph.growing.key_map import MapHandles, MapShape
from parallax_runner.graph.growing.marks import TableMark, mark

OVERFLOWS = ("error", "shared")
_TABLES = "_parallax_growing_tables"  # the attribute of a graph
DEFAULT_SCALE = 0.05  # of Keras' own Embedding


@keras.saving.register_keras_serializable(package="parallax_runner")
class GrowingEmbedding(keras.layers.Layer):  # type: ignore[misc]
    """An embedding whose vocabulary grows while it trains.

    The inputs are keys (int64, any shape): any 64-bit integers. A training step gives each new key a row of its own.
    Validation and prediction never do: for a key that no training step has seen, they return the key's initial row,
    which is what the first training step with this key would see. The result has the shape of the keys and one more
    dimension of size `dim`.

    Ragged keys give ragged rows.

    Args:
        dim: the number of columns of a row.
        capacity: the number of rows, at least 1,024, rounded up to a multiple of 1,024. A key belongs to one of 1,024
            buckets, and each bucket has an equal share of the rows.
        overflow: what becomes of a new key whose bucket is full. With «error», the training step fails before it
            changes anything. With «shared», all such keys of a bucket share one more row, which is zero at first.
        seed: decides the initial rows, together with the keys. None draws a seed, as Keras' initializers do.
        scale: initial values are uniform in [-scale, scale).

    Raises ConfigError if an argument is out of range, and ValueError if the inputs are not integers.
    """

    def __init__(
        self,
        dim: int,
        capacity: int,
        *,
        overflow: str = "error",
        seed: int | None = None,
        scale: float = DEFAULT_SCALE,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        _check(dim, capacity, overflow, scale)
        self.dim, self.capacity, self.overflow, self.scale = dim, capacity, overflow, float(scale)
        self.seed = random.randint(1, 10**9) if seed is None else int(seed)
        self.map_shape = MapShape(math.ceil(capacity / BUCKETS), overflow == "shared")
        self.supports_jit = False
        self._last_write: Any = None  # in a TensorFlow 1 graph

    def build(self, input_shape: Any) -> None:
        """Creates the table and the variables of the map."""
        shape = self.map_shape
        # With autocast, each read would convert the whole table to the compute dtype.
        self.rows = self.add_weight(
            shape=(table_rows(shape), self.dim),
            initializer="zeros",
            dtype=self.variable_dtype,
            autocast=False,
            name="rows",
        )
        self.keys = self._add_to_map("keys", (BUCKETS, shape.places), "int64")
        self.index = self._add_to_map("index", (BUCKETS, shape.positions), "int32")
        self.fill = self._add_to_map("fill", (BUCKETS,), "int32")
        self.overflowed = self._add_to_map("overflow", (BUCKETS,), "int64")

    def call(self, keys: Any, training: bool | None = None) -> Any:
        """Returns the rows of keys ([*shape of keys, dim]). With `training`, new keys get a row."""
        if isinstance(keys, tf.RaggedTensor):
            return keys.with_flat_values(self.call(keys.flat_values, training=training))
        keys = _as_keys(keys, self.name)
        flat = tf.reshape(keys, [-1])
        rows = self._trained_rows(flat) if training else self._known_rows(flat)
        shape = tf.concat([tf.shape(keys), [self.dim]], axis=0)
        result = tf.reshape(rows, shape)
        result.set_shape(keys.shape.concatenate([self.dim]))
        return tf.cast(result, self.compute_dtype)

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """Returns the shape of the keys and one more dimension."""
        return (*input_shape, self.dim)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments from which the layer can be created again."""
        own = {"dim": self.dim, "capacity": self.capacity, "overflow": self.overflow}
        return {**super().get_config(), **own, "seed": self.seed, "scale": self.scale}

    def _add_to_map(self, name: str, shape: tuple[int, ...], dtype: str) -> Any:
        return self.add_weight(shape=shape, initializer="zeros", dtype=dtype, trainable=False, name=name)

    def _trained_rows(self, keys: Any) -> Any:
        table = self.rows.value
        with tf.control_dependencies(self._inserts_before()):
            inserted = rows_with_inserts(self._handles(), keys, self.map_shape)
        written = tf.raw_ops.ResourceScatterUpdate(
            resource=table.handle, indices=inserted.new_rows, updates=self._initial(inserted.new_keys)
        )
        self._mark(inserted.rows)
        if written is not None:
            mark(written, self._described())
        if _is_unordered():
            self._last_write = written
        with tf.control_dependencies([] if written is None else [written]):
            return tf.gather(table, inserted.rows)

    def _inserts_before(self) -> list[Any]:
        """Returns what an insert must wait for. Two inserts at once would give a key two rows."""
        last = self._last_write
        is_before = _is_unordered() and last is not None and last.graph is tf.compat.v1.get_default_graph()
        return [last] if is_before else []

    def _known_rows(self, keys: Any) -> Any:
        numbers = rows_of_known(self._handles(), keys, self.map_shape)
        self._mark(numbers)
        rows = tf.gather(self.rows.value, tf.maximum(numbers, 0))
        unknown = tf.where(tf.equal(numbers, UNKNOWN))  # with TensorFlow 1 behavior, == compares objects
        initial = self._initial(tf.gather_nd(keys, unknown))
        return tf.tensor_scatter_nd_update(rows, unknown, initial)

    def _initial(self, keys: Any) -> Any:
        rows = initial_rows(keys, seed=self.seed, columns=self.dim, scale=self.scale)
        return tf.cast(rows, self.variable_dtype)

    def _handles(self) -> MapHandles:
        return MapHandles(*(one.value.handle for one in (self.keys, self.index, self.fill, self.overflowed)))

    def _mark(self, numbers: Any) -> None:
        if not tf.executing_eagerly():
            mark(numbers.op, self._described())

    def _described(self) -> TableMark:
        shape = self.map_shape
        return TableMark(
            self.path, shape.places, shape.has_overflow_rows, seed=self.seed, columns=self.dim, scale=self.scale
        )


def growing_lookup(
    keys: Any,
    *,
    name: str,
    dim: int,
    capacity: int,
    training: bool,
    overflow: str = "error",
    seed: int = 0,
    scale: float = DEFAULT_SCALE,
) -> Any:
    """Returns the rows of keys ([*shape of keys, dim]) in the table `name` of the current TensorFlow 1 graph.

    The first call in a graph creates the table, and further calls with the same name use it. The arguments are those of
    `GrowingEmbedding`. With `training`, new keys get a row: pass True for the loss that the graph trains on, and False
    for validation and served outputs.

    Raises ConfigError if an argument is out of range, or differs from that of the table's first call.
    """
    arguments: dict[str, Any] = {"dim": dim, "capacity": capacity, "overflow": overflow, "seed": seed, "scale": scale}
    tables = _tables_of(tf.compat.v1.get_default_graph())
    if name not in tables:
        tables[name] = GrowingEmbedding(**arguments, name=name)
    table = tables[name]
    for argument, value in arguments.items():
        before = getattr(table, argument)
        if before != value:
            raise ConfigError(f"growing_lookup: {argument}={value!r}, but the table «{name}» has {argument}={before!r}")
    return table(keys, training=training)


def _is_unordered() -> bool:
    """Returns whether ops run in any order, as in a TensorFlow 1 graph. In a function, TensorFlow orders the ops that
    use a variable."""
    return not tf.executing_eagerly() and not tf.compat.v1.get_default_graph().building_function


def _tables_of(graph: Any) -> dict[str, GrowingEmbedding]:
    """Returns the tables of `growing_lookup` in a graph, which owns them."""
    if not hasattr(graph, _TABLES):
        setattr(graph, _TABLES, {})
    tables: dict[str, GrowingEmbedding] = getattr(graph, _TABLES)
    return tables


def _check(dim: int, capacity: int, overflow: str, scale: float) -> None:
    if dim < 1:
        raise ConfigError(f"GrowingEmbedding: dim={dim!r}, expected at least 1")
    if capacity < BUCKETS:
        raise ConfigError(
            f"GrowingEmbedding: capacity={capacity!r}, expected at least {BUCKETS}, because the rows are divided among "
            f"{BUCKETS} buckets. Give it a larger capacity"
        )
    if overflow not in OVERFLOWS:
        raise ConfigError(f"GrowingEmbedding: overflow={overflow!r}, expected one of {', '.join(OVERFLOWS)}")
    if not scale >= 0:
        raise ConfigError(f"GrowingEmbedding: scale={scale!r}, expected at least 0")


def _as_keys(keys: Any, layer: str) -> Any:
    keys = tf.convert_to_tensor(keys)
    if not keys.dtype.is_integer or keys.dtype == tf.uint64:
        raise ValueError(
            f"the layer «{layer}» (GrowingEmbedding) got inputs of dtype {keys.dtype.name}, expected int64 keys: give "
            'the input dtype="int64"'
        )
    return tf.cast(keys, tf.int64)
