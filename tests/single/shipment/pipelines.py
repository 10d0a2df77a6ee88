"""Pipelines of users, by name. Each function makes a `tf.data.Dataset` of batches of 4 examples."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

NUMBERS = np.arange(48, dtype="int64")
WORDS = np.array([f"word {number}" for number in range(48)])


def numbers() -> Any:
    """Single numbers."""
    return tf.data.Dataset.from_tensor_slices(NUMBERS)


def table_of_words() -> Any:
    """A static table from words to numbers."""
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(tf.constant(WORDS), tf.range(48)), -1)


def with_table() -> Any:
    table = table_of_words()
    return tf.data.Dataset.from_tensor_slices(WORDS).map(table.lookup).batch(4)


def with_static_vocabulary() -> Any:
    table = tf.lookup.StaticVocabularyTable(
        tf.lookup.KeyValueTensorInitializer(tf.constant(WORDS[:20]), tf.range(20, dtype=tf.int64)), 3
    )
    return tf.data.Dataset.from_tensor_slices(WORDS).map(table.lookup).batch(4)


def with_keras_lookup() -> Any:
    layer = keras.layers.StringLookup(vocabulary=list(WORDS[:30]))
    return tf.data.Dataset.from_tensor_slices(WORDS).batch(4).map(layer)


def with_variable() -> Any:
    scale = tf.Variable(3, dtype=tf.int64)
    return numbers().map(lambda number: number * scale).batch(4)


def with_normalization() -> Any:
    layer = keras.layers.Normalization()
    layer.adapt(NUMBERS[:, None].astype("float32"))
    return numbers().map(lambda number: tf.cast(number, tf.float32)[None]).batch(4).map(layer)


def files_of_text() -> Any:
    folder = Path(tempfile.mkdtemp())
    for part in range(3):
        (folder / f"{part}.txt").write_text("".join(f"{part * 16 + line}\n" for line in range(16)))
    lines = tf.data.TextLineDataset(sorted(str(path) for path in folder.iterdir()))
    return lines.map(lambda line: tf.strings.to_number(line, tf.int64)).batch(4)


def interleaved() -> Any:
    return numbers().batch(8).interleave(tf.data.Dataset.from_tensor_slices, cycle_length=2, block_length=3).batch(4)


def records() -> Any:
    path = f"{tempfile.mkdtemp()}/records"
    with tf.io.TFRecordWriter(path) as writer:
        for number in NUMBERS:
            value = tf.train.Feature(int64_list=tf.train.Int64List(value=[number]))
            example = tf.train.Example(features=tf.train.Features(feature={"id": value}))
            writer.write(example.SerializeToString())
    spec = {"id": tf.io.FixedLenFeature([], tf.int64)}
    return tf.data.TFRecordDataset(path).batch(4).map(lambda batch: tf.io.parse_example(batch, spec))


def ragged() -> Any:
    rows = tf.ragged.range(NUMBERS % 5 + 1)
    return tf.data.Dataset.from_tensor_slices(rows).batch(4)


def sparse() -> Any:
    matrix = tf.sparse.from_dense(np.eye(48, dtype="float32"))
    return tf.data.Dataset.from_tensor_slices(matrix).batch(4)


def deterministic_options() -> Any:
    options = tf.data.Options()
    options.deterministic = True
    options.threading.private_threadpool_size = 2
    options.experimental_optimization.apply_default_optimizations = False
    return numbers().map(lambda number: number + 1, num_parallel_calls=2).batch(4).with_options(options)


def nested() -> Any:
    parts = {"a": NUMBERS, "b": (NUMBERS.astype("float32"), NUMBERS)}
    return tf.data.Dataset.from_tensor_slices((parts, NUMBERS % 2)).batch(4)


PIPELINES: dict[str, Callable[[], Any]] = {
    "partial batch": lambda: numbers().take(46).shuffle(20, seed=3).batch(4),
    "filtered partial batch": lambda: numbers().filter(lambda number: number % 5 > 0).batch(4),
    "batches of many sizes": lambda: (
        numbers().batch(4).map(lambda batch: tf.boolean_mask(batch, (batch % 4 == 0) | (batch % 5 > 0)))
    ),
    "range": lambda: tf.data.Dataset.range(48).batch(4),
    "slices": lambda: numbers().batch(4),
    "large array": lambda: tf.data.Dataset.from_tensor_slices(np.arange(48 * 4000).reshape(48, 4000)).batch(4),
    "large strings": lambda: (
        tf.data.Dataset.from_tensor_slices(np.repeat(WORDS[:, None], 400, 1))
        .map(lambda words: tf.strings.length(words))
        .batch(4)
    ),
    "shuffle": lambda: numbers().shuffle(20, seed=3).batch(4),
    "shuffle once": lambda: numbers().shuffle(20, seed=3, reshuffle_each_iteration=False).batch(4),
    "shuffle of batches": lambda: numbers().batch(4).shuffle(5, seed=2),
    "cache": lambda: numbers().cache().shuffle(10, seed=1).batch(4),
    "repeat": lambda: numbers().repeat().batch(4),
    "map": lambda: numbers().map(lambda number: {"x": number, "y": number * number}).batch(4),
    "parallel map": lambda: numbers().map(lambda number: number + 1, num_parallel_calls=tf.data.AUTOTUNE).batch(4),
    "filter": lambda: numbers().filter(lambda number: number % 3 > 0).batch(4),
    "zip": lambda: tf.data.Dataset.zip((numbers(), numbers().map(lambda number: number % 2))).batch(4),
    "concatenate": lambda: numbers().take(8).concatenate(numbers().skip(8)).batch(4),
    "flat map": lambda: numbers().batch(12).flat_map(tf.data.Dataset.from_tensor_slices).batch(4),
    "window": lambda: (
        numbers().window(4, drop_remainder=True).flat_map(lambda window: window.batch(4)).unbatch().batch(4)
    ),
    "padded batch": lambda: numbers().map(lambda number: tf.fill([3], number)).padded_batch(4).unbatch().batch(4),
    "enumerate": lambda: numbers().enumerate().batch(4),
    "prefetch": lambda: numbers().batch(4).prefetch(tf.data.AUTOTUNE),
    "stateless draw": lambda: (
        numbers().map(lambda number: tf.random.stateless_uniform([2], seed=[1, tf.cast(number, tf.int32)])).batch(4)
    ),
    "choose": lambda: tf.data.Dataset.sample_from_datasets([numbers().repeat(), numbers().repeat()], seed=4).batch(4),
    "interleave": interleaved,
    "text": files_of_text,
    "records": records,
    "ragged": ragged,
    "sparse": sparse,
    "options": deterministic_options,
    "nested": nested,
    "table": with_table,
    "vocabulary table": with_static_vocabulary,
    "Keras lookup": with_keras_lookup,
    "variable": with_variable,
    "Keras normalization": with_normalization,
}
