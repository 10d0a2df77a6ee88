"""Measures what deltas cost: the marks in each step, and the size and the time of a delta beside a checkpoint.

`python -m benchmarks.deltas` trains a table in one process, twice in turns: one graph marks the rows that it writes. It
prints the medians of the time and the CPU time of a step of both, and their ratios. Then it saves a checkpoint, and a
delta after each of `--deltas` numbers of steps.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.analysis.classify import classify
from parallax_runner.checkpoints.checkpoint_files import read_sidecar
from parallax_runner.checkpoints.checkpoint_ops import CheckpointOps
from parallax_runner.checkpoints.delta_files import read_delta
from parallax_runner.checkpoints.delta_ops import changes_of
from parallax_runner.checkpoints.delta_save import DeltaSave
from parallax_runner.checkpoints.delta_saver import DeltaSaver
from parallax_runner.checkpoints.saver import CheckpointSaver
from parallax_runner.config.schema import RoutesConfig
from parallax_runner.graph.capture import capture
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.plan.comm_options import CommOptions
from parallax_runner.planning.plan_request import PlanRequest
from parallax_runner.planning.planner import make_plan
from parallax_runner.rewrite.passes import rewrite_for_rank
from parallax_runner.train.session_config import session_config
from parallax_runner.worker.deltas import contents_of

WARM_UP_STEPS = 5
OPTIMIZERS: dict[str, Callable[[], tf.train.Optimizer]] = {
    "sgd": lambda: tf.train.GradientDescentOptimizer(0.1),
    "adagrad": lambda: tf.train.AdagradOptimizer(0.1),
}


def captured(rows: int, width: int, batch: int, optimizer: str) -> SingleDeviceGraph:
    """Returns a graph with one lookup in a table of this size."""

    def build(features: dict[str, tf.Tensor]) -> dict[str, Any]:
        table = tf.get_variable("table", [rows, width], initializer=tf.random_uniform_initializer(seed=1))
        loss = tf.reduce_mean(tf.square(tf.reduce_sum(tf.nn.embedding_lookup(table, features["ids"]), axis=1)))
        train_op = OPTIMIZERS[optimizer]().minimize(loss, global_step=tf.train.get_or_create_global_step())
        return {"loss": loss, "train_op": train_op}

    return capture(build, {"ids": ((batch,), "int64")}, seed=1)


@dataclass
class Training:
    """A process that trains a table, and notices changes if `has_marks` is set."""

    single: SingleDeviceGraph
    has_marks: bool
    secs: list[float] = field(default_factory=list)
    cpu_secs: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        routes = RoutesConfig(dense="local", sparse="local")
        request = PlanRequest(
            comm="local",
            variables=tuple(classify(self.single)),
            fingerprint=self.single.fingerprint,
            workers=1,
            servers=0,
            options=CommOptions(),
            preset=routes,
        )
        self.plan = make_plan(request)
        self.graph = rewrite_for_rank(self.single, self.plan, rank=0, seed=1)
        self.ops = CheckpointOps(self.graph)
        self.contents = contents_of(self.plan, self.single)
        self.changes = changes_of(self.graph, self.contents) if self.has_marks else ()
        self.graph.graph.finalize()
        self.session = tf.Session(graph=self.graph.graph, config=session_config(os.cpu_count() or 1))
        self.session.run(self.graph.initialize)
        for one in self.changes:
            one.begin_again(self.session)

    def step(self, ids: np.ndarray) -> None:
        """Runs a step and notes its time."""
        began, began_cpu = time.perf_counter(), cpu_secs()
        self.session.run(self.graph.train_op, {self.graph.features[0]["ids"]: ids})
        self.secs.append(time.perf_counter() - began)
        self.cpu_secs.append(cpu_secs() - began_cpu)


def cpu_secs() -> float:
    """Returns the CPU time of all threads of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Measures, and prints the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--batch", type=int, default=32_768)
    parser.add_argument("--exponent", type=float, default=1.1)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--deltas", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adagrad")
    order = parser.parse_args()
    single = captured(order.rows, order.width, order.batch, order.optimizer)
    plain, marking = Training(single, has_marks=False), Training(single, has_marks=True)
    draw = np.random.default_rng(1)

    def next_ids() -> np.ndarray:
        ids: np.ndarray = draw.zipf(order.exponent, order.batch) * 1_000_003 % order.rows
        return ids

    for _ in range(WARM_UP_STEPS + order.steps):
        ids = next_ids()
        plain.step(ids)
        marking.step(ids)
    print_steps(plain, marking)
    print_deltas(marking, order.deltas, next_ids)


def print_steps(plain: Training, marking: Training) -> None:
    """Prints the medians of the steps without and with marks."""
    for kind, of in (("time", "secs"), ("CPU time", "cpu_secs")):
        without, with_marks = (statistics.median(getattr(one, of)[WARM_UP_STEPS:]) for one in (plain, marking))
        ratio = with_marks / without
        print(f"{kind} of a step: {1000 * without:.2f} ms, with marks {1000 * with_marks:.2f} ms, ratio {ratio:.3f}")


def print_deltas(training: Training, after_steps: list[int], next_ids: Callable[[], np.ndarray]) -> None:
    """Saves a checkpoint and deltas, and prints their sizes and times."""
    with tempfile.TemporaryDirectory(prefix="deltas-", dir=".") as name:
        folder = Path(name).resolve()
        deltas = DeltaSaver(
            DeltaSave(training.ops, training.changes, training.contents, frozenset()), folder, 1, is_chief=True
        )
        fixed: dict[str, Any] = {"save_steps": None, "save_secs": None, "keep": None, "seed": 1, "fingerprint": "f"}
        saver = CheckpointSaver(ops=training.ops, folder=folder, run_id=lambda: None, **fixed)
        saver.start(0)
        began = time.perf_counter()
        saver.save(training.session, step=1, examples=1)
        deltas.begin_again(training.session, 1)
        saver.rest()
        base = folder / "model.ckpt-1"
        size_bytes = sum(state.bytes for state in read_sidecar(base).files.values())
        print(f"checkpoint: {size_bytes:,} bytes in {time.perf_counter() - began:.2f} s")
        done = 0
        for steps in after_steps:
            for _ in range(steps - done):
                training.step(next_ids())
            done = steps
            began = time.perf_counter()
            deltas.save(training.session, step=1 + steps, examples=1)
            waited_secs = time.perf_counter() - began
            deltas.rest()
            delta = read_delta(base)
            assert delta is not None
            print(
                f"delta after {steps} steps: {sum(delta.rows.values()):,} rows, {delta.size_bytes:,} bytes, "
                f"{time.perf_counter() - began:.2f} s, of which training waited {waited_secs:.2f} s"
            )


if __name__ == "__main__":
    main()
