"""Measures the steps of a table whose vocabulary grows beside those of a static table of the same size.

`python -m benchmarks.growing` trains both in plain Keras in one process, in turns, with the same stream of Zipf keys.
The static table gets the keys modulo its rows. It looks up rows by the same op as the other, so that the ratio is that
of the map. With `--embedding`, it is `keras.layers.Embedding`, whose lookup reads the table as a tensor, so TensorFlow
copies the table before an update of its rows. For each tenth of the stream, it prints the medians of the times and CPU
times of a step, their ratios, the new keys of a step, the part of the rows that belong to a key, and the peak memory of
the process. With `--evict`, the medians leave out steps that end with an eviction, whose own median is printed apart.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from parallax_runner.graph.growing.hashed_keys import BUCKETS
from parallax_runner.layers import GrowingEmbedding

PARTS = 10
WARM_UP_STEPS = 3  # of each table, not measured
HEADER = "  step     growing     static  ratio         CPU     static  ratio  new keys    fill     peak     eviction"
MULTIPLIER = 1_000_003  # keys are multiples, so that neighbours differ


class Step(NamedTuple):
    """The time of a step, and the CPU time of all threads."""

    secs: float
    cpu_secs: float


@dataclass
class Part:
    """What was measured in one part of the stream."""

    growing: list[Step] = field(default_factory=list)
    static: list[Step] = field(default_factory=list)
    evicting: list[Step] = field(default_factory=list)
    new_keys: int = 0

    def line(self, steps: int, keys: int, rows: int) -> str:
        """Returns a row of the table after this number of steps, when the map has so many keys."""
        growing, static = median_of(self.growing), median_of(self.static)
        new = self.new_keys / len(self.static)
        evicting = f"{1000 * median_of(self.evicting).secs:8.0f} ms" if self.evicting else "       –"
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return (
            f"{steps:6} {1000 * growing.secs:8.0f} ms {1000 * static.secs:7.0f} ms {growing.secs / static.secs:6.2f} "
            f"{1000 * growing.cpu_secs:8.0f} ms {1000 * static.cpu_secs:7.0f} ms "
            f"{growing.cpu_secs / static.cpu_secs:6.2f} {new:9,.0f} {keys / rows:7.1%} {peak_mb:8,.0f} MB {evicting}"
        )


class Static(keras.layers.Layer):  # type: ignore[misc]
    """A table with a fixed number of rows."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.rows = self.add_weight(shape=(rows, columns), initializer="uniform", autocast=False)

    def call(self, ids: Any) -> Any:
        """Returns the rows ([*shape of ids, columns])."""
        return tf.gather(self.rows.value, ids)


def median_of(steps: Sequence[Step]) -> Step:
    """Returns the medians."""
    return Step(*(statistics.median(times) for times in zip(*steps, strict=True)))


def model_with(table: Any, optimizer: str) -> keras.Model:
    """Returns a model that looks up one key of each example."""
    layers = [keras.Input([1], dtype="int64"), table, keras.layers.Flatten(), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(optimizer, "mse")
    return model


def timed_step(model: keras.Model, keys: np.ndarray, labels: np.ndarray) -> Step:
    """Trains one step."""
    started, cpu_started = time.perf_counter(), time.process_time()
    model.train_on_batch(keys, labels)
    return Step(time.perf_counter() - started, time.process_time() - cpu_started)


def measure(given: argparse.Namespace) -> None:
    """Prints the table."""
    rules: dict[str, Any] = {
        "admit": rule(given.admit, "min_count"),
        "evict": rule(given.evict, "unused_steps", "every_steps"),
    }
    table = GrowingEmbedding(given.columns, given.capacity, overflow="shared", seed=1, **rules)
    other = keras.layers.Embedding if given.embedding else Static
    growing = model_with(table, given.optimizer)
    growing.optimizer.build(growing.trainable_variables)
    table.set_optimizer(growing.optimizer)
    static = model_with(other(given.capacity, given.columns), given.optimizer)
    draw, steps = np.random.default_rng(1), given.events // given.batch
    rows = BUCKETS * table.map_shape.places
    part = Part()
    print(
        "  step     growing     static  ratio         CPU     static  ratio  new keys    fill     peak    eviction",
        flush=True,
    )
    for step in range(1, steps + 1):
        keys = draw.zipf(given.exponent, [given.batch, 1]) * MULTIPLIER
        labels = (keys % 2).astype("float32")
        before = keys_in(table)
        batches = [(growing, keys), (static, keys % given.capacity)]
        if step % 2:  # the second of two steps finds less of its table in the caches
            batches.reverse()
        times = {model: timed_step(model, batch, labels) for model, batch in batches}
        if step > WARM_UP_STEPS:
            evicts = table.map_shape.evicts and step % table.map_shape.every_steps == 0
            (part.evicting if evicts else part.growing).append(times[growing])
            part.static.append(times[static])
            part.new_keys += keys_in(table) - before
        if step * PARTS // steps > (step - 1) * PARTS // steps and part.growing:
            print(part.line(step, keys_in(table), rows), flush=True)
            part = Part()
    print(f"keys without a row of their own: {int(table.overflowed.numpy().sum()):,}", flush=True)


def rule(numbers: Sequence[int] | None, *names: str) -> dict[str, int] | None:
    """Returns an argument of the layer with these names."""
    return None if numbers is None else dict(zip(names, numbers, strict=True))


def keys_in(table: GrowingEmbedding) -> int:
    """Returns the number of keys that have a row of their own."""
    return int(table.fill.numpy().sum())


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growing", description=__doc__)
    parser.add_argument("--events", type=int, default=20_000_000)
    parser.add_argument("--capacity", type=int, default=5_000_000)
    parser.add_argument("--columns", type=int, default=16)
    parser.add_argument("--batch", type=int, default=32_768)
    parser.add_argument("--exponent", type=float, default=1.1)
    parser.add_argument("--optimizer", default="adagrad", help="a name that Keras knows")
    parser.add_argument("--admit", type=int, nargs=1, metavar="MIN_COUNT")
    parser.add_argument("--evict", type=int, nargs=2, metavar=("UNUSED_STEPS", "EVERY_STEPS"))
    parser.add_argument("--embedding", action="store_true", help="beside keras.layers.Embedding")
    measure(parser.parse_args(arguments))


if __name__ == "__main__":
    main()
