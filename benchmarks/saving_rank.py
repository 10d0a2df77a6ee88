"""One rank of `benchmarks.saving`: `python -m benchmarks.saving_rank RUN_DIR`.

The ranks save and restore a table and its slots together. In turn with them, rank 0 saves and restores the same values
by `tf.train.Saver`, while the other ranks sleep.
"""

from __future__ import annotations

import json
import resource
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorflow.compat.v1 as tf

from benchmarks import large_tables
from parallax_runner.analysis.classify import classify
from parallax_runner.checkpoints import joint_files, joint_save
from parallax_runner.checkpoints.checkpoint_files import files_of, state_of
from parallax_runner.checkpoints.checkpoint_ops import CheckpointOps
from parallax_runner.checkpoints.publish import flush, prefix_of
from parallax_runner.checkpoints.row_writer import RowWriter
from parallax_runner.checkpoints.saver import CheckpointSaver
from parallax_runner.checkpoints.start import find_start
from parallax_runner.collectives import ops as collectives
from parallax_runner.collectives.chosen import BACKENDS, DEFAULT, choose
from parallax_runner.graph.capture import capture
from parallax_runner.launch.child import run_child
from parallax_runner.launch.control.client import ControlClient, rank_from_environ
from parallax_runner.plan.comm_options import CommOptions
from parallax_runner.planning.plan_request import PlanRequest
from parallax_runner.planning.planner import make_plan
from parallax_runner.rewrite.passes import rewrite_for_rank
from parallax_runner.train.session_config import session_config
from parallax_runner.train.sessions import initialize

SAVE, RESTORE = "save", "restore"
BATCH = 8
LOOK_EVERY_SECS = 0.02
FEATURES = {
    "dense": ((BATCH, 13), "float32"),
    "categorical": ((BATCH, 1), "int64"),
    "label": ((BATCH,), "float32"),
}
Clocks = tuple[float, float, float]
# The parts of a save that are timed, by the object that has the function.
PARTS: tuple[tuple[Any, str], ...] = (
    (joint_save.OwnRows, "read"),
    (joint_save, "messages"),
    (joint_save.RankExchange, "swap"),
    (joint_save.RankExchange, "tell"),
    (joint_save, "brought_together"),
    (joint_save, "not_finite"),
    (joint_save.PartFiles, "flush"),
    (joint_files, "merge"),
    (joint_files, "flush_file"),
    (joint_save.SliceReader, "read"),
    (joint_files, "state_of"),
)


