"""A validation by two and by three workers has the numbers of plain Keras' `fit`, in float64, for values that depend on
which examples are a batch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from parallax_runner.api.fit_data import dataset_of
from parallax_runner.data.common_features import validation_features_of
from parallax_runner.graph.components import specs_of
from parallax_runner.graph.traced.capture_step import capture_model
from parallax_runner.graph.traced.row_updates import SparseUpdates
from parallax_runner.graph.uneven_steps import with_share
from parallax_runner.train.feed import Feed
from parallax_runner.train.metric_sums import Sums
from tests.single.api.test_fit import GIVEN
from tests.single.train.one_rank import Rank

TRAINED, HELD_BACK, LENGTH, WORDS = 10, 17, 5, 9
# The workers' batches of these sizes have different numbers of words and different weights.
SIZES = (4, 1, 6, 2)
LOSSES = ("sum_over_batch_size", "sum", "mean_with_sample_weight")


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    floatx, policy = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    keras.utils.clear_session()
    yield
    keras.config.set_floatx(floatx)
    keras.config.set_dtype_policy(policy)


def sentences(examples: int, *, first: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Example i has 1 to 5 words and a number for each word. Zeros are no words."""
    numbers = np.arange(first, first + examples)[:, None]
    places = np.arange(LENGTH)
    words = (numbers * 5 + places * 3) % (WORDS - 1) + 1
    return np.where(places <= numbers**2 % LENGTH, words, 0), np.sin(1.0 + numbers * places)[..., None]


def weights(examples: int) -> np.ndarray:
    """A weight for each word."""
    return np.linspace(0.2, 3.0, examples * LENGTH).reshape(examples, LENGTH)


class Made(keras.utils.PyDataset):
    """Batches of SIZES. All passes are the same."""

    def __len__(self) -> int:
        return len(SIZES)

    def __getitem__(self, index: int) -> Any:
        start, size = sum(SIZES[:index]), SIZES[index]
        return tuple(part[start : start + size] for part in sentences(sum(SIZES), first=3))


class ByBatch(keras.Model):
    """Adds to Keras' `test_step` a mean over batches, a value of the last batch and what is computed from a mean."""

    def test_step(self, data: Any) -> dict[str, Any]:
        logs = super().test_step(data)
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        loss = self.compute_loss(x, y, self(x, training=False), weight, training=False)
        self.mean_of_batches.update_state(loss)
        return {**logs, "by_batch": self.mean_of_batches.result(), "last": loss, "root": tf.sqrt(logs["loss"])}


def model(reduction: str) -> Any:
    """Predicts a number for each word. A training step changes nothing. Plain Keras and the workers have the same
    model, because names decide initial values."""
    keras.utils.set_random_seed(3)
    words = keras.Input([None], dtype="int64", name="words")
    rows = keras.layers.Embedding(WORDS, 3, mask_zero=True, embeddings_initializer="normal", name="table")(words)
    made = ByBatch(words, keras.layers.Dense(1, name="top")(keras.layers.LSTM(3, return_sequences=True)(rows)))
    made.mean_of_batches = keras.metrics.Mean(name="by_batch")
    loss = keras.losses.MeanSquaredError(reduction=reduction)
    made.compile(keras.optimizers.SGD(0.0), loss, metrics=["mae"], weighted_metrics=["mse"])
    return made


def padded(examples: int, batch: int, *, first: int = 0) -> Any:
    """Each batch is as long as its longest sentence, also if that length is 1."""
    words, targets = sentences(examples, first=first)
    lengths = tf.data.Dataset.from_tensor_slices((words, targets, (words > 0).sum(axis=1)))
    return lengths.map(lambda x, y, length: (x[:length], y[:length])).padded_batch(batch)


def in_batches(examples: int, batch: int, **options: Any) -> Any:
    return tf.data.Dataset.from_tensor_slices((*sentences(examples), weights(examples))).batch(batch, **options)


