"""Linear regression finds the line."""

import pytest
import tensorflow.compat.v1 as tf

from models import simple
from parallax_runner.data import linear


def test_line_is_found():
    dataset = linear.load(examples=1000, validation_examples=100, noise=0.01, seed=1)
    with tf.Graph().as_default(), tf.Session() as session:
        features = {name: tf.placeholder(feature.dtype, [32]) for name, feature in dataset.features.items()}
        model = simple.build(features, tf.train.GradientDescentOptimizer(0.1))
        w, b = tf.trainable_variables()
        step = tf.train.get_global_step()
        session.run(tf.global_variables_initializer())
        for number in range(200):
            batch = dataset.train_batch(number * 32, 32)
            session.run(model["train_op"], {features[name]: batch[name] for name in features})
        validation = dataset.validation_batch(0, 32)
        feeds = {features[name]: validation[name] for name in features}
        assert session.run([w, b, step]) == [pytest.approx(10, abs=0.05), pytest.approx(-5, abs=0.05), 200]
        assert session.run(model["validation_loss"], feeds) < 0.01
        assert session.run(step) == 200  # validation does not train
        predicted = session.run(model["outputs"]["prediction"], {features["x"]: validation["x"]})
        assert predicted == pytest.approx(10 * validation["x"] - 5, abs=0.1)
