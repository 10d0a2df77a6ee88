"""A captured model computes from strings and numbers what each preprocessing layer of Keras computes eagerly."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from parallax_runner.errors import CaptureError
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.graph.traced import held_objects
from parallax_runner.graph.traced.capture_step import capture_model
from parallax_runner.graph.traced.row_updates import sparse_updates_of

EXAMPLES, LENGTH = 12, 4
layers = keras.layers
# Draws a layer for words, with a vocabulary.
MakeLayer = Callable[[random.Random, list[str]], Any]


def vocabulary(draws: random.Random) -> list[str]:
    """Distinct words with signs of any plane, which are not empty."""
    found = {"".join(draws.choice("aé日🙂B .") for _ in range(draws.randrange(1, 5))) for _ in range(20)}
    return sorted(found - {"[UNK]", "[MASK]"})


def words_of(draws: random.Random, known: list[str], shape: tuple[int, ...]) -> np.ndarray:
    """Words of the vocabulary, unknown words and empty strings."""
    candidates = [*known, "", "neu", "nie 🙂", "[UNK]"]
    found = np.empty(shape, dtype=object)
    for place in np.ndindex(shape):
        found[place] = draws.choice(candidates).encode()
    return found


def lookup(**options: Any) -> MakeLayer:
    return lambda draws, known: layers.StringLookup(vocabulary=known, **options)


def adapted(make: Callable[[], Any]) -> MakeLayer:
    def adapting(draws: random.Random, known: list[str]) -> Any:
        layer = make()
        layer.adapt(tf.constant(words_of(draws, known, (30, 1))))
        return layer

    return adapting


def inverted(draws: random.Random, known: list[str]) -> Any:
    """Words to numbers and back; only the length of the words is a number again."""
    there = layers.StringLookup(vocabulary=known, num_oov_indices=1)
    back = layers.StringLookup(vocabulary=known, num_oov_indices=1, invert=True)
    return lambda words: tf.strings.length(back(there(words)), unit="UTF8_CHAR")


def tf_idf(draws: random.Random, known: list[str]) -> Any:
    weights = [draws.random() for _ in known]
    return layers.StringLookup(vocabulary=known, output_mode="tf_idf", idf_weights=weights)


def hashed(draws: random.Random, known: list[str]) -> Any:
    return layers.Hashing(7, mask_value="", salt=draws.randrange(1000))


def sparse(draws: random.Random, known: list[str]) -> Any:
    layer = layers.StringLookup(vocabulary=known, output_mode="multi_hot", sparse=True)
    return lambda words: tf.sparse.to_dense(layer(words))


OF_WORDS: dict[str, MakeLayer] = {
    "sparse": sparse,
    "int": lookup(),
    "mask": lookup(mask_token=""),
    "several unknown": lookup(num_oov_indices=3, mask_token=""),
    "one_hot": lookup(output_mode="one_hot", num_oov_indices=2),
    "multi_hot": lookup(output_mode="multi_hot"),
    "count": lookup(output_mode="count", max_tokens=40, pad_to_max_tokens=True),
    "tf_idf": tf_idf,
    "inverted": inverted,
    "hashed": hashed,
    "adapted": adapted(lambda: layers.StringLookup(max_tokens=9)),
    "text": adapted(lambda: layers.TextVectorization(output_sequence_length=3)),
    "text by sign": adapted(lambda: layers.TextVectorization(split="character", output_sequence_length=6)),
    "pairs of words": adapted(lambda: layers.TextVectorization(ngrams=2, output_mode="multi_hot", max_tokens=15)),
    "text with tf_idf": adapted(lambda: layers.TextVectorization(output_mode="tf_idf")),
}
OF_TEXT = ("text", "text by sign", "pairs of words", "text with tf_idf")


class OfWords(keras.Model):
    """Passes words through a layer, and trains a scale."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer
        self.scale = self.add_weight(shape=(), initializer="ones")

    def build(self, shape: Any) -> None:
        """Everything is built."""

    def call(self, words: Any) -> Any:
        return tf.cast(self.layer(words), tf.float32) * self.scale


