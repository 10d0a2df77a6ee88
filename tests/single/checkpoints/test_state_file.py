"""A folder in which plain TensorFlow has named its newest checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import tensorflow as tf

from parallax_runner.checkpoints.start import find_start, find_whole
from parallax_runner.checkpoints.state_file import newest_named
from parallax_runner.errors import CheckpointError

NAMES = ["plain", 'with "quotes"', "größe ✓", "it's"]


def of_manager(folder: Path, saves: int = 4) -> Path:
    """A folder in which three checkpoints are kept, the newest of which is number `saves`."""
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(v=tf.Variable(1.0)), str(folder), max_to_keep=3)
    for _ in range(saves):
        manager.save()
    return folder


def of_saver(folder: Path, *, relative: bool) -> Path:
    """A folder of a Saver, whose checkpoints have the names of this project's."""
    folder.mkdir(parents=True)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.get_variable("v", initializer=1.0)
        session.run(tf.compat.v1.global_variables_initializer())
        saver = tf.compat.v1.train.Saver(save_relative_paths=relative)
        for step in (9, 10):
            saver.save(session, str(folder / "model.ckpt"), global_step=step, write_meta_graph=False)
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_a_manager_and_a_saver_as_tensorflow_reads_them(name: str, tmp_path: Path) -> None:
    managed = of_manager(tmp_path / name)
    saved = [of_saver(tmp_path / kind / name, relative=kind == "relative") for kind in ("relative", "absolute")]
    for folder, newest in ((managed, "ckpt-4"), (saved[0], "model.ckpt-10"), (saved[1], "model.ckpt-10")):
        expected = Path(tf.train.latest_checkpoint(str(folder)))
        assert expected.name == newest
        assert newest_named(folder) == expected
        assert find_whole(str(folder), tmp_path / "mine").prefix == expected


def test_a_folder_that_was_moved(tmp_path: Path) -> None:
    moved = shutil.move(of_manager(tmp_path / "first"), tmp_path / "second")
    assert find_whole(str(moved), tmp_path / "mine").prefix == tmp_path / "second" / "ckpt-4"


def test_a_newest_checkpoint_that_is_missing_is_not_replaced_by_an_older_one(tmp_path: Path) -> None:
    folder = of_manager(tmp_path / "theirs")
    for file in folder.glob("ckpt-4.*"):
        file.unlink()
    with pytest.raises(CheckpointError, match=r"/checkpoint names .*ckpt-4, which does not exist; restore it"):
        find_whole(str(folder), tmp_path / "mine")


@pytest.mark.parametrize("content", [b"", b"all_model_checkpoint_paths: 'a'\n", b"\xff\xfe"])
def test_a_file_that_names_nothing(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"/checkpoint (names no checkpoint|cannot be read)"):
        find_whole(str(tmp_path), tmp_path / "mine")


def test_a_training_cannot_go_on_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no checkpoint at this path"):
        find_start(str(of_manager(tmp_path / "theirs")), tmp_path / "mine")
