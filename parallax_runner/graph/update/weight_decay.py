"""Weight decay that is not part of the gradient (Loshchilov and Hutter, 2019), as in Keras' optimizers."""

from __future__ import annotations

import re
from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from parallax_runner.config.schema import UpdateConfig
from parallax_runner.errors import ConfigError, Setting
from parallax_runner.graph.update.clipping import Gradient

# Optimizers with this attribute have a regularization of their own, and most compute a variable from sums of its
# gradients, which undoes a decay.
OWN_REGULARIZATION = "_l2_regularization_strength"


def check_optimizer(optimizer: tf.train.Optimizer, update: UpdateConfig) -> None:
    """Raises ConfigError for an optimizer that would undo the decay."""
    if hasattr(optimizer, OWN_REGULARIZATION):
        raise ConfigError(
            f"{type(optimizer).__name__} has a regularization of its own, and can undo a decay of its variables."
        ).about(
            Setting.of("update.weight_decay", update.weight_decay),
            remedy="Set optimizer.l2_regularization_strength, or choose another optimizer",
        )


def decayed_first(
    gradients: Sequence[Gradient], variables: Sequence[tf.Variable], rate: float | tf.Tensor, update: UpdateConfig
) -> list[Gradient]:
    """Returns the same gradients. Before one of them is used, its variable is multiplied by 1 - rate × weight decay.

    All rows of a variable decay, also those without a gradient. `rate` is the learning rate of the step.
    """
    assert update.weight_decay is not None
    excluded = _excluded(variables, update)
    results = []
    for gradient, variable in zip(gradients, variables, strict=True):
        if variable.op.name in excluded:
            results.append(gradient)
        else:
            results.append(_after_decay(gradient, variable, rate, update.weight_decay))
    return results


def _after_decay(gradient: Gradient, variable: tf.Variable, rate: float | tf.Tensor, decay: float) -> Gradient:
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    with tf.name_scope(f"weight_decay/{variable.op.name}/"):
        # The decay waits for the aggregated gradient: before, a rank may still have to read the variable.
        computed = tf.identity(values, name="computed")
        with tf.control_dependencies([computed.op]):
            share = tf.cast(rate * decay, variable.dtype.base_dtype)
            reduced = tf.assign_sub(variable, share * variable.read_value())
        with tf.control_dependencies([reduced.op]):
            values = tf.identity(computed, name="gradient")
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return values


def _excluded(variables: Sequence[tf.Variable], update: UpdateConfig) -> set[str]:
    """Returns the names of the variables that do not decay. Raises ConfigError for a pattern without a variable."""
    names = [variable.op.name for variable in variables]
    excluded: set[str] = set()
    for pattern in update.exclude_from_weight_decay:
        found = [name for name in names if re.search(pattern, name)]
        if not found:
            raise ConfigError(f"«{pattern}» matches no trained variable; the model has {', '.join(names)}").about(
                Setting.of("update.exclude_from_weight_decay", list(update.exclude_from_weight_decay))
            )
        excluded.update(found)
    return excluded
