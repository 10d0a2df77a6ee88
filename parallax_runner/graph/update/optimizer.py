"""Gives a TensorFlow 1 optimizer the learning rate, the clipping and the weight decay of the configuration."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow.compat.v1 as tf

from parallax_runner.config.schema import UpdateConfig
from parallax_runner.errors import ConfigError, Setting
from parallax_runner.graph.update.clipping import Gradient, clipped, clips
from parallax_runner.graph.update.schedule import scheduled_rate
from parallax_runner.graph.update.weight_decay import check_optimizer, decayed_first

RATE = "learning_rate"
Pair = tuple[Gradient | None, tf.Variable]


def updating_optimizer(make: Callable[..., Any], content: Mapping[str, Any], update: UpdateConfig) -> Any:
    """Returns the optimizer that `make` creates from the group `optimizer`, and that updates as `update` says.

    `make` takes the content of the group, and arguments by name. Raises ConfigError if the optimizer cannot do what
    `update` says.
    """
    if update == UpdateConfig():
        return make(content)
    rate = content.get(RATE)
    if update.schedule.changes:
        rate = scheduled_rate(content[RATE], update.schedule, tf.train.get_or_create_global_step())
        optimizer = make({key: value for key, value in content.items() if key != RATE}, **{RATE: rate})
    else:
        optimizer = make(content)
    _check(optimizer, content, update)
    apply = optimizer.apply_gradients

    @functools.wraps(apply)
    def apply_gradients(
        grads_and_vars: Iterable[Pair], global_step: tf.Variable | None = None, name: str | None = None
    ) -> tf.Operation:
        if update.schedule.changes:
            _check_step(global_step, update)
        return apply(_changed(list(grads_and_vars), rate, update), global_step=global_step, name=name)

    optimizer.apply_gradients = apply_gradients  # minimize calls it, too
    return optimizer


def _check(optimizer: Any, content: Mapping[str, Any], update: UpdateConfig) -> None:
    if not isinstance(optimizer, tf.train.Optimizer):
        raise ConfigError(
            f"it creates an object of type {type(optimizer).__name__}, and the group update needs a "
            "tensorflow.compat.v1.train.Optimizer."
        ).about(
            Setting.of("optimizer._target_", content["_target_"]),
            remedy="Remove the settings of the group update, and set the arguments of this optimizer",
        )
    if update.weight_decay is not None:
        check_optimizer(optimizer, update)


def _check_step(global_step: tf.Variable | None, update: UpdateConfig) -> None:
    if global_step is not None and global_step is tf.train.get_global_step():
        return
    raise ConfigError(
        "the model's function applies gradients without the global step, so the rate never changes."
    ).about(
        Setting("update.schedule", None),
        remedy="In the function, pass global_step=tf.train.get_or_create_global_step() to minimize or apply_gradients",
    )


def _changed(pairs: list[Pair], rate: float | tf.Tensor | None, update: UpdateConfig) -> list[Pair]:
    """Returns the pairs with clipped gradients, before whose use the variables decay. A variable without a gradient
    stays as it is."""
    trained = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
    untrained = [(gradient, variable) for gradient, variable in pairs if gradient is None]
    gradients, variables = [gradient for gradient, _ in trained], [variable for _, variable in trained]
    if clips(update):
        gradients = clipped(gradients, variables, update)
    if update.weight_decay is not None:
        assert rate is not None
        gradients = decayed_first(gradients, variables, rate, update)
    return [*zip(gradients, variables, strict=True), *untrained]
