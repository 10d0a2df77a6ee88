"""Which initial values can be made row by row, and why others cannot."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.analysis.initial_rows import InitialRows, MadeWhole, initial_rows, only_number
from tests.single.small_models import Features, captured, infos, planned

SHAPE = (500_000, 4)


def uniform() -> tf.Tensor:
    return tf.random_uniform(SHAPE, -1, 1)


def after_another_op() -> tf.Tensor:
    drawn = uniform()
    with tf.control_dependencies([tf.no_op()]):
        return tf.abs(drawn)


def stateless(algorithm: str) -> tf.Tensor:
    return tf.random.stateless_uniform(SHAPE, [1, 2], alg=algorithm)


WHOLE: dict[str, tuple[Callable[[], tf.Tensor], str]] = {
    "exponential": (lambda: tf.exp(uniform()), "(Exp) is neither a random draw nor an exact elementwise op"),
    "orthogonal": (lambda: tf.orthogonal_initializer()((3000, 300)), "is neither a random draw"),
    "norm": (lambda: uniform() / tf.norm(uniform()), "is needed whole for «"),
    "sum of sums": (lambda: uniform() + tf.constant(0.5), "(AddV2) has operands that TensorFlow reorders"),
    "behind a gradient": (lambda: tf.stop_gradient(uniform()) + tf.constant(0.5), "that TensorFlow reorders"),
    "product of products": (lambda: tf.truncated_normal(SHAPE) * 2.0 * 3.0, "(Mul) has operands that TensorFlow"),
    "factor": (lambda: uniform() * 2.0 + uniform() * 3.0, "(AddV2) has operands with a factor"),
    "numbers": (lambda: tf.constant(np.arange(2_000_000, dtype=np.float32).reshape(SHAPE)), "is a constant with"),
    "waits": (after_another_op, "waits for «NoOp»"),
    "integers": (lambda: tf.random_uniform(SHAPE, 0, 9, tf.int32), "(RandomUniformInt) is neither"),
    "threefry": (lambda: stateless("threefry"), "draws with a counter or an algorithm of its own"),
    "counter": (lambda: stateless("philox"), "draws with a counter or an algorithm of its own"),
    "one column": (lambda: tf.random_uniform((500_000, 1)) * tf.ones((1, 4)), "draws numbers of shape [500000, 1]"),
    "unknown shape": (lambda: tf.random_uniform(tf.placeholder(tf.int32, [2])), "an unknown number of rows"),
    "scalar": (lambda: tf.random_uniform([]), "has no rows"),
}
BY_ROWS: dict[str, Callable[[], tf.Tensor]] = {
    "scaled and moved": lambda: uniform() * 0.5 + 0.25,
    "chosen by the device": lambda: stateless("auto_select"),
    "narrow": lambda: tf.cast(tf.random_normal(SHAPE, dtype=tf.float64), tf.float16),
    "a row for all": lambda: uniform() * tf.constant([1.0, 2.0, 3.0, 4.0]),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_value_that_is_made_whole_has_a_reason(name: str) -> None:
    make, reason = WHOLE[name]
    with tf.Graph().as_default():
        found = initial_rows(make())
    assert isinstance(found, MadeWhole)
    assert reason in str(found)


@pytest.mark.parametrize("name", BY_ROWS)
def test_draws_and_elementwise_functions_are_made_by_rows(name: str) -> None:
    with tf.Graph().as_default():
        found = initial_rows(BY_ROWS[name]())
    assert isinstance(found, InitialRows)
    assert not found.are_equal


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.float16, tf.bfloat16, tf.int32, tf.int64])
def test_the_number_of_a_constant_is_read_without_its_elements(dtype: tf.DType) -> None:
    with tf.Graph().as_default():
        value = tf.constant(3, dtype, SHAPE)
        assert initial_rows(value).are_equal
        number = only_number(value.op.get_attr("value"))
    assert number is not None
    assert (number.shape, number.dtype, number) == ((), dtype.as_numpy_dtype, 3)


def large_model(features: Features) -> tf.Tensor:
    """One table that begins by rows, and one that does not."""
    drawn = tf.get_variable("drawn", [200_000, 2], tf.float64)
    curved = tf.Variable(lambda: tf.exp(tf.random_normal([200_000, 2], dtype=tf.float64)), name="curved")
    rows = [tf.nn.embedding_lookup(table, features["ids"]) for table in (drawn, curved)]
    return tf.reduce_sum((rows[0] + rows[1]) * tf.get_variable("weights", [2], tf.float64), axis=1)


@pytest.mark.parametrize(
    ("comm", "who"), [("sharded", "each worker"), ("ps", "worker 0"), ("hybrid", "worker 0"), ("mpi", None)]
)
def test_the_plan_names_what_is_made_whole(comm: str, who: str | None) -> None:
    single = captured(large_model)
    (whole,) = infos(single)["curved"].whole_initial_values
    assert (whole.variable, whole.size_bytes) == ("curved", 3_200_000)
    assert not infos(single)["drawn"].whole_initial_values
    notes = [note for note in planned(single, comm).notes if "at the start" in note]
    if who is None:
        assert notes == []
        return
    (note,) = notes
    assert note.startswith(f"at the start, {who} makes the whole initial value of «curved» (3.2 MB), because «")
    assert "(Exp) is neither a random draw nor an exact elementwise op" in note
