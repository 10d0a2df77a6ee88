"""Tables that are divided among processes: each process needs memory for its own rows, and they begin as on one
device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from benchmarks import machine
from benchmarks.memory import LITTLE_ROWS, START, STEPS, Case, watched
from benchmarks.runs import Run
from parallax_runner.checkpoints.checkpoint_files import list_checkpoints

ROWS = 1_000_000
# A worker may need a fifth more than its own rows and slots. The driver holds no table.
MOST_OF_OWN = 1.2
MOST_OF_DRIVER_BYTES = 64 << 20
# What a process without rows needs for the blocks that it sends and receives, and for what varies between two runs.
SPARE_BYTES = 32 << 20
# Two blocks, the last of which is smaller.
ROWS_OF_TWO_BLOCKS = 20_001


@pytest.mark.parametrize(
    ("model", "comm", "workers"),
    [("keras", "sharded", 2), ("graph", "sharded", 3), ("keras", "hybrid", 2), ("graph", "hybrid", 2)],
)
def test_memory_follows_ownership(model: str, comm: str, workers: int, tmp_path: Path) -> None:
    case = Case(model, comm, workers, ROWS)
    little = replace(case, rows=LITTLE_ROWS)
    settings = ["train.steps=5", "ckpt=off"]
    before, after = (
        {(one.process, one.part): one.peak_bytes for one in watched(tmp_path / name, [*each.overrides, *settings])}
        for name, each in (("little", little), ("large", case))
    )
    above = {key: size - before[key] for key, size in after.items()}
    assert {process for process, _ in above} >= {"driver", "worker_0", "worker_1"}
    for (process, part), size_bytes in above.items():
        own_bytes = case.own_bytes(process)
        most_bytes = MOST_OF_DRIVER_BYTES if process == "driver" else max(MOST_OF_OWN * own_bytes, SPARE_BYTES)
        assert size_bytes <= most_bytes, (process, part, above)
        assert part in (START, STEPS)


def test_a_warm_start_needs_memory_for_own_rows(tmp_path: Path) -> None:
    large = Case("graph", "sharded", 2, ROWS)
    peaks: dict[tuple[int, str], int] = {}
    for case in (replace(large, rows=LITTLE_ROWS), large):
        saved = tmp_path / f"saved_{case.rows}"
        with Run(saved, [*case.overrides, "train.steps=1"], cwd=machine.ROOT) as run:
            run.wait()
        settings = ["train.steps=1", f"ckpt.warm_start={saved}"]
        for one in watched(tmp_path / f"taken_{case.rows}", [*case.overrides, *settings]):
            if one.part == START:
                peaks[case.rows, one.process] = one.peak_bytes
    for worker in ("worker_0", "worker_1"):
        above_bytes = peaks[ROWS, worker] - peaks[LITTLE_ROWS, worker]
        assert above_bytes <= MOST_OF_OWN * large.own_bytes(worker) + SPARE_BYTES, (worker, peaks)


def saved_table(run_dir: Path, case: Case, *settings: str) -> dict[str, np.ndarray]:
    """The table and its slot after one step."""
    with Run(run_dir, [*case.overrides, "train.steps=1", *settings], cwd=machine.ROOT) as run:
        run.wait()
    (checkpoint,) = list_checkpoints(run_dir / "ckpt")
    reader = tf.train.load_checkpoint(str(checkpoint))
    shapes = reader.get_variable_to_shape_map()
    return {name: reader.get_tensor(name) for name, shape in shapes.items() if shape[:1] == [case.rows]}


@pytest.mark.parametrize("model", ["graph", "keras"])
def test_tables_begin_as_on_one_device(model: str, tmp_path: Path) -> None:
    case = Case(model, "local", 1, ROWS_OF_TWO_BLOCKS)
    expected = saved_table(tmp_path / "local", case)
    assert len(expected) == 2  # the table and Adagrad's accumulator
    found = {
        "sharded": saved_table(tmp_path / "sharded", replace(case, comm="sharded", workers=3)),
        "ps": saved_table(tmp_path / "ps", replace(case, comm="ps"), "cluster.servers=2", "partition.num=2"),
    }
    for mode, tables in found.items():
        assert tables.keys() == expected.keys()
        for name, table in tables.items():
            # The step changes few rows. A batch has 128 examples in each worker.
            differing = np.flatnonzero((table != expected[name]).any(axis=1))
            assert len(differing) <= 128 * 4, (mode, name, len(differing))
