"""A run starts from the newest checkpoint that is whole, and says what it passes over."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from parallax_runner.checkpoints import publish as checkpoint_folder
from parallax_runner.checkpoints.checkpoint_files import sidecar_path
from parallax_runner.checkpoints.start import Start, find_start
from parallax_runner.config.frozen import from_plain
from parallax_runner.data.identity import Contents
from parallax_runner.driver.starting_point import with_start
from parallax_runner.errors import CheckpointError
from tests.single.checkpoints.test_checkpoint_files import SUFFIXES, names, partial, written


def test_where_a_run_starts(tmp_path: Path) -> None:
    mine, run = tmp_path / "mine", tmp_path / "run"
    for step in (5, 40):
        written(mine, step)
        written(run / "ckpt", step + 1)
    assert find_start("never", mine) == Start(None)
    assert find_start("auto", mine) == Start(mine / "model.ckpt-40")
    assert find_start("auto", tmp_path / "nowhere") == Start(None)
    assert find_start(str(run), mine) == Start(run / "ckpt" / "model.ckpt-41")
    assert find_start(str(run / "ckpt"), mine) == Start(run / "ckpt" / "model.ckpt-41")
    assert find_start(str(run / "ckpt" / "model.ckpt-6"), mine) == Start(run / "ckpt" / "model.ckpt-6")


def test_a_run_directory_tells_where_its_checkpoints_are(tmp_path: Path) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    run.mkdir()
    written(elsewhere, 5)
    (run / "config.yaml").write_text(f"ckpt:\n  dir: {elsewhere}\n")
    assert find_start(str(run), tmp_path / "mine") == Start(elsewhere / "model.ckpt-5")
    for text in ("ckpt: none\n", "ckpt: {dir: null}\n", "- : x\n"):
        (run / "config.yaml").write_text(text)
        with pytest.raises(CheckpointError, match="no checkpoint at this path"):
            find_start(str(run), tmp_path / "mine")


@pytest.mark.parametrize("file", ["model.ckpt-5.index", "model.ckpt-5.json", "model.ckpt-5.data-00000-of-00002"])
def test_a_file_of_a_checkpoint_means_the_checkpoint_or_is_refused(tmp_path: Path, file: str) -> None:
    """What a shell completes to: either understood or explained, never taken for a fresh start."""
    written(tmp_path, 5)
    try:
        found = find_start(str(tmp_path / file), tmp_path)
    except CheckpointError as error:
        assert "Expected the prefix" in str(error)
    else:
        assert found == Start(tmp_path / "model.ckpt-5")


@pytest.mark.parametrize("where", ["nowhere", "run", "run/ckpt", "run/ckpt/model.ckpt-9"])
def test_a_path_to_no_checkpoint_is_refused(tmp_path: Path, where: str) -> None:
    (tmp_path / "run" / "ckpt").mkdir(parents=True)
    with pytest.raises(CheckpointError) as caught:
        find_start(str(tmp_path / where), tmp_path)
    assert f"ckpt.resume={tmp_path / where}" in str(caught.value)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("harm", [flip, truncate])
@pytest.mark.parametrize("resume", ["auto", "folder", "run"])
def test_a_damaged_one_is_passed_over(tmp_path: Path, suffix: str, harm: object, resume: str) -> None:
    folder = tmp_path / "ckpt"
    for step in (5, 6, 7):
        written(folder, step)
    harm(folder / f"model.ckpt-7.{suffix}")  # type: ignore[operator]
    found = find_start({"auto": "auto", "folder": str(folder), "run": str(tmp_path)}[resume], folder)
    assert found.prefix == folder / "model.ckpt-6"
    (note,) = found.notes
    assert f"model.ckpt-7.{suffix}" in note
    assert note.endswith(f"using {folder / 'model.ckpt-6'} instead")


def test_each_damaged_one_is_named(tmp_path: Path) -> None:
    for step in (5, 6, 7):
        written(tmp_path, step)
    (tmp_path / "model.ckpt-6.index").unlink()
    truncate(tmp_path / "model.ckpt-7.json")
    found = find_start("auto", tmp_path)
    assert found.prefix == tmp_path / "model.ckpt-5"
    assert ["model.ckpt-7" in found.notes[0], "model.ckpt-6.index is missing" in found.notes[1]] == [True, True]


@pytest.mark.parametrize("resume", ["auto", "folder"])
def test_no_fresh_start_where_all_are_damaged(tmp_path: Path, resume: str) -> None:
    for step in (5, 6):
        written(tmp_path, step)
        flip(tmp_path / f"model.ckpt-{step}.data-00001-of-00002")
    with pytest.raises(CheckpointError, match=r"model\.ckpt-6.*model\.ckpt-5.*ckpt\.resume=never"):
        find_start("auto" if resume == "auto" else str(tmp_path), tmp_path)


def test_a_damaged_one_that_is_asked_for_is_refused(tmp_path: Path) -> None:
    for step in (5, 6, 7):
        written(tmp_path, step)
    flip(tmp_path / "model.ckpt-6.index")
    flip(tmp_path / "model.ckpt-7.index")
    expected = rf"{re.escape(str(tmp_path))}/model\.ckpt-7: .*model\.ckpt-7\.index.*ckpt\.resume=.*model\.ckpt-5"
    with pytest.raises(CheckpointError, match=expected):
        find_start(str(tmp_path / "model.ckpt-7"), tmp_path)
    flip(sidecar_path(tmp_path / "model.ckpt-5"))
    with pytest.raises(CheckpointError, match=r"model\.ckpt-7\.index.*no undamaged checkpoint"):
        find_start(str(tmp_path / "model.ckpt-7"), tmp_path)


def test_the_folder_of_another_run_stays_as_it_is(tmp_path: Path) -> None:
    """That run may be saving."""
    mine, other = tmp_path / "mine", tmp_path / "other"
    for folder in (mine, other):
        written(folder, 5)
        partial(folder, 6)
    before = names(other)
    assert find_start(str(other), mine).prefix == other / "model.ckpt-5"
    assert names(other) == before
    assert find_start("auto", mine).prefix == mine / "model.ckpt-5"
    assert ".partial-6" not in names(mine)


# What stands in the place of a file.


IN_ITS_PLACE: dict[str, Callable[[Path], object]] = {
    "nothing": lambda path: None,
    "a folder": lambda path: (path / "full").mkdir(parents=True),
    "a loop": lambda path: path.symlink_to(path.name),
    "a link to nothing": lambda path: path.symlink_to("gone"),
    "a FIFO": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "what never ends to nest": lambda path: path.write_text("[" * 100_000),
}


@pytest.mark.parametrize("make", IN_ITS_PLACE.values(), ids=IN_ITS_PLACE)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_whatever_stands_in_the_place_of_a_file_is_passed_over(
    tmp_path: Path, suffix: str, make: Callable[[Path], object]
) -> None:
    for step in (5, 6):
        written(tmp_path, step)
    file = tmp_path / f"model.ckpt-6.{suffix}"
    file.unlink()
    make(file)
    found = find_start("auto", tmp_path)
    assert found.prefix == tmp_path / "model.ckpt-5"
    (note,) = found.notes
    assert note.startswith(f"checkpoint {tmp_path / 'model.ckpt-6'} is damaged: ")
    assert file.name in note
    with pytest.raises(CheckpointError, match=r"this checkpoint is damaged: .*ckpt\.resume=.*model\.ckpt-5$"):
        find_start(str(tmp_path / "model.ckpt-6"), tmp_path)


def test_checkpoints_of_other_programs_are_no_damage(tmp_path: Path) -> None:
    """TensorFlow's Saver uses the same names, and leaves a graph beside them."""
    for suffix in ("index", "meta", "data-00000-of-00001"):
        (tmp_path / f"model.ckpt-7.{suffix}").write_text("")
    assert find_start("auto", tmp_path) == Start(None)
    written(tmp_path, 5)
    assert find_start("auto", tmp_path) == Start(tmp_path / "model.ckpt-5")


