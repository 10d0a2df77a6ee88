"""Optimizers that the configuration group `update` changes, and the same updates written by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.config.schema import ScheduleConfig, UpdateConfig
from parallax_runner.graph.update.optimizer import updating_optimizer

if TYPE_CHECKING:
    from tests.parallel.cases import Case

RATE = 0.05
WARMUP_STEPS, DECAY_STEPS, END = 3, 5, 0.1


@dataclass(frozen=True)
class Configured:
    """An optimizer with what `update` changes about it. `rate` returns the learning rate of a step."""

    make: Callable[..., tf.train.Optimizer]
    update: UpdateConfig
    rate: Callable[[int], float] = lambda step: RATE

    def optimizer(self) -> Any:
        """Returns the optimizer that a model's function gets."""
        content = {"learning_rate": RATE}
        return updating_optimizer(lambda content, **given: self.make(**content, **given), content, self.update)


def momentum(learning_rate: Any) -> tf.train.Optimizer:
    return tf.train.MomentumOptimizer(learning_rate, 0.9)


def _cosine(step: int) -> float:
    if step < WARMUP_STEPS:
        return RATE * step / WARMUP_STEPS
    share = min(step - WARMUP_STEPS, DECAY_STEPS) / DECAY_STEPS
    return RATE * (END + (1 - END) * 0.5 * (1 + math.cos(math.pi * share)))


def _exponential(step: int) -> float:
    return float(RATE * 0.5 ** (step / DECAY_STEPS))


def _linear(step: int) -> float:
    return RATE * (1 - (1 - END) * min(step, DECAY_STEPS) / DECAY_STEPS)


COSINE = ScheduleConfig(warmup_steps=WARMUP_STEPS, decay="cosine", decay_steps=DECAY_STEPS, end_fraction=END)
EXPONENTIAL = ScheduleConfig(decay="exponential", decay_steps=DECAY_STEPS, decay_rate=0.5)
LINEAR = ScheduleConfig(decay="linear", decay_steps=DECAY_STEPS, end_fraction=END)
CONFIGURED = {
    "clip_norm": Configured(momentum, UpdateConfig(clip_norm=0.2)),
    "clip_value": Configured(tf.train.AdagradOptimizer, UpdateConfig(clip_value=0.03)),
    "global_clip_norm": Configured(tf.train.AdamOptimizer, UpdateConfig(global_clip_norm=0.3)),
    "weight_decay": Configured(tf.train.AdamOptimizer, UpdateConfig(weight_decay=0.4)),
    "excluded": Configured(momentum, UpdateConfig(weight_decay=0.4, exclude_from_weight_decay=("bias", "table"))),
    "cosine": Configured(tf.train.RMSPropOptimizer, UpdateConfig(schedule=COSINE), _cosine),
    "exponential": Configured(tf.train.FtrlOptimizer, UpdateConfig(schedule=EXPONENTIAL), _exponential),
    "all": Configured(
        tf.train.AdagradOptimizer, UpdateConfig(schedule=LINEAR, global_clip_norm=0.3, weight_decay=0.4), _linear
    ),
}


def train_by_hand(
    case: Case, initial: dict[str, np.ndarray], batches: list[list[dict[str, np.ndarray]]]
) -> dict[str, np.ndarray]:
    """Returns all variables after steps of untouched TensorFlow on one device, each with the batches of all ranks."""
    configured = CONFIGURED[case.optimizer]
    with tf.Graph().as_default(), tf.Session() as session:
        ranks = len(batches[0])
        features = {
            name: tf.placeholder(array.dtype, [ranks * array.shape[0], *array.shape[1:]])
            for name, array in batches[0][0].items()
        }
        rate = tf.placeholder(tf.float64, [])
        train_op = _step_by_hand(case, features, configured, rate)
        variables = {variable.op.name: variable for variable in tf.global_variables()}
        session.run(tf.global_variables_initializer())
        for name, variable in variables.items():
            variable.load(initial[name], session)
        for step, of_ranks in enumerate(batches):
            feed = {features[name]: np.concatenate([one[name] for one in of_ranks]) for name in features}
            session.run(train_op, {**feed, rate: configured.rate(step)})
        found: dict[str, np.ndarray] = session.run(variables)
    return found


def _step_by_hand(case: Case, features: dict[str, tf.Tensor], configured: Configured, rate: tf.Tensor) -> tf.Operation:
    loss = case.loss(features)
    optimizer, update = configured.make(learning_rate=rate), configured.update
    variables = tf.trainable_variables()
    gradients = [_without_repeated_ids(gradient) for gradient in tf.gradients(loss, variables)]
    if update.clip_norm is not None:
        gradients = [tf.clip_by_norm(gradient, update.clip_norm) for gradient in gradients]
    if update.clip_value is not None:
        gradients = [tf.clip_by_value(gradient, -update.clip_value, update.clip_value) for gradient in gradients]
    if update.global_clip_norm is not None:
        gradients, _ = tf.clip_by_global_norm(gradients, update.global_clip_norm)
    decays = []
    with tf.control_dependencies([loss, *(getattr(one, "values", one) for one in gradients)]):
        for variable in variables:
            is_excluded = any(word in variable.op.name for word in update.exclude_from_weight_decay)
            if update.weight_decay is not None and not is_excluded:
                share = tf.cast(rate * update.weight_decay, variable.dtype)
                decays.append(variable.assign((1 - share) * variable.read_value()))
    with tf.control_dependencies(decays):
        return optimizer.apply_gradients(
            list(zip(gradients, variables, strict=True)), global_step=tf.train.get_or_create_global_step()
        )


def _without_repeated_ids(gradient: tf.Tensor | tf.IndexedSlices) -> tf.Tensor | tf.IndexedSlices:
    """Adds up the rows of each id by way of the whole table."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    ids = tf.sort(tf.unique(gradient.indices)[0])
    return tf.IndexedSlices(tf.gather(tf.convert_to_tensor(gradient), ids), ids, gradient.dense_shape)
