"""Folders with names that TensorFlow takes for patterns hold checkpoints like any other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.checkpoint_files import damage
from parallax_runner.checkpoints.checkpoint_ops import CheckpointOps, check_fits
from parallax_runner.checkpoints.saver import CheckpointSaver
from parallax_runner.checkpoints.start import find_start
from parallax_runner.export.checkpoints import hold
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.rewrite.passes import rewrite_for_rank
from parallax_runner.train import sessions
from tests.single.small_models import captured, planned

NAMES = (
    "[x]",
    "a]b[",
    "[",
    "back\\slash",
    "star*",
    "question?",
    "*",
    "{a,b}",
    "two words",
    "#;'\"$(x)&",
    "line\nbreak",
)


class Chief:
    """A rank of its own, begun from a checkpoint or from its seed."""

    def __init__(self, single: SingleDeviceGraph, seed: int, start: str | None = None) -> None:
        distributed = rewrite_for_rank(single, planned(single, "local"), rank=0, seed=seed)
        self.ops = CheckpointOps(distributed)
        self.session = tf.Session(graph=distributed.graph)
        sessions.initialize(self.session, distributed, self.ops, start)
        self.table = self.ops.snapshot(self.session)["table"]


@pytest.fixture(scope="module")
def single() -> SingleDeviceGraph:
    return captured()


@pytest.fixture(scope="module")
def first(single: SingleDeviceGraph) -> Chief:
    return Chief(single, seed=1)


@pytest.mark.parametrize("name", NAMES)
def test_whatever_the_folder_is_called(
    tmp_path: Path, name: str, single: SingleDeviceGraph, first: Chief, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").mkdir()  # What «[x]» means as a pattern.
    folder = tmp_path / name / "ckpt"
    saver = CheckpointSaver(
        ops=first.ops,
        folder=folder,
        save_steps=None,
        save_secs=None,
        keep=1,
        seed=1,
        fingerprint="f",
        run_id=lambda: None,
    )
    saver.start(0)
    saver.save(first.session, step=1, examples=8)
    assert saver.finish(first.session, step=2, examples=16) == folder / "model.ckpt-2"

    for resume, mine in (("auto", folder), (str(folder), tmp_path), (str(folder / "model.ckpt-2"), tmp_path)):
        found = find_start(resume, mine)
        assert (found.prefix, found.notes) == (folder / "model.ckpt-2", ())
    check_fits(folder / "model.ckpt-2", single.variables)
    restored = Chief(single, seed=2, start=str(folder / "model.ckpt-2"))
    np.testing.assert_array_equal(restored.table, first.table)
    assert damage(hold(folder / "model.ckpt-2", tmp_path / name / ".outbox") / "model.ckpt-2") is None

    monkeypatch.chdir(folder)
    assert tf.train.latest_checkpoint(".") == "./model.ckpt-2"
    np.testing.assert_array_equal(tf.train.load_checkpoint(".").get_tensor("table"), first.table)
