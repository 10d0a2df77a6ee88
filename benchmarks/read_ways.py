"""One way of reading a file in Criteo's layout in batches, in a process of its own, on one core: as a converted table,
or with `tf.data` from TFRecords or from the text."""

from __future__ import annotations

import itertools
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import criteo
from benchmarks.own_memory import anonymous_bytes
from parallax_runner.data.table.cells import PartReader
from parallax_runner.data.table.criteo import load
from parallax_runner.data.table.row_order import BLOCKS, FULL
from parallax_runner.data.table.stored_table import TRAIN
from parallax_runner.data.table.strings_of_codes import strings_of
from parallax_runner.data.table.table_dataset import TableDataset

BATCH_ROWS = 1024
BUCKETS = 100_000  # ids of each categorical feature
WARM_BATCHES = 20
MOST_CPU_SECS = 10.0
SAMPLED_BATCHES = 32  # the memory is looked at after so many
PREPARE = "prepare"
TEXT, IDS, CELLS, PEER_TEXT = "criteo.tsv", "ids.tfrecord", "cells.tfrecord", "peers.tsv"
NUMBERS = ("label", *criteo.INTEGERS)
Batches = Iterator[Mapping[str, Any]]


def dataset(folder: Path, shuffle: str = FULL) -> TableDataset:
    """Returns the converted table. Converts the text if nobody has done it."""
    return load(  # type: ignore[return-value]
        train=str(folder / TEXT),
        dense_features=len(criteo.INTEGERS),
        cardinalities=[BUCKETS] * len(criteo.STRINGS),
        seed=0,
        shuffle=shuffle,
        cache_dir=str(folder / "cache"),
    )


def prepare(folder: Path, peer_rows: int) -> dict[str, float]:
    """Converts the text, and writes its first rows as TFRecords and as text. Returns what each took in seconds."""
    started = time.perf_counter()
    table = dataset(folder)
    converted = time.perf_counter()
    rows = min(peer_rows, table.train_size)
    _write_text(folder, rows)
    text = time.perf_counter()
    _write_examples(folder / IDS, _examples_of_ids(table, rows))
    ids = time.perf_counter()
    _write_examples(folder / CELLS, _examples_of_cells(table, rows))
    cells = time.perf_counter()
    return {
        "rows": table.train_size,
        "conversion_secs": converted - started,
        "peer_rows": rows,
        "ids_secs": ids - text,
        "cells_secs": cells - ids,
    }


def _write_text(folder: Path, rows: int) -> None:
    with open(folder / TEXT, "rb") as source, open(folder / PEER_TEXT, "wb") as target:
        for _ in range(rows):
            target.write(source.readline())


def _write_examples(path: Path, examples: Iterator[Any]) -> None:
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(path)) as writer:
        for example in examples:
            writer.write(example.SerializeToString())


def _examples_of_ids(table: TableDataset, rows: int) -> Iterator[Any]:
    """Yields examples of features as the model gets them."""
    import tensorflow as tf

    for start in range(0, rows, BATCH_ROWS):
        batch = table.training_rows(start, min(BATCH_ROWS, rows - start))
        for label, dense, ids in zip(batch["label"], batch["dense"], batch["categorical"], strict=True):
            features = {
                "label": tf.train.Feature(float_list=tf.train.FloatList(value=[label])),
                "dense": tf.train.Feature(float_list=tf.train.FloatList(value=dense)),
                "categorical": tf.train.Feature(int64_list=tf.train.Int64List(value=ids)),
            }
            yield tf.train.Example(features=tf.train.Features(feature=features))


def _examples_of_cells(table: TableDataset, rows: int) -> Iterator[Any]:
    """Yields examples with a feature for each cell that is not blank."""
    import tensorflow as tf

    reader = PartReader(table.table, table.table.parts[TRAIN])
    for start in range(0, rows, BATCH_ROWS):
        cells = reader.take(np.arange(start, min(start + BATCH_ROWS, rows)))
        numbers = {name: cells[name].values.tolist() for name in NUMBERS}
        words = {name: strings_of(table.table.strings[name], cells[name].values) for name in criteo.STRINGS}
        for row in range(len(numbers["label"])):
            features = {
                name: tf.train.Feature(float_list=tf.train.FloatList(value=[values[row]]))
                for name, values in numbers.items()
                if values[row] == values[row]
            }
            features |= {
                name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[values[row]]))
                for name, values in words.items()
                if values[row]
            }
            yield tf.train.Example(features=tf.train.Features(feature=features))


