"""The optimizer of graph/update/optimizer.py, and graph/update/weight_decay.py: what is refused, and order.

Also of parallax_runner.graph.update.weight_decay.
"""

from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.config.schema import ScheduleConfig, UpdateConfig
from parallax_runner.errors import ConfigError
from parallax_runner.graph.update.optimizer import updating_optimizer

SGD = {"_target_": "tensorflow.compat.v1.train.GradientDescentOptimizer", "learning_rate": 0.5}
WARMUP = UpdateConfig(schedule=ScheduleConfig(warmup_steps=2))


def made(update: UpdateConfig, kind: Any = tf.train.GradientDescentOptimizer) -> Any:
    def make(content: dict[str, Any], **given: Any) -> Any:
        return kind(**{name: value for name, value in content.items() if name != "_target_"}, **given)

    return updating_optimizer(make, SGD, update)


def trained(update: UpdateConfig, steps: int = 3) -> float:
    with tf.Graph().as_default(), tf.Session() as session:
        weight = tf.get_variable("weight", initializer=2.0)
        step = tf.train.get_or_create_global_step()
        train_op = made(update).minimize(3.0 * weight, global_step=step)
        session.run(tf.global_variables_initializer())
        for _ in range(steps):
            session.run(train_op)
        return float(session.run(weight))


def test_without_settings_it_is_the_same_optimizer() -> None:
    kept = tf.train.GradientDescentOptimizer(0.5)
    assert updating_optimizer(lambda content: kept, SGD, UpdateConfig()) is kept
    assert "apply_gradients" not in vars(kept)


def test_minimize_clips() -> None:
    assert trained(UpdateConfig(clip_value=1.0)) == pytest.approx(2.0 - 3 * 0.5)


def test_a_variable_decays_before_its_update() -> None:
    weight = 2.0
    for _ in range(3):
        weight = weight * (1 - 0.5 * 0.2) - 0.5 * 3.0
    assert trained(UpdateConfig(weight_decay=0.2)) == pytest.approx(weight)


def test_the_decay_follows_the_rate_of_the_step() -> None:
    weight = 2.0
    for rate in (0.0, 0.25, 0.5):
        weight = weight * (1 - rate * 0.2) - rate * 3.0
    update = UpdateConfig(schedule=ScheduleConfig(warmup_steps=2), weight_decay=0.2)
    assert trained(update) == pytest.approx(weight)


def test_a_variable_without_a_gradient_stays() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        used, unused = tf.get_variable("used", initializer=2.0), tf.get_variable("unused", initializer=2.0)
        train_op = made(UpdateConfig(weight_decay=0.2)).minimize(3.0 * used)
        session.run(tf.global_variables_initializer())
        session.run(train_op)
        np.testing.assert_allclose(session.run([used, unused]), [2.0 * 0.9 - 1.5, 2.0], rtol=1e-6)


def test_a_schedule_needs_the_global_step() -> None:
    with tf.Graph().as_default():
        weight = tf.get_variable("weight", initializer=2.0)
        optimizer = made(WARMUP)
        for given in (None, tf.Variable(0, name="my_step")):
            with pytest.raises(ConfigError, match=r"update.schedule: .* without the global step.*get_or_create_global"):
                optimizer.minimize(weight, global_step=given)


@pytest.mark.parametrize("kind", [tf.train.FtrlOptimizer])
def test_an_optimizer_that_would_undo_a_decay(kind: Any) -> None:
    with tf.Graph().as_default(), pytest.raises(ConfigError, match=r"update.weight_decay=0.1.*l2_regularization"):
        made(UpdateConfig(weight_decay=0.1), kind)


def test_an_object_that_is_no_optimizer_of_tensorflow_1() -> None:
    with tf.Graph().as_default(), pytest.raises(ConfigError, match=r"optimizer._target_=.*object of type dict"):
        made(UpdateConfig(clip_norm=1.0), dict)


def test_an_exception_that_matches_nothing() -> None:
    update = UpdateConfig(weight_decay=0.1, exclude_from_weight_decay=("bais",))
    with tf.Graph().as_default():
        bias = tf.get_variable("bias", initializer=2.0)
        with pytest.raises(ConfigError, match=r"exclude_from_weight_decay=\['bais'\].*«bais».*the model has bias"):
            made(update).minimize(bias)
