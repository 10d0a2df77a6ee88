"""A checkpoint in parts is published whole or not at all, and any lost, swapped or cut part or slice is noticed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints import checkpoint_files
from parallax_runner.checkpoints.checkpoint_files import Sidecar, damage, files_of, read_sidecar
from parallax_runner.checkpoints.part_files import PartFiles, merge
from parallax_runner.checkpoints.publish import begin, flush, partial_prefix, prepare, publish
from parallax_runner.checkpoints.slices import Slice
from parallax_runner.checkpoints.start import find_start
from parallax_runner.errors import CheckpointError

ROWS, WIDTH, BLOCK_ROWS, PARTS = 40, 3, 5, 4
SIDECAR = Sidecar(step=0, examples=0, seed=1, fingerprint="f", tracker_run_id=None, block_rows={"table": BLOCK_ROWS})
Act = Callable[[Path], object]


def table(step: int) -> np.ndarray:
    return np.random.default_rng(step).normal(size=(ROWS, WIDTH)).astype(np.float32)


def parts(folder: Path, step: int, *, without: int | None = None) -> list[Path]:
    """Writes parts of two slices each, without the slice at the position `without`."""
    files = PartFiles(folder, "part", part_bytes=2 * BLOCK_ROWS * WIDTH * 4)
    for number, first in enumerate(range(0, ROWS, BLOCK_ROWS)):
        if number != without:
            part = Slice("table", tf.float32, (ROWS, WIDTH), (first, 0), (BLOCK_ROWS, WIDTH))
            files.add(part, table(step)[part.where])
    files.flush()
    return files.parts


def write(folder: Path, step: int) -> Path:
    written = begin(folder, step)
    merge(parts(written.parent, step), written)
    flush(written)
    return publish(written, folder, replace(SIDECAR, step=step))


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    for step in (1, 2):
        write(folder, step)
    return folder


def data(folder: Path, step: int, number: int) -> Path:
    return folder / f"model.ckpt-{step}.data-{number:05d}-of-{PARTS:05d}"


def swap(folder: Path) -> None:
    first, second, free = data(folder, 2, 0), data(folder, 2, 1), folder / "free"
    first.rename(free)
    second.rename(first)
    free.rename(second)


def lose_slice(folder: Path) -> None:
    """Replaces the index by one that lacks a slice, as after a lost write."""
    (folder / "other").mkdir()
    merge(parts(folder / "other", 2, without=3), folder / "other" / "model")
    (folder / "other" / "model.index").replace(folder / "model.ckpt-2.index")


def swap_slices(folder: Path) -> None:
    """Swaps the values of two slices of one part: each slice is whole, and in the other's place."""
    content = bytearray(data(folder, 2, 0).read_bytes())
    half = len(content) // 2
    data(folder, 2, 0).write_bytes(content[half:] + content[:half])


DAMAGES: dict[str, Act] = {
    "a part is lost": lambda folder: data(folder, 2, 1).unlink(),
    "a part is cut": lambda folder: os.truncate(data(folder, 2, 3), 60),
    "a part is empty": lambda folder: data(folder, 2, 0).write_bytes(b""),
    "a part is that of an older checkpoint": lambda folder: shutil.copy(data(folder, 1, 2), data(folder, 2, 2)),
    "two parts are swapped": swap,
    "two slices are swapped": swap_slices,
    "a slice is lost": lose_slice,
    "the index is cut": lambda folder: os.truncate(folder / "model.ckpt-2.index", 100),
    "the index is that of an older checkpoint": lambda folder: shutil.copy(
        folder / "model.ckpt-1.index", folder / "model.ckpt-2.index"
    ),
}


def test_a_checkpoint_in_parts_is_read_as_whole(sound: Path) -> None:
    found = find_start("auto", sound)
    assert found.prefix == sound / "model.ckpt-2" and not found.notes
    np.testing.assert_array_equal(tf.train.load_checkpoint(str(found.prefix)).get_tensor("table"), table(2))
    sidecar = read_sidecar(found.prefix)
    assert sidecar.block_rows == {"table": BLOCK_ROWS}
    assert len(sidecar.files) == PARTS + 1 == len(files_of(found.prefix))


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_noticed(name: str, sound: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(sound, tmp_path / "ckpt"))
    DAMAGES[name](folder)
    assert damage(folder / "model.ckpt-2") is not None
    found = find_start("auto", folder)
    assert found.prefix == folder / "model.ckpt-1"
    assert "model.ckpt-2 is damaged" in found.notes[0]


def test_parts_that_killed_ranks_left_are_removed(sound: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(sound, tmp_path / "ckpt"))
    before = sorted(folder.iterdir())
    parts(begin(folder, 3).parent, 3)
    merge(parts(begin(folder, 4).parent, 4), partial_prefix(folder, 4))
    assert prepare(folder) == ()
    assert sorted(folder.iterdir()) == before
    assert find_start("auto", folder).prefix == folder / "model.ckpt-2"


def test_a_checkpoint_with_more_files_is_replaced(tmp_path: Path) -> None:
    """The same step, first in parts, and then in one file."""
    write(tmp_path, 2)
    written = begin(tmp_path, 2)
    merge(parts(written.parent, 2)[:1], written)
    publish(written, tmp_path, read_sidecar(tmp_path / "model.ckpt-2"))
    assert len(files_of(tmp_path / "model.ckpt-2")) == 2


@pytest.mark.parametrize("rows", [0, -1, 2.5, "5", None, True])
def test_a_sidecar_with_other_block_rows_is_refused(rows: object, tmp_path: Path) -> None:
    prefix = write(tmp_path, 2)
    text = replace(read_sidecar(prefix), block_rows={"table": rows}).text()  # type: ignore[dict-item]
    prefix.with_name(prefix.name + ".json").write_text(text)
    with pytest.raises(CheckpointError, match="block_rows"):
        read_sidecar(prefix)


def test_a_sidecar_of_an_earlier_version_has_no_blocks(tmp_path: Path) -> None:
    prefix = write(tmp_path, 2)
    fields = checkpoint_files.read_object(prefix.with_name(prefix.name + ".json"))[1]
    earlier = {key: value for key, value in fields.items() if key not in ("block_rows", "sha256")}
    prefix.with_name(prefix.name + ".json").write_text(checkpoint_files.signed_text(earlier))
    assert read_sidecar(prefix).block_rows == {}
