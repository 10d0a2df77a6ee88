"""`model.validation_metrics` names metrics of the label and the prediction of a Keras model."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from sklearn.metrics import log_loss, roc_auc_score

from parallax_runner.errors import CaptureError
from parallax_runner.graph.group_measures import GroupedRows
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.graph.traced.capture_step import capture_step
from parallax_runner.graph.traced.named_metrics import predictions_noted

ROWS = 40
FEATURES = {
    "x": ((8, 3), "float32"),
    "y": ((8,), "float32"),
    "weight": ((8,), "float32"),
    "user": ((8,), "int64"),
}


def data() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(5)
    x = draw.normal(size=(ROWS, 3)).astype(np.float32)
    y = (x[:, 0] + draw.normal(size=ROWS) > 0).astype(np.float32)
    return {"x": x, "y": y, "weight": draw.integers(0, 3, ROWS).astype(np.float32), "user": draw.integers(0, 4, ROWS)}


def of_logits() -> Any:
    x = keras.Input((3,), name="x")
    model = keras.Model(x, keras.layers.Dense(1, name="logit")(x))
    model.compile(keras.optimizers.SGD(0.1), keras.losses.BinaryCrossentropy(from_logits=True))
    return model


class OwnTest(keras.Model):
    """Its `test_step` does not compute metrics as Keras does."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1, activation="sigmoid")

    def call(self, x: Any) -> Any:
        return self.dense(x["x"])

    def test_step(self, batch: Any) -> dict[str, Any]:
        x, y, *_ = batch
        return {"loss": tf.reduce_mean(tf.square(self(x)[:, 0] - y))}


def own_test() -> Any:
    model = OwnTest()
    model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy")
    return model


def two_outputs() -> Any:
    x = keras.Input((3,), name="x")
    model = keras.Model(x, [keras.layers.Dense(1, name="one")(x), keras.layers.Dense(1, name="two")(x)])
    model.compile(keras.optimizers.SGD(0.1), ["mse", None])
    return model


def classes() -> Any:
    x = keras.Input((3,), name="x")
    model = keras.Model(x, keras.layers.Dense(2, activation="softmax", name="classes")(x))
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    return model


def captured(make: Any, **options: Any) -> SingleDeviceGraph:
    return capture_step(make, FEATURES, seed=2, options={"labels": "y", "groups": "user"} | options)


def values(single: SingleDeviceGraph) -> tuple[dict[str, float], np.ndarray]:
    """Returns the metrics of all rows, and the predictions."""
    metrics = single.validation_metrics
    assert metrics is not None
    with tf.Graph().as_default(), tf.Session() as session:
        tf.import_graph_def(single.meta_graph.graph_def, name="")
        session.run([variable.initializer for variable in single.variables])
        feeds = {tensor: data()[name] for name, tensor in single.evaluated_by.items()}
        sums, rows, outputs = session.run([metrics.tensors, metrics.rows, single.outputs], feeds)
    found = dict(metrics.results(sums, [0.0] * len(metrics.last)))
    for name, columns in rows.items():
        groups, labels, scores, weights = columns
        kept = weights > 0
        grouped = GroupedRows.of(groups[kept], labels[kept], scores[kept], weights[kept])
        found |= metrics.measures[name].result(name, metrics.measures[name].sums(grouped))
    return found, next(iter(outputs.values()))[:, 0].astype(np.float64)


def test_logits_and_weights_are_those_of_the_model() -> None:
    names = ["gauc", "log_loss", "calibration", "group_recall_at_2"]
    found, logits = values(captured(of_logits, sample_weight="weight", validation_metrics=names))
    rows = data()
    probability = 1 / (1 + np.exp(-logits))
    kept = rows["weight"] > 0
    assert found["log_loss"] == pytest.approx(log_loss(rows["y"], probability, sample_weight=rows["weight"]), rel=1e-5)
    ratio = (rows["weight"] * probability).sum() / (rows["weight"] * rows["y"]).sum()
    assert found["calibration"] == pytest.approx(ratio, rel=1e-5)
    inside = [kept & (rows["user"] == user) for user in range(4)]
    areas = [roc_auc_score(rows["y"][mine], logits[mine], sample_weight=rows["weight"][mine]) for mine in inside]
    assert found["gauc"] == pytest.approx(np.average(areas, weights=[rows["weight"][mine].sum() for mine in inside]))
    assert 0 < found["group_recall_at_2"] <= 1 and found["group_recall_at_2_left_out"] == 0


def test_a_test_step_of_the_user_is_enough() -> None:
    found, predicted = values(captured(own_test, validation_metrics=["gauc", "rmse"]))
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean((predicted - data()["y"]) ** 2)), rel=1e-5)
    assert 0 < found["gauc"] < 1


def test_a_batch_is_predicted_once() -> None:
    model = of_logits()
    batch = data()
    with predictions_noted(model) as noted:
        model.test_step((tf.constant(batch["x"]), tf.constant(batch["y"])))
    (predicted,) = noted
    np.testing.assert_allclose(predicted, model(batch["x"]), rtol=1e-6)
    assert "compute_metrics" not in vars(model)


@pytest.mark.parametrize(
    ("make", "options", "said"),
    [
        (of_logits, {"validation_metrics": ["guac"]}, "«guac» is no metric; expected auc, calibration"),
        (of_logits, {"validation_metrics": ["group_ndcg_at_0"]}, "«group_ndcg_at_0» is no metric"),
        (of_logits, {"validation_metrics": ["gauc"], "groups": None}, "needs the group of each example"),
        (of_logits, {"validation_metrics": ["gauc"], "groups": "users"}, "the data has no such feature; it has"),
        (of_logits, {"validation_metrics": ["rmse"], "labels": ["y"]}, "these metrics need one label"),
        (of_logits, {"validation_metrics": ["gauc"], "groups": "x"}, "groups of the type float32"),
        (classes, {"validation_metrics": ["auc"]}, "expected the same number of elements"),
        (two_outputs, {"validation_metrics": ["gauc"]}, "these metrics need one output, and the model has 2"),
        (lambda: lambda batch: 0.0, {"labels": None, "validation_metrics": ["gauc"]}, "needs a Keras model"),
    ],
)
def test_what_cannot_be_computed_is_refused(make: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(CaptureError) as raised:
        captured(make, **options)
    assert said in str(raised.value)
