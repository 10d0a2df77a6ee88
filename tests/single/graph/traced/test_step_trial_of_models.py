"""Which divisors count in Keras models with steps or losses of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, losses, ops, optimizers

from parallax_runner.graph.traced.capture_step import capture_step
from parallax_runner.graph.traced.loss_notes import notes_on_losses
from tests.parallel import keras_models
from tests.parallel.cases import Case
from tests.single.graph.traced.step_decisions import (
    COUNT,
    FIRST,
    GLOBAL,
    IS_NEITHER,
    IS_SUMMED,
    LENGTH,
    ROWS,
    TARGET,
    Marks,
    check,
    decided,
)


class Trains(keras.Model):
    """A model with its own `train_step`. `loss_of` takes the model, x, y and the predictions."""

    loss_of: Callable[..., Any] = staticmethod(lambda model, x, y, predicted: model.compute_loss(x, y, predicted))

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data[:2]
        with tf.GradientTape() as tape:
            loss = self.loss_of(self, x, y, self(x, training=True))
        slopes = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(slopes, self.trainable_variables, strict=True))
        return {"loss": loss}


class Halving(keras.Model):
    """A model with its own `compute_loss`."""

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, *args: Any, **kwargs: Any) -> Any:
        return super().compute_loss(x, y, y_pred, *args, **kwargs) / 2


class AddsSum(layers.Layer):
    """Adds a sum over examples to the loss."""

    supports_masking = True

    def call(self, x: Any) -> Any:
        self.add_loss(0.01 * ops.sum(ops.square(x)))
        return x


class OfEachWord(losses.Loss):
    """One value for each word. All words of an example have the same label."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return ops.square(y_pred - ops.reshape(y_true, (-1, 1)))


class LastOnly(layers.Layer):
    """Removes the last dimension and keeps the mask."""

    supports_masking = True

    def call(self, x: Any) -> Any:
        return x[..., 0]


class Towers(keras.Model):
    """Compares each example with all examples of the batch. The vectors have the length 1, and the scores are large, so
    gradients are small."""

    def __init__(self, reduce: Any) -> None:
        super().__init__()
        self.reduce, self.table, self.norm = reduce, layers.Embedding(ROWS, 3), layers.UnitNormalization()

    def call(self, x: Any) -> Any:
        return self.norm(self.table(x["ids"][:, 0])), self.norm(x["x"])

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, *args: Any, **kwargs: Any) -> Any:
        logits = ops.matmul(y_pred[0], ops.transpose(y_pred[1])) / 0.05
        return self.reduce(ops.logsumexp(logits, axis=1) - ops.diagonal(logits))


def towers(reduce: Any) -> Any:
    made = Towers(reduce)
    made.compile(optimizers.SGD(0.1))
    return made


def words(
    kind: type[keras.Model], loss_of: Any = None, *, inner: Any = None, reduction: Any = "mean", **table: Any
) -> Any:
    """A model with a masked value for each word."""
    ids = keras.Input((LENGTH,), dtype="int32", name="ids")
    found = layers.Embedding(ROWS, 3, mask_zero=True, **table)(ids)
    found = layers.Dense(1)(found if inner is None else inner(found))
    made = kind({"ids": ids}, LastOnly()(found))
    if loss_of is not None:
        made.loss_of = loss_of
    made.compile(optimizers.SGD(0.1), OfEachWord(reduction=reduction))
    return made


def keras_loss(model: Any, x: Any, y: Any, predicted: Any) -> Any:
    return model.compute_loss(x, y, predicted)


MASK = (COUNT, 0)
NAMED = "is masked"
OF_MODELS: dict[str, tuple[Callable[[], Any], Marks, list[str]]] = {
    "masked": (lambda: words(Trains), [MASK], []),
    "towers": (lambda: towers(ops.mean), [], [IS_NEITHER]),
    "more-sum of towers": (lambda: towers(ops.sum), [], [IS_NEITHER]),
    "more-own compute_loss": (lambda: words(Halving), [MASK], []),
    "factor and regularizer": (
        lambda: words(Trains, lambda *given: 3.0 * keras_loss(*given), embeddings_regularizer="l2"),
        [MASK],
        [],
    ),
    "exponential": (lambda: words(Trains, lambda *given: tf.exp(keras_loss(*given))), [], [NAMED]),
    "more-sum": (lambda: words(Trains, reduction="sum"), [FIRST], []),
    "more-sum/constant": (
        lambda: words(Trains, lambda *given: keras_loss(*given) / GLOBAL, reduction="sum"),
        [FIRST],
        [],
    ),
    "no reduction": (
        lambda: words(Trains, lambda m, x, y, p: tf.reduce_sum(m.loss(y, p)) / GLOBAL, reduction=None),
        [TARGET],
        [IS_SUMMED],
    ),
    "added sum": (lambda: words(Trains, inner=AddsSum()), [FIRST, (COUNT, 1)], []),
    "more-added sum and a mean of each": (
        lambda: words(
            Trains, lambda m, x, y, p: tf.reduce_mean(m.loss(y, p)) + sum(m.losses), inner=AddsSum(), reduction=None
        ),
        [FIRST],
        [],
    ),
}


@pytest.mark.parametrize("case", OF_MODELS)
def test_a_model_with_its_own_step(case: str) -> None:
    make, marks, notes = OF_MODELS[case]
    found = decided(make, labels="y")
    check((sorted(found[0], key=str), found[1]), sorted(marks, key=str), notes)


@pytest.mark.parametrize("name", ["masked_step", "from_mirrored", "summed", "own_step"])
def test_the_steps_of_the_equivalence_matrix(name: str) -> None:
    """A trial shows the marks that the matrix takes to count."""
    case = Case(model=name, optimizer="sgd", kind="keras" if name in ("masked_step", "own_step") else "tape")
    model = keras_models.MODELS[name]
    features = {one: keras_models.FEATURES[one] for one in model.features}
    shapes = {one: ((keras_models.BATCH, *shape), dtype) for one, (shape, dtype) in features.items()}
    with keras_models.as_case(case):
        captured = capture_step(lambda: keras_models.make(case)[0], shapes, seed=7, options=model.options)
    parts = [keras_models.batch(case, number, rank=0) for number in range(4)]
    whole = {key: np.concatenate([one[key] for one in parts]) for key in parts[0]}
    with keras_models.as_case(case):
        found = notes_on_losses(
            captured.loss_trial,
            lambda size: {key: array[:size] for key, array in whole.items()},
            replicas=2,
            step_examples=2 * keras_models.BATCH,
            exact=captured.divisors,
        )
    assert found.sums == keras_models.SHOWN.get(name, set())


class WhileTraining(layers.Layer):
    """Adds a loss only in training, so the trial counts other losses than the captured step."""

    supports_masking = True

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.add_loss(ops.mean(ops.square(x)))
        return x


def test_losses_that_only_training_has_leave_the_notes() -> None:
    check(decided(lambda: words(Trains, inner=WhileTraining()), labels="y"), [], [NAMED])


@pytest.mark.parametrize(
    "policy", [pytest.param("mixed_bfloat16", id="more-bfloat16"), pytest.param("mixed_float16", id="float16")]
)
def test_a_step_that_computes_in_16_bits(policy: str) -> None:
    def make() -> Any:
        inner = layers.Dense(4, dtype=policy)
        made = words(Trains, lambda m, x, y, p: m.optimizer.scale_loss(m.loss(y, p)), inner=inner, reduction="sum")
        made.compile(optimizers.LossScaleOptimizer(optimizers.SGD(0.1)), made.loss)
        return made

    check(decided(make, labels="y"), [FIRST], [])
