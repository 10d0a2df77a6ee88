"""Sums of a captured step over batches give the metrics that plain Keras reports for the same batches."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf2
import tensorflow.compat.v1 as tf
from keras import metrics

from parallax_runner.graph.single_device_graph import MetricSums, SingleDeviceGraph
from parallax_runner.graph.traced.capture_step import capture_step

BATCH, BATCHES = 8, 5
# The last batch is a small one: a mean of the batches' means would be wrong.
SIZES = [BATCH] * (BATCHES - 1) + [3]
FEATURES = {
    "x": ((None, 3), "float32"),
    "clicked": ((None, 1), "float32"),
    "price": ((None, 1), "float32"),
    "weight": ((None,), "float32"),
}


def batches() -> list[dict[str, np.ndarray]]:
    """Labels depend on x, so metrics are not those of chance."""
    draw = np.random.default_rng(3)
    found = []
    for size in SIZES:
        x = draw.normal(size=(size, 3)).astype(np.float32)
        clicked = (x[:, :1] + draw.normal(size=(size, 1)) > 0).astype(np.float32)
        price = draw.normal(size=(size, 1)).astype(np.float32)
        found.append({"x": x, "clicked": clicked, "price": price, "weight": draw.uniform(size=size).astype(np.float32)})
    return found


def _model(**compiled: Any) -> Any:
    x = keras.Input((3,), name="x")
    hidden = keras.layers.Dense(4, activation="tanh", name="hidden")(x)
    outputs = {"clicked": keras.layers.Dense(1, activation="sigmoid", name="clicked")(hidden)}
    if isinstance(compiled["loss"], dict):
        outputs["price"] = keras.layers.Dense(1, name="price")(hidden)
    model = keras.Model(x, outputs if len(outputs) > 1 else outputs["clicked"])
    draw = np.random.default_rng(0)
    model.set_weights([draw.normal(size=one.shape) for one in model.weights])
    model.compile(optimizer=keras.optimizers.SGD(0.3), **compiled)
    return model


def _ranking() -> list[Any]:
    return [metrics.AUC(), metrics.BinaryAccuracy(), metrics.Precision(), metrics.Recall(), metrics.R2Score()]


def plain() -> Any:
    """With metrics of one output."""
    return _model(loss="binary_crossentropy", metrics=_ranking())


def loss_alone() -> Any:
    """Compiled without metrics."""
    return _model(loss="binary_crossentropy")


def weighted() -> Any:
    """With metrics that count sample weights, and one that does not."""
    return _model(
        loss="binary_crossentropy", metrics=[metrics.AUC(name="unweighted")], weighted_metrics=[*_ranking(), "mse"]
    )


def two_outputs() -> Any:
    """With metrics of each of two outputs."""
    return _model(
        loss={"clicked": "binary_crossentropy", "price": "mse"},
        metrics={"clicked": [metrics.AUC(), "accuracy"], "price": [metrics.RootMeanSquaredError(), "mae"]},
    )


ONE, TWO = "clicked", {"clicked": "clicked", "price": "price"}
CASES = [(plain, ONE, None), (loss_alone, ONE, None), (weighted, ONE, "weight"), (two_outputs, TWO, None)]


@contextmanager
def _session(single: SingleDeviceGraph) -> Iterator[Callable[[Any, dict[str, np.ndarray]], Any]]:
    with tf.Graph().as_default(), tf.Session() as session:
        tf.import_graph_def(single.meta_graph.graph_def, name="")
        session.run([variable.initializer for variable in single.variables])
        yield lambda fetches, batch: session.run(
            fetches, {tensor: batch[name] for name, tensor in single.features.items()}
        )


def _results(sums: MetricSums, by_batch: list[Any]) -> dict[str, float]:
    return sums.results([np.sum(values, axis=0, dtype=np.float64) for values in zip(*by_batch, strict=True)])


def _dataset(labels: Any, weight: str | None) -> Any:
    def given() -> Iterator[Any]:
        for batch in batches():
            label = {output: batch[name] for output, name in labels.items()} if labels is TWO else batch[labels]
            yield (batch["x"], label) if weight is None else (batch["x"], label, batch[weight])

    def spec(array: Any) -> Any:
        return tf2.TensorSpec([None, *array.shape[1:]], array.dtype)

    made = tf2.data.Dataset.from_generator(given, output_signature=tf2.nest.map_structure(spec, next(given())))
    # Where Keras does not know the end, it runs one step more, and counts what needs no data.
    return made.apply(tf2.data.experimental.assert_cardinality(BATCHES))


@pytest.mark.parametrize(("make", "labels", "weight"), CASES)
def test_sums_give_the_metrics_of_plain_keras(make: Any, labels: Any, weight: str | None) -> None:
    single = capture_step(make, FEATURES, seed=7, options={"labels": labels, "sample_weight": weight})
    assert single.metrics is not None
    assert single.validation_metrics is not None
    with _session(single) as run:
        trained = [run([single.train_op, single.metrics.tensors], batch)[1] for batch in batches()]
        evaluated = [run(single.validation_metrics.tensors, batch) for batch in batches()]
    found = _results(single.metrics, trained)
    keras.utils.clear_session()  # or names of metrics have numbers
    model = make()
    expected = model.fit(_dataset(labels, weight), verbose=0).history
    assert next(iter(found)) == "loss"
    assert set(found) == set(expected)
    assert len(found) == {loss_alone: 1, plain: 6, weighted: 8}.get(make, 7)
    assert found == pytest.approx({name: values[0] for name, values in expected.items()}, rel=1e-6)
    found = _results(single.validation_metrics, evaluated)
    expected = model.evaluate(_dataset(labels, weight), verbose=0, return_dict=True)
    assert found == pytest.approx(expected, rel=2e-6)


def test_the_loss_alone_costs_two_numbers() -> None:
    single = capture_step(loss_alone, FEATURES, seed=7, options={"labels": ONE})
    assert single.metrics is not None
    with _session(single) as run:
        total, count = run(single.metrics.tensors, batches()[-1])
        loss = run(single.loss, batches()[-1])
    assert (total, count) == (pytest.approx(3 * loss), 3)


class Highest(metrics.Metric):
    """The highest prediction: no sum."""

    def __init__(self) -> None:
        super().__init__(name="highest")
        self.highest = self.add_variable((), "zeros", name="highest")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.highest.assign(keras.ops.maximum(self.highest, keras.ops.max(y_pred)))

    def result(self) -> Any:
        return self.highest + 0.0


class Decaying(Highest):
    """An average that forgets: what a batch adds depends on what was there."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.highest.assign(self.highest + 0.1 * (keras.ops.max(y_pred) - self.highest))