def captured(model: Any, spec: Any) -> SingleDeviceGraph:
    model.compile("sgd", "mse")
    features = {"x": spec, "y": tf.TensorSpec([None, 1], tf.float32)}
    if not model.built:
        model(_zeros(spec))
    return capture_model(
        model, features, lambda given: (given["x"], given["y"]), seed=3, sparse_updates=sparse_updates_of({})
    )


def _zeros(spec: Any) -> Any:
    return tf.zeros([1 if size is None else size for size in spec.shape], spec.dtype)


def served(single: SingleDeviceGraph, given: np.ndarray) -> np.ndarray:
    """The outputs of the graph in another session, as a worker has it."""
    with tf.Graph().as_default(), tf1.Session() as session:
        tf.graph_util.import_graph_def(single.meta_graph.graph_def, name="")
        tables = single.meta_graph.collection_def[tf1.GraphKeys.TABLE_INITIALIZERS].node_list.value
        session.run([*(one.initializer for one in single.variables), *tables])
        found: np.ndarray = session.run(single.outputs["output"], {single.validation_features["x"]: given})
        return found


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", OF_WORDS)
def test_a_layer_of_words(name: str, seed: int) -> None:
    draws = random.Random(seed)
    known = vocabulary(draws)
    layer = OF_WORDS[name](draws, known)
    shape = (EXAMPLES, 1) if name in OF_TEXT else (EXAMPLES, LENGTH)
    given = words_of(draws, known, shape)
    model = OfWords(layer)
    expected = model(tf.constant(given)).numpy()
    single = captured(model, tf.TensorSpec([None, *shape[1:]], tf.string))
    np.testing.assert_allclose(served(single, given), expected, rtol=1e-6)
    has_table = any(node.op == "HashTableV2" for node in single.meta_graph.graph_def.node)
    assert has_table == (name != "hashed")


@pytest.mark.parametrize("output_mode", ["int", "one_hot", "multi_hot", "count"])
@pytest.mark.parametrize("unknown", [1, 4])
def test_a_layer_of_integers(output_mode: str, unknown: int) -> None:
    draws = np.random.default_rng(unknown)
    known = draws.permutation(50)[:20].tolist()
    layer = layers.IntegerLookup(vocabulary=known, num_oov_indices=unknown, mask_token=-7, output_mode=output_mode)
    given = draws.choice([*known, 99, 1000, -7], (EXAMPLES, LENGTH))
    model = OfWords(layer)
    expected = model(tf.constant(given)).numpy()
    single = captured(model, tf.TensorSpec([None, LENGTH], tf.int64))
    np.testing.assert_array_equal(served(single, given), expected)


def boundaries() -> Any:
    layer = layers.Discretization(num_bins=5)
    layer.adapt(np.random.default_rng(1).normal(size=(100, 1)))
    return layer


def normalized() -> Any:
    layer = layers.Normalization()
    layer.adapt(np.random.default_rng(1).normal(3.0, 4.0, size=(100, LENGTH)).astype("float32"))
    return layer


@pytest.mark.parametrize(
    "make",
    [
        boundaries,
        lambda: layers.Discretization(bin_boundaries=[-1.0, 0.5], output_mode="one_hot"),
        normalized,
        lambda: layers.Normalization(mean=[1.0] * LENGTH, variance=[2.0] * LENGTH),
    ],
)
def test_a_layer_of_numbers(make: Callable[[], Any]) -> None:
    model = OfWords(make())
    given = np.random.default_rng(2).normal(size=(EXAMPLES, LENGTH)).astype("float32")
    expected = model(tf.constant(given)).numpy()
    np.testing.assert_allclose(served(captured(model, tf.TensorSpec([None, LENGTH])), given), expected, rtol=1e-6)