def test_a_checkpoint_of_another_program_without_a_graph_is_told_apart(tmp_path: Path) -> None:
    """Saver(…).save(…, write_meta_graph=False) leaves what one of ours leaves that has lost its sidecar."""
    for suffix in ("index", "data-00000-of-00001"):
        (tmp_path / f"model.ckpt-7.{suffix}").write_text("")
    with pytest.raises(CheckpointError) as raised:
        find_start("auto", tmp_path)
    assert str(raised.value) == (
        f"all checkpoints in {tmp_path} are damaged (model.ckpt-7: its sidecar model.ckpt-7.json is missing "
        "(TensorFlow's own Saver writes no sidecar)). Restore a checkpoint, move model.ckpt-7.* to another folder if "
        "another program wrote it, or start afresh with ckpt.resume=never"
    )


def test_a_leftover_that_cannot_be_removed_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run tidies the folder when it prepares it, and again when it looks for a checkpoint."""
    (tmp_path / "ckpt" / ".partial-5").mkdir(parents=True)

    def refuse(path: Path) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))

    monkeypatch.setattr(checkpoint_folder, "remove", refuse)
    config = from_plain(
        {
            "action": "train",
            "model": {"_target_": "models.linear"},
            "profile": {"dir": None},
            "ckpt": {"enabled": True, "dir": str(tmp_path / "ckpt"), "resume": "auto"},
        }
    )
    settled = with_start(config, None, None, Contents(), tmp_path)  # type: ignore[arg-type]
    assert settled.ckpt.resume == "never"
    told = capsys.readouterr().err
    assert told.count("was left by a killed run and cannot be removed: Operation not permitted") == 1


def test_a_folder_that_cannot_be_read_is_no_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(
        CheckpointError, match=r"^ckpt\.dir=.*/loop: this path cannot be read: Too many levels of symbolic links$"
    ):
        find_start("auto", tmp_path / "loop")
    with pytest.raises(CheckpointError, match=r"^ckpt\.resume=.*: this path cannot be read: "):
        find_start(str(tmp_path / "loop"), tmp_path)
    with pytest.raises(CheckpointError, match=r"^ckpt\.resume=.*: this path cannot be read: File name too long"):
        find_start(str(tmp_path / ("x" * 300)), tmp_path)


@pytest.mark.parametrize("make", IN_ITS_PLACE.values(), ids=IN_ITS_PLACE)
def test_the_configuration_of_a_run_directory_may_be_damaged(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "config.yaml")
    with pytest.raises(CheckpointError, match="no checkpoint at this path"):
        find_start(str(tmp_path), tmp_path / "mine")


@pytest.mark.parametrize("character", "*?[\\")
def test_a_checkpoint_whose_own_name_is_a_pattern_is_refused(tmp_path: Path, character: str) -> None:
    written(tmp_path, 5)
    for suffix in SUFFIXES:
        (tmp_path / f"model.ckpt-5.{suffix}").rename(tmp_path / f"my{character}.{suffix}")
    with pytest.raises(CheckpointError, match=re.escape(f"TensorFlow treats «my{character}» as a pattern")):
        find_start(str(tmp_path / f"my{character}"), tmp_path)


def test_the_newest_is_that_which_was_written_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By nobody's clock, and not by the step: a fresh run begins at low ones."""
    times_secs = iter((5000.0, 5010.0, 1400.0))
    monkeypatch.setattr(checkpoint_folder.time, "time", lambda: next(times_secs))
    for step in (100, 150, 20):
        written(tmp_path, step)
    assert find_start("auto", tmp_path) == Start(tmp_path / "model.ckpt-20")
    assert find_start(str(tmp_path), tmp_path / "mine") == Start(tmp_path / "model.ckpt-20")
