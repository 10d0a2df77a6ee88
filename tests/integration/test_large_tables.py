"""Tables that are divided among processes: each process needs memory for its own rows, and they begin as on one
device."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf2
import tensorflow.compat.v1 as tf

from benchmarks import machine
from benchmarks.memory import LITTLE_ROWS, START, STEPS, Case, Peak, watched
from benchmarks.runs import Run
from parallax_runner.checkpoints.checkpoint_files import damage, list_checkpoints, step_of
from tests.integration.control_groups import enter, limited_group

ROWS = 1_000_000
# A worker may need a fifth more than its own rows and slots. The driver holds no table.
MOST_OF_OWN = 1.2
MOST_OF_DRIVER_BYTES = 64 << 20
# What a process without rows needs for the blocks that it sends and receives, and for what varies between two runs.
SPARE_BYTES = 32 << 20
# Four tables and their slots: 1.2 GB, and no variable has more than 150 MB.
FOUR_TABLES_ROWS = 585_000
# What each of three workers may need for them, also while it saves.
MOST_OF_THREE_BYTES = 650_000_000
SAVING = ("train.steps=6", "ckpt.save_steps=2", "data.validation_examples=256", "train.validate_steps=3")
ROWS_OF_100_MB = 195_000
# A table of 2.3 GB, whose SavedModel has links to the checkpoint.
ROWS_OF_2_GB = 9_000_000
# Two blocks, the last of which is smaller.
ROWS_OF_TWO_BLOCKS = 20_001


@pytest.mark.parametrize(
    ("model", "comm", "workers"),
    [("keras", "sharded", 2), ("graph", "sharded", 3), ("keras", "hybrid", 2), ("graph", "hybrid", 2)],
)
def test_memory_follows_ownership(model: str, comm: str, workers: int, tmp_path: Path) -> None:
    case = Case(model, comm, workers, ROWS)
    settings = ["train.steps=5", "ckpt=off"]
    little = watched(tmp_path / "little", [*replace(case, rows=LITTLE_ROWS).overrides, *settings])
    limits_bytes = {name: size_bytes + most_outside_saves(case, name) for name, size_bytes in highest(little).items()}
    with limits(tmp_path.name, limits_bytes) as limit:
        large = watched(tmp_path / "large", [*case.overrides, *settings], limit)
    before = {(one.process, one.part): one.peak_bytes for one in little}
    above = {(one.process, one.part): one.peak_bytes - before[one.process, one.part] for one in large}
    assert {process for process, _ in above} >= {"driver", "worker_0", "worker_1"}
    for (process, part), size_bytes in above.items():
        assert size_bytes <= most_outside_saves(case, process), (process, part, above)
        assert part in (START, STEPS)


def most_outside_saves(case: Case, process: str) -> int:
    """Returns how much more a process may need than with little tables, if it saves nothing."""
    if process == "driver":
        return MOST_OF_DRIVER_BYTES
    return int(max(MOST_OF_OWN * case.own_bytes(process), SPARE_BYTES))


@contextmanager
def limits(name: str, most_bytes: Mapping[str, int]) -> Iterator[Callable[[str, int], None]]:
    """Gives a function that puts a worker or server, by its name and id, into a control group with its limit. The
    function does nothing where this user cannot make control groups. The driver gets no group, because the processes
    that it starts begin in its group."""
    with ExitStack() as stack:
        groups = {
            process: stack.enter_context(limited_group(f"{name}_{process}", size_bytes))
            for process, size_bytes in most_bytes.items()
            if process != "driver"
        }

        def limit(process: str, pid: int) -> None:
            group = groups.get(process)
            if group is not None:
                enter(group, pid)

        yield limit


def most_of(case: Case) -> int:
    """Returns what a worker may need while it saves: a fifth more than its own, and its rows of the largest
    variable."""
    return int(MOST_OF_OWN * case.own_bytes("worker_0")) + case.variable_bytes // case.workers


def highest(peaks: Sequence[Peak]) -> dict[str, int]:
    """Returns the peak of each process over all parts of a run."""
    found: dict[str, int] = {}
    for one in peaks:
        found[one.process] = max(one.peak_bytes, found.get(one.process, 0))
    return found


def above(run_dir: Path, case: Case, little: Mapping[str, int], *settings: str, most_bytes: int) -> dict[str, int]:
    """Runs a case and returns how much more memory each process needs than with `little` tables. No worker can use more
    than `most_bytes` more, where this user can make control groups."""
    limits_bytes = {name: size_bytes + most_bytes for name, size_bytes in little.items()}
    with limits(run_dir.name, limits_bytes) as limit:
        peaks = highest(watched(run_dir, [*case.overrides, *settings], limit))
    return {name: size_bytes - little[name] for name, size_bytes in peaks.items()}


@pytest.mark.parametrize("model", ["graph", "keras"])
def test_three_workers_save_and_two_resume_what_no_worker_could_hold(model: str, tmp_path: Path) -> None:
    three = Case(model, "sharded", 3, FOUR_TABLES_ROWS, tables=4)
    two = replace(three, workers=2)
    assert three.tables_bytes > 1.19e9 and three.variable_bytes < 150e6 and most_of(three) < MOST_OF_THREE_BYTES
    little_dirs = (tmp_path / "little_three", tmp_path / "little_two")
    settings = (*SAVING, f"ckpt.resume={little_dirs[0]}", "train.steps=8")
    little_three = highest(watched(little_dirs[0], [*replace(three, rows=LITTLE_ROWS).overrides, *SAVING]))
    little_two = highest(watched(little_dirs[1], [*replace(two, rows=LITTLE_ROWS).overrides, *settings]))

    trained = above(tmp_path / "three", three, little_three, *SAVING, most_bytes=MOST_OF_THREE_BYTES)
    newest = max(list_checkpoints(tmp_path / "three" / "ckpt"), key=step_of)
    settings = (*SAVING, f"ckpt.resume={newest}", "train.steps=8")
    resumed = above(tmp_path / "two", two, little_two, *settings, most_bytes=most_of(two) + SPARE_BYTES)
    print(f"{model}: {trained} {resumed}")
    for found, case in ((trained, three), (resumed, two)):
        assert found.keys() == {"driver", *(f"worker_{rank}" for rank in range(case.workers))}
        assert found.pop("driver") <= MOST_OF_DRIVER_BYTES
        assert max(found.values()) <= most_of(case) + SPARE_BYTES, found

    summary = json.loads((tmp_path / "two" / "summary.json").read_text())
    assert summary["steps"] == 8 and summary["validation_loss"] > 0
    expect_exported(tmp_path / "exported", two, max(list_checkpoints(tmp_path / "two" / "ckpt"), key=step_of))


def expect_exported(run_dir: Path, case: Case, checkpoint: Path) -> None:
    """Exports a checkpoint, which must be whole, and compares the tables of the SavedModel with it."""
    assert damage(checkpoint) is None and step_of(checkpoint) == 8
    with Run(run_dir, [*case.overrides, "action=export", f"ckpt.resume={checkpoint}"], cwd=machine.ROOT) as run:
        run.wait()
    saved = tf.train.load_checkpoint(str(checkpoint))
    served = tf.train.load_checkpoint(str(run_dir / "saved_model" / "variables" / "variables"))
    tables = [name for name, shape in served.get_variable_to_shape_map().items() if shape[:1] == [case.rows]]
    assert len(tables) == case.tables
    for name in tables:
        np.testing.assert_array_equal(served.get_tensor(name), saved.get_tensor(name))
    assert tf2.saved_model.contains_saved_model(str(run_dir / "saved_model"))


def tracked(case: Case, folder: Path) -> list[str]:
    """Returns the command line of a case whose results go to an MLflow store in `folder`."""
    others = [word for word in case.overrides if word != "tracking=off"]
    return [*others, "tracking=mlflow", f"tracking.uri=sqlite:///{folder / 'mlflow.db'}"]


def test_the_driver_exports_a_table_larger_than_its_memory(tmp_path: Path) -> None:
    large = Case("graph", "sharded", 2, ROWS_OF_2_GB)
    peaks: dict[tuple[int, str], int] = {}
    for case in (replace(large, rows=LITTLE_ROWS), large):
        trained, exported = tmp_path / f"trained_{case.rows}", tmp_path / f"exported_{case.rows}"
        peaks[case.rows, "train"] = highest(watched(trained, [*tracked(case, tmp_path), "train.steps=2"]))["driver"]
        settings = ["action=export", f"ckpt.resume={trained}"]
        peaks[case.rows, "export"] = highest(watched(exported, [*case.overrides, *settings]))["driver"]
        assert tf2.saved_model.contains_saved_model(str(trained / "saved_model"))
        assert tf2.saved_model.contains_saved_model(str(exported / "saved_model"))
    for action in ("train", "export"):
        assert peaks[ROWS_OF_2_GB, action] - peaks[LITTLE_ROWS, action] <= MOST_OF_DRIVER_BYTES, peaks


def disk_bytes(folder: Path) -> int:
    """Returns the disk space of the files in a folder. A file with several links counts once, as in `du`."""
    stats = [path.lstat() for path in folder.rglob("*") if path.is_file()]
    return sum({(one.st_dev, one.st_ino): 512 * one.st_blocks for one in stats}.values())


def test_a_local_store_keeps_no_copies(tmp_path: Path) -> None:
    case, run_dir = Case("keras", "sharded", 2, ROWS_OF_100_MB), tmp_path / "run"
    with Run(run_dir, [*tracked(case, tmp_path), "train.steps=2"], cwd=machine.ROOT) as run:
        run.wait()
    (artifacts,) = tmp_path.glob("mlartifacts/*/artifacts")
    assert (artifacts / "model.keras").samefile(run_dir / "model.keras")
    once_bytes = case.tables_bytes + case.variable_bytes + case.tables_bytes  # checkpoint, SavedModel, model.keras
    assert disk_bytes(run_dir) <= 1.05 * once_bytes
    assert disk_bytes(tmp_path) <= 1.05 * once_bytes


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
