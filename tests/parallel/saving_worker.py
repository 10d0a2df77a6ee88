"""A rank that saves and restores spread variables in several ways: `python -m tests.parallel.saving_worker RUN_DIR`."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints import joint_files, part_files
from parallax_runner.checkpoints import publish as checkpoint_folder
from parallax_runner.checkpoints.checkpoint_ops import CheckpointOps
from parallax_runner.checkpoints.joint_save import JointSave
from parallax_runner.checkpoints.row_writer import RowWriter
from parallax_runner.checkpoints.saver import CheckpointSaver
from parallax_runner.collectives import ops as collectives
from parallax_runner.collectives.chosen import BACKENDS, DEFAULT, choose
from parallax_runner.errors import CheckpointError
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.launch.child import run_child
from parallax_runner.launch.control.client import ControlClient, rank_from_environ
from parallax_runner.rewrite.distributed_graph import DistributedGraph
from parallax_runner.rewrite.passes import rewrite_for_rank
from parallax_runner.train.session_config import session_config
from parallax_runner.train.sessions import initialize
from tests.single.small_models import Features, captured, planned

BATCH = 8
BLOCK_BYTES, PART_BYTES = 128, 300
FEATURES = {"ids": ((BATCH,), "int32"), "y": ((BATCH,), "float64")}
# Table sizes: several blocks, fewer rows than ranks, odd numbers, rows larger than a block, and one element a row.
TABLES: dict[str, tuple[tuple[int, ...], tf.DType]] = {
    "large": ((211, 5), tf.float32),
    "few": ((2, 4), tf.float64),
    "half": ((33, 2), tf.float16),
    "brain": ((47, 4), tf.bfloat16),
    "wide": ((9, 40), tf.float32),
    "flat": ((131,), tf.float32),
    "deep": ((50, 2, 3), tf.float64),
}
PARTITIONED = "partitioned"
GROWING = "growing"
STEPS_MEANWHILE = 3
# The steps of the checkpoints that a rank writes before one of the ranks is killed.
KILLED_STEPS = (2, 5, 8)


def model(features: Features) -> tf.Tensor:
    """[BATCH]: lookups in all tables, and a dense variable."""
    total = tf.cast(tf.get_variable("weights", [3], tf.float64), tf.float64)[0]
    for name, (shape, dtype) in TABLES.items():
        table = tf.get_variable(name, shape, dtype, initializer=tf.random_normal_initializer(dtype=dtype))
        rows = tf.cast(tf.nn.embedding_lookup(table, features["ids"] % shape[0]), tf.float64)
        total += tf.reduce_sum(tf.reshape(rows, [BATCH, -1]), axis=1)
    parts = tf.get_variable(PARTITIONED, [29, 3], tf.float64, partitioner=tf.fixed_size_partitioner(4))
    return total + tf.reduce_sum(tf.nn.embedding_lookup(parts, features["ids"] % 29, "div"), axis=1)


def growing_model(features: Features) -> tf.Tensor:
    """[BATCH]: `model`, and a lookup in a table whose vocabulary grows, some of whose keys share rows."""
    from parallax_runner.layers import GrowingEmbedding  # imports Keras

    growing = GrowingEmbedding(1, 1024, overflow="shared", seed=1, name=GROWING)
    return model(features) + tf.reduce_sum(tf.cast(growing(features["ids"], training=True), tf.float64), axis=1)


def built(*, grows: bool = False) -> SingleDeviceGraph:
    return captured(growing_model if grows else model, optimizer="momentum", features=FEATURES)


class Rank:
    """A rank of comm=sharded, in its initial state or with the values of a checkpoint."""

    block_bytes = BLOCK_BYTES
    part_bytes: int | None = PART_BYTES

    def __init__(self, rank: int, ranks: int, *, grows: bool = False) -> None:
        self.single = built(grows=grows)
        self.plan = planned(self.single, "sharded", workers=ranks)
        self.distributed = rewrite_for_rank(self.single, self.plan, rank=rank, seed=1)
        self.ops = CheckpointOps(self.distributed, self.block_bytes)
        self.rank, self.ranks = rank, ranks
        with self.distributed.graph.as_default():
            (deep,) = (variable.pieces[0] for variable in self.distributed.variables if variable.name == "deep")
            self.spoil = deep.assign_at(tf.constant([1], tf.int64), tf.fill([1, 2, 3], np.float64("nan")))
        self.add_ops()
        self.distributed.graph.finalize()
        self.begin(None)

    def add_ops(self) -> None:
        """Adds more ops to the graph."""

    def begin(self, start: Path | None) -> None:
        """Begins anew with a session of its own, in the initial state or with the values of a checkpoint."""
        self.session = tf.Session(graph=self.distributed.graph, config=session_config(2))
        initialize(self.session, self.distributed, self.ops, None if start is None else str(start))

    def steps(self, first: int, count: int) -> None:
        for step in range(first, first + count):
            self.session.run(self.distributed.train_op, fed(self.distributed, step, self.rank))

    def saver(self, folder: Path, copy_bytes: int | None) -> CheckpointSaver | RowWriter:
        names = frozenset([*TABLES, PARTITIONED, "weights"])
        if self.rank:
            made: Any = RowWriter(self.ops, folder, names, copy_bytes)
        else:
            fixed: Any = {"save_steps": None, "save_secs": None, "keep": None, "seed": 1, "fingerprint": "f"}
            made = CheckpointSaver(
                ops=self.ops, folder=folder, run_id=lambda: None, check_finite=names, copy_bytes=copy_bytes, **fixed
            )
        made._joint = JointSave(self.ops, names, copy_bytes, part_bytes=self.part_bytes)
        return made

    def save(self, folder: Path, step: int, copy_bytes: int | None = None) -> str:
        """Saves, and trains meanwhile. Returns what the chief tells of a failure."""
        saver = self.saver(folder, copy_bytes)
        saver.start(0)
        saver.warm_up(self.session)
        saver.save(self.session, step=step, examples=step)
        self.steps(step, STEPS_MEANWHILE)
        try:
            saver.finish(self.session, step=step, examples=step)
        except CheckpointError as error:
            return str(error)
        return ""


def fed(graph: DistributedGraph, step: int, rank: int) -> dict[tf.Tensor, np.ndarray]:
    draw = np.random.default_rng([step, rank])
    batch = {"ids": draw.integers(0, 1000, BATCH), "y": draw.normal(size=BATCH)}
    return {graph.features[0][name]: value for name, value in batch.items()}


def store(path: Path, values: dict[str, np.ndarray]) -> None:
    with open(path, "wb") as file:
        np.savez(file, **{name: value.astype(np.float64) for name, value in values.items()})


def save_in_many_ways(run_dir: Path, rank: Rank) -> dict[str, str]:
    """Writes checkpoints and, beside them, the values that they must have. Returns the messages of failures."""
    told: dict[str, str] = {}
    own_folder = run_dir if rank.rank == 0 else run_dir / "elsewhere"
    ways: dict[str, tuple[Path, int | None, Callable[[Rank], None]]] = {
        "copied": (run_dir, None, lambda _: None),
        "waiting": (run_dir, 0, lambda _: None),
        "half": (run_dir, 2000, lambda _: None),
        "elsewhere": (own_folder, None, lambda _: None),
        "full": (run_dir, None, fill_disk),
        "after": (run_dir, None, empty_disk),
        "spoilt": (run_dir, None, spoil),
    }
    step = 0
    for way, (folder, copy_bytes, prepare) in ways.items():
        rank.steps(step, 2)
        step += 2
        prepare(rank)
        values = rank.ops.snapshot(rank.session)
        if rank.rank == 0:
            store(run_dir / f"{way}.npz", values)
        DISK.parts = 0
        told[way] = rank.save(folder / way, step, copy_bytes)
        (run_dir / f"{way}_{rank.rank}.parts").write_text(str(DISK.parts))
        step += STEPS_MEANWHILE
    return told


class Disk:
    """Writes parts and counts them, unless the disk is full."""

    def __init__(self) -> None:
        self.parts, self.is_full, self._write = 0, False, part_files.write_slices

    def __call__(self, *arguments: Any) -> None:
        if self.is_full:
            raise OSError(28, "No space left on device")
        self.parts += 1
        self._write(*arguments)


DISK = Disk()


def fill_disk(rank: Rank) -> None:
    DISK.is_full = rank.rank == rank.ranks - 1


def empty_disk(rank: Rank) -> None:
    DISK.is_full = False


def spoil(rank: Rank) -> None:
    """Gives a row of the last rank's «deep» a NaN."""
    if rank.rank == rank.ranks - 1:
        rank.session.run(rank.spoil)


