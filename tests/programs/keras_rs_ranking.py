"""Ranking of documents for a query, with all losses and metrics of keras_rs, and bags of words of all kinds."""

from __future__ import annotations

from typing import Any

import keras
import keras_rs
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tests.programs.program import BATCH, Program

WORDS, DOCUMENTS, LISTED, WIDTH = 60, 40, 5, 6


class Ranking(keras.Model):
    """Scores each document of a list."""

    def __init__(self) -> None:
        super().__init__()
        kinds = {"ragged": "sqrtn", "sparse": "sum", "weighted": "mean"}
        self.bags = {kind: keras_rs.layers.EmbedReduce(WORDS, WIDTH, combiner=one) for kind, one in kinds.items()}
        self.documents = layers.Embedding(DOCUMENTS, WIDTH)

    def call(self, inputs: Any) -> Any:
        bags = [self.bags[kind](inputs[kind]) for kind in ("ragged", "sparse")]
        query = sum(bags) + self.bags["weighted"](inputs["weighted"], inputs["weights"])
        return ops.squeeze(ops.matmul(self.documents(inputs["documents"]), ops.expand_dims(query, -1)), -1)


def every_loss(y_true: Any, y_pred: Any) -> Any:
    """Returns the sum of all losses. Those of pairs are means over documents, not lists."""
    losses = keras_rs.losses
    kinds = [
        *(losses.ListMLELoss, losses.PairwiseHingeLoss, losses.PairwiseLogisticLoss),
        *(losses.PairwiseMeanSquaredError, losses.PairwiseSoftZeroOneLoss),
    ]
    return sum(kind()(y_true, y_pred) for kind in kinds)


def make() -> Program:
    """Returns the model and its data. The documents of a list differ, because metrics break ties at random."""
    model = Ranking()
    metrics = keras_rs.metrics
    model.compile(
        keras.optimizers.SGD(0.01),
        every_loss,
        metrics=[
            *(metrics.NDCG(k=3, name="ndcg"), metrics.DCG(k=3, name="dcg")),
            *(metrics.MeanReciprocalRank(k=3, name="mrr"), metrics.MeanAveragePrecision(k=3, name="map")),
            *(metrics.PrecisionAtK(k=2, name="precision"), metrics.RecallAtK(k=2, name="recall")),
        ],
    )
    draws = np.random.default_rng(3)
    examples = 4 * BATCH
    lengths = draws.integers(1, 6, [examples])
    features = {
        "ragged": tf.RaggedTensor.from_row_lengths(draws.integers(0, WORDS, [lengths.sum()]), lengths),
        "sparse": tf.sparse.from_dense(draws.integers(1, WORDS, [examples, 4]) * draws.integers(0, 2, [examples, 4])),
        "weighted": draws.integers(0, WORDS, [examples, 3]),
        "weights": draws.random([examples, 3]),
        "documents": np.stack([draws.permutation(DOCUMENTS)[:LISTED] for _ in range(examples)]),
    }
    relevance = draws.integers(0, 4, [examples, LISTED]).astype("float64")
    dataset = tf.data.Dataset.from_tensor_slices((features, relevance)).batch(BATCH)
    return Program(model, {"x": dataset, "validation_data": dataset, "epochs": 2})
