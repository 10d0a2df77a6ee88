"""The learning rate as a function of the global step, with the formulas of Keras' schedules."""

from __future__ import annotations

import math
from collections.abc import Callable

import tensorflow.compat.v1 as tf

from parallax_runner.config.schema import ScheduleConfig


def scheduled_rate(rate: float, schedule: ScheduleConfig, step: tf.Variable) -> tf.Tensor:
    """Returns the learning rate of the step that begins, a float64 scalar. `step` counts the finished steps.

    During the warm-up, the rate grows linearly from 0 to `rate`. The decay begins after the warm-up. With 64 bits, all
    ranks compute the same rate to more digits than a float32 variable has, however TensorFlow orders the ops.
    """
    done = tf.cast(step, tf.float64)
    after_warmup = tf.maximum(done - schedule.warmup_steps, 0.0)
    decayed = rate * FACTORS[schedule.decay](schedule, after_warmup)
    if schedule.warmup_steps == 0:
        return tf.identity(decayed, name="learning_rate")
    warming = rate * done / schedule.warmup_steps
    return tf.where(done < schedule.warmup_steps, warming, decayed, name="learning_rate")


def _constant(schedule: ScheduleConfig, step: tf.Tensor) -> tf.Tensor:
    return tf.ones_like(step)


def _linear(schedule: ScheduleConfig, step: tf.Tensor) -> tf.Tensor:
    return _between_1_and_end(1.0 - _share(schedule, step), schedule)


def _cosine(schedule: ScheduleConfig, step: tf.Tensor) -> tf.Tensor:
    return _between_1_and_end(0.5 * (1.0 + tf.cos(math.pi * _share(schedule, step))), schedule)


def _exponential(schedule: ScheduleConfig, step: tf.Tensor) -> tf.Tensor:
    assert schedule.decay_steps is not None and schedule.decay_rate is not None
    return tf.pow(tf.constant(schedule.decay_rate, tf.float64), step / schedule.decay_steps)


def _share(schedule: ScheduleConfig, step: tf.Tensor) -> tf.Tensor:
    """Returns the share of the decay that is over, at most 1."""
    assert schedule.decay_steps is not None
    return tf.minimum(step / schedule.decay_steps, 1.0)


def _between_1_and_end(share: tf.Tensor, schedule: ScheduleConfig) -> tf.Tensor:
    return schedule.end_fraction + (1.0 - schedule.end_fraction) * share


FACTORS: dict[str, Callable[[ScheduleConfig, tf.Tensor], tf.Tensor]] = {
    "constant": _constant,
    "linear": _linear,
    "cosine": _cosine,
    "exponential": _exponential,
}