def save_and_die(folder: Path, rank: Rank, phase: str, victim: int) -> None:
    """Writes one checkpoint. While the next one is written, the process of the rank `victim` is killed in a phase."""
    rank.steps(0, 2)
    assert not rank.save(folder / "ckpt", 2)
    if rank.rank == victim:
        module, name = {
            "part": (part_files, "write_slices"),
            "merge": (joint_files, "merge"),
            "verify": (joint_files, "flush_file"),
            "publish": (checkpoint_folder, "replace"),
        }[phase]
        setattr(module, name, die)
    rank.save(folder / "ckpt", 5)


def save_and_die_at(folder: Path, rank: Rank, share: float, victim: int) -> None:
    """Writes two checkpoints. While the next one is written, the process of the rank `victim` is killed: after `share`
    of the time that the second one took. Stores the values that the last two must have."""
    secs = 0.0
    rank.steps(0, 2)
    for step in KILLED_STEPS:
        values = rank.ops.snapshot(rank.session)
        if rank.rank == 0:
            store(folder / f"{step}.npz", values)
        if step == KILLED_STEPS[-1] and rank.rank == victim:
            threading.Timer(share * secs, die).start()
        began = time.perf_counter()
        rank.save(folder / "ckpt", step)
        secs = time.perf_counter() - began
    time.sleep(secs)


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def resume(folder: Path, rank: Rank, order: Mapping[str, Any]) -> dict[str, str]:
    """Restores a checkpoint, stores the values, and saves them to the folder `again` if the order has one. Returns the
    messages of failures."""
    rank.begin(Path(order["start"]))
    values = rank.ops.snapshot(rank.session)
    if rank.rank == 0:
        store(folder / "restored.npz", values)
    return {"again": rank.save(Path(order["again"]), order["step"])} if "again" in order else {}


def work(run_dir: Path, number: int, client: ControlClient) -> None:
    """Does what `cases.json` says, and writes what the chief was told."""
    orders = json.loads((run_dir / "cases.json").read_text())
    choose(BACKENDS[DEFAULT])
    collectives.join(may_fuse=False)
    part_files.write_slices = DISK
    resumed: dict[bool, Rank] = {}
    for order in orders:
        folder = run_dir / order["name"]
        if "victim" in order:
            rank = Rank(number, order["ranks"], grows=order.get("grows", False))
            if "share" in order:
                save_and_die_at(folder, rank, order["share"], order["victim"])
            else:
                save_and_die(folder, rank, order["phase"], order["victim"])
            raise AssertionError("every rank goes on, although one has died")
        if order["start"] is None:
            told = save_in_many_ways(folder, Rank(number, order["ranks"]))
        else:
            grows = order.get("grows", False)
            if grows not in resumed:
                resumed[grows] = Rank(number, order["ranks"], grows=grows)  # a graph takes most of the time
            told = resume(folder, resumed[grows], order)
        if number == 0:
            (folder / "told.json").write_text(json.dumps(told))
    client.done()


if __name__ == "__main__":
    run_child("worker", rank_from_environ(), Path(sys.argv[1]), work)