def table_batches(folder: Path, shuffle: str) -> Batches:
    """Yields batches in a random order."""
    table = dataset(folder, shuffle)
    for number in itertools.count():
        yield table.train_batch(number * BATCH_ROWS, BATCH_ROWS)


def batches_of_ids(folder: Path) -> Batches:
    """Yields batches of TFRecords that have the features as the model gets them."""
    import tensorflow as tf

    spec = {
        "label": tf.io.FixedLenFeature([], tf.float32),
        "dense": tf.io.FixedLenFeature([len(criteo.INTEGERS)], tf.float32),
        "categorical": tf.io.FixedLenFeature([len(criteo.STRINGS)], tf.int64),
    }
    records = tf.data.TFRecordDataset(str(folder / IDS)).repeat().batch(BATCH_ROWS)
    return _on_one_core(records.map(lambda one: tf.io.parse_example(one, spec), num_parallel_calls=tf.data.AUTOTUNE))


def batches_of_cells(folder: Path) -> Batches:
    """Yields batches of TFRecords that have a feature for each cell."""
    import tensorflow as tf

    spec: dict[str, Any] = {name: tf.io.FixedLenFeature([], tf.float32, 0.0) for name in NUMBERS}
    spec |= {name: tf.io.FixedLenFeature([], tf.string, "") for name in criteo.STRINGS}
    records = tf.data.TFRecordDataset(str(folder / CELLS)).repeat().batch(BATCH_ROWS)
    made = records.map(lambda one: _features(tf.io.parse_example(one, spec)), num_parallel_calls=tf.data.AUTOTUNE)
    return _on_one_core(made)


def batches_of_text(folder: Path) -> Batches:
    """Yields batches of the text, as TensorFlow's reader of CSV makes them."""
    import tensorflow as tf

    rows = tf.data.experimental.make_csv_dataset(
        str(folder / PEER_TEXT),
        BATCH_ROWS,
        column_names=list(criteo.NAMES),
        column_defaults=[0.0] * len(NUMBERS) + [""] * len(criteo.STRINGS),
        field_delim="\t",
        header=False,
        shuffle=False,
    )
    return _on_one_core(rows.map(_features, num_parallel_calls=tf.data.AUTOTUNE))


def _features(cells: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what `load` of data/table/criteo.py describes, as tensors."""
    import tensorflow as tf

    dense = tf.stack([cells[name] for name in criteo.INTEGERS], axis=1)
    words = tf.stack([cells[name] for name in criteo.STRINGS], axis=1)
    return {
        "label": cells["label"],
        "dense": tf.math.log1p(tf.maximum(dense, 0)),
        "categorical": tf.strings.to_hash_bucket_fast(words, BUCKETS),
    }


def _on_one_core(batches: Any) -> Batches:
    import tensorflow as tf

    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    options.threading.max_intra_op_parallelism = 1
    found: Batches = iter(batches.prefetch(tf.data.AUTOTUNE).with_options(options))
    return found


WAYS: Mapping[str, Callable[[Path], Batches]] = {
    "table, full": lambda folder: table_batches(folder, FULL),
    "table, blocks": lambda folder: table_batches(folder, BLOCKS),
    "tf.data, TFRecords of ids": batches_of_ids,
    "tf.data, TFRecords of cells": batches_of_cells,
    "tf.data, CSV": batches_of_text,
}


def read(way: str, folder: Path, rows_of_epoch: int) -> dict[str, float]:
    """Reads batches on one core: an epoch of the table, or fewer in `MOST_CPU_SECS`. Returns the rows, the time and the
    CPU time without the first batches, and the anonymous memory behind the first batches and at its peak."""
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    batches = WAYS[way](folder)
    for _ in range(WARM_BATCHES):
        next(batches)
    first_bytes = peak_bytes = anonymous_bytes()
    started, cpu_started = time.perf_counter(), time.process_time()
    rows = 0
    while rows < rows_of_epoch and time.process_time() - cpu_started < MOST_CPU_SECS:
        for batch in itertools.islice(batches, SAMPLED_BATCHES):
            rows += len(batch["label"])
        peak_bytes = max(peak_bytes, anonymous_bytes())
    secs, cpu_secs = time.perf_counter() - started, time.process_time() - cpu_started
    return {"rows": rows, "secs": secs, "cpu_secs": cpu_secs, "first_bytes": first_bytes, "peak_bytes": peak_bytes}


def main(way: str, folder: Path, rows: int) -> None:
    """Prints the result of `read`, or of `prepare` for the way `PREPARE`, as JSON. `rows` is the last argument of
    either."""
    logging.disable()
    print(json.dumps(prepare(folder, rows) if way == PREPARE else read(way, folder, rows)))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
