"""The ResNet learns, normalises a served image by moving statistics, and has the paper's size."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from models import resnet
from parallax_runner.data import images

BATCH = 16
SIZES = {"classes": 4, "filters": 4, "blocks_per_stage": 1}


def placeholders(size):
    return {"image": tf.placeholder(tf.float32, [BATCH, size, size, 3]), "label": tf.placeholder(tf.int32, [BATCH])}


def test_loss_falls_and_what_is_served_agrees():
    dataset = images.load(image_size=8, classes=4, noise=0.5, examples=256, validation_examples=BATCH, seed=1)
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(1)
        features = placeholders(8)
        model = resnet.build(features, tf.train.MomentumOptimizer(0.05, 0.9), **SIZES)
        session.run(tf.global_variables_initializer())
        losses = []
        for number in range(60):
            batch = dataset.train_batch(number * BATCH, BATCH)
            feeds = {features[name]: batch[name] for name in features}
            losses.append(session.run([model["loss"], model["train_op"]], feeds)[0])
        held_out = dataset.validation_batch(0, BATCH)
        feeds = {features[name]: held_out[name] for name in features}
        validation_loss, again = (session.run(model["validation_loss"], feeds) for _ in range(2))
        served = session.run(model["outputs"], {features["image"]: held_out["image"]})
        step = session.run(tf.train.get_global_step())
    assert losses[0] > 1 and np.mean(losses[-5:]) < 0.3 * losses[0]
    assert validation_loss == again < 0.5  # to look at images changes no statistics
    assert (served["label"] == held_out["label"]).mean() > 0.9
    assert served["probability"].min() > 0.25
    assert step == 60


def test_moving_statistics_near_those_of_the_batches():
    with tf.Graph().as_default(), tf.Session() as session:
        features = placeholders(8)
        model = resnet.build(features, tf.train.GradientDescentOptimizer(0.0), **SIZES)
        mean, variance = (tf.global_variables(f"first/norm/{name}")[0] for name in ("mean", "variance"))
        kernel = tf.global_variables("first/kernel")[0]
        session.run(tf.global_variables_initializer())
        image = np.random.default_rng(1).standard_normal([BATCH, 8, 8, 3])
        feeds = {features["image"]: image, features["label"]: np.zeros(BATCH)}
        for _ in range(60):
            session.run(model["train_op"], feeds)
        convolved = session.run(tf.nn.conv2d(image.astype("float32"), kernel, strides=1, padding="SAME"))
        assert session.run(mean) == pytest.approx(convolved.mean(axis=(0, 1, 2)), abs=0.01)
        assert session.run(variance) == pytest.approx(convolved.var(axis=(0, 1, 2)), rel=0.05)


def test_the_papers_size():
    """0.27 million parameters in a ResNet-20 (table 6), but for the two 1 × 1 convolutions around."""
    with tf.Graph().as_default():
        resnet.build(
            placeholders(32), tf.train.GradientDescentOptimizer(0.1), classes=10, filters=16, blocks_per_stage=3
        )
        count = sum(variable.shape.num_elements() for variable in tf.trainable_variables())
        convolutions = [op for op in tf.get_default_graph().get_operations() if op.type == "Conv2D"]
    assert count == pytest.approx(272_000, rel=0.02)
    assert len(convolutions) == 2 * (1 + 18 + 2)  # trained and served
