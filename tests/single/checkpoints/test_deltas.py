"""A delta is published whole or not at all, goes with its checkpoint, and any damage to it is noticed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints import delta_start
from parallax_runner.checkpoints.checkpoint_files import Sidecar, read_sidecar
from parallax_runner.checkpoints.delta_files import (
    Delta,
    damage_of_delta,
    delta_path,
    read_delta,
    sha256_of_sidecar,
    values_of,
)
from parallax_runner.checkpoints.delta_merge import with_delta
from parallax_runner.checkpoints.delta_parts import PLACES
from parallax_runner.checkpoints.delta_publish import begin_delta, publish_delta
from parallax_runner.checkpoints.delta_start import Found, find_state
from parallax_runner.checkpoints.origin import source_of
from parallax_runner.checkpoints.part_files import PartFiles, merge, write_slices
from parallax_runner.checkpoints.publish import begin, flush, forget_old, prepare, publish
from parallax_runner.checkpoints.slices import Slice
from parallax_runner.checkpoints.start import find_start, find_whole
from parallax_runner.driver import delta_source
from parallax_runner.errors import CheckpointError

ROWS, WIDTH, BLOCK_ROWS = 40, 3, 8
SHAPES = {"table": (ROWS, WIDTH), "table/slot": (ROWS, WIDTH), "map": (4, 5), "half": (ROWS, 2), "weights": (2,)}
DTYPES = {"map": tf.int64, "half": tf.float16}
CHANGED_ROWS, CHANGED_ELEMENTS = np.array([39, 3, 8, 7]), np.array([19, 0, 6])
Act = Callable[[Path], object]


def value(name: str, step: int) -> np.ndarray:
    draw = np.random.default_rng([step, *name.encode()])
    return (100 * draw.normal(size=SHAPES[name])).astype(dtype_of(name).as_numpy_dtype)


def dtype_of(name: str) -> tf.DType:
    return DTYPES.get(name, tf.float32)


def whole(name: str, array: np.ndarray) -> Slice:
    return Slice(name, tf.as_dtype(array.dtype), array.shape, (0,) * array.ndim, array.shape)


def write_base(folder: Path, step: int) -> Path:
    """Writes a checkpoint, with the table in blocks."""
    written = begin(folder, step)
    files = PartFiles(written.parent, "part", 1)
    for name, shape in SHAPES.items():
        part = whole(name, value(name, step))
        for first in range(0, shape[0], BLOCK_ROWS if name.startswith("table") else shape[0]):
            rows = part.rows(first, min(BLOCK_ROWS, shape[0])) if name.startswith("table") else part
            files.add(rows, value(name, step)[rows.where])
    files.flush()
    merge(files.parts, written)
    flush(written)
    block_rows = {"table": BLOCK_ROWS, "table/slot": BLOCK_ROWS}
    return publish(written, folder, Sidecar(step, 10 * step, 1, "f", "run", numbering="n", block_rows=block_rows))


def write_delta(base: Path, step: int) -> Delta:
    """Writes a delta with some rows, some elements and a whole variable of the values of a step."""
    written = begin_delta(base.parent)
    tensors = {
        "table": value("table", step)[CHANGED_ROWS],
        f"table{PLACES}": CHANGED_ROWS,
        "half": value("half", step)[CHANGED_ROWS].view(np.uint8).reshape(len(CHANGED_ROWS), -1),
        f"half{PLACES}": CHANGED_ROWS,
        "map": value("map", step).reshape(-1)[CHANGED_ELEMENTS],
        f"map{PLACES}": CHANGED_ELEMENTS,
        "weights": value("weights", step),
    }
    write_slices(written, [whole(name, array) for name, array in tensors.items()], list(tensors.values()))
    flush(written)
    rows, elements = dict.fromkeys(["table", "half"], len(CHANGED_ROWS)), {"map": len(CHANGED_ELEMENTS)}
    delta = Delta(step, 10 * step, sha256_of_sidecar(base), rows=rows, elements=elements)
    return publish_delta(written, base, delta, {})


def expected(base_step: int, step: int) -> dict[str, np.ndarray]:
    values = {name: value(name, base_step) for name in SHAPES}
    for name in ("table", "half"):
        values[name][CHANGED_ROWS] = value(name, step)[CHANGED_ROWS]
    values["map"].reshape(-1)[CHANGED_ELEMENTS] = value("map", step).reshape(-1)[CHANGED_ELEMENTS]
    return values | {"weights": value("weights", step)}


def merged(found: Found, folder: Path) -> Path:
    assert found.start.prefix is not None and found.delta is not None
    return with_delta(found.start.prefix, found.delta, folder)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with checkpoints of the steps 10 and 20, and deltas of the steps 16 and 26."""
    folder = tmp_path_factory.mktemp("sound")
    for step in (10, 20):
        base = write_base(folder, step)
        write_delta(base, step + 3)
        write_delta(base, step + 6)
    return folder


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "ckpt"))


