"""Measures the steps of a table whose vocabulary grows beside those of a static table of the same size.

`python -m benchmarks.growing` trains both in plain Keras in one process, in turns, with the same stream of Zipf keys.
The static table gets the keys modulo its rows. For each tenth of the stream, it prints the medians of the times and CPU
times of a step, their ratios, the new keys of a step, the part of the rows that belong to a key, and the peak memory of
the process.
"""

from __future__ import annotations

import argparse
import math
import resource
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import keras
import numpy as np

from parallax_runner.layers import GrowingEmbedding

PARTS = 10
WARM_UP_STEPS = 3  # of each table, not measured
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
    new_keys: int = 0

    def line(self, steps: int, keys: int, rows: int) -> str:
        """Returns a row of the table after this number of steps, when the map has so many keys."""
        growing, static = median_of(self.growing), median_of(self.static)
        new = self.new_keys / len(self.growing)
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return (
            f"{steps:6} {1000 * growing.secs:8.0f} ms {1000 * static.secs:7.0f} ms {growing.secs / static.secs:6.2f} "
            f"{1000 * growing.cpu_secs:8.0f} ms {1000 * static.cpu_secs:7.0f} ms "
            f"{growing.cpu_secs / static.cpu_secs:6.2f} {new:9,.0f} {keys / rows:7.1%} {peak_mb:8,.0f} MB"
        )


def median_of(steps: Sequence[Step]) -> Step:
    """Returns the medians."""
    return Step(*(statistics.median(times) for times in zip(*steps, strict=True)))


def model_with(table: Any) -> keras.Model:
    """Returns a model that looks up one key of each example."""
    layers = [keras.Input([1], dtype="int64"), table, keras.layers.Flatten(), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile("adagrad", "mse")
    return model


def timed_step(model: keras.Model, keys: np.ndarray, labels: np.ndarray) -> Step:
    """Trains one step."""
    started, cpu_started = time.perf_counter(), time.process_time()
    model.train_on_batch(keys, labels)
    return Step(time.perf_counter() - started, time.process_time() - cpu_started)


def measure(events: int, capacity: int, columns: int, batch: int, exponent: float) -> None:
    """Prints the table."""
    table = GrowingEmbedding(columns, capacity, overflow="shared", seed=1)
    growing, static = model_with(table), model_with(keras.layers.Embedding(capacity, columns))
    draw, steps = np.random.default_rng(1), events // batch
    rows = math.prod(table.keys.shape)
    part = Part()
    print("  step     growing     static  ratio         CPU     static  ratio  new keys    fill     peak", flush=True)
    for step in range(1, steps + 1):
        keys = draw.zipf(exponent, [batch, 1]) * MULTIPLIER
        labels = (keys % 2).astype("float32")
        before = keys_in(table)
        of_growing, of_static = timed_step(growing, keys, labels), timed_step(static, keys % capacity, labels)
        if step > WARM_UP_STEPS:
            part.growing.append(of_growing)
            part.static.append(of_static)
            part.new_keys += keys_in(table) - before
        if step * PARTS // steps > (step - 1) * PARTS // steps and part.growing:
            print(part.line(step, keys_in(table), rows), flush=True)
            part = Part()
    print(f"keys without a row of their own: {int(table.overflowed.numpy().sum()):,}", flush=True)


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
    given = parser.parse_args(arguments)
    measure(given.events, given.capacity, given.columns, given.batch, given.exponent)


if __name__ == "__main__":
    main()
