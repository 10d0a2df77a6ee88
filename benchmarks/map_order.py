"""Measures what a `map` costs before and after `batch`, if several workers share the batches of a `tf.data.Dataset`.

`python -m benchmarks.map_order` prints the CPU time of all workers together, in microseconds per trained example, and
the time to count the examples.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from parallax_runner.graph.tf_data.tf_dataset import TfDataset

DENSE, IDS = 13, 26  # columns of Criteo's data, after the label
EXAMPLES, BATCH = 100_000, 2048
WORKERS = (1, 2, 4, 8, 16)
STEPS = 20
DEFAULTS = [[0.0]] * (1 + DENSE) + [[""]] * IDS


def parsed(lines: Any) -> tuple[dict[str, Any], Any]:
    """Returns the features and the label of one line, or of a batch of lines."""
    columns = tf.io.decode_csv(lines, DEFAULTS, field_delim="\t")
    dense = tf.math.log1p(tf.stack(columns[1 : 1 + DENSE], axis=-1))
    ids = tf.strings.to_hash_bucket_fast(tf.stack(columns[1 + DENSE :], axis=-1), 100_000)
    return {"dense": dense, "ids": ids}, columns[0]


def map_then_batch(lines: Any) -> Any:
    """Parses one line at a time."""
    return lines.map(parsed).batch(BATCH, drop_remainder=True)


def batch_then_map(lines: Any) -> Any:
    """Parses a batch of lines at a time."""
    return lines.batch(BATCH, drop_remainder=True).map(parsed)


ORDERS: dict[str, Callable[[Any], Any]] = {"map, batch": map_then_batch, "batch, map": batch_then_map}


def write_lines(path: Path) -> None:
    """Writes synthetic examples in the layout of Criteo's data."""
    generator = np.random.default_rng(1)
    dense = generator.integers(0, 1000, [EXAMPLES, 1 + DENSE])
    ids = generator.integers(0, 2**32, [EXAMPLES, IDS])
    with path.open("w", encoding="utf-8") as file:
        for numbers, words in zip(dense, ids, strict=True):
            file.write("\t".join([*map(str, numbers), *(f"{word:08x}" for word in words)]) + "\n")


def cpu_micros(dataset: TfDataset, workers: int) -> float:
    """Returns the CPU time of all workers per example that they train on. One worker is measured."""
    share = dataset.share(rank=0, ranks=workers, replicas=1)
    share.train_batches(0)
    started = time.process_time()
    for step in range(1, STEPS + 1):
        share.train_batches(step * BATCH)
    return (time.process_time() - started) * 1e6 * workers / (STEPS * BATCH)


def main() -> None:
    """Prints a table."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lines.tsv"
        write_lines(path)
        print("order".ljust(12), *(f"{workers:3} workers".rjust(11) for workers in WORKERS), "count".rjust(9))
        for name, order in ORDERS.items():
            started = time.monotonic()
            dataset = TfDataset.of(order(tf.data.TextLineDataset(str(path))))
            counted = time.monotonic() - started
            costs = [f"{cpu_micros(dataset, workers):8.1f} us" for workers in WORKERS]
            print(name.ljust(12), *costs, f"{counted:7.2f} s")


if __name__ == "__main__":
    main()
