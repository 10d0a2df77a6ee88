"""The language model learns, its three tables have sparse gradients, its losses are what they say."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from models import lm
from tests import numpy_lm

VOCAB_SIZE = 300
BATCH = 8
LENGTH = 5
SIZES = {"embedding_size": 16, "num_units": 24, "projection_size": 12, "num_sampled": 32}


@pytest.fixture
def graph():
    """Return an empty default graph with a seed."""
    with tf.Graph().as_default() as graph:
        tf.set_random_seed(1)
        yield graph


def placeholders():
    return {name: tf.placeholder(tf.int32, [BATCH, LENGTH], name) for name in ("words", "next_words")}


def counting_batch(generator):
    """Return windows in which each word follows the last one: what a model can learn."""
    windows = generator.integers(0, 50, [BATCH, 1]) + np.arange(LENGTH + 1)
    return {"words": windows[:, :-1], "next_words": windows[:, 1:]}


def feed(features, batch):
    return {features[name]: batch[name] for name in features}


def test_loss_falls_and_perplexity_with_it(graph):
    features = placeholders()
    model = lm.build(features, tf.train.AdagradOptimizer(0.2), vocab_size=VOCAB_SIZE, **SIZES)
    generator = np.random.default_rng(1)
    held_out = feed(features, counting_batch(generator))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        before = session.run(model["validation_loss"], held_out)
        losses = [
            session.run([model["loss"], model["train_op"]], feed(features, counting_batch(generator)))[0]
            for _ in range(300)
        ]
        after = session.run(model["validation_loss"], held_out)
        steps = session.run(tf.train.get_global_step())
    assert before == pytest.approx(np.log(VOCAB_SIZE), abs=0.1)
    assert np.mean(losses[-20:]) < 0.5 * losses[0]
    assert after < 0.4 * before
    assert model["validation_metric"] == "perplexity"
    assert steps == 300


def test_more_sampled_words_than_there_are(graph):
    with pytest.raises(ValueError, match=r"model\.num_sampled=32 distinct words .* data\.vocab_size=31"):
        lm.build(placeholders(), tf.train.AdagradOptimizer(0.2), vocab_size=31, **SIZES)


class RecordingOptimizer(tf.train.GradientDescentOptimizer):
    """Keeps the gradients that it is given, by variable name."""

    def apply_gradients(self, grads_and_vars, *arguments, **keywords):
        pairs = list(grads_and_vars)
        self.gradients = {variable.op.name: gradient for gradient, variable in pairs}
        return super().apply_gradients(pairs, *arguments, **keywords)


def test_tables_have_sparse_gradients_and_the_lstm_dense_ones(graph):
    optimizer = RecordingOptimizer(0.1)
    lm.build(placeholders(), optimizer, vocab_size=VOCAB_SIZE, **SIZES)
    sparse = {name for name, gradient in optimizer.gradients.items() if isinstance(gradient, tf.IndexedSlices)}
    assert sparse == {"embedding", "softmax_w", "softmax_b"}
    assert set(optimizer.gradients) - sparse == {"lstm/kernel", "lstm/bias", "lstm/projection"}


def test_only_the_lstm_is_clipped(graph):
    features = placeholders()
    optimizer = RecordingOptimizer(0.1)
    lm.build(features, optimizer, vocab_size=VOCAB_SIZE, max_grad_norm=1e-3, **SIZES)
    dense = [gradient for name, gradient in optimizer.gradients.items() if name.startswith("lstm/")]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        norms = session.run(
            [tf.linalg.global_norm(dense), tf.linalg.global_norm([optimizer.gradients["embedding"]])],
            feed(features, counting_batch(np.random.default_rng(1))),
        )
    assert norms[0] == pytest.approx(1e-3, rel=1e-4)
    assert norms[1] > 1e-2


def test_validation_loss_is_the_full_softmax_of_a_plain_lstm(graph):
    features = placeholders()
    model = lm.build(features, tf.train.GradientDescentOptimizer(0.1), vocab_size=VOCAB_SIZE, keep_prob=0.5, **SIZES)
    batch = counting_batch(np.random.default_rng(1))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        values = session.run({variable.op.name: variable for variable in tf.trainable_variables()})
        measured = [session.run(model["validation_loss"], feed(features, batch)) for _ in range(2)]
    expected = reference_loss(values, batch["words"], batch["next_words"])
    np.testing.assert_allclose(measured, expected, rtol=1e-5)  # twice the same: no dropout


def reference_loss(values, words, next_words):
    """Compute the mean cross entropy in NumPy, float64."""
    values = {name: value.astype(np.float64) for name, value in values.items()}
    cell = np.zeros([BATCH, SIZES["num_units"]])
    output = np.zeros([BATCH, SIZES["projection_size"]])
    losses = []
    for step in range(LENGTH):
        inputs = np.concatenate([values["embedding"][words[:, step]], output], axis=1)
        gates = np.split(inputs @ values["lstm/kernel"] + values["lstm/bias"], 4, axis=1)
        cell = sigmoid(gates[2] + 1) * cell + sigmoid(gates[0]) * np.tanh(gates[1])
        output = (sigmoid(gates[3]) * np.tanh(cell)) @ values["lstm/projection"]
        logits = output @ values["softmax_w"].T + values["softmax_b"]
        losses.append(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(BATCH), next_words[:, step]])
    return np.mean(losses)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_sampled_loss_of_many_samples_nears_the_full_one(graph):
    features = placeholders()
    model = lm.build(
        features, tf.train.GradientDescentOptimizer(0.1), vocab_size=VOCAB_SIZE, **SIZES | {"num_sampled": 299}
    )
    feeds = feed(features, counting_batch(np.random.default_rng(1)))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        sampled = np.mean([session.run(model["loss"], feeds) for _ in range(20)])
        assert sampled == pytest.approx(session.run(model["validation_loss"], feeds), abs=0.1)


def test_full_softmax_trains_on_the_validation_loss(graph):
    features = placeholders()
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    model = lm.build(features, optimizer, vocab_size=VOCAB_SIZE, **SIZES | {"num_sampled": None})
    feeds = feed(features, counting_batch(np.random.default_rng(1)))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        before, validated, _ = session.run([model["loss"], model["validation_loss"], model["train_op"]], feeds)
        assert before == validated
        assert session.run(model["loss"], feeds) < before


def test_dropout_draws_anew_and_is_absent_when_all_is_kept(graph):
    inputs = tf.ones([2, 3, 4])
    lstm = lm.lstm_variables(4, 5, 6)
    dropped, kept = lm.run_lstm(lstm, inputs, keep_prob=0.5)[-1], lm.run_lstm(lstm, inputs, keep_prob=1.0)[-1]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert not np.array_equal(session.run(dropped), session.run(dropped))
        assert (session.run(kept) != 0).all()


def test_outputs_are_the_most_probable_words_for_batches_of_any_size(graph):
    words = tf.placeholder(tf.int32, [None, LENGTH])
    features = {"words": words, "next_words": tf.placeholder(tf.int32, [None, LENGTH])}
    optimizer = tf.train.AdagradOptimizer(0.2)
    model = lm.build(features, optimizer, vocab_size=VOCAB_SIZE, keep_prob=0.5, **SIZES)
    batch = counting_batch(np.random.default_rng(1))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(model["train_op"], feed(features, batch))
        variables = session.run({variable.op.name: variable for variable in tf.trainable_variables()})
        for rows in (1, BATCH):
            expected = numpy_lm.outputs(variables, batch["words"][:rows])
            outputs = session.run(model["outputs"], {words: batch["words"][:rows]})
            assert outputs["next_word"].tolist() == expected["next_word"].tolist()
            np.testing.assert_allclose(outputs["log_probability"], expected["log_probability"], rtol=1e-5)


def test_tables_in_pieces_are_still_the_same_model(graph):
    """As TensorFlow's own parameter servers have them."""

    tables = ("embedding", "softmax_w", "softmax_b")

    def in_pieces(getter, name, **options):
        if name in tables:
            options["partitioner"] = tf.fixed_size_partitioner(3)
        return getter(name, **options)

    features = placeholders()
    optimizer = RecordingOptimizer(0.1)
    with tf.variable_scope("", custom_getter=in_pieces):
        model = lm.build(features, optimizer, vocab_size=VOCAB_SIZE, **SIZES)
    sparse = {name for name, gradient in optimizer.gradients.items() if isinstance(gradient, tf.IndexedSlices)}
    assert sparse == {f"{table}/part_{piece}" for table in tables for piece in range(3)}
    batch = counting_batch(np.random.default_rng(1))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        values = session.run({variable.op.name: variable for variable in tf.trainable_variables()})
        measured = session.run(model["validation_loss"], feed(features, batch))
        session.run(model["train_op"], feed(features, batch))
    for table in tables:  # row i is row i // 3 of piece i % 3
        parts = [values.pop(f"{table}/part_{piece}") for piece in range(3)]
        values[table] = np.stack(parts, axis=1).reshape([VOCAB_SIZE, *parts[0].shape[1:]])
    assert measured == pytest.approx(reference_loss(values, batch["words"], batch["next_words"]), rel=1e-5)
