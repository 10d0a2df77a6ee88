"""Models with steps of their own: a captured step trains and logs what plain Keras does, in float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from parallax_runner.errors import CaptureError
from parallax_runner.graph.single_device_graph import MetricSums, SingleDeviceGraph
from parallax_runner.graph.traced.capture_step import capture_model
from parallax_runner.graph.traced.model_variables import named_variables, optimizers_by_rate
from parallax_runner.graph.traced.row_updates import SparseUpdates
from parallax_runner.train.metric_sums import Last, Sums

BATCH, BATCHES = 4, 3
X = np.random.default_rng(1).normal(size=[BATCH * BATCHES, 3])
GLOBAL_COUNT = tf.Variable(0, dtype="int64", trainable=False, name="seen")


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    floatx, policy = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")  # Keras keeps the policy of its first layer, also beyond set_floatx
    keras.utils.clear_session()
    GLOBAL_COUNT.assign(0)
    yield
    keras.config.set_floatx(floatx)
    keras.config.set_dtype_policy(policy)


class Own(keras.Model):
    """Has no `call`. Variables are in an attribute, a list, a dict and a layer, one is made in `build`, one is global.
    Two optimizers, one of them in a dict."""

    def __init__(self) -> None:
        super().__init__()
        start = np.linspace(-1.0, 1.0, 3)
        self.scale = tf.Variable(start[:, None], name="scale")
        self.lists = [tf.Variable(start, name="scale"), keras.Variable(start, name="shift")]
        self.by_name = {"count": tf.Variable(0, dtype="int64", trainable=False), "unused": tf.Variable(7.0)}
        self.layer = Scaled()
        self.mean, self.other = keras.metrics.Mean(name="mean"), keras.metrics.Sum(name="other")

    def compile(self, wide: Any, deep: Any, **given: Any) -> None:
        """Passes none of the optimizers to Keras."""
        super().compile(**given)
        self.wide, self.others = wide, {"deep": deep}

    def train_step(self, data: Any) -> dict[str, Any]:
        self.by_name["count"].assign_add(1)
        GLOBAL_COUNT.assign_add(2)
        with tf.GradientTape(persistent=True) as tape:
            found = tf.reduce_sum(data * self.lists[0] + self.lists[1], axis=1, keepdims=True) + data @ self.scale
            wide = tf.reduce_mean(tf.square(found - 1.0))
            deep = tf.reduce_mean(tf.abs(self.layer(data)))
        held = [self.scale, self.lists[0], self.lists[1]]
        self.wide.apply_gradients(zip(tape.gradient(wide, held), held, strict=True))
        trained = self.layer.trainable_variables
        self.others["deep"].apply_gradients(zip(tape.gradient(deep, trained), trained, strict=True))
        self.mean.update_state(wide)
        self.other.update_state(data)
        return {
            "wide_loss": wide,
            "inner": {"of it/all": self.mean.result(), "perplexity": tf.exp(self.mean.result())},
            "both": self.mean.result() + self.other.result(),
            "mixed": self.mean.result() * wide,
            "count": self.by_name["count"],
            "is_small": wide < 1.0,
            "learning_rate": self.wide.learning_rate,
            "vector": tf.zeros([2]),
        }

    def test_step(self, data: Any) -> dict[str, Any]:
        self.mean.update_state(tf.reduce_mean(data))
        return {"mean": self.mean.result(), "highest": tf.reduce_max(data)}


class Scaled(keras.layers.Layer):
    """Makes a variable in `build`."""

    def build(self, shape: Any) -> None:
        self.held = {"by": [self.add_weight(shape=[shape[-1], 2], initializer="ones", name="by")]}
        self.plain = tf.Variable(tf.ones([2], "float64"), name="plain", trainable=False)

    def call(self, x: Any) -> Any:
        self.plain.assign_add([1.0, 2.0])
        return x @ self.held["by"][0] * self.plain


def own() -> Any:
    made = Own()
    made.compile(keras.optimizers.Adam(0.1), keras.optimizers.Adagrad(0.2))
    return made


def captured(made: Any, *, validates: bool = False) -> SingleDeviceGraph:
    features = {"x": tf.TensorSpec([BATCH, 3], "float64")}

    def element(tensors: Any) -> Any:
        return tensors["x"]

    validation = element if validates else None
    return capture_model(made, features, element, seed=1, sparse_updates=SparseUpdates.EXACT, validation=validation)


def batches() -> list[np.ndarray]:
    return [X[start : start + BATCH] for start in range(0, len(X), BATCH)]


def logs_of(metrics: MetricSums | None, found: list[Any]) -> dict[str, float]:
    """Returns the logs of an epoch whose steps have computed these values."""
    assert metrics is not None
    number = len(metrics.tensors)
    each = [
        Sums.of(one[:number], last=Last(step, 1, tuple(map(float, one[number:])))) for step, one in enumerate(found)
    ]
    total = Sums.total(each)
    return metrics.results(total.values, total.last.means)


def run(single: SingleDeviceGraph) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Trains one epoch in a session. Returns the logs and the variables."""
    with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
        tf.compat.v1.import_graph_def(single.meta_graph.graph_def, name="")
        session.run([one.initializer for one in single.variables])
        assert single.metrics is not None
        found = [
            session.run([single.train_op, *single.metrics.every], {single.features["x"]: batch})[1:]
            for batch in batches()
        ]
        reads = {one.name: graph.get_operation_by_name(one.name).outputs[0] for one in single.variables}
        values = {
            one.name: tf.raw_ops.ReadVariableOp(resource=reads[one.name], dtype=one.dtype) for one in single.variables
        }
        return logs_of(single.metrics, found), session.run(values)


