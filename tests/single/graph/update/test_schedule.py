"""The learning rates are those of Keras' schedules."""

import keras
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.config.schema import ScheduleConfig
from parallax_runner.graph.update.schedule import FACTORS, scheduled_rate

schedules = keras.optimizers.schedules
PAIRS = {
    "cosine": (
        ScheduleConfig(decay="cosine", decay_steps=10, end_fraction=0.1),
        schedules.CosineDecay(0.4, 10, alpha=0.1),
    ),
    "warmed cosine": (
        ScheduleConfig(warmup_steps=4, decay="cosine", decay_steps=10),
        schedules.CosineDecay(0.0, 10, warmup_target=0.4, warmup_steps=4),
    ),
    "linear": (
        ScheduleConfig(decay="linear", decay_steps=10, end_fraction=0.25),
        schedules.PolynomialDecay(0.4, 10, end_learning_rate=0.1),
    ),
    "exponential": (
        ScheduleConfig(decay="exponential", decay_steps=3, decay_rate=0.5),
        schedules.ExponentialDecay(0.4, 3, 0.5),
    ),
    "warmed": (
        ScheduleConfig(warmup_steps=4),
        schedules.PolynomialDecay(0.0, 4, end_learning_rate=0.4),
    ),
}


def rates(schedule: ScheduleConfig, steps: int) -> list[float]:
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.train.get_or_create_global_step()
        rate, one_more = scheduled_rate(0.4, schedule, step), step.assign_add(1)
        session.run(tf.global_variables_initializer())
        found = []
        for _ in range(steps):
            found.append(float(session.run(rate)))
            session.run(one_more)
    return found


@pytest.mark.parametrize("name", PAIRS)
def test_rates_equal_those_of_keras(name: str) -> None:
    schedule, of_keras = PAIRS[name]
    np.testing.assert_allclose(rates(schedule, 16), [float(of_keras(step)) for step in range(16)], rtol=1e-6, atol=1e-8)


def test_each_decay_is_compared() -> None:
    assert {schedule.decay for schedule, _ in PAIRS.values()} == set(FACTORS)
