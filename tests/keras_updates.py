"""Keras' optimizer updates written by hand in TensorFlow 1 graphs: slots are plain variables with unhelpful names, and
a sparse gradient is made dense before the whole table is updated.

Reads and writes of a variable have the order that a traced Keras step gives them: nothing is written before the forward
pass has read, and a value that was written is read after the write.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import tensorflow.compat.v1 as tf

Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices
Pairs: TypeAlias = Sequence[tuple[Gradient, tf.Variable]]


class Update:
    """The update of one variable: creates slots, and orders reads and writes, all of them after `after`."""

    def __init__(self, optimizer: str, variable: tf.Variable, after: tf.Operation) -> None:
        self.optimizer, self.variable, self.writes = optimizer, variable, [after]

    def slot(self, name: str) -> tf.Variable:
        """Returns a variable of zeros with the variable's shape. Its name does not extend the variable's."""
        full = f"{self.optimizer}/{re.sub(r'/', '_', self.variable.op.name)}_{name}"
        with tf.variable_scope("", reuse=False):
            zeros = tf.zeros_initializer()
            return tf.get_variable(full, self.variable.shape, self.variable.dtype, zeros, trainable=False)

    def read(self, variable: tf.Variable) -> tf.Tensor:
        """Returns the values of the variable or of a slot after all writes so far."""
        with tf.control_dependencies(self.writes):
            return variable.read_value()

    def assign(self, variable: tf.Variable, value: tf.Tensor) -> None:
        """Writes all rows."""
        with tf.control_dependencies(self.writes):
            self.writes.append(variable.assign(value, read_value=False))

    def assign_add(self, variable: tf.Variable, value: Gradient) -> None:
        """Adds to all rows, or for slices to their rows."""
        with tf.control_dependencies(self.writes):
            if isinstance(value, tf.IndexedSlices):
                handle, ids, rows = variable.handle, value.indices, value.values
                self.writes.append(tf.raw_ops.ResourceScatterAdd(resource=handle, indices=ids, updates=rows))
            else:
                self.writes.append(variable.assign_add(value, read_value=False))

    def assign_sub(self, variable: tf.Variable, value: Gradient) -> None:
        """Subtracts from all rows, or for slices from their rows."""
        self.assign_add(variable, on_values(tf.negative, value))


def on_values(change: Callable[[tf.Tensor], tf.Tensor], gradient: Gradient) -> Gradient:
    """Applies one of Keras' operations that keep zeros to a gradient: slices stay slices."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(change(gradient.values), gradient.indices, gradient.dense_shape)
    return change(gradient)


def dense(gradient: Gradient) -> tf.Tensor:
    """Makes slices dense, as Keras' other operations do."""
    return tf.convert_to_tensor(gradient)


def momentum(update: Update, gradient: Gradient) -> None:
    m = update.slot("momentum")
    update.assign(m, update.read(m) * 0.9 - dense(on_values(lambda values: values * 0.05, gradient)))
    update.assign_add(update.variable, update.read(m))


def adam(update: Update, gradient: Gradient, *, amsgrad: bool = False) -> None:
    m, v = update.slot("momentum"), update.slot("velocity")
    update.assign_add(m, (dense(gradient) - update.read(m)) * 0.1)
    update.assign_add(v, (dense(on_values(tf.square, gradient)) - update.read(v)) * 0.01)
    if amsgrad:
        largest = update.slot("velocity_hat")
        update.assign(largest, tf.maximum(update.read(largest), update.read(v)))
        v = largest
    update.assign_sub(update.variable, update.read(m) * 0.01 / (tf.sqrt(update.read(v)) + 1e-7))


def adamw(update: Update, gradient: Gradient) -> None:
    update.assign_sub(update.variable, update.read(update.variable) * 0.004 * 0.01)
    adam(update, gradient)


def ftrl(update: Update, gradient: Gradient) -> None:
    accumulator, linear = update.slot("accumulator"), update.slot("linear")
    old, values = update.read(accumulator) + 0.1, update.read(update.variable)
    new = old + dense(on_values(tf.square, gradient))
    update.assign_add(linear, dense(gradient) - (new**0.5 - old**0.5) / 0.05 * values)
    z = update.read(linear)
    update.assign(update.variable, (tf.clip_by_value(z, -0.001, 0.001) - z) / (new**0.5 / 0.05))
    update.assign(accumulator, new - 0.1)


def divided(gradient: Gradient, divisor: tf.Tensor) -> Gradient:
    """Divides like Keras' own function: slices stay slices, and a branch checks whether the divisor has zeros."""
    from keras.src.backend.tensorflow.sparse import elementwise_division

    return elementwise_division(tf.divide)(gradient, divisor)