def test_a_model_without_call_trains_all_variables_wherever_they_are() -> None:
    plain, ours = own(), own()
    single = captured(ours)
    found, values = run(single)
    GLOBAL_COUNT.assign(0)
    expected = plain.fit(X, batch_size=BATCH, shuffle=False, verbose=0).history
    del expected["vector"], expected["mixed"], found["mixed"]  # notes are about these
    assert found == pytest.approx({key: one for key, (one,) in expected.items()}, rel=1e-12)
    held = {one.ref(): name for name, one in named_variables(ours).items()}
    pairs = [
        (plain.scale, ours.scale),
        *zip(plain.lists, ours.lists, strict=True),
        (plain.by_name["count"], ours.by_name["count"]),
        (plain.layer.plain, ours.layer.plain),
        (plain.layer.held["by"][0], ours.layer.held["by"][0]),
        (GLOBAL_COUNT, GLOBAL_COUNT),
        *zip(plain.wide.variables, ours.wide.variables, strict=True),
        *zip(plain.others["deep"].variables, ours.others["deep"].variables, strict=True),
    ]
    for theirs, one in pairs:
        name = held[getattr(one, "_value", one).ref() if not isinstance(one, tf.Variable) else one.ref()]
        np.testing.assert_allclose(values[name], theirs.numpy(), rtol=1e-12, err_msg=name)
    assert len(values) == len({name for name in held.values()}) == len(pairs)


def test_what_is_said_about_logs_and_the_loss() -> None:
    single = captured(own())
    told = "\n".join(single.notes)
    assert "«wide_loss», «mixed», «count», «is_small», «learning_rate»: train_step" in told
    assert "«vector», which train_step or test_step returns, is not shown: its shape is (2,)" in told
    assert "train_step returns no «loss»: the loss that the run shows and checks for NaN is the sum of the 2" in told
    assert "«mixed»: train_step or test_step computes it from a metric and from the batch." in told
    assert len(single.notes) == 4


