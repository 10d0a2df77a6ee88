"""`experiment=zipf_lm` has the paper's proportions: a step touches 1.7 times as many sparse bytes as dense ones."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from hydra.utils import instantiate

from benchmarks.compose import compose

# Of the paper's language model: 813 million sparse elements, of which a step touches 0.02, and 9.4 million dense ones.
OF_THE_PAPER = 813 * 0.02 / 9.4


def test_sparse_and_dense_bytes_of_a_step() -> None:
    config = compose(["experiment=zipf_lm"])
    dataset = instantiate({key: config.data[key] for key in config.data if key != "batch_size"})
    touched: dict[str, list[tf.Tensor]] = {}

    class Recording(tf.train.GradientDescentOptimizer):
        """Notes which rows of which variable have gradients, and changes nothing."""

        def apply_gradients(self, pairs, global_step=None, name=None):  # type: ignore[no-untyped-def]
            for gradient, variable in pairs:
                rows = tf.unique(gradient.indices)[0] if isinstance(gradient, tf.IndexedSlices) else None
                touched[variable.op.name] = [variable, rows]
            return tf.no_op()

    with tf.Graph().as_default():
        tf.set_random_seed(1)
        features = {
            name: tf.placeholder(feature.dtype, [config.data.batch_size, *feature.shape])
            for name, feature in dataset.features.items()
        }
        instantiate(config.model, features, Recording(0.1))
        dense_bytes = sum(4 * variable.shape.num_elements() for variable, rows in touched.values() if rows is None)
        sparse = {name: pair for name, pair in touched.items() if pair[1] is not None}
        assert {name: int(variable.shape[0]) for name, (variable, _) in sparse.items()} == dict.fromkeys(
            ("embedding", "softmax_w", "softmax_b"), 200_000
        )
        counts = {name: tf.size(rows) for name, (_, rows) in sparse.items()}
        sparse_bytes = []
        with tf.Session() as session:  # nothing is initialised: which rows are touched does not depend on values
            for step in range(3):
                batch = dataset.train_batch(step * config.data.batch_size, config.data.batch_size)
                found = session.run(counts, {features[name]: batch[name] for name in features})
                sparse_bytes.append(
                    sum(4 * rows * int(np.prod(sparse[name][0].shape[1:])) for name, rows in found.items())
                )
    assert dense_bytes == 2_363_392
    assert np.mean(sparse_bytes) / dense_bytes == pytest.approx(OF_THE_PAPER, rel=0.03)
