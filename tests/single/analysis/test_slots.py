"""Which variable a slot belongs to: by what the update writes, whatever the names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.analysis.variable_info import VariableInfo
from parallax_runner.graph.capture import capture
from tests import keras_updates
from tests.keras_updates import Pairs, as_they_are, clip_each, clip_together
from tests.single.small_models import FEATURES, ROWS, WIDTH, Features, infos, lookup_model

SLOTS = {
    "sgd": (),
    "momentum": ("momentum",),
    "adam": ("momentum", "velocity"),
    "amsgrad": ("momentum", "velocity", "velocity_hat"),
    "adamw": ("momentum", "velocity"),
    "ftrl": ("accumulator", "linear"),
    "adagrad": ("accumulator",),
    "rmsprop": ("velocity", "average_gradient", "momentum"),
    "adadelta": ("accumulated_grad", "accumulated_delta_var"),
}


def found(make_train_op: Callable[[Pairs, Features], Any]) -> dict[str, VariableInfo]:
    """Two tables and two dense variables of the same shapes, and a number."""

    def build(features: Features) -> dict[str, Any]:
        twin = tf.get_variable("twin", [ROWS, WIDTH], tf.float64)
        bias = tf.get_variable("bias", [WIDTH], tf.float64)
        offset = tf.get_variable("offset", [], tf.float64)
        rows = tf.nn.embedding_lookup(twin, features["ids"]) + bias
        loss = tf.reduce_mean(tf.square(lookup_model(features) + tf.reduce_sum(rows, axis=1) + offset - features["y"]))
        pairs = tf.train.GradientDescentOptimizer(0.1).compute_gradients(loss)
        return {"loss": loss, "train_op": make_train_op(pairs, features)}

    return infos(capture(build, FEATURES, seed=1))


TRAINED = ("twin", "bias", "offset", "table", "weights")


# The default tier has each value once for each optimizer.
CLIPPED = [
    pytest.param(as_they_are, False, id="as is"),
    pytest.param(as_they_are, True, id="more-as is, averages"),
    pytest.param(clip_each, False, id="more-each"),
    pytest.param(clip_each, True, id="each, averages"),
    pytest.param(clip_together, False, id="together"),
    pytest.param(clip_together, True, id="more-together, averages"),
]


@pytest.mark.parametrize(("clip", "averages"), CLIPPED)
@pytest.mark.parametrize("optimizer", keras_updates.OPTIMIZERS)
def test_slots_of_updates_as_keras_writes_them(optimizer: str, clip: Callable[[Pairs], Pairs], averages: bool) -> None:
    def train_op(pairs: Pairs, _: Features) -> tf.Operation:
        step = tf.train.get_or_create_global_step()
        return keras_updates.Optimizer(optimizer, clip, averages).apply_gradients(pairs, step)

    variables = found(train_op)
    assert set(variables) == {*TRAINED, "global_step"}
    for name in TRAINED:
        expected = [*SLOTS[optimizer], *(["average"] if averages else [])]
        assert sorted(variables[name].slots) == sorted(f"{optimizer}/{name}_{slot}" for slot in expected)


def test_averages_of_tensorflow_1_are_slots() -> None:
    def train_op(pairs: Pairs, _: Features) -> tf.Operation:
        with tf.control_dependencies([tf.train.AdagradOptimizer(0.1).apply_gradients(pairs)]):
            return tf.train.ExponentialMovingAverage(0.9).apply(tf.trainable_variables())

    variables = found(train_op)
    assert set(variables) == set(TRAINED)
    for name in TRAINED:
        assert sorted(variables[name].slots) == [f"{name}/Adagrad", f"{name}/ExponentialMovingAverage"]


def noted(value: Callable[[dict[str, Any], Features], Any], shape: tuple[int, ...], name: str = "noted") -> str | None:
    """The variable, if any, whose slot a variable is that is assigned `value` of the gradients and the features."""

    def train_op(pairs: Pairs, features: Features) -> tf.Operation:
        gradients = {variable.op.name: gradient for gradient, variable in pairs}
        update = tf.train.GradientDescentOptimizer(0.1).apply_gradients(pairs)
        note = tf.get_variable(name, shape, tf.float64, tf.zeros_initializer(), trainable=False)
        with tf.control_dependencies([update]):
            return tf.group(note.assign(value(gradients, features)))

    owners = [info.name for info in found(train_op).values() if name in info.slots]
    assert len(owners) < 2
    return owners[0] if owners else None


def variable(name: str) -> tf.Tensor:
    (one,) = (each for each in tf.trainable_variables() if each.op.name == name)
    return one.read_value()


def test_a_note_of_a_gradient_belongs_to_its_variable_alone() -> None:
    """The gradient of «weights» is computed from that of «bias»'s sum, and a name may be that of another variable."""
    assert noted(lambda gradients, _: gradients["weights"], (WIDTH,)) == "weights"
    assert noted(lambda gradients, _: gradients["weights"], (WIDTH,), name="bias/noted") == "weights"
    assert noted(lambda gradients, _: tf.convert_to_tensor(gradients["twin"]), (ROWS, WIDTH)) == "twin"


def test_what_comes_from_two_variables_belongs_to_the_one_that_its_name_extends() -> None:
    both = lambda gradients, _: gradients["weights"] * gradients["bias"]  # noqa: E731
    assert noted(both, (WIDTH,)) is None
    assert noted(both, (WIDTH,), name="bias/noted") == "bias"


def test_numbers_and_other_shapes_say_nothing() -> None:
    def scaled(gradients: dict[str, Any], _: Features) -> tf.Tensor:
        return gradients["bias"] / tf.norm(gradients["weights"])

    assert noted(scaled, (WIDTH,)) == "bias"
    assert noted(lambda gradients, _: tf.norm(gradients["weights"]), ()) is None
    assert noted(lambda gradients, _: gradients["weights"][:1], (1,)) is None
    assert noted(lambda gradients, _: tf.zeros([WIDTH], tf.float64), (WIDTH,)) is None


def test_an_average_that_data_decides_is_each_ranks_own() -> None:
    def by_data(_: dict[str, Any], features: Features) -> tf.Tensor:
        return variable("weights") * tf.reduce_mean(features["y"])

    assert noted(lambda *_: variable("weights") * 0.5, (WIDTH,)) == "weights"
    assert noted(by_data, (WIDTH,)) is None


def test_counts_and_means_of_losses_are_no_slots() -> None:
    def train_op(pairs: Pairs, features: Features) -> tf.Operation:
        step = tf.train.GradientDescentOptimizer(0.1).apply_gradients(pairs)
        zeros = {"dtype": tf.float64, "initializer": tf.zeros_initializer(), "trainable": False}
        total, count = (tf.get_variable(f"loss/{name}", [], **zeros) for name in ("total", "count"))
        return tf.group(step, total.assign_add(tf.reduce_sum(features["y"])), count.assign_add(4.0))

    variables = found(train_op)
    assert variables["offset"].slots == ()
    assert {"loss/total", "loss/count"} <= set(variables)
