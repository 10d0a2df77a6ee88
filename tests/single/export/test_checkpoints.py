"""Which checkpoints become artifacts, and that they outlive the originals."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints import best as best_checkpoint
from parallax_runner.checkpoints import checkpoint_files
from parallax_runner.checkpoints import publish as checkpoint_folder
from parallax_runner.checkpoints.checkpoint_files import Sidecar
from parallax_runner.checkpoints.start import find_start
from parallax_runner.export import checkpoints
from parallax_runner.export.checkpoints import CheckpointArtifacts, hold


def write(ckpt_dir: Path, step: int) -> Path:
    """A checkpoint with the variable «v», which is its step."""
    ckpt_dir.mkdir(parents=True, exist_ok=True)
    written = checkpoint_folder.begin(ckpt_dir, step)
    with tf.Graph().as_default(), tf.Session() as session:
        session.run(tf.raw_ops.SaveV2(prefix=str(written), tensor_names=["v"], shape_and_slices=[""], tensors=[step]))
    checkpoint_folder.flush(written)
    sidecar = Sidecar(step=step, examples=step, seed=1, fingerprint="f", tracker_run_id=None)
    return checkpoint_folder.publish(written, ckpt_dir, sidecar)


class Sent:
    """What was sent, and the artifacts of one run that sends it."""

    def __init__(self, which: str, tmp_path: Path) -> None:
        self.folders: list[Path] = []
        self.ckpt_dir = tmp_path / "ckpt"
        self.artifacts = CheckpointArtifacts(which, self.ckpt_dir, tmp_path, self.folders.append)

    @property
    def steps(self) -> list[int]:
        """The value of «v» in each, in the order in which they were sent."""
        return [int(tf.train.load_variable(tf.train.latest_checkpoint(str(folder)), "v")) for folder in self.folders]


@pytest.fixture
def sent(request: pytest.FixtureRequest, tmp_path: Path) -> Sent:
    """Of a run that wrote 1, 2 and 3, each of which was reported, kept two, and found that 2 is the best."""
    sent = Sent(request.param, tmp_path)
    for step in (1, 2, 3):
        prefix = write(sent.ckpt_dir, step)
        best_checkpoint.note_validated(sent.ckpt_dir, step, abs(step - 2.0))
        sent.artifacts.on_checkpoint(prefix)
        checkpoint_folder.forget_old(sent.ckpt_dir, keep=2)
    sent.artifacts.close()
    return sent


@pytest.mark.parametrize(
    ("sent", "steps"), [("last", [3]), ("best", [2]), ("all", [1, 2, 3]), ("none", [])], indirect=["sent"]
)
def test_each_choice(sent: Sent, steps: list[int]) -> None:
    assert sent.steps == steps
    assert [folder.name for folder in sent.folders] == [f"model.ckpt-{step}" for step in steps]


@pytest.mark.parametrize("sent", ["all"], indirect=True)
def test_what_waits_is_a_folder_that_a_run_can_start_from(sent: Sent) -> None:
    folder = sent.folders[0]
    assert not (sent.ckpt_dir / "model.ckpt-1.index").exists()
    assert find_start(str(folder), Path("elsewhere")).prefix == folder / "model.ckpt-1"


def test_the_last_where_nothing_was_validated(tmp_path: Path) -> None:
    sent = Sent("best", tmp_path)
    write(sent.ckpt_dir, 1)
    write(sent.ckpt_dir, 2)
    sent.artifacts.close()
    assert sent.steps == [2]


@pytest.mark.parametrize("which", ["last", "all", "best"])
def test_what_another_run_left_is_not_this_ones(tmp_path: Path, which: str) -> None:
    write(tmp_path / "ckpt", 5)
    sent = Sent(which, tmp_path)
    sent.artifacts.close()
    assert sent.steps == []


def test_a_checkpoint_of_the_same_step_anew_is_this_ones(tmp_path: Path) -> None:
    os.utime(checkpoint_files.sidecar_path(write(tmp_path / "ckpt", 5)), (1, 1))
    sent = Sent("last", tmp_path)
    write(sent.ckpt_dir, 5)
    sent.artifacts.close()
    assert sent.steps == [5]


def test_a_damaged_one_gives_way_to_the_one_before(tmp_path: Path) -> None:
    sent = Sent("last", tmp_path)
    write(sent.ckpt_dir, 1)
    (data, _) = checkpoint_files.files_of(write(sent.ckpt_dir, 2))
    data.write_bytes(b"")
    sent.artifacts.close()
    assert sent.steps == [1]


def test_one_that_nobody_reported_is_found_at_the_end(tmp_path: Path) -> None:
    sent = Sent("all", tmp_path)
    sent.artifacts.on_checkpoint(write(sent.ckpt_dir, 1))
    write(sent.ckpt_dir, 2)
    sent.artifacts.close()
    assert sent.steps == [1, 2]


def test_one_that_is_gone_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sent = Sent("all", tmp_path)
    sent.artifacts.on_checkpoint(sent.ckpt_dir / "model.ckpt-1")
    sent.artifacts.close()
    assert sent.steps == []
    assert "model.ckpt-1 was not logged as an artifact" in caplog.text


def test_one_that_was_put_there_by_its_writer_may_be_deleted_before_it_is_reported(tmp_path: Path) -> None:
    sent = Sent("all", tmp_path)
    prefix = write(sent.ckpt_dir, 1)
    hold(prefix, tmp_path / checkpoints.OUTBOX)
    write(sent.ckpt_dir, 2)
    checkpoint_folder.forget_old(sent.ckpt_dir, keep=1)
    sent.artifacts.on_checkpoint(prefix)
    sent.artifacts.close()
    assert sent.steps == [1, 2]


def test_one_of_another_time_is_not_taken_for_it(tmp_path: Path) -> None:
    sent = Sent("all", tmp_path)
    held = hold(write(sent.ckpt_dir, 1), tmp_path / checkpoints.OUTBOX)
    os.utime(held / "model.ckpt-1.json", (1, 1))
    (held / "model.ckpt-1.index").unlink()
    sent.artifacts.on_checkpoint(write(sent.ckpt_dir, 1))
    assert sent.steps == [1]


def test_without_links_it_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("another file system")

    prefix = write(tmp_path / "ckpt", 1)
    monkeypatch.setattr(checkpoints.os, "link", refuse)
    folder = hold(prefix, tmp_path / "out")
    np.testing.assert_equal(tf.train.load_variable(str(folder / prefix.name), "v"), 1)