def adagrad(update: Update, gradient: Gradient) -> None:
    accumulator = update.slot("accumulator")
    update.assign_add(accumulator, on_values(tf.square, gradient))
    root = tf.sqrt(update.read(accumulator) + 1e-7)
    update.assign_sub(update.variable, divided(on_values(lambda values: values * 0.05, gradient), root))


def rmsprop(update: Update, gradient: Gradient) -> None:
    velocity, average_of_gradients, m = (update.slot(name) for name in ("velocity", "average_gradient", "momentum"))
    squares = dense(on_values(lambda values: tf.square(values) * 0.1, gradient))
    update.assign(velocity, update.read(velocity) * 0.9 + squares)
    mean = dense(on_values(lambda values: values * 0.1, gradient))
    update.assign(average_of_gradients, update.read(average_of_gradients) * 0.9 + mean)
    root = tf.sqrt(update.read(velocity) - tf.square(update.read(average_of_gradients)) + 1e-7)
    increment = divided(on_values(lambda values: values * 0.01, gradient), root)
    update.assign(m, update.read(m) * 0.5 + dense(increment))
    update.assign_sub(update.variable, update.read(m))


def adadelta(update: Update, gradient: Gradient) -> None:
    squares, moves = update.slot("accumulated_grad"), update.slot("accumulated_delta_var")
    new = dense(on_values(lambda values: tf.square(values) * 0.05, gradient))
    update.assign(squares, update.read(squares) * 0.95 + new)
    root = tf.sqrt(update.read(moves) + 1e-3)
    if isinstance(gradient, tf.IndexedSlices):
        rows = gradient.values * tf.gather(root, gradient.indices)
        product: Gradient = tf.IndexedSlices(rows, gradient.indices, gradient.dense_shape)
    else:
        product = root * gradient
    move = on_values(tf.negative, divided(product, tf.sqrt(update.read(squares) + 1e-3)))
    update.assign(moves, update.read(moves) * 0.95 + dense(on_values(lambda values: tf.square(values) * 0.05, move)))
    update.assign_add(update.variable, move)


def sgd(update: Update, gradient: Gradient) -> None:
    update.assign_sub(update.variable, on_values(lambda values: values * 0.05, gradient))


OPTIMIZERS: dict[str, Callable[[Update, Gradient], None]] = {
    "sgd": sgd,
    "momentum": momentum,
    "adam": adam,
    "amsgrad": lambda update, gradient: adam(update, gradient, amsgrad=True),
    "adamw": adamw,
    "ftrl": ftrl,
    "adagrad": adagrad,
    "rmsprop": rmsprop,
    "adadelta": adadelta,
}


def clip_each(pairs: Pairs, norm: float = 0.3) -> Pairs:
    """Applies `clipnorm`: slices stay slices."""
    return [
        (on_values(lambda values: tf.clip_by_norm(values, norm), gradient), variable) for gradient, variable in pairs
    ]


def clip_together(pairs: Pairs, norm: float = 0.3) -> Pairs:
    """Applies `global_clipnorm`: slices become dense, for the norm and for the result, and all results leave through
    one op."""
    squares = [tf.reduce_sum(on_values(tf.square, gradient)) for gradient, _ in pairs]
    whole = tf.sqrt(tf.reduce_sum(tf.stack(squares)))
    scale = norm * tf.minimum(1.0 / whole, 1.0 / norm) + (whole - whole)
    clipped = tf.raw_ops.IdentityN(input=[dense(gradient) * scale for gradient, _ in pairs])
    return [(gradient, variable) for gradient, (_, variable) in zip(clipped, pairs, strict=True)]


def average(update: Update, decay: float = 0.9) -> None:
    """Keeps an average of the weights, which is read when they are updated."""
    kept = update.slot("average")
    update.assign(kept, decay * update.read(kept) + (1 - decay) * update.read(update.variable))


def as_they_are(pairs: Pairs) -> Pairs:
    """Applies no clipping."""
    return pairs


@dataclass(frozen=True)
class Optimizer:
    """An optimizer of `OPTIMIZERS` with the methods of Keras' base class, for tests that need a TensorFlow 1
    optimizer."""

    name: str
    clip: Callable[[Pairs], Pairs] = as_they_are
    averages: bool = False

    def compute_gradients(self, loss: tf.Tensor) -> list[tuple[Gradient, tf.Variable]]:
        """Returns the raw gradients of the trainable variables."""
        return tf.train.GradientDescentOptimizer(1.0).compute_gradients(loss)

    def apply_gradients(self, pairs: Pairs, global_step: tf.Variable) -> tf.Operation:
        """Returns the train op."""
        after = {variable.op.name: gradient.op for gradient, variable in pairs}
        writes: list[tf.Operation] = []
        for gradient, variable in self.clip(pairs):
            update = Update(self.name, variable, after[variable.op.name])
            OPTIMIZERS[self.name](update, gradient)
            if self.averages:
                average(update)
            writes += update.writes
        return tf.group(*writes, global_step.assign_add(1, read_value=False))