@pytest.mark.parametrize("output_mode", ["one_hot", "multi_hot", "count"])
def test_categories(output_mode: str) -> None:
    model = OfWords(layers.CategoryEncoding(9, output_mode=output_mode))
    given = np.random.default_rng(2).integers(0, 9, (EXAMPLES, 1 if output_mode == "one_hot" else LENGTH))
    expected = model(tf.constant(given)).numpy()
    single = captured(model, tf.TensorSpec([None, given.shape[1]], tf.int64))
    np.testing.assert_array_equal(served(single, given), expected)


def test_a_vocabulary_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("ü\nb\n日本", encoding="utf-8")
    model = OfWords(layers.StringLookup(vocabulary=str(tmp_path / "words.txt")))
    single = captured(model, tf.TensorSpec([None], tf.string))
    (tmp_path / "words.txt").unlink()  # the graph has the words
    np.testing.assert_array_equal(served(single, np.array([b"b", "日本".encode(), b""], object)), [2, 3, 0])


def test_the_words_of_a_layer_are_not_looked_through() -> None:
    """There can be millions, and a word holds no variable."""
    held = list(held_objects._held(OfWords(layers.StringLookup(vocabulary=["a", "b"]))))
    assert not [one for one in held if isinstance(one, str) and one in ("a", "b")]


def test_layers_share_a_table() -> None:
    class Twice(OfWords):
        def call(self, words: Any) -> Any:
            return super().call(words) + super().call(words[:, ::-1])

    single = captured(Twice(layers.StringLookup(vocabulary=["a", "b"])), tf.TensorSpec([None, 2], tf.string))
    assert [node.name for node in single.meta_graph.graph_def.node if node.op == "HashTableV2"] == [
        "lookup_tables/0/table"
    ]
    np.testing.assert_array_equal(served(single, np.array([[b"a", b"b"]], object)), [[3, 3]])


def test_tables_are_read_inside_branches() -> None:
    class Branch(OfWords):
        def call(self, words: Any) -> Any:
            found = tf.cond(tf.size(words) > 4, lambda: super(Branch, self).call(words), lambda: self.nothing(words))
            return tf.ensure_shape(found, words.shape)

        def nothing(self, words: Any) -> Any:
            return tf.zeros_like(words, tf.float32) * self.scale

    single = captured(Branch(layers.StringLookup(vocabulary=["a", "b"])), tf.TensorSpec([None, 2], tf.string))
    assert served(single, np.array([[b"a", b"b"]] * 3, object)).tolist() == [[1, 2]] * 3


class OfTable(layers.Layer):
    """Looks up words in a table that can change."""

    def __init__(self, table: Any) -> None:
        super().__init__()
        self.table = table

    def call(self, words: Any) -> Any:
        return tf.ensure_shape(self.table.lookup(words), words.shape)


@pytest.mark.parametrize(
    ("make", "dtype", "said"),
    [
        (
            lambda: layers.StringLookup(),
            "string",
            r"string_lookup.* table that has no content yet: call adapt",
        ),
        (lambda: layers.TextVectorization(), "string", r"text_vectorization.* a lookup table that has no content yet"),
        (
            lambda: layers.Discretization(num_bins=3, name="bins"),
            "float32",
            r"the layer «bins» \(Discretization\) has no boundaries yet: call its adapt",
        ),
        (
            lambda: OfTable(tf.lookup.experimental.MutableHashTable("string", "float32", 1.0)),
            "string",
            r"LookupTableFindV2»: a mutable lookup table .*would differ between the ranks",
        ),
    ],
)
def test_what_has_no_fixed_content_is_refused(make: Callable[[], Any], dtype: str, said: str) -> None:
    given = keras.Input([1], dtype=dtype)
    looked_up = keras.ops.cast(make()(given), "float32")
    model = keras.Model(given, layers.Dense(1)(keras.ops.sum(looked_up, axis=-1, keepdims=True)))
    with pytest.raises(CaptureError, match=said):
        captured(model, tf.TensorSpec([None, 1], dtype))