def test_the_newest_delta_is_applied(folder: Path, tmp_path: Path) -> None:
    found = find_state("auto", folder)
    assert found.start.prefix == folder / "model.ckpt-20" and not found.start.notes
    prefix = merged(found, tmp_path / "merged")
    reader = tf.train.load_checkpoint(str(prefix))
    for name, wanted in expected(20, 26).items():
        np.testing.assert_array_equal(reader.get_tensor(name), wanted, err_msg=name)
    sidecar = read_sidecar(prefix)
    assert (sidecar.step, sidecar.examples, sidecar.tracker_run_id, sidecar.numbering) == (26, 260, "run", "n")
    assert sidecar.block_rows["table"] == BLOCK_ROWS
    assert find_whole(str(prefix), folder).prefix == prefix


def test_the_path_decides_whether_a_delta_is_applied(folder: Path) -> None:
    def steps(path: str) -> tuple[str, int | None]:
        found = find_state(path, folder / "elsewhere")
        assert found.start.prefix is not None
        return found.start.prefix.name, None if found.delta is None else found.delta.step

    assert steps(f"{folder}") == ("model.ckpt-20", 26)
    assert steps(f"{folder}/model.ckpt-20") == ("model.ckpt-20", None)
    assert steps(f"{folder}/model.ckpt-10.delta") == ("model.ckpt-10", 16)


def test_a_training_cannot_begin_with_a_delta(folder: Path) -> None:
    assert find_start("auto", folder).prefix == folder / "model.ckpt-20"
    for find in (find_start, find_whole):
        with pytest.raises(CheckpointError, match=r"has no slots.*ckpt-10"):
            find(f"{folder}/model.ckpt-10.delta", folder)


def test_a_delta_replaces_the_one_before(folder: Path) -> None:
    base = folder / "model.ckpt-20"
    before = read_delta(base)
    again = write_delta(base, 26)
    assert before is not None and again.number == before.number + 1 == 3
    names = {
        path.name.partition(".delta")[2] for path in folder.iterdir() if path.name.startswith(f"{base.name}.delta")
    }
    assert names == {".json", "-26-3.index", "-26-3.data-00000-of-00001"}
    assert not (folder / ".partial-delta").exists()