def test_a_validation_without_a_loss_has_its_logs() -> None:
    plain, ours = own(), own()
    single = captured(ours, validates=True)
    assert single.validation_metrics is not None and not single.knows_validation_loss
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.import_graph_def(single.meta_graph.graph_def, name="")
        name = single.evaluated_by["x"]
        found = [session.run(single.validation_metrics.every, {name: batch}) for batch in batches()]
    expected = plain.evaluate(X, batch_size=BATCH, verbose=0, return_dict=True)
    assert logs_of(single.validation_metrics, found) == pytest.approx(expected, rel=1e-12)


def test_each_learning_rate_has_its_optimizer() -> None:
    made = own()
    single = captured(made)
    rates = optimizers_by_rate(made)
    assert list(rates.values()) == [made.wide, made.others["deep"]]
    assert tuple(rates) == single.learning_rates
    assert not made.optimizer.built  # Keras' default optimizer, which no step uses
    assert not any(name.startswith("rmsprop") for name in named_variables(made))


def test_a_schedule_and_the_wrapper_of_an_optimizer_have_no_rate_of_their_own() -> None:
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    made = Own()
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), name="scaled")
    made.compile(keras.optimizers.Adam(schedule), scaled)
    captured(made)
    assert list(optimizers_by_rate(made).values()) == [scaled.inner_optimizer]


class WithoutLoss(Own):
    def train_step(self, data: Any) -> dict[str, Any]:
        self.mean.update_state(data)
        return {"mean": self.mean.result()}


def test_a_step_without_loss_and_gradients_is_refused() -> None:
    made = WithoutLoss()
    made.compile(keras.optimizers.Adam(0.1), keras.optimizers.Adagrad(0.2))
    with pytest.raises(CaptureError, match="returns no «loss», and it computes no gradients"):
        captured(made)


class Extended(keras.Model):
    """Adds to Keras' own steps. Its layers, its optimizer and the metrics of `compile` are built in the first step."""

    def __init__(self) -> None:
        super().__init__()
        self.out = keras.layers.Dense(1, kernel_initializer="ones")

    def call(self, x: Any, training: bool = False) -> Any:
        return self.out(x) * (2.0 if training else 1.0)

    def train_step(self, data: Any) -> dict[str, Any]:
        logs = super().train_step((data, tf.reduce_sum(data, axis=1, keepdims=True) + 1.0))
        return {**logs, "norm": tf.norm(self.out.kernel)}

    def test_step(self, data: Any) -> dict[str, Any]:
        return super().test_step((data, tf.reduce_sum(data, axis=1, keepdims=True)))


def test_a_step_that_adds_to_keras_own_step() -> None:
    plain, ours = Extended(), Extended()
    for made in (plain, ours):
        made.compile(keras.optimizers.Adam(0.1), "mse", metrics=["mae"])
    single = captured(ours, validates=True)
    found, values = run(single)
    expected = plain.fit(X, batch_size=BATCH, shuffle=False, verbose=0).history
    assert found == pytest.approx({key: one for key, (one,) in expected.items()}, rel=1e-12)
    held = {one.ref(): name for name, one in named_variables(ours).items()}
    for theirs, one in zip(plain.get_weights(), ours.weights, strict=True):
        np.testing.assert_allclose(values[held[one._value.ref()]], theirs, rtol=1e-12)
    assert single.outputs and single.validation_loss is not None and single.knows_validation_loss
    (note,) = single.notes
    assert note.startswith("«norm»: train_step")


def test_optimizers_of_one_name_keep_apart() -> None:
    made = Own()
    made.compile(keras.optimizers.Adam(0.1, name="same"), keras.optimizers.Adam(0.2, name="same"))
    single = captured(made)
    rates = optimizers_by_rate(made)
    assert {name: float(one.learning_rate) for name, one in rates.items()} == {
        "same/learning_rate": 0.1,
        "same/learning_rate_1": 0.2,
    }
    assert {one.name for one in single.variables} == set(named_variables(made))