HELD = (*sentences(HELD_BACK, first=2), weights(HELD_BACK))
TRAIN: dict[str, dict[str, Any]] = {
    "arrays": {"x": sentences(TRAINED)[0], "y": sentences(TRAINED)[1], "batch_size": 4},
    "tf.data": {"x": in_batches(TRAINED, 4).map(lambda x, y, weight: (x, y))},
    "made": {"x": Made()},
}
VALIDATION: dict[str, dict[str, Any]] = {
    "arrays": {"validation_data": HELD},
    "arrays in other batches": {"validation_data": HELD, "validation_batch_size": 6},
    "first arrays": {"validation_data": HELD[:2], "validation_batch_size": 3, "validation_steps": 4},
    "tf.data": {"validation_data": in_batches(HELD_BACK, 7)},
    "first of tf.data": {"validation_data": in_batches(HELD_BACK, 3), "validation_steps": 4},
    "without the rest": {"validation_data": in_batches(HELD_BACK, 5, drop_remainder=True)},
    "padded": {"validation_data": padded(HELD_BACK, 3)},
    "made": {"validation_data": Made()},
    "first made": {"validation_data": Made(), "validation_steps": 3},
    "one batch": {"validation_data": HELD, "validation_batch_size": 100},
}
PAIRS = [
    *[("arrays", held) for held in VALIDATION if held != "padded"],  # arrays have one shape
    ("arrays", "split"),
    ("tf.data", "arrays in other batches"),
    ("tf.data", "padded"),
    ("tf.data", "made"),
    ("made", "first arrays"),
    ("made", "tf.data"),
    ("made", "first made"),
]
VALIDATION["split"] = {"validation_split": 0.5}
# The default tier has each kind of data once.
IN_DEFAULT_TIER = [
    ("arrays", "arrays in other batches"),
    ("arrays", "made"),
    ("tf.data", "padded"),
    ("made", "first arrays"),
]
CASES = [
    pytest.param(*pair, reduction, id="-".join(pair) if pair in IN_DEFAULT_TIER else f"more-{'-'.join(pair)}")
    for pair, reduction in zip(PAIRS, itertools.cycle(LOSSES), strict=False)
]


def by_workers(made: Any, arguments: dict[str, Any], workers: int) -> dict[str, float]:
    """Returns the validation logs of so many workers, each of which evaluates its batches."""
    data = dataset_of(**{**GIVEN, "y": None, "shuffle": False, **arguments})
    single = capture_model(
        made,
        specs_of(data.features, None),
        data.structure.element_of,
        seed=1,
        sparse_updates=SparseUpdates.EXACT,
        validation=data.validation_structure.element_of,
        validation_features=specs_of(validation_features_of(data), None),
    )
    assert single.validation_metrics is not None
    shared = with_share(single)
    reports = []
    for rank in range(workers):
        one = Rank(single=shared, feed=Feed(data, -(-data.global_batch // workers), rank, workers))
        one.run(0)
        reports += one.said("validation")
    sums = Sums.total(map(Sums.of_fields, reports))
    found = single.validation_metrics.results(sums.values, sums.last.means)
    mean = sum(report["loss_sum"] for report in reports) / sum(report["examples"] for report in reports)
    assert mean == pytest.approx(found["loss"], rel=1e-12)
    return found


@pytest.mark.parametrize(("train", "held", "reduction"), CASES)
def test_a_validation_has_the_numbers_of_plain_keras(train: str, held: str, reduction: str) -> None:
    arguments = {**TRAIN[train], **VALIDATION[held]}
    history = model(reduction).fit(**arguments, epochs=1, verbose=0).history
    expected = {key.removeprefix("val_"): value for key, (value,) in history.items() if key.startswith("val_")}
    assert {"loss", "by_batch", "last", "root", "mae", "mse"} == set(expected)
    keras.utils.clear_session()
    made = model(reduction)
    for workers in (2, 3):
        assert by_workers(made, arguments, workers) == pytest.approx(expected, rel=1e-9), workers