@dataclass
class Profile:
    """The seconds of parts of a save: wall-clock time, and CPU time of the thread in user mode and in the kernel."""

    secs: dict[str, list[float]] = field(default_factory=lambda: defaultdict(lambda: [0.0, 0.0, 0.0]))

    def watch(self) -> None:
        """Times each call of the functions in PARTS."""
        for owner, name in PARTS:
            of_class = f"{owner.__name__}." if isinstance(owner, type) else ""
            setattr(owner, name, self._timed(getattr(owner, name), of_class + name))

    def add(self, name: str, began: Clocks, ended: Clocks) -> None:
        """Adds what has passed between two moments to a part."""
        for clock, (begin, end) in enumerate(zip(began, ended, strict=True)):
            self.secs[name][clock] += end - begin

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Times the block, with the CPU time of all threads."""
        began = clocks(resource.RUSAGE_SELF)
        yield
        self.add(name, began, clocks(resource.RUSAGE_SELF))

    def _timed(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            began = clocks(resource.RUSAGE_THREAD)
            try:
                return function(*arguments, **named)
            finally:
                self.add(name, began, clocks(resource.RUSAGE_THREAD))

        return call


def clocks(whose: int) -> Clocks:
    """Returns the wall-clock time, and the CPU time in user mode and in the kernel of this process or thread."""
    usage = resource.getrusage(whose)
    return time.perf_counter(), usage.ru_utime, usage.ru_stime


class Ranks:
    """Lets ranks wait for each other without taking part in an exchange, which would use their processors."""

    def __init__(self, folder: Path, rank: int, ranks: int) -> None:
        self._folder, self._rank, self._ranks, self._met = folder, rank, ranks, 0

    def meet(self) -> None:
        """Waits until all ranks have called this method as often as this rank."""
        self._met += 1
        (self._folder / f"met_{self._met}_{self._rank}").touch()
        for rank in range(self._ranks):
            while not (self._folder / f"met_{self._met}_{rank}").exists():
                time.sleep(LOOK_EVERY_SECS)


class Rank:
    """A rank that has its rows of a table, and of the slots of Adagrad."""

    def __init__(self, rank: int, order: Mapping[str, Any]) -> None:
        def build(features: dict[str, tf.Tensor]) -> dict[str, Any]:
            optimizer = tf.train.AdagradOptimizer(0.05)
            return large_tables.build(features, optimizer, cardinalities=[order["rows"]], width=order["width"])

        single = capture(build, FEATURES, seed=1)
        asked = PlanRequest(
            variables=tuple(classify(single)),
            options=CommOptions(),
            comm="sharded",
            workers=order["ranks"],
            servers=0,
            fingerprint=single.fingerprint,
        )
        distributed = rewrite_for_rank(single, make_plan(asked), rank=rank, seed=1)
        self._copy_bytes: int | None = order["copy_bytes"]
        self.rank, self.ops = rank, CheckpointOps(distributed)
        distributed.graph.finalize()
        self.session = tf.Session(graph=distributed.graph, config=session_config(1))
        initialize(self.session, distributed, self.ops, None)

    def saver(self, folder: Path) -> CheckpointSaver | RowWriter:
        """Returns the object by which this rank takes part in saving."""
        names = frozenset(part.name for part in self.ops.slices)
        if self.rank:
            return RowWriter(self.ops, folder, names, self._copy_bytes)
        return CheckpointSaver(
            ops=self.ops,
            folder=folder,
            save_steps=None,
            save_secs=None,
            keep=1,
            seed=1,
            fingerprint="",
            run_id=lambda: None,
            check_finite=names,
            copy_bytes=self._copy_bytes,
        )


class Reference:
    """The same values in one process, saved and restored by `tf.train.Saver`."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        graph = tf.Graph()
        with graph.as_default():
            shape = [order["rows"], order["width"]]
            tables = [
                tf.get_variable(name, shape, initializer=tf.random_uniform_initializer(), use_resource=True)
                for name in ("table", "slot")
            ]
            self._saver = tf.train.Saver(tables)
            made = tf.global_variables_initializer()
            self._is_finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(table)) for table in tables])
        self._graph, self._session = graph, tf.Session(graph=graph, config=session_config(1))
        self._session.run(made)

    def save(self, folder: Path) -> None:
        """Saves, flushes, reads back, and computes checksums."""
        assert self._session.run(self._is_finite)
        prefix = prefix_of(folder, 1)
        with self._graph.as_default():
            self._saver.save(self._session, str(prefix), write_meta_graph=False)
        flush(prefix)
        reader = tf.train.load_checkpoint(str(prefix))
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
        self._checksums(prefix)

    def restore(self, folder: Path) -> None:
        """Computes checksums, and restores."""
        prefix = prefix_of(folder, 1)
        self._checksums(prefix)
        with self._graph.as_default():
            self._saver.restore(self._session, str(prefix))

    def _checksums(self, prefix: Path) -> None:
        for file in files_of(prefix):
            state_of(file)


def work(run_dir: Path, number: int, client: ControlClient) -> None:
    """Measures what `order.json` says, and writes `rank_N.json`."""
    order = json.loads((run_dir / "order.json").read_text())
    choose(BACKENDS[DEFAULT])
    collectives.join(may_fuse=False)
    rank, ranks = Rank(number, order), Ranks(run_dir, number, order["ranks"])
    profile = Profile()
    profile.watch()
    saver = rank.saver(run_dir / "ckpt")
    saver.start(0)
    saver.warm_up(rank.session)
    reference = Reference(order) if number == 0 else None
    profiles = []
    for step in range(1, order["repeats"] + 1):
        profile.secs.clear()
        ranks.meet()
        save_and_restore(rank, saver, step, ranks, profile)
        ranks.meet()
        if reference is not None:
            save_and_restore_alone(reference, run_dir / "reference", profile)
        ranks.meet()
        profiles.append(dict(profile.secs))
    (run_dir / f"rank_{number}.json").write_text(json.dumps(profiles))
    client.done()


def save_and_restore(rank: Rank, saver: CheckpointSaver | RowWriter, step: int, ranks: Ranks, profile: Profile) -> None:
    """Saves and restores once, together with the other ranks."""
    prefix = prefix_of(saver.folder, step)
    with profile.part(SAVE):
        with profile.part("training waits"):
            saver.save(rank.session, step=step, examples=step)
        saver.finish(rank.session, step=step, examples=step)
    ranks.meet()
    with profile.part(RESTORE):
        if rank.rank == 0:
            assert find_start("auto", saver.folder).prefix == prefix
        ranks.meet()
        rank.ops.restore(rank.session, prefix)


def save_and_restore_alone(reference: Reference, folder: Path, profile: Profile) -> None:
    """Saves and restores once by `tf.train.Saver`."""
    folder.mkdir()
    with profile.part(f"{SAVE} alone"):
        reference.save(folder)
    with profile.part(f"{RESTORE} alone"):
        reference.restore(folder)
    shutil.rmtree(folder)


if __name__ == "__main__":
    run_child("worker", rank_from_environ(), Path(sys.argv[1]), work)
