"""When checkpoints are written, which stay, and what happens when one cannot be written."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints import saver as checkpoint_saver
from parallax_runner.checkpoints.best import note_validated
from parallax_runner.checkpoints.checkpoint_files import damage, list_checkpoints, read_sidecar
from parallax_runner.checkpoints.checkpoint_ops import CheckpointOps
from parallax_runner.checkpoints.publish import begin
from parallax_runner.checkpoints.saver import CheckpointSaver
from parallax_runner.checkpoints.writer import CheckpointWriter
from parallax_runner.errors import CheckpointError
from parallax_runner.rewrite.passes import rewrite_for_rank
from tests.single.small_models import ROWS, WIDTH, captured, planned


class Chief:
    """Rank 0 of comm=local, initialized."""

    def __init__(self) -> None:
        single = captured()
        distributed = rewrite_for_rank(single, planned(single, "local"), rank=0, seed=1)
        self.ops = CheckpointOps(distributed)
        with distributed.graph.as_default():
            self.spoil = tf.raw_ops.AssignVariableOp(
                resource=distributed.graph.get_tensor_by_name("table:0"),
                value=tf.fill([ROWS, WIDTH], np.float64("nan")),
            )
        distributed.graph.finalize()
        self.session = tf.Session(graph=distributed.graph)
        self.session.run(distributed.initialize)


@pytest.fixture(scope="module")
def shared() -> Chief:
    return Chief()


def saver(
    folder: Path, ops: Any = None, *, save_steps: int | None = None, save_secs: float | None = None, **more: Any
) -> CheckpointSaver:
    fixed: dict[str, Any] = {"seed": 3, "fingerprint": "f", "run_id": lambda: "run", "keep": 2}
    return CheckpointSaver(ops=ops, folder=folder, save_steps=save_steps, save_secs=save_secs, **(fixed | more))


def saved(made: CheckpointSaver, chief: Chief, step: int) -> None:
    """Saves and waits until it is written."""
    made.save(chief.session, step=step, examples=8 * step)
    made.close()
    made.raise_if_failed()


def steps_in(folder: Path) -> list[int]:
    return [int(path.name.rpartition("-")[2]) for path in list_checkpoints(folder)]


# When.


def test_due_by_steps(tmp_path: Path) -> None:
    made = saver(tmp_path, save_steps=10)
    made.start(0)
    assert [step for step in range(35) if made.is_due(step)] == [10, 20, 30]
    made.start(20)  # Resumed there.
    assert [step for step in range(20, 35) if made.is_due(step)] == [30]


def test_due_by_steps_that_passed_without_the_chief(tmp_path: Path) -> None:
    made = saver(tmp_path, save_steps=10)
    made.start(0)
    assert [step for step in range(10, 60, 7) if made.is_due(step, 7)] == [10, 24, 31, 45, 52]
    made.start(12)
    assert not made.is_due(11, 7)


def test_a_checkpoint_of_more_steps_than_the_chief_knows_is_named_by_them(
    tmp_path: Path, shared: Chief, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = shared.ops.read_with_step
    monkeypatch.setattr(shared.ops, "read_with_step", lambda session: (read(session)[0], 12))
    wait = shared.ops.wait_until_read
    monkeypatch.setattr(shared.ops, "wait_until_read", lambda session: wait(session) or 12)
    made = saver(tmp_path, shared.ops, global_batch=8)
    made.start(0)
    saved(made, shared, 10)
    assert steps_in(tmp_path) == [12]
    assert read_sidecar(tmp_path / "model.ckpt-12").examples == 8 * 12
    assert made.last_step == 12


def test_due_by_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(checkpoint_saver.time, "monotonic", lambda: now[0])
    made = saver(tmp_path, save_secs=60)
    made.start(0)
    now[0] = 159
    assert not made.is_due(5)
    now[0] = 160
    assert made.is_due(6)
    made.start(6)
    assert not made.is_due(7)
    now[0] = 220
    assert made.is_due(8)


def test_never_due_without_an_interval(tmp_path: Path) -> None:
    made = saver(tmp_path)
    made.start(0)
    assert not any(made.is_due(step) for step in range(100))


# What is there afterwards.


def test_the_newest_are_kept_and_tensorflow_finds_them(tmp_path: Path, shared: Chief) -> None:
    made = saver(tmp_path / "new" / "ckpt", shared.ops)
    made.start(0)
    for step in (5, 6, 10):
        saved(made, shared, step)
    prefix = tmp_path / "new" / "ckpt" / "model.ckpt-10"
    assert (made.last_prefix, made.last_step, steps_in(made.folder)) == (prefix, 10, [6, 10])
    assert sorted({path.name.split(".ckpt")[0] for path in made.folder.iterdir()}) == ["checkpoint", "model"]
    assert tf.train.latest_checkpoint(str(made.folder)) == str(prefix)
    found = read_sidecar(prefix)
    assert (found.step, found.examples, found.seed, found.fingerprint) == (10, 80, 3, "f")
    assert found.tracker_run_id == "run"
    assert damage(prefix) is None
    assert tf.train.load_checkpoint(str(made.folder)).get_tensor("table").shape == (ROWS, WIDTH)


def test_the_sidecar_has_the_state_of_the_epoch_at_its_step(tmp_path: Path, shared: Chief) -> None:
    """The question is asked before `save` returns, because later steps follow. The thread waits for the answer."""
    asked: list[int] = []
    known = threading.Event()

    def ask(step: int) -> Any:
        asked.append(step)
        return lambda: {"number": step} if known.wait(60) else None

    made = saver(tmp_path, shared.ops, ask_epoch=ask)
    made.start(0)
    made.save(shared.session, step=5, examples=40)
    assert asked == [5] and steps_in(tmp_path) == []
    known.set()
    made.rest()
    assert read_sidecar(tmp_path / "model.ckpt-5").epoch == {"number": 5}


def test_a_folder_that_is_moved_still_opens(tmp_path: Path, shared: Chief) -> None:
    saved(saver(tmp_path / "old", shared.ops), shared, 1)
    (tmp_path / "old").rename(tmp_path / "new")
    assert tf.train.latest_checkpoint(str(tmp_path / "new")) == str(tmp_path / "new" / "model.ckpt-1")


def test_the_last_step_is_saved_once(tmp_path: Path, shared: Chief) -> None:
    made = saver(tmp_path, shared.ops)
    made.start(4)
    assert made.finish(shared.session, step=4, examples=32) == tmp_path / "model.ckpt-4"  # Nothing was left to do.
    first = read_sidecar(tmp_path / "model.ckpt-4")
    made.save_last(shared.session, step=4, examples=32)
    assert made.finish(shared.session, step=4, examples=32) == tmp_path / "model.ckpt-4"
    assert read_sidecar(tmp_path / "model.ckpt-4") == first


def test_what_a_killed_run_left_is_removed(tmp_path: Path, shared: Chief) -> None:
    begin(tmp_path, 7).with_name("model.ckpt.index").write_text("half")
    made = saver(tmp_path, shared.ops)
    made.start(0)
    assert list(tmp_path.iterdir()) == []


def test_the_best_is_kept_beside_the_newest(tmp_path: Path, shared: Chief) -> None:
    made = saver(tmp_path, shared.ops)
    made.start(0)
    for step, loss in ((1, 5.0), (2, 3.0), (3, 4.0), (4, 6.0), (5, 7.0)):
        saved(made, shared, step)
        made.validated(step)
        note_validated(tmp_path, step, loss)
    assert steps_in(tmp_path) == [2, 4, 5]
    resumed = saver(tmp_path, shared.ops)
    resumed.start(5)
    for step in (6, 7, 8):
        saved(resumed, shared, step)
    assert steps_in(tmp_path) == [2, 7, 8]
    note_validated(tmp_path, 8, 1.0)
    saved(resumed, shared, 9)
    assert steps_in(tmp_path) == [8, 9]


def test_one_whose_result_is_not_in_yet_is_kept(tmp_path: Path, shared: Chief) -> None:
    made = saver(tmp_path, shared.ops, keep=1)
    made.start(0)
    for step in (1, 2, 3):
        saved(made, shared, step)
        if step < 3:
            made.validated(step)
    assert steps_in(tmp_path) == [1, 2, 3]
    note_validated(tmp_path, 1, 5.0)
    note_validated(tmp_path, 2, 6.0)
    saved(made, shared, 4)
    assert steps_in(tmp_path) == [1, 4]


# A thread writes.


def test_a_save_that_comes_too_soon_waits_for_the_one_before(
    tmp_path: Path, shared: Chief, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    real = CheckpointWriter.write

    def write(self: CheckpointWriter, prefix: Path, values: Any) -> None:
        assert go_on.wait(60)
        real(self, prefix, values)

    monkeypatch.setattr(CheckpointWriter, "write", write)
    made = saver(tmp_path, shared.ops)
    made.start(0)
    made.save(shared.session, step=1, examples=1)  # Returns although nothing is written.
    assert steps_in(tmp_path) == []
    made.raise_if_failed()
    second = threading.Thread(target=made.save, args=(shared.session,), kwargs={"step": 2, "examples": 2})
    second.start()
    second.join(0.2)
    assert second.is_alive()
    go_on.set()
    second.join(60)
    made.finish(shared.session, step=2, examples=2)
    assert steps_in(tmp_path) == [1, 2]


def test_variables_that_are_not_finite_are_not_saved(tmp_path: Path) -> None:
    chief = Chief()
    made = saver(tmp_path, chief.ops, check_finite=frozenset({"table", "global_step"}))
    made.start(0)
    saved(made, chief, 1)
    chief.session.run(chief.spoil)
    made.save(chief.session, step=2, examples=16)
    with pytest.raises(CheckpointError, match=r"step 2 .*«table».*NaN.*last good checkpoint is .*model\.ckpt-1$"):
        made.finish(chief.session, step=2, examples=16)
    assert steps_in(tmp_path) == [1]
    unchecked = saver(tmp_path, chief.ops, check_finite=frozenset({"weights"}))
    unchecked.start(1)
    saved(unchecked, chief, 3)
    assert steps_in(tmp_path) == [1, 3]


def test_files_that_read_otherwise_than_they_were_written_are_not_published(
    tmp_path: Path, shared: Chief, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = CheckpointWriter.write

    def write(self: CheckpointWriter, prefix: Path, values: Any) -> None:
        real(self, prefix, values)
        data = prefix.with_name(f"{prefix.name}.data-00000-of-00001")
        content = bytearray(data.read_bytes())
        content[20] ^= 1
        data.write_bytes(content)

    made = saver(tmp_path, shared.ops)
    made.start(0)
    saved(made, shared, 1)
    monkeypatch.setattr(CheckpointWriter, "write", write)
    with pytest.raises(CheckpointError, match=r"step 2 could not be written.*model\.ckpt-1"):
        saved(made, shared, 2)
    assert steps_in(tmp_path) == [1]
    assert not (tmp_path / ".partial-2").exists()


FULL_DISK = """
    import resource, sys
    from pathlib import Path
    from parallax_runner.errors import CheckpointError
    from tests.single.checkpoints.test_checkpoint_saver import Chief, saver, steps_in

    folder, chief = Path(sys.argv[1]), Chief()
    made = saver(folder, chief.ops)
    made.start(0)
    made.save(chief.session, step=1, examples=8)
    made.close()
    # A file may grow to so many bytes and no more: for what is written, a disk that is full.
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
    made.save(chief.session, step=2, examples=16)
    made.close()
    for call in (made.raise_if_failed, lambda: made.finish(chief.session, step=3, examples=24)):
        try:
            call()
        except CheckpointError as error:
            print("told:", error)
    print("left:", steps_in(folder), [path.name for path in folder.glob(".*")])
