"""A retrieval model in Keras: a tower for queries, a tower for items, and a softmax over the items of the batch.

After "Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations" (Yi and others, 2019).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras import layers, ops


class TwoTower(keras.Model):
    """A two-tower model.

    Inputs: `query` and `item`, int64 [batch], and `item_probability`, float [batch], the item's sampling probability.

    Outputs: the vectors of queries and items, both [batch, size], of length 1. Their dot products rank items.
    """

    def __init__(
        self, *, queries: int, items: int, embedding_size: int, units: Sequence[int], temperature: float
    ) -> None:
        super().__init__(name="two_tower")
        self.temperature = temperature
        self.query_tower = tower(queries, embedding_size, units, name="query")
        self.item_tower = tower(items, embedding_size, units, name="item")

    def call(self, features: Mapping[str, Any]) -> tuple[Any, Any]:
        return self.query_tower(features["query"]), self.item_tower(features["item"])

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        """Return the mean cross entropy of classifying each query's item among the items of the batch.

        An item occurs as a negative in proportion to its frequency. Subtracting the logarithm of the item's probability
        corrects this bias.

        The negatives come from the same batch. With data parallelism over N ranks, each rank has its own batch, and the
        loss is the mean over ranks. This mean differs from the loss of the concatenated batch, which has N times as
        many negatives.
        """
        queries, items = y_pred
        logits = ops.matmul(queries, ops.transpose(items)) / self.temperature
        logits -= ops.log(ops.cast(x["item_probability"], logits.dtype))
        positives = ops.diagonal(logits)[:, None]
        # The item of a query is not a negative for that query, even if the item also occurs in other pairs.
        is_same = ops.equal(x["item"][:, None], x["item"][None, :])
        negatives = ops.where(is_same, -1e9, logits)
        total = ops.logsumexp(ops.concatenate([positives, negatives], axis=1), axis=1)
        return ops.mean(total - positives[:, 0])


def make_model(
    *,
    queries: int,
    items: int,
    embedding_size: int,
    units: Sequence[int],
    temperature: float,
    optimizer: str = "adagrad",
    learning_rate: float = 0.05,
) -> keras.Model:
    """Return the compiled model for query ids below `queries` and item ids below `items`.

    A tower is an embedding of `embedding_size` followed by dense layers of `units`. The last layer sets the size of the
    vectors. Dot products are divided by `temperature`. `optimizer` is the name of a Keras optimizer.
    """
    model = TwoTower(queries=queries, items=items, embedding_size=embedding_size, units=units, temperature=temperature)
    model.compile(optimizer=keras.optimizers.get({"class_name": optimizer, "config": {"learning_rate": learning_rate}}))
    return model


def tower(rows: int, embedding_size: int, units: Sequence[int], *, name: str) -> keras.Sequential:
    """Return a model from ids [batch] to vectors of length 1."""
    *hidden, last = units
    return keras.Sequential(
        [
            layers.Embedding(rows, embedding_size, name=f"{name}_embedding"),
            *(layers.Dense(size, activation="relu", name=f"{name}_{number}") for number, size in enumerate(hidden)),
            layers.Dense(last, name=f"{name}_{len(hidden)}"),
            layers.UnitNormalization(name=f"{name}_norm"),
        ],
        name=f"{name}_tower",
    )
