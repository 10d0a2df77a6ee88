"""Where in a step a variable is needed and its gradient appears, from the graph."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf

from models import lm
from parallax_runner.analysis.classify import classify
from parallax_runner.graph.capture import capture


def language_model(features: dict[str, tf.Tensor]) -> dict[str, Any]:
    sizes = {"vocab_size": 500, "embedding_size": 16, "num_units": 16, "projection_size": 16, "num_sampled": 50}
    return lm.build(features, tf.train.AdagradOptimizer(0.1), **sizes)


def test_a_softmax_is_needed_after_the_lstm_and_ready_before_it() -> None:
    shapes = {"words": ((4, 5), "int32"), "next_words": ((4, 5), "int32")}
    found = {variable.name: variable for variable in classify(capture(language_model, shapes, seed=1))}
    embedding, softmax, kernel = (found[name] for name in ("embedding", "softmax_w", "lstm/kernel"))
    assert embedding.needed_at == kernel.needed_at == 0.0
    assert 0.15 < softmax.needed_at < 0.5
    assert softmax.needed_at < softmax.appears_at < embedding.appears_at <= 1.0
    assert softmax.appears_at < kernel.appears_at <= 1.0
    assert (found["global_step"].needed_at, found["global_step"].appears_at) == (0.0, 1.0)


def test_of_two_gradients_that_need_other_work_one_is_there_at_the_end() -> None:
    """A step computes one thing after the other, so that not both can be early."""

    def towers(features: dict[str, tf.Tensor]) -> dict[str, Any]:
        first, second = (tf.get_variable(name, [8, 8]) for name in ("first", "second"))
        x = features["x"]
        loss = tf.reduce_mean(tf.matmul(x, first)) + tf.reduce_mean(tf.matmul(tf.tanh(tf.matmul(x, second)), second))
        return {"loss": loss, "train_op": tf.train.GradientDescentOptimizer(0.1).minimize(loss)}

    found = {one.name: one for one in classify(capture(towers, {"x": ((8, 8), "float32")}, seed=1))}
    # The first one's needs a product that the loss is not behind; the second's, one forward and more back.
    assert 0 < found["first"].appears_at < 0.5
    assert found["second"].appears_at == 1.0


def test_where_nothing_is_multiplied_values_are_needed_at_once() -> None:
    def sum_of_squares(features: dict[str, tf.Tensor]) -> dict[str, Any]:
        table = tf.get_variable("table", [8, 8])
        loss = tf.reduce_sum(tf.square(tf.nn.embedding_lookup(table, features["words"])))
        return {"loss": loss, "train_op": tf.train.GradientDescentOptimizer(0.1).minimize(loss)}

    (table,) = classify(capture(sum_of_squares, {"words": ((4,), "int32")}, seed=1))
    assert (table.needed_at, table.appears_at) == (0.0, 1.0)