"""


def test_a_full_disk_leaves_the_one_before(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FULL_DISK), str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
        timeout=600,
    )
    lines = [line for line in result.stdout.splitlines() if line.startswith(("told: ", "left: "))]
    assert lines == [
        f"told: checkpoint of step 2 could not be written to {tmp_path}: File too large. "
        f"The last good checkpoint is {tmp_path / 'model.ckpt-1'}"
    ] * 2 + ["left: [1] []"], result.stderr
    assert damage(tmp_path / "model.ckpt-1") is None


def test_a_file_system_without_space_is_said_to_have_none(tmp_path: Path, shared: Chief) -> None:
    """TensorFlow's code for it is that of memory that is exhausted, and a hint about memory follows."""
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], capture_output=True)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        made = saver(tmp_path, shared.ops)
        made.start(0)
        saved(made, shared, 1)
        with open(tmp_path / "filler", "wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(1 << 12)):
                pass
        with pytest.raises(CheckpointError) as caught:
            saved(made, shared, 2)
        assert str(caught.value) == (
            f"checkpoint of step 2 could not be written to {tmp_path}: No space left on device. "
            f"The last good checkpoint is {tmp_path / 'model.ckpt-1'}"
        )
        assert damage(tmp_path / "model.ckpt-1") is None
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "ckpt").write_text("a file")
    with pytest.raises(CheckpointError, match=r"ckpt\.dir=.*/ckpt: .*cannot be written to this folder: File exists"):
        saver(tmp_path / "ckpt").start(0)


def test_a_folder_that_disappears_is_named(tmp_path: Path, shared: Chief) -> None:
    made = saver(tmp_path / "ckpt", shared.ops)
    made.start(0)
    (tmp_path / "ckpt").rmdir()
    (tmp_path / "ckpt").write_text("a file")
    with pytest.raises(CheckpointError, match=r"step 1 could not be written to .*/ckpt: .*\. There is no earlier"):
        made.save(shared.session, step=1, examples=8)
