"""Optimizers as users write them. Each changes Adagrad, which alone keeps rows whose gradient is zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

ops = keras.ops
DECAY = 0.05


class WithoutConfig(keras.optimizers.Adagrad):
    """Decays all rows. `get_config` does not have `row_decay`."""

    def __init__(self, learning_rate: float = 0.1, row_decay: float = 0.0, **kwargs: Any) -> None:
        super().__init__(learning_rate, **kwargs)
        self.row_decay = row_decay

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        super().update_step(gradient, variable, learning_rate)
        self.assign_sub(variable, variable * self.row_decay)


class DecaysIf(keras.optimizers.Adagrad):
    """Decays all rows of some variables. The count of updates starts at `count`."""

    def __init__(self, is_chosen: Callable[[Any], bool] = lambda _: True, count: int = 0, **kwargs: Any) -> None:
        super().__init__(**{"learning_rate": 0.1} | kwargs)
        self.is_chosen = is_chosen
        self.iterations.assign(count)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        super().update_step(gradient, variable, learning_rate)
        if self.is_chosen(variable):
            self.assign_sub(variable, variable * self.decay())

    def decay(self) -> Any:
        return DECAY


class DecaysLater(DecaysIf):
    """Decays after 1000 updates, by a number that is zero before."""

    def decay(self) -> Any:
        return ops.cast(ops.where(self.iterations > 1000, DECAY, 0.0), "float64")


class DecaysInBranchLater(DecaysIf):
    """Decays after 1000 updates, in a branch."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        keras.optimizers.Adagrad.update_step(self, gradient, variable, learning_rate)
        ops.cond(self.iterations > 1000, lambda: self.assign_sub(variable, variable * DECAY), lambda: None)


class WritesItself(keras.optimizers.Adagrad):
    """Assigns the whole table, by the variable's own method."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        super().update_step(gradient, variable, learning_rate)
        variable.assign(variable * (1 - DECAY))


class WritesAnother(keras.optimizers.Adagrad):
    """Counts updates of tables in a variable that no list of slots has."""

    def build(self, variables: Any) -> None:
        super().build(variables)
        self.sums = self.add_variable((), name="sums", dtype="float64")

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        super().update_step(gradient, variable, learning_rate)
        self.sums.assign_add(1.0)
        self.assign_sub(variable, gradient * ops.cast(self.sums, "float64"))


class WritesThroughClosure(keras.optimizers.Adagrad):
    """Writes a slot of its own that it holds as a TensorFlow variable by name."""

    def build(self, variables: Any) -> None:
        super().build(variables)
        self.raw = {
            one.value.name: self.add_variable(one.shape, name="raw", dtype="float64").value for one in variables
        }

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        super().update_step(gradient, variable, learning_rate)
        raw = self.raw[variable.name]
        raw.assign(raw * 0.9 + 0.1)
        self.assign_sub(variable, tf.reduce_mean(raw) * gradient)


class ReadsWholeTable(keras.optimizers.Adagrad):
    """Scales a row by the mean of the whole table, which it holds as a TensorFlow variable."""

    def build(self, variables: Any) -> None:
        super().build(variables)
        self.whole = {one.value.name: one.value for one in variables}

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        super().update_step(gradient, variable, learning_rate)
        self.assign_sub(variable, gradient * tf.reduce_mean(self.whole[variable.name]))


class NeedsItsShape(keras.optimizers.Adagrad):
    """Fails for some rows of a table."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        whole = tf.ensure_shape(tf.convert_to_tensor(variable), variable.shape)
        super().update_step(gradient, variable, learning_rate)
        self.assign_sub(variable, whole * DECAY)


class KeepsTensors(keras.optimizers.Adagrad):
    """Sums over variables in an attribute while it updates, and scales later variables by this sum."""

    total: Any = 1.0

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        super().update_step(gradient, variable, learning_rate * self.total)
        self.total = self.total + ops.cast(learning_rate, "float64")

    def apply(self, *args: Any, **kwargs: Any) -> Any:
        self.total = 1.0
        return super().apply(*args, **kwargs)


class DecaysInApply(keras.optimizers.Adagrad):
    """Decays all rows outside the formula, in two places."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        super().apply(grads, trainable_variables)
        for variable in self._trainable_variables:
            variable.assign(variable * (1 - DECAY))

    def _backend_update_step(self, grads: Any, trainable_variables: Any, learning_rate: Any) -> None:
        super()._backend_update_step(grads, trainable_variables, learning_rate)
        for variable in trainable_variables:
            variable.assign(variable * (1 - DECAY))


class DecaysTouchedRows(keras.optimizers.Adagrad):
    """Decays the rows whose gradient is not zero."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        is_touched = ops.cast(ops.any(gradient != 0.0, axis=-1, keepdims=True), variable.dtype)
        super().update_step(gradient, variable, learning_rate)
        self.assign_sub(variable, is_touched * variable * DECAY)


def _set_later() -> Any:
    made = WithoutConfig()
    made.row_decay = DECAY
    return made


def _is_table(variable: Any) -> bool:
    return "embeddings" in variable.name


def _has_no_path(variable: Any) -> bool:
    return getattr(variable, "path", None) is None


# By what they do: the rows of a table that they write, and how to make one.
OWN: dict[str, tuple[str, Callable[[], Any]]] = {
    "without_config": ("all", lambda: WithoutConfig(row_decay=DECAY)),
    "set_later": ("all", _set_later),
    "decay_of_zero": ("touched", WithoutConfig),
    "by_name": ("all", lambda: DecaysIf(_is_table)),
    "by_the_name_that_keras_passes": ("all", lambda: DecaysIf(lambda variable: variable.name.endswith(":0"))),
    "by_missing_path": ("all", lambda: DecaysIf(_has_no_path)),
    "not_by_name": ("touched", lambda: DecaysIf(lambda variable: "kernel" in variable.name)),
    "later": ("all", lambda: DecaysLater(_is_table, 999)),
    "in_a_branch_later": ("all", lambda: DecaysInBranchLater(_is_table, 999)),
    "writes_itself": ("all", WritesItself),
    "writes_another": ("all", WritesAnother),
    "writes_through_closure": ("all", WritesThroughClosure),
    "reads_whole_table": ("all", ReadsWholeTable),
    "needs_its_shape": ("all", NeedsItsShape),
    "keeps_tensors": ("touched", KeepsTensors),
    "in_apply": ("all", DecaysInApply),
    "touched_rows": ("touched", DecaysTouchedRows),
}
