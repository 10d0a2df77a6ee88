"""Clipped gradients, without ranks: tests/parallel compares training with untouched TensorFlow."""

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.config.schema import UpdateConfig
from parallax_runner.graph.update.clipping import Gradient, clipped, clips


def slices(values: list[list[float]], ids: list[int]) -> tf.IndexedSlices:
    return tf.IndexedSlices(tf.constant(values), tf.constant(ids), tf.constant([5, 2]))


def evaluated(gradients: list[Gradient]) -> list[np.ndarray]:
    with tf.Session() as session:
        return session.run([tf.convert_to_tensor(gradient) for gradient in gradients])


def test_the_norm_of_a_sparse_gradient_is_that_of_its_merged_rows() -> None:
    with tf.Graph().as_default():
        table = tf.get_variable("table", [5, 2])
        rows = slices([[3.0, 0.0], [0.0, 4.0], [3.0, 4.0]], [1, 1, 2])  # merged: two rows of norm 5
        (found,) = evaluated(clipped([rows], [table], UpdateConfig(clip_norm=1.0)))
    expected = np.zeros([5, 2])
    expected[1] = expected[2] = np.array([3.0, 4.0]) / np.sqrt(50)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_limit_holds_for_merged_rows() -> None:
    with tf.Graph().as_default():
        table = tf.get_variable("table", [5, 2])
        (found,) = evaluated(clipped([slices([[2.0, -1.0], [2.0, -1.0]], [3, 3])], [table], UpdateConfig(clip_value=3)))
    assert found[3].tolist() == [3.0, -2.0]


def test_the_pieces_of_a_variable_have_one_norm() -> None:
    with tf.Graph().as_default():
        pieces = list(tf.get_variable("cut", [4], partitioner=tf.fixed_size_partitioner(2)))
        whole = tf.get_variable("whole", [2])
        gradients = [tf.constant([3.0, 0.0]), tf.constant([0.0, 4.0]), tf.constant([0.0, 5.0])]
        found = evaluated(clipped(gradients, [*pieces, whole], UpdateConfig(clip_norm=1.0)))
    np.testing.assert_allclose(found, [[0.6, 0.0], [0.0, 0.8], [0.0, 1.0]], rtol=1e-6)


def test_nothing_is_clipped_unless_it_is_asked_for() -> None:
    assert not clips(UpdateConfig(weight_decay=0.1))
    assert clips(UpdateConfig(global_clip_norm=1.0))
