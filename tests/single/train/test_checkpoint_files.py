"""Checkpoints on disk, without TensorFlow: published whole or not at all, kept and found."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from parallax_runner.errors import CheckpointError
from parallax_runner.train.checkpoint_files import (
    Sidecar,
    find_start,
    forget_old,
    list_checkpoints,
    prefix_of,
    publish,
    read_sidecar,
    sidecar_path,
)


def sidecar(step: int) -> Sidecar:
    return Sidecar(step=step, examples=step * 8, seed=1, fingerprint="f", mlflow_run_id="run")


def written(folder: Path, step: int, content: str = "content") -> Path:
    """Publishes a checkpoint as TensorFlow would have written it; returns its prefix."""
    partial = folder / f".partial-{step}" / "model.ckpt"
    partial.parent.mkdir(parents=True)
    for suffix in ("index", "data-00000-of-00002", "data-00001-of-00002"):
        partial.with_name(f"model.ckpt.{suffix}").write_text(f"{content} {suffix}")
    return publish(partial, folder, sidecar(step))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def files_of(step: int) -> list[str]:
    suffixes = (".data-00000-of-00002", ".data-00001-of-00002", ".index", ".json")
    return [f"model.ckpt-{step}{suffix}" for suffix in suffixes]


def test_publishing_moves_all_files_and_says_what_they_are(tmp_path: Path) -> None:
    prefix = written(tmp_path, 30)
    assert prefix == tmp_path / "model.ckpt-30" == prefix_of(tmp_path, 30)
    assert names(tmp_path) == files_of(30)  # No partial folder is left.
    assert (tmp_path / "model.ckpt-30.index").read_text() == "content index"
    assert read_sidecar(prefix) == sidecar(30)
    assert json.loads(sidecar_path(prefix).read_text())["examples"] == 240


def test_publishing_a_step_again_replaces_it(tmp_path: Path) -> None:
    written(tmp_path, 30)
    written(tmp_path, 30, "newer")
    assert names(tmp_path) == files_of(30)
    assert (tmp_path / "model.ckpt-30.index").read_text() == "newer index"


def test_a_checkpoint_without_its_sidecar_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sidecar is moved last: whatever stops publishing before leaves nothing that is listed."""
    moves: list[str] = []
    real = os.replace

    def replace(source: Path, target: Path) -> None:
        if str(target).endswith(".json"):
            raise OSError("disk full")
        moves.append(Path(target).name)
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OSError, match="disk full"):
        written(tmp_path, 30)
    assert moves == files_of(30)[:3]
    assert list_checkpoints(tmp_path) == []
    assert find_start("auto", tmp_path) is None


def test_listing_is_in_the_order_of_writing_and_ignores_what_is_incomplete(tmp_path: Path) -> None:
    for step in (100, 20, 3):
        written(tmp_path, step)
    (tmp_path / "model.ckpt-7.json").write_text("{}")  # Files deleted by hand.
    (tmp_path / "model.ckpt-8.index").write_text("")
    (tmp_path / "model.ckpt-nine.json").write_text("{}")
    (tmp_path / "model.ckpt-nine.index").write_text("")
    assert [prefix.name for prefix in list_checkpoints(tmp_path)] == ["model.ckpt-100", "model.ckpt-20", "model.ckpt-3"]
    assert list_checkpoints(tmp_path / "nowhere") == []


@pytest.mark.parametrize(("keep", "left"), [(1, [3]), (2, [20, 3]), (3, [100, 20, 3]), (5, [100, 20, 3])])
def test_the_newest_are_kept(tmp_path: Path, keep: int, left: list[int]) -> None:
    for step in (100, 20, 3):
        written(tmp_path, step)
    (tmp_path / "notes.txt").write_text("mine")
    forget_old(tmp_path, keep)
    assert names(tmp_path) == sorted([*(file for step in left for file in files_of(step)), "notes.txt"])


def test_forgetting_10_leaves_100(tmp_path: Path) -> None:
    written(tmp_path, 10)
    written(tmp_path, 100)
    forget_old(tmp_path, 1)
    assert names(tmp_path) == files_of(100)


def test_where_a_run_starts(tmp_path: Path) -> None:
    mine, run = tmp_path / "mine", tmp_path / "run"
    for step in (5, 40):
        written(mine, step)
        written(run / "ckpt", step + 1)
    assert find_start("never", mine) is None
    assert find_start("auto", mine) == mine / "model.ckpt-40"
    assert find_start("auto", tmp_path / "nowhere") is None
    assert find_start(str(run), mine) == run / "ckpt" / "model.ckpt-41"
    assert find_start(str(run / "ckpt"), mine) == run / "ckpt" / "model.ckpt-41"
    assert find_start(str(run / "ckpt" / "model.ckpt-6"), mine) == run / "ckpt" / "model.ckpt-6"


@pytest.mark.parametrize("file", ["model.ckpt-5.index", "model.ckpt-5.json", "model.ckpt-5.data-00000-of-00002"])
def test_a_file_of_a_checkpoint_means_the_checkpoint_or_is_refused(tmp_path: Path, file: str) -> None:
    """What a shell completes to: either understood or explained, never taken for a fresh start."""
    written(tmp_path, 5)
    try:
        found = find_start(str(tmp_path / file), tmp_path)
    except CheckpointError as error:
        assert "give the prefix" in str(error)
    else:
        assert found == tmp_path / "model.ckpt-5"


@pytest.mark.parametrize("where", ["nowhere", "run", "run/ckpt", "run/ckpt/model.ckpt-9"])
def test_a_path_to_no_checkpoint_is_refused(tmp_path: Path, where: str) -> None:
    (tmp_path / "run" / "ckpt").mkdir(parents=True)
    with pytest.raises(CheckpointError) as caught:
        find_start(str(tmp_path / where), tmp_path)
    assert f"ckpt.resume={tmp_path / where}" in str(caught.value)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"step": 1}', '{"unknown": 1}', "3"])
def test_an_unusable_sidecar_is_named(tmp_path: Path, content: str) -> None:
    prefix = written(tmp_path, 5)
    sidecar_path(prefix).write_text(content)
    with pytest.raises(CheckpointError, match=r"model\.ckpt-5\.json"):
        read_sidecar(prefix)


def test_a_sidecar_of_a_later_format_is_refused(tmp_path: Path) -> None:
    prefix = written(tmp_path, 5)
    fields = json.loads(sidecar_path(prefix).read_text())
    sidecar_path(prefix).write_text(json.dumps(fields | {"format": fields["format"] + 1}))
    with pytest.raises(CheckpointError):
        read_sidecar(prefix)
