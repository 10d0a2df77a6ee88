"""The model of models/dlrm_keras.py with plain `tf.Variable`s.

`ParameterServerStrategy` does not support Keras 3 models. The model's configuration names the optimizer. If a variable
is sharded over servers, `tf.nn.embedding_lookup` looks up each row in the shard that contains it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import keras
import numpy as np
import tensorflow as tf

INITIAL_ACCUMULATOR, EPSILON = 0.1, 1e-7  # the defaults of keras.optimizers.Adagrad


class Dlrm:
    """The model. Create it in the scope of a strategy. `settings` is the configuration group `model`."""

    def __init__(self, settings: Any) -> None:
        rows = [min(cardinality, settings.max_rows) for cardinality in settings.cardinalities]
        vectors, size = 1 + len(rows), settings.embedding_size
        self._max_rows, self._cardinalities = settings.max_rows, settings.cardinalities
        self._tables = [
            tf.Variable(lambda count=count: tf.random.uniform([count, size], -(count**-0.5), count**-0.5))
            for count in rows
        ]
        self._bottom = make_mlp([settings.dense_features, *settings.bottom_units, size])
        self._top = make_mlp([size + vectors * (vectors - 1) // 2, *settings.top_units, 1])

    @property
    def variables(self) -> list[tf.Variable]:
        """Returns all variables. A sharded variable is returned as its shards."""
        dense = [variable for layer in (*self._bottom, *self._top) for variable in layer]
        return [shard for one in (*self._tables, *dense) for shard in getattr(one, "variables", [one])]

    def logits(self, dense: tf.Tensor, categorical: tf.Tensor) -> tf.Tensor:
        """Returns the logits, [batch], of inputs [batch, dense_features] and [batch, len(cardinalities)]."""
        bottom = tf.nn.relu(mlp(dense, self._bottom))
        embeddings = [tf.nn.embedding_lookup(table, ids) for table, ids in self._lookups(categorical)]
        features = tf.concat([bottom, interactions([bottom, *embeddings])], axis=1)
        return tf.squeeze(mlp(features, self._top), axis=1)

    def _lookups(self, categorical: tf.Tensor) -> list[tuple[tf.Variable, tf.Tensor]]:
        return [
            (
                table,
                hashed(categorical[:, feature], self._max_rows) if count > self._max_rows else categorical[:, feature],
            )
            for feature, (table, count) in enumerate(zip(self._tables, self._cardinalities, strict=True))
        ]


class Adagrad:
    """Adagrad with TensorFlow's ops on each variable's device. It reads and writes only the rows of a gradient."""

    def __init__(self, variables: Sequence[tf.Variable], learning_rate: float) -> None:
        self._learning_rate = learning_rate
        self._accumulators = []
        for variable in variables:
            with tf.distribute.get_strategy().extended.colocate_vars_with(variable):
                self._accumulators.append(tf.Variable(tf.fill(variable.shape, INITIAL_ACCUMULATOR)))

    def apply(self, gradients: Sequence[Any], variables: Sequence[tf.Variable]) -> None:
        """Updates the variables by their gradients."""
        for gradient, variable, accumulator in zip(gradients, variables, self._accumulators, strict=True):
            handles = {"var": variable.handle, "accum": accumulator.handle}
            factors = {"lr": self._learning_rate, "epsilon": EPSILON}
            with tf.device(variable.device):
                if isinstance(gradient, tf.IndexedSlices):
                    rows = {"grad": gradient.values, "indices": gradient.indices}
                    tf.raw_ops.ResourceSparseApplyAdagradV2(**handles, **factors, **rows)
                else:
                    tf.raw_ops.ResourceApplyAdagradV2(**handles, **factors, grad=gradient)


class Sgd:
    """Gradient descent. A sparse gradient changes only its rows."""

    def __init__(self, variables: Sequence[tf.Variable], learning_rate: float) -> None:
        self._learning_rate = learning_rate

    def apply(self, gradients: Sequence[Any], variables: Sequence[tf.Variable]) -> None:
        """Updates the variables by their gradients."""
        for gradient, variable in zip(gradients, variables, strict=True):
            if isinstance(gradient, tf.IndexedSlices):
                variable.scatter_sub(tf.IndexedSlices(self._learning_rate * gradient.values, gradient.indices))
            else:
                variable.assign_sub(self._learning_rate * gradient)


OPTIMIZERS = {"adagrad": Adagrad, "sgd": Sgd}  # by Keras' names


def make_mlp(units: Sequence[int]) -> list[tuple[tf.Variable, tf.Variable]]:
    """Returns the (kernel, bias) of each layer, with Keras' initial values."""
    glorot = keras.initializers.GlorotUniform()
    return [
        (tf.Variable(lambda shape=(ins, outs): glorot(shape)), tf.Variable(tf.zeros([outs])))
        for ins, outs in pairwise(units)
    ]


def mlp(inputs: tf.Tensor, layers: Sequence[tuple[tf.Variable, tf.Variable]]) -> tf.Tensor:
    """Returns the output of the last layer, which has no ReLU. All earlier layers have a ReLU."""
    for number, (kernel, bias) in enumerate(layers):
        inputs = tf.matmul(tf.nn.relu(inputs) if number else inputs, kernel) + bias
    return inputs


def hashed(ids: tf.Tensor, rows: int) -> tf.Tensor:
    """Returns hashed ids, equal to those of `keras.layers.Hashing`."""
    return tf.strings.to_hash_bucket_fast(tf.as_string(ids), rows)


def interactions(vectors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the dot product of each pair of vectors [batch, size], as [batch, pairs]."""
    stacked, count = tf.stack(vectors, axis=1), len(vectors)
    products = tf.reshape(tf.matmul(stacked, stacked, transpose_b=True), [-1, count * count])
    row, column = np.tril_indices(count, k=-1)
    return tf.gather(products, row * count + column, axis=1)
