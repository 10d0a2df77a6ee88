"""Runs an optimizer's own formula on some rows of a variable and of its slots."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import tensorflow as tf

from parallax_runner.graph.traced.branches import StepGraph


class NotByRowError(Exception):
    """An optimizer's formula for a variable writes something other than rows of this variable and of its slots."""


@dataclass(frozen=True)
class RowFormula:
    """An optimizer's formula for rows of one variable, traced in a `graph` of its own.

    The placeholders `gradient`, of shape [rows, …], and `before` are the formula's inputs. `before` has the rows of the
    variable and of each slot, and `after` has these rows after the update, in the same order. `handle_ids` contains the
    handle ids of the variable and of its slots, and `iterations_id` that of the optimizer's count of updates.
    """

    graph: StepGraph
    gradient: Any
    before: list[Any]
    after: list[Any]
    handle_ids: frozenset[int]
    iterations_id: int


def traced_formula(optimizer: Any, variable: Any, learning_rate: Any, *, lazily: bool) -> RowFormula:
    """Traces the formula of the optimizer itself, with everything that its class, its attributes and its closures
    contain.

    Attributes that the trace sets on the optimizer get their previous values back.

    Raises NotByRowError if the formula writes other variables through Keras. It raises what the formula raises.
    """
    stateful = [variable, *slots_of(optimizer, variable)]
    with tf.Graph().as_default():  # outside the step, because reads in functions inside it move to the step (`reads`)
        graph = StepGraph("rows")
    with graph.as_default(), _attributes_kept(optimizer):
        gradient = _some_rows(variable)
        before = [_some_rows(one) for one in stateful]
        after = updated_rows(optimizer, gradient, variable, stateful, before, learning_rate, lazily=lazily)
    handle_ids = frozenset(one._value.handle._id for one in stateful)
    return RowFormula(graph, gradient, before, after, handle_ids, optimizer._iterations._value.handle._id)


def _some_rows(variable: Any) -> Any:
    return tf.compat.v1.placeholder(variable.dtype, [None, *variable.shape[1:]])


@contextmanager
def _attributes_kept(optimizer: Any) -> Iterator[None]:
    """Undoes assignments to the optimizer's attributes after the `with` block, because their values may be tensors of
    the trial's graph. A variable that was created in the block stays."""
    from keras.src import backend

    attributes = vars(optimizer)
    before = dict(attributes)
    try:
        yield
    finally:
        changed = [name for name, value in attributes.items() if name not in before or value is not before[name]]
        for name in changed:
            if isinstance(attributes[name], (tf.Variable, backend.Variable)):
                continue
            if name in before:
                attributes[name] = before[name]
            else:
                del attributes[name]


def decays(optimizer: Any, variable: Any) -> bool:
    """Returns whether the optimizer applies weight decay to this variable."""
    from keras.src import backend

    is_keras = isinstance(variable, backend.Variable)
    return is_keras and optimizer.weight_decay is not None and bool(optimizer._use_weight_decay(variable))


# An optimizer's lists that have one entry per variable but are not used by `update_step`.
NO_SLOTS = frozenset(
    {"_trainable_variables", "_accumulated_gradients", "_model_variables_moving_average", "_variables"}
)


def slots_of(optimizer: Any, variable: Any) -> list[Any]:
    """Returns the optimizer's slots with the shape of this variable, or an empty list if the variable is not a Keras
    variable."""
    from keras.src import backend

    if not isinstance(variable, backend.Variable):
        return []
    place = optimizer._get_variable_index(variable)
    lists = [value for name, value in vars(optimizer).items() if isinstance(value, list) and name not in NO_SLOTS]
    found = [values[place] for values in lists if len(values) > place]
    return [one for one in found if isinstance(one, backend.Variable) and one.shape == variable.shape]


def updated_rows(
    optimizer: Any,
    gradient: Any,
    variable: Any,
    stateful: Sequence[Any],
    rows: Sequence[Any],
    learning_rate: Any,
    *,
    lazily: bool = False,
) -> list[Any]:
    """Returns the `rows` of the variable and its slots (`stateful`) after an update by the optimizer.

    `gradient` is the gradient for these rows. The default graph must be a `StepGraph`.

    Raises NotByRowError if the formula writes other variables through Keras.
    """
    place = optimizer._get_variable_index(variable)
    decay = optimizer.weight_decay if lazily and decays(optimizer, variable) else None
    with _in_place_of(stateful, rows) as scope, _as_plain_keras_passes(variable):
        with mock.patch.object(optimizer, "_get_variable_index", lambda _: place):
            if decay is not None:
                share = tf.cast(decay, rows[0].dtype) * tf.cast(learning_rate, rows[0].dtype)
                optimizer.assign_sub(variable, variable * share)
            optimizer.update_step(gradient, variable, learning_rate)
        return [scope.get_current_value(one) for one in stateful]


@contextmanager
def _in_place_of(stateful: Sequence[Any], rows: Sequence[Any]) -> Iterator[Any]:
    """Replaces the values of variables with `rows`, and writes to these variables with changes of the rows.

    Yields Keras' scope that has the current rows.
    """
    from keras.src import backend
    from keras.src.backend.tensorflow.optimizer import TFOptimizer

    graph = tf.compat.v1.get_default_graph()
    outside = graph.depth
    names = {id(one) for one in stateful}
    scope = backend.StatelessScope()
    for one, value in zip(stateful, rows, strict=True):
        scope.add_update((one, value))

    def update(pair: tuple[Any, Any]) -> None:
        target, value = pair
        if id(target) not in names:
            raise NotByRowError(f"the formula writes «{getattr(target, 'path', target)}»")
        value = graph.chosen(value, scope.get_current_value(target), outside=outside)
        scope.state_mapping[id(target)] = value

    def assigned(change: Callable[[Any, Any], Any]) -> Any:
        def assign(this: Any, target: Any, value: Any) -> None:
            now = scope.get_current_value(target)
            if now is None:
                raise NotByRowError(f"the formula writes «{getattr(target, 'path', target)}»")
            scope.add_update((target, change(now, tf.cast(value, now.dtype))))

        return assign

    with ExitStack() as stack:
        stack.enter_context(scope)
        stack.enter_context(mock.patch.object(scope, "add_update", update))
        for name, change in (
            ("assign", lambda _, value: value),
            ("assign_add", lambda now, value: now + value),
            ("assign_sub", lambda now, value: now - value),
        ):
            stack.enter_context(mock.patch.object(TFOptimizer, name, assigned(change)))
        yield scope


@contextmanager
def _as_plain_keras_passes(variable: Any) -> Iterator[None]:
    """Gives a Keras variable the name of its TensorFlow variable, and no path.

    Keras passes the TensorFlow variable to `update_step`, so a formula that looks at the name must see the same name.
    """
    from keras.src.backend.common.variables import Variable as KerasVariable

    name_of, path_of = KerasVariable.name.fget, KerasVariable.path.fget
    given = variable._value.name

    def name(this: Any) -> Any:
        return given if this is variable else name_of(this)

    def path(this: Any) -> Any:
        if this is variable:
            raise AttributeError("a TensorFlow variable has no path")
        return path_of(this)

    with (
        mock.patch.object(KerasVariable, "name", property(name)),
        mock.patch.object(KerasVariable, "path", property(path)),
    ):
        yield
