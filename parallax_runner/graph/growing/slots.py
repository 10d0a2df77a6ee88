"""Finds the slots of an optimizer for the rows of a table, and the values with which they begin."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from parallax_runner.errors import ConfigError

KERAS_OPTIMIZERS = "keras.src.optimizers."
ACCUMULATOR = "accumulator"  # of Adagrad and Ftrl, the only slot of Keras that does not begin at zero


class RowSlot(NamedTuple):
    """A slot: a variable of TensorFlow with one row for each row of the table. All values are `initial` at first."""

    variable: Any
    initial: float


def keras_slots_begin_at(optimizer: Any) -> Mapping[str, float]:
    """Returns the initial values of the slots of one of Keras' own optimizers, 0 for any other name.

    Raises ConfigError for another optimizer.
    """
    updating = getattr(optimizer, "inner_optimizer", optimizer)
    if not type(updating).__module__.startswith(KERAS_OPTIMIZERS):
        raise ConfigError(
            f"set_optimizer: {type(updating).__name__} is none of Keras' own optimizers, so the initial values of its "
            'slots are unknown: pass them by name, such as initial={"momentum": 0.0}'
        )
    return defaultdict(float, {ACCUMULATOR: float(getattr(updating, "initial_accumulator_value", 0.0))})


def keras_slots(optimizer: Any, rows: Any, begin_at: Mapping[str, float]) -> list[RowSlot]:
    """Returns the slots of a Keras optimizer for the variable `rows`. `begin_at` has their initial values by name.

    Raises ConfigError if the optimizer is not built, or if `begin_at` lacks a slot.
    """
    if not optimizer.built:
        raise ConfigError(
            f"«{rows.path}» (GrowingEmbedding) evicts keys, and the optimizer has no slots yet: call "
            "optimizer.build(trainable_variables) before the first training step"
        )
    trained = [_beginning(one) for one in optimizer._trainable_variables]
    found = []
    for variable in optimizer.variables:
        owner = max((one for one in trained if variable.name.startswith(one)), key=len, default="")
        if owner == _beginning(rows) and variable.shape[:1] == rows.shape[:1]:
            found.append(RowSlot(variable.value, _initial(variable.name.removeprefix(owner), begin_at)))
    return found


def session_slots(optimizer: Any, rows: Any) -> list[RowSlot]:
    """Returns the slots of a TensorFlow 1 optimizer for the variable `rows`, and creates them if needed.

    Raises ConfigError if a slot does not begin with the same value everywhere.
    """
    optimizer._create_slots([rows])  # as minimize does, which finds them later
    slots = [optimizer.get_slot(rows, name) for name in optimizer.get_slot_names()]
    return [RowSlot(slot, _value_everywhere(slot)) for slot in slots if slot is not None]


def _initial(slot: str, begin_at: Mapping[str, float]) -> float:
    try:
        return float(begin_at[slot])
    except KeyError:
        raise ConfigError(
            f"set_optimizer: initial={dict(begin_at)} has no value for the slot «{slot}» of the optimizer: add one"
        ) from None


def _beginning(variable: Any) -> str:
    """Returns how Keras begins the names of the slots of a variable."""
    return f"{variable.path.replace('/', '_')}_"


def _value_everywhere(slot: Any) -> float:
    """Returns the value of a slot that is filled with one value at first."""
    value = _constant(slot.initial_value)
    if value is None:
        raise ConfigError(
            f"the slot «{slot.name}» of a table that evicts keys does not begin with one value in all rows, so it "
            "cannot start afresh: choose another optimizer, or leave out evict"
        )
    return value


def _constant(tensor: Any) -> float | None:
    """Returns the value that all elements of a tensor have, or None if that is not known. Does not make a tensor of the
    size of the table."""
    op = tensor.op
    if op.type == "Identity":
        return _constant(op.inputs[0])
    if op.type == "Fill":
        return _constant(op.inputs[1])
    if op.type == "Mul":
        one, other = map(_constant, op.inputs)
        return None if one is None or other is None else one * other
    value = tf.get_static_value(tensor)
    return float(value.flat[0]) if value is not None and (value == value.flat[0]).all() else None
