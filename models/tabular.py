"""A Keras model for the columns of a table: embeddings of categories, numbers, and an MLP."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf
from keras import layers, ops

from parallax_runner.layers import GrowingEmbedding

LOSSES = {"binary": "binary_crossentropy", "regression": "mean_squared_error"}
LISTS = ("categories", "text")
INPUTS = ("number", "category", *LISTS)


def make_model(
    *,
    table: Mapping[str, Any],
    task: str,
    embedding_size: int,
    units: Sequence[int],
    capacity: int = 1048576,
    admit: Mapping[str, int] | None = None,
    evict: Mapping[str, int] | None = None,
    optimizer: str = "adagrad",
    learning_rate: float = 0.05,
) -> keras.Model:
    """Return the compiled model.

    `table` describes the features by name: `kind`, `shape`, `sizes` of their ids, `is_ragged`, `is_padded` and `grows`.
    Each category has its own table with rows of `embedding_size`. If its vocabulary grows, the table has `capacity`
    rows, and `admit` and `evict` are those of `GrowingEmbedding`. The rows of a list are averaged. An MLP with hidden
    layers of `units` combines the rows and the numbers.

    Output: float [batch, 1], with `task=binary` the probability of the label 1, with `task=regression` the label.
    `optimizer` is the name of a Keras optimizer. Raises ValueError for another task, if no feature is an input, if
    there is no label, and for labels that do not fit the task.
    """
    if task not in LOSSES:
        raise ValueError(f"task {task}: expected binary or regression")
    described = {name: one for name, one in table.items() if one.kind in INPUTS}
    if not described:
        raise ValueError("the table has no feature that is an input")
    _check_labels(table, task)
    inputs = {name: _input(name, one) for name, one in described.items()}
    tables = _Tables(embedding_size, capacity, admit, evict)
    vectors = [vector for name, one in described.items() for vector in _vectors(name, one, inputs[name], tables)]
    hidden = ops.concatenate(vectors, axis=1) if len(vectors) > 1 else vectors[0]
    for number, size in enumerate(units):
        hidden = layers.Dense(size, activation="relu", name=f"hidden_{number}")(hidden)
    activation = "sigmoid" if task == "binary" else None
    model = keras.Model(inputs, layers.Dense(1, activation=activation, name="prediction")(hidden), name="tabular")
    metric = keras.metrics.AUC(name="auc") if task == "binary" else keras.metrics.MeanAbsoluteError(name="mae")
    model.compile(
        optimizer=keras.optimizers.get({"class_name": optimizer, "config": {"learning_rate": learning_rate}}),
        loss=LOSSES[task],
        metrics=[metric],
    )
    tables.set_optimizer(model.optimizer)
    return model


def _check_labels(table: Mapping[str, Any], task: str) -> None:
    """Raises ValueError if there is no label, or if one is outside 0 to 1, where the binary loss has no minimum."""
    labels = {name: one for name, one in table.items() if one.kind == "label"}
    if not labels:
        raise ValueError("data.columns has no column of the kind label")
    if task != "binary":
        return
    for name, one in labels.items():
        if one.low is not None and (one.low < 0 or one.high > 1):
            raise ValueError(
                f"the label «{name}» is between {one.low:g} and {one.high:g}, and the task binary expects 0 to 1; for "
                "numbers, set model.task=regression"
            )


def _input(name: str, one: Any) -> Any:
    return keras.Input(one.shape, dtype=one.dtype, ragged=one.is_ragged, name=_layer_name(name))


@dataclass(frozen=True)
class _Tables:
    """Makes tables with rows of `size`. Those that grow have `capacity` rows, and give them to keys and take them away
    by the rules `admit` and `evict`."""

    size: int
    capacity: int
    admit: Mapping[str, int] | None
    evict: Mapping[str, int] | None
    growing: list[GrowingEmbedding] = field(default_factory=list)

    def of(self, name: str, rows: int | None) -> Any:
        """Return the table of a feature. `rows` is None if its vocabulary grows."""
        layer_name = f"embedding_{_layer_name(name)}"
        if rows is None:
            table = GrowingEmbedding(self.size, self.capacity, admit=self.admit, evict=self.evict, name=layer_name)
            self.growing.append(table)
            return table
        return layers.Embedding(rows, self.size, name=layer_name)

    def set_optimizer(self, optimizer: Any) -> None:
        """Tell the tables that grow which optimizer updates them."""
        for table in self.growing:
            table.set_optimizer(optimizer)


def _vectors(name: str, one: Any, given: Any, tables: _Tables) -> list[Any]:
    """Return vectors [batch, n] of a feature."""
    if one.kind == "number":
        return [given if one.shape else ops.expand_dims(given, axis=1)]
    if one.kind in LISTS:
        return [_averaged(name, one, given, tables)]
    if not one.shape:
        return [tables.of(name, _rows(one)[0])(given)]
    return [tables.of(f"{name}_{place}", rows)(given[:, place]) for place, rows in enumerate(_rows(one))]


def _rows(one: Any) -> Sequence[int | None]:
    """Return the number of rows of each table of a feature, None if it grows."""
    if one.grows:
        return [None] * math.prod(one.shape)
    return tuple(one.sizes)


def _averaged(name: str, one: Any, ids: Any, tables: _Tables) -> Any:
    """Return the average of a list's rows, or 0 if the list is empty."""
    rows = tables.of(name, None if one.grows else one.size)(ids)
    if one.is_ragged:
        return AverageOfRagged(name=f"average_{_layer_name(name)}")(rows)
    is_item = ops.expand_dims(ops.cast(ops.not_equal(ids, 0), rows.dtype), axis=2)
    items = ops.maximum(ops.sum(is_item, axis=1), 1.0)
    return ops.sum(rows * is_item, axis=1) / items


@keras.saving.register_keras_serializable(package="parallax_runner")
class AverageOfRagged(layers.Layer):
    """The average of the rows of each example, and 0 for an example without rows."""

    def call(self, rows: Any) -> Any:
        """Return [batch, size] for ragged rows [batch, None, size]."""
        if not isinstance(rows, tf.RaggedTensor):  # Keras builds the model with other tensors than it trains with
            return ops.mean(rows, axis=1)
        sums = tf.reduce_sum(rows, axis=1)
        return sums / tf.cast(tf.maximum(rows.row_lengths(), 1), sums.dtype)[:, None]

    def compute_output_shape(self, shape: Sequence[int | None]) -> tuple[int | None, ...]:
        """Return the shape without the dimension of the rows."""
        return (shape[0], shape[-1])


def _layer_name(name: str) -> str:
    """Return a name that TensorFlow allows. A column can have any name."""
    return re.sub(r"[^A-Za-z0-9_.]", "_", name)