class FromOne(metrics.Mean):
    """Starts with a count of one."""

    def __init__(self) -> None:
        super().__init__(name="from_one")

    def reset_state(self) -> None:
        super().reset_state()
        self.count.assign(1.0)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        super().update_state(y_pred)


class InPlace(metrics.Metric):
    """Adds to its variables by TensorFlow's own ops, where metrics of Keras assign a sum."""

    def __init__(self) -> None:
        super().__init__(name="in_place")
        self.up = self.add_variable((), "zeros", name="up")
        self.down = self.add_variable((), "zeros", name="down")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        for _ in range(2):
            self.up.value.assign_add(tf2.reduce_sum(y_true))
            self.down.value.assign_sub(tf2.reduce_sum(y_pred))

    def result(self) -> Any:
        return self.up + self.down


def test_a_metric_that_is_added_to_in_place_is_a_sum() -> None:
    def make() -> Any:
        return _model(loss="binary_crossentropy", metrics=[InPlace()])

    single = capture_step(make, FEATURES, seed=7, options={"labels": ONE})
    assert single.validation_metrics is not None
    with _session(single) as run:
        evaluated = [run(single.validation_metrics.tensors, batch) for batch in batches()]
    found = _results(single.validation_metrics, evaluated)
    expected = make().evaluate(_dataset(ONE, None), verbose=0, return_dict=True)
    assert found == pytest.approx(expected, rel=2e-6)


@pytest.mark.parametrize("kind", [Highest, Decaying, FromOne])
def test_what_is_no_sum_is_named_and_left_out(kind: Any) -> None:
    def make() -> Any:
        return _model(loss="binary_crossentropy", metrics=[metrics.AUC(), kind()])

    single = capture_step(make, FEATURES, seed=7, options={"labels": ONE})
    assert single.metrics is not None
    (note,) = single.notes
    assert "not reported" in note and note.endswith(f": {kind().name}")
    with _session(single) as run:
        values = run(single.metrics.tensors, batches()[0])
    assert list(_results(single.metrics, [values])) == ["loss", "auc"]


def test_what_a_model_has_counted_before_does_not_count() -> None:
    def make(counted: int) -> Any:
        ranking = [metrics.AUC(), metrics.BinaryAccuracy()]
        for metric in ranking[:counted]:
            metric.update_state([[0.0], [1.0]], [[0.7], [0.6]])
        return _model(loss="binary_crossentropy", metrics=ranking)

    found = []
    for counted in (0, 2):
        single = capture_step(functools.partial(make, counted), FEATURES, seed=7, options={"labels": ONE})
        assert single.metrics is not None
        with _session(single) as run:
            values = run(single.metrics.tensors, batches()[1])
        found.append(_results(single.metrics, [values]))
    assert set(found[0]) == {"loss", "auc", "binary_accuracy"}
    assert found[0] == found[1]


def test_a_loss_that_no_metric_counts_is_the_value_of_the_last_step() -> None:
    class OwnSteps(keras.Model):
        """Counts the loss in an evaluation only."""

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf2.GradientTape() as tape:
                loss = self.compute_loss(y=y, y_pred=self(x, training=True))
            gradients = tape.gradient(loss, self.trainable_weights)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
            return {"loss": loss}

    def make() -> Any:
        x = keras.Input((3,), name="x")
        model = OwnSteps(x, keras.layers.Dense(1, activation="sigmoid")(x))
        model.compile(optimizer="sgd", loss="binary_crossentropy")
        return model

    single = capture_step(make, FEATURES, seed=7, options={"labels": ONE})
    assert single.metrics is not None
    assert (single.metrics.tensors, len(single.metrics.last)) == ((), 1)
    assert single.metrics.results([], [0.5]) == {"loss": 0.5}
    assert single.validation_metrics is not None
    assert (len(single.validation_metrics.tensors), single.validation_metrics.last) == (2, ())
