"""The variables that a traced model creates: their names and initial values."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from parallax_runner.graph.import_hook import patched_on_import

KERAS_VARIABLES = "keras.src.backend.tensorflow.core"
KERAS_METRICS = "keras.src.metrics.metric"
# Characters that are not allowed in an op's name.
_REFUSED = re.compile(r"[^A-Za-z0-9_.\\/-]")


class UnsetVariable(resource_variable_ops.UninitializedVariable):
    """A variable that has no value until it is read or assigned outside a trace.

    A model is created in the driver and in every worker, but training uses only the values in a session. An eager copy
    of a large table would double the memory for the table.
    """

    def __init__(self, initial: Callable[[], Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._initial = initial

    def _read_variable_op(self, no_copy: bool = False) -> Any:
        self._set_where_read_eagerly()
        return super()._read_variable_op(no_copy)

    def sparse_read(self, indices: Any, name: str | None = None) -> Any:
        self._set_where_read_eagerly()
        return super().sparse_read(indices, name)

    def assign_add(self, *args: Any, **kwargs: Any) -> Any:
        self._set_where_read_eagerly()
        return super().assign_add(*args, **kwargs)

    def assign_sub(self, *args: Any, **kwargs: Any) -> Any:
        self._set_where_read_eagerly()
        return super().assign_sub(*args, **kwargs)

    def _set_where_read_eagerly(self) -> None:
        if tf.executing_eagerly() and not self.is_initialized():
            self.assign(self._initial())


@dataclass(frozen=True)
class TracedVariable:
    """A `variable` and its name in checkpoints. `op_name` is that name without characters that are invalid for an op.

    `initial` creates a tensor with the initial value in the default graph. `aggregation` is the variable's declared
    aggregation across ranks: «none», «sum», «mean» or «only_first_replica». `is_metric` is set if a metric accumulates
    its value in the variable.
    """

    name: str
    op_name: str
    variable: Any
    initial: Callable[[], Any] | None
    aggregation: str
    is_metric: bool = False


class Variables:
    """The variables that `created` records, in creation order.

    With `keeps_values`, Keras variables have values, as they do outside this package. Otherwise, they have no value
    until they are read or set.
    """

    def __init__(self, *, keeps_values: bool = False) -> None:
        self._keeps_values = keeps_values
        self._made: list[Any] = []
        self._paths: dict[int, str] = {}
        self._initial: dict[int, Callable[[], Any]] = {}
        self._metrics: list[Any] = []

    @contextmanager
    def created(self) -> Iterator[None]:
        """Records the TensorFlow and Keras variables that are created during the `with` block."""
        with ExitStack() as stack:
            stack.enter_context(tf.variable_creator_scope(self._create))
            patches = {
                KERAS_VARIABLES: lambda module: stack.enter_context(self._keras(module.Variable)),
                KERAS_METRICS: lambda module: stack.enter_context(self._keras_metrics(module.Metric)),
            }
            for name in patches.keys() & sys.modules.keys():
                patches[name](sys.modules[name])
            # The model's function may be the first to import Keras. Its tables would then be real.
            stack.enter_context(patched_on_import(patches))
            yield

    def note_used(self, variables: Iterable[Any]) -> None:
        """Has no effect, because the variables that a step uses have been recorded when they were created."""

    def all(self) -> list[TracedVariable]:
        """Returns each variable once, under a unique name: the `path` of a Keras variable, or the `name` of any other
        variable."""
        return self._named(self._made)

    def _named(self, variables: Iterable[Any]) -> list[TracedVariable]:
        found: list[TracedVariable] = []
        taken: set[str] = set()
        metrics = {id(one._value) for one in self._metrics}
        for variable in variables:
            wanted = self._paths.get(id(variable), variable.name.split(":")[0])
            name, number = wanted, 0
            while _op_name(name).lower() in taken:
                number += 1
                name = f"{wanted}_{number}"
            taken.add(_op_name(name).lower())
            is_metric = id(variable) in metrics
            aggregation = variable.aggregation.name.lower()
            initial = self._initial.get(id(variable))
            if initial is not None and variable.is_initialized():
                initial = None  # a loaded or assigned value takes precedence over the initializer
            found.append(TracedVariable(name, _op_name(name), variable, initial, aggregation, is_metric))
        return found

    def _create(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        variable = next_creator(**kwargs)
        self._made.append(variable)
        return variable

    @contextmanager
    def _keras(self, keras_variable: Any) -> Iterator[None]:
        initialize = keras_variable._initialize

        def with_path(this: Any, value: Any) -> None:
            initialize(this, value)
            self._paths[id(this._value)] = this.path

        def without_value(this: Any, initializer: Callable[..., Any]) -> None:
            def initial() -> Any:
                return tf.cast(initializer(this._shape, dtype=this._dtype), this._dtype)

            variable = UnsetVariable(
                initial,
                shape=this._shape,
                dtype=tf.as_dtype(this._dtype),
                trainable=this.trainable,
                name=this.name,
                aggregation=this._map_aggregation(this.aggregation),
                synchronization=this._map_synchronization(this.synchronization),
            )
            self._made.append(variable)
            self._initial[id(variable)] = initial
            this._initialize(variable)

        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(keras_variable, "_initialize", with_path))
            if not self._keeps_values:
                stack.enter_context(mock.patch.object(keras_variable, "_initialize_with_initializer", without_value))
            yield

    @contextmanager
    def _keras_metrics(self, metric: Any) -> Iterator[None]:
        add_variable = metric.add_variable

        def noted(this: Any, *args: Any, **kwargs: Any) -> Any:
            variable = add_variable(this, *args, **kwargs)
            self._metrics.append(variable)  # the TensorFlow variable itself can be created later
            return variable

        with mock.patch.object(metric, "add_variable", noted):
            yield


def _op_name(name: str) -> str:
    found = _REFUSED.sub("_", name)
    return found if re.match(r"[A-Za-z0-9.]", found) else f"v{found}"
