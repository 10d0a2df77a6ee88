"""Keras layers for training with parallax_runner. They also work in plain Keras, on one device."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from parallax_runner.errors import ConfigError
from parallax_runner.graph.growing.hashed_keys import BUCKETS, initial_rows
from parallax_runner.graph.growing.key_calls import UNKNOWN, rows_of_known, rows_with_inserts, table_rows
from parallax_runner.graph.growing.key_map import MapHandles, MapShape
from parallax_runner.graph.growing.marks import TableMark, mark, mark_slot
from parallax_runner.graph.growing.rules import rules_of
from parallax_runner.graph.growing.slots import RowSlot, keras_slots, keras_slots_begin_at, session_slots

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

    With `evict`, the layer must know the optimizer: build it, and call `table.set_optimizer(model.optimizer)`.

    Ragged keys give ragged rows.

    Args:
        dim: the number of columns of a row.
        capacity: the number of rows, at least 1,024, rounded up to a multiple of 1,024. A key belongs to one of 1,024
            buckets, and each bucket has an equal share of the rows.
        overflow: what becomes of a new key whose bucket is full. With «error», the training step fails before it
            changes anything. With «shared», all such keys of a bucket share one more row, which is zero at first.
        seed: decides the initial rows, together with the keys. None draws a seed, as Keras' initializers do.
        scale: initial values are uniform in [-scale, scale).
        admit: {"min_count": n}: a key gets a row in the training step in which it occurs for the n-th time. Until then,
            lookups return its initial row, and its gradient goes nowhere.
        evict: {"unused_steps": n, "every_steps": m}: after every m-th training step (every n-th by default), the keys
            that none of the last n steps has looked up lose their rows and their counts. The next key that gets such a
            row begins with its own initial row, and with the initial values of the optimizer's slots.

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
        admit: Mapping[str, int] | None = None,
        evict: Mapping[str, int] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        _check(dim, capacity, overflow, scale)
        self.dim, self.capacity, self.overflow, self.scale = dim, capacity, overflow, float(scale)
        self.seed = random.randint(1, 10**9) if seed is None else int(seed)
        self.rules = rules_of(admit, evict)
        self.map_shape = MapShape(math.ceil(capacity / BUCKETS), overflow == "shared", *self.rules)
        self.supports_jit = False
        self._last_writes: list[Any] = []  # in a TensorFlow 1 graph
        self._slots: Callable[[], list[RowSlot]] | None = None

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
        made = {name: self._add_to_map(name, one.width, one.dtype) for name, one in shape.variables.items()}
        self.map_variables = list(made.values())
        self.keys, self.index, self.fill, self.overflowed = self.map_variables[:4]

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
        rules = {"admit": self.rules.admit, "evict": self.rules.evict}
        return {**super().get_config(), **own, **rules, "seed": self.seed, "scale": self.scale}

    def set_optimizer(self, optimizer: Any, initial: Mapping[str, float] | None = None) -> None:
        """Tells the layer which Keras optimizer updates its rows, so that the slots of a row start afresh when another
        key gets it. `optimizer` must be built before the first training call, with `model.trainable_variables`.

        `initial` has the initial values of the slots by their names, such as «momentum». It is needed for an optimizer
        that is not one of Keras' own.

        Raises ConfigError if `initial` is needed and not given.
        """
        if not self.map_shape.evicts:
            return
        begin_at = keras_slots_begin_at(optimizer) if initial is None else dict(initial)
        self._slots = lambda: keras_slots(optimizer, self.rows, begin_at)

    def set_session_optimizer(self, optimizer: Any) -> None:
        """Does the same for a TensorFlow 1 optimizer. Raises ConfigError if it is None."""
        if optimizer is None:
            raise ConfigError(
                f"growing_lookup: the table «{self.name}» evicts keys, so it needs the argument optimizer"
            )
        self._slots = lambda: session_slots(optimizer, self.rows.value)

    def _add_to_map(self, name: str, width: tuple[int, ...], dtype: str) -> Any:
        shape = (BUCKETS, *width)
        return self.add_weight(shape=shape, initializer="zeros", dtype=dtype, trainable=False, name=name)

    def _trained_rows(self, keys: Any) -> Any:
        table, slots = self.rows.value, self._slots_of_rows()
        with tf.control_dependencies(self._inserts_before()):
            inserted = rows_with_inserts(self._handles(), keys, self.map_shape)
        self._mark(inserted.rows)
        written = [_write(table, inserted.new_rows, self._initial(inserted.new_keys))]
        written += [_write(slot.variable, inserted.new_rows, _rows_of(slot, inserted.new_rows)) for slot in slots]
        if not tf.executing_eagerly():
            mark(written[0], self._described())
            for op, slot in zip(written[1:], slots, strict=True):
                mark_slot(op, self._described(), slot.initial)
        if _is_unordered():
            self._last_writes = written
        with tf.control_dependencies([op for op in written if op is not None]):
            return self._with_initial_rows(keys, inserted.rows) if self.map_shape.admits else self._own(inserted.rows)

    def _inserts_before(self) -> list[Any]:
        """Returns what an insert must wait for. Two inserts at once would give a key two rows."""
        last = self._last_writes if _is_unordered() else []
        return [op for op in last if op.graph is tf.compat.v1.get_default_graph()]

    def _slots_of_rows(self) -> list[RowSlot]:
        if not self.map_shape.evicts:
            return []
        if self._slots is None:
            raise ConfigError(
                f"the layer «{self.name}» (GrowingEmbedding) evicts keys and does not know the optimizer, whose slots "
                "must start afresh with a row: call set_optimizer(model.optimizer) on the layer after compile"
            )
        return self._slots()

    def _known_rows(self, keys: Any) -> Any:
        numbers = rows_of_known(self._handles(), keys, self.map_shape)
        self._mark(numbers)
        return self._with_initial_rows(keys, numbers)

    def _own(self, numbers: Any) -> Any:
        return tf.gather(self.rows.value, numbers)

    def _with_initial_rows(self, keys: Any, numbers: Any) -> Any:
        """Returns the rows with these numbers, and the initial rows of keys without a row. No gradient reaches the
        table for them: even a gradient of zero would make an optimizer update some row."""
        is_unknown = tf.equal(numbers, UNKNOWN)  # with TensorFlow 1 behavior, == compares objects
        known, unknown = (tf.cast(tf.where(one)[:, 0], tf.int32) for one in (~is_unknown, is_unknown))
        rows = self._own(tf.gather(numbers, known))
        return tf.dynamic_stitch([known, unknown], [rows, self._initial(tf.gather(keys, unknown))])

    def _initial(self, keys: Any) -> Any:
        rows = initial_rows(keys, seed=self.seed, columns=self.dim, scale=self.scale)
        return tf.cast(rows, self.variable_dtype)

    def _handles(self) -> MapHandles:
        return self.map_shape.handles([one.value.handle for one in self.map_variables])

    def _mark(self, numbers: Any) -> None:
        if not tf.executing_eagerly():
            mark(numbers.op, self._described())

    def _described(self) -> TableMark:
        shape = self.map_shape
        return TableMark(
            self.path,
            shape.places,
            shape.has_overflow_rows,
            seed=self.seed,
            columns=self.dim,
            scale=self.scale,
            **self.rules._asdict(),
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
    admit: Mapping[str, int] | None = None,
    evict: Mapping[str, int] | None = None,
    optimizer: Any = None,
) -> Any:
    """Returns the rows of keys ([*shape of keys, dim]) in the table `name` of the current TensorFlow 1 graph.

    The first call in a graph creates the table, and further calls with the same name use it. The arguments are those of
    `GrowingEmbedding`. With `training`, new keys get a row: pass True for the loss that the graph trains on, and False
    for validation and served outputs. With `evict`, `optimizer` is the TensorFlow 1 optimizer that minimizes the loss,
    whose slots for the table are created here.

    Raises ConfigError if an argument is out of range, or differs from that of the table's first call, or if `evict` is
    given without `optimizer`.
    """
    arguments: dict[str, Any] = {"dim": dim, "capacity": capacity, "overflow": overflow, "seed": seed, "scale": scale}
    rules = rules_of(admit, evict)
    tables = _tables_of(tf.compat.v1.get_default_graph())
    if name not in tables:
        tables[name] = GrowingEmbedding(**arguments, admit=admit, evict=evict, name=name)
    table = tables[name]
    for argument, value in {**arguments, "rules": rules}.items():
        before = getattr(table, argument)
        if before != value:
            raise ConfigError(f"growing_lookup: {argument}={value!r}, but the table «{name}» has {argument}={before!r}")
    if training and evict is not None:
        table.set_session_optimizer(optimizer)
    return table(keys, training=training)


def _write(variable: Any, rows: Any, values: Any) -> Any:
    """Writes rows of a variable. Returns the op, or None in eager execution."""
    return tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=rows, updates=values)


def _rows_of(slot: RowSlot, rows: Any) -> Any:
    """Returns the initial values of rows of a slot."""
    shape = tf.concat([tf.shape(rows), slot.variable.shape[1:]], axis=0)
    return tf.fill(shape, tf.constant(slot.initial, slot.variable.dtype))


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