def test_a_delta_that_is_replaced_meanwhile_is_taken_anew(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that trains has removed the files of the delta that was found."""
    found = find_state("auto", folder)
    base = found.start.prefix
    assert base is not None and found.delta is not None
    write_delta(base, 29)
    prefix = delta_source.checkpoint_of(base, found.delta, folder / "run")
    assert read_sidecar(prefix).step == 29 and f"{base} with its delta, which is of step 29" in capsys.readouterr().err
    assert source_of(prefix) == folder / "model.ckpt-20.delta"
    data_of(folder).unlink()
    newest = read_delta(base)
    assert newest is not None
    with pytest.raises(CheckpointError, match="is missing"):
        delta_source.checkpoint_of(base, newest, folder / "run")


def test_a_delta_that_is_replaced_while_it_is_checked_is_not_damaged(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [29, 32]

    def replaced(base: Path, delta: Delta) -> str | None:
        if steps:
            write_delta(base, steps.pop(0))
        return damage_of_delta(base, delta)

    monkeypatch.setattr(delta_start, "damage_of_delta", replaced)
    found = find_state("auto", folder)
    assert found.delta is not None and found.delta.step == 32 and not found.start.notes


def data_of(folder: Path) -> Path:
    base = folder / "model.ckpt-20"
    delta = read_delta(base)
    assert delta is not None
    return folder / f"{values_of(base, delta).name}.data-00000-of-00001"


def change(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def write_base_anew(folder: Path) -> None:
    """Replaces a checkpoint by hand, so that its delta stays."""
    other = folder / "other"
    other.mkdir()
    prefix = write_base(other, 20)
    for path in other.iterdir():
        if path.name.startswith(prefix.name):
            path.replace(folder / path.name)


DAMAGES: dict[str, tuple[Act, str]] = {
    "a file is lost": (lambda folder: data_of(folder).unlink(), "is missing"),
    "a file is changed": (lambda folder: change(data_of(folder)), "does not match its checksum"),
    "a file is cut": (lambda folder: os.truncate(data_of(folder), 10), "has 10 bytes instead of"),
    "the description is changed": (
        lambda folder: change(delta_path(folder / "model.ckpt-20")),
        "model.ckpt-20.delta.json is unusable",
    ),
    "the description is empty": (
        lambda folder: delta_path(folder / "model.ckpt-20").write_text(""),
        "model.ckpt-20.delta.json is unusable",
    ),
    "the checkpoint is another": (write_base_anew, "belongs to another checkpoint than model.ckpt-20"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_noticed_and_the_checkpoint_remains(name: str, folder: Path) -> None:
    damage, told = DAMAGES[name]
    damage(folder)
    assert not prepare(folder)  # a run that starts removes nothing that may be repairable
    found = find_state("auto", folder)
    assert found.start.prefix == folder / "model.ckpt-20" and found.delta is None
    (note,) = found.start.notes
    assert told in note and "without it, which is of step 20" in note
    with pytest.raises(CheckpointError, match="this delta is damaged") as error:
        find_state(f"{folder}/model.ckpt-20.delta", folder)
    assert told in str(error.value) and f"step 20: ckpt.resume={folder}/model.ckpt-20" in str(error.value)


def test_a_damaged_checkpoint_falls_back_to_the_one_before_and_its_delta(folder: Path) -> None:
    change(folder / "model.ckpt-20.index")
    found = find_state("auto", folder)
    assert found.start.prefix == folder / "model.ckpt-10"
    assert found.delta is not None and found.delta.step == 16


def names(folder: Path, step: int) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(f"model.ckpt-{step}.")]


def test_a_delta_is_deleted_with_its_checkpoint(folder: Path) -> None:
    forget_old(folder, keep=1)
    assert not names(folder, 10) and any(".delta-26" in name for name in names(folder, 20))
    write_base(folder, 20)
    assert not [name for name in names(folder, 20) if ".delta" in name]


def test_deltas_count_in_the_bytes_of_checkpoints(folder: Path) -> None:
    sizes = {
        step: sum(state.bytes for state in read_sidecar(folder / f"model.ckpt-{step}").files.values())
        for step in (10, 20)
    }
    deltas = [read_delta(folder / f"model.ckpt-{step}") for step in (10, 20)]
    all_bytes = sum(sizes.values()) + sum(delta.size_bytes for delta in deltas if delta is not None)
    forget_old(folder, keep=None, keep_bytes=all_bytes)
    assert names(folder, 10)
    forget_old(folder, keep=None, keep_bytes=all_bytes - 1)
    assert not names(folder, 10) and names(folder, 20)


def test_what_a_killed_run_left_is_removed(folder: Path) -> None:
    before = sorted(path.name for path in folder.iterdir())
    (begin_delta(folder).parent / "model.ckpt.index").write_text("half")
    (folder / "model.ckpt-20.delta-29-3.index").write_text("moved, not yet described")
    (folder / "model.ckpt-20.delta-23-1.index").write_text("no longer described, not yet removed")
    (folder / "model.ckpt-5.delta-6-1.index").write_text("its checkpoint is deleted")
    (folder / "notes.delta-1-1.index").write_text("of the user")
    assert not prepare(folder)
    assert sorted(path.name for path in folder.iterdir()) == sorted([*before, "notes.delta-1-1.index"])


# Forks children from a process that has imported TensorFlow and has not used it. Each publishes a delta in a folder,
# and dies at the n-th operation on a file.
DYING = """
    import os, sys
    from pathlib import Path
    from tests.single.checkpoints import test_deltas as this

    print("ready", flush=True)
    for line in sys.stdin:
        folder, last = line.split()
        child = os.fork()
        if child == 0:
            this.die_at(int(last))
            this.write_delta(Path(folder) / "model.ckpt-20", 29)
            os._exit(0)
        print(os.waitpid(child, 0)[1], flush=True)
"""
OPERATIONS = ("replace", "unlink", "fsync", "rmdir")


def die_at(last: int) -> None:
    """Kills this process before its operation number `last` on files."""
    done = 0

    def count(operation: Callable[..., object]) -> Callable[..., object]:
        def counted(*arguments: object, **named: object) -> object:
            nonlocal done
            done += 1
            if done == last:
                os.kill(os.getpid(), signal.SIGKILL)
            return operation(*arguments, **named)

        return counted

    for name in OPERATIONS:
        setattr(os, name, count(getattr(os, name)))


def test_a_delta_remains_wherever_the_process_dies(sound: Path, tmp_path: Path) -> None:
    steps, status, last = [], -1, 0
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(DYING)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        cwd=Path(__file__).parents[3],
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        while status != 0:
            last += 1
            folder = Path(shutil.copytree(sound, tmp_path / f"died_at_{last}"))
            print(folder, last, file=process.stdin)
            status = int(process.stdout.readline())
            assert status in (0, signal.SIGKILL)
            steps.append(expect_whole(folder, tmp_path / f"merged_{last}"))
        process.stdin.close()
    assert steps == sorted(steps) and set(steps) == {26, 29} and steps.count(26) > 5


def expect_whole(folder: Path, to: Path) -> int:
    """Compares the values of the newest checkpoint and its delta, before and after a run has tidied the folder. Returns
    their step."""
    found = find_state("auto", folder)
    assert found.delta is not None and not found.start.notes
    reader = tf.train.load_checkpoint(str(merged(found, to)))
    np.testing.assert_array_equal(reader.get_tensor("table"), expected(20, found.delta.step)["table"])
    assert not prepare(folder)
    assert find_state("auto", folder) == found
    return found.delta.step
