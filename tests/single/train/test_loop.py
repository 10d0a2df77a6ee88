"""The loop on a real small graph, in this process alone."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.data.arrays import ArrayDataset
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.rewrite.passes import rewrite_for_rank
from parallax_runner.train.checkpoint import CheckpointOps, CheckpointSaver
from parallax_runner.train.checkpoint_files import list_checkpoints, read_sidecar
from parallax_runner.train.feed import Feed
from parallax_runner.train.loop import Loop
from tests.single.small_models import BATCH, ROWS, WIDTH, captured, dense_model, planned

Reports = list[dict[str, Any]]


def dataset() -> ArrayDataset:
    draw = np.random.default_rng(0)

    def part(size: int) -> dict[str, np.ndarray]:
        return {
            "ids": draw.integers(0, ROWS, size).astype(np.int32),
            "x": draw.normal(size=(size, WIDTH)),
            "y": draw.normal(size=size),
        }

    return ArrayDataset(train=part(50), validation=part(3 * BATCH + 1), words_per_example=None, seed=1)


class FakeControl:
    """The connection to the driver, without one."""

    def __init__(self) -> None:
        self.stop_requested = threading.Event()
        self.last_step: int | None = None
        self.reports: Reports = []
        self.announced: list[int] = []
        self.stop_at_step: int | None = None

    def report(self, kind: str, **fields: Any) -> None:
        self.reports.append({"kind": kind} | fields)
        if fields["step"] == self.stop_at_step:
            self.stop_requested.set()

    def announce_last_step(self, step: int) -> None:
        self.announced.append(step)
        self.last_step = step


class Rank:
    """A rank of comm=local with all that its loop needs."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        log_every: int = 10,
        single: SingleDeviceGraph | None = None,
        save_steps: int | None = None,
    ) -> None:
        single = single or captured(optimizer="adam")
        self.distributed = rewrite_for_rank(single, planned(single, "local"), rank=0, seed=1)
        self.checkpoints = CheckpointOps(self.distributed)
        self.distributed.graph.finalize()
        self.session = tf.Session(graph=self.distributed.graph)
        self.session.run(self.distributed.initialize)
        self.control = FakeControl()
        self.saver = folder and CheckpointSaver(
            ops=self.checkpoints,
            folder=folder,
            save_steps=save_steps,
            save_secs=None,
            keep=5,
            seed=1,
            fingerprint="f",
            mlflow_run_id=None,
        )
        self.loop = Loop(
            session=self.session,
            distributed=self.distributed,
            feed=Feed(dataset(), BATCH, 0, 1),
            control=self.control,
            log_every=log_every,
            saver=self.saver or None,
        )

    def run(self, steps: int, *, first_step: int = 0, first_example: int = 0) -> dict[str, Any]:
        return self.loop.run(first_step=first_step, steps=steps, first_example=first_example)

    @property
    def reports(self) -> Reports:
        return self.control.reports

    @property
    def losses(self) -> list[float]:
        return [loss for report in self.reports for loss in report["losses"]]


def test_reports_come_every_few_steps_and_hold_every_loss() -> None:
    rank = Rank(log_every=4)
    rank.run(10)
    assert [(r["kind"], r["step"], len(r["losses"])) for r in rank.reports] == [
        ("progress", 1, 1),  # At once, so that people see it run.
        ("progress", 4, 3),
        ("progress", 8, 4),
        ("progress", 10, 2),
    ]
    assert all(report["secs"] > 0 for report in rank.reports)
    assert all(isinstance(loss, float) for loss in rank.losses)


def test_the_losses_are_those_of_plain_tensorflow() -> None:
    rank = Rank()
    outcome = rank.run(6)
    single = captured(optimizer="adam")
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(rank.distributed.graph.as_graph_def(), name="")
        feed, expected = Feed(dataset(), BATCH, 0, 1), []
        with tf.Session(graph=graph) as session:
            session.run(rank.distributed.initialize.name)
            for step in range(6):
                batch = feed.train_batch(step * BATCH)
                fed = {single.features[name]: values for name, values in batch.items()}
                expected.append(session.run(single.loss, fed))
                session.run(rank.distributed.train_op.name, fed)
    np.testing.assert_allclose(rank.losses, expected, rtol=1e-12)
    assert outcome["steps"] == 6
    assert outcome["ckpt_path"] is None
    assert outcome["sent_bytes_per_step"] == 0
    assert outcome["steps_per_sec"] > 0


def test_a_stop_that_is_asked_for_ends_after_the_step_with_a_checkpoint(tmp_path: Path) -> None:
    rank = Rank(tmp_path, log_every=2)
    rank.control.stop_at_step = 4
    outcome = rank.run(100)
    # The chief names the next step as the last one, so that other ranks can end with it.
    assert (outcome["steps"], rank.control.announced) == (5, [5])
    assert [report["step"] for report in rank.reports] == [1, 2, 4, 5]
    assert outcome["ckpt_path"] == str(tmp_path / "model.ckpt-5")
    assert read_sidecar(tmp_path / "model.ckpt-5").examples == 5 * BATCH


def test_another_rank_ends_with_the_step_that_the_chief_named() -> None:
    rank = Rank()
    rank.loop.distributed = dataclasses.replace(rank.distributed, rank=1)
    rank.control.stop_requested.set()
    rank.control.last_step = 7
    assert rank.run(100)["steps"] == 7
    assert rank.control.announced == []


def test_the_losses_up_to_a_stop_are_reported() -> None:
    """A stop comes at any step, not only at one that is reported."""
    rank = Rank(log_every=100)
    original = rank.loop.feed.train_batch
    asked: list[int] = []

    class Stopping:
        global_batch = BATCH

        def train_batch(self, position: int) -> dict[str, np.ndarray]:
            asked.append(position)
            if len(asked) == 5:
                rank.control.stop_requested.set()
            return original(position)

    rank.loop.feed = Stopping()  # type: ignore[assignment]
    assert rank.run(50)["steps"] == 6
    assert len(rank.losses) == 6
    assert rank.reports[-1]["step"] == 6


def test_a_run_that_has_nothing_left_to_do(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    outcome = rank.run(3, first_step=3, first_example=12)
    assert (outcome["steps"], outcome["steps_per_sec"], rank.reports) == (3, None, [])


def test_checkpoints_by_steps_and_at_the_end(tmp_path: Path) -> None:
    rank = Rank(tmp_path, save_steps=3)
    outcome = rank.run(7)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["model.ckpt-3", "model.ckpt-6", "model.ckpt-7"]
    assert outcome["ckpt_path"] == str(tmp_path / "model.ckpt-7")
    assert [read_sidecar(path).examples for path in list_checkpoints(tmp_path)] == [3 * BATCH, 6 * BATCH, 7 * BATCH]
    assert [read_sidecar(path).step for path in list_checkpoints(tmp_path)] == [3, 6, 7]
    reader = tf.train.load_checkpoint(str(tmp_path / "model.ckpt-6"))
    assert reader.get_tensor("global_step") == 6


def test_the_last_checkpoint_is_not_written_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(tmp_path, save_steps=3)
    saved: list[int] = []
    original = CheckpointSaver.save

    def save(self: CheckpointSaver, session: tf.Session, *, step: int, examples: int) -> Path:
        saved.append(step)
        return original(self, session, step=step, examples=examples)

    monkeypatch.setattr(CheckpointSaver, "save", save)
    assert rank.run(6)["ckpt_path"] == str(tmp_path / "model.ckpt-6")
    assert saved == [3, 6]


def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    whole = Rank()
    whole.run(9)
    first = Rank(tmp_path)
    first.run(5)
    start = read_sidecar(tmp_path / "model.ckpt-5")
    second = Rank(tmp_path, log_every=4)
    second.session.run(second.checkpoints.restore, {second.checkpoints.prefix: str(tmp_path / "model.ckpt-5")})
    outcome = second.run(9, first_step=start.step, first_example=start.examples)
    assert [report["step"] for report in second.reports] == [6, 8, 9]
    assert first.losses + second.losses == whole.losses
    assert outcome["steps"] == 9
    final = [rank.checkpoints.snapshot(rank.session, tmp_path / "snapshot" / "model") for rank in (whole, second)]
    for name, value in final[0].items():
        np.testing.assert_array_equal(final[1][name], value, err_msg=name)


def test_validation_sums_whole_batches_and_trains_nothing(tmp_path: Path) -> None:
    rank = Rank()
    before = rank.checkpoints.snapshot(rank.session, tmp_path / "a" / "model")
    total, batches = rank.loop.validate()
    after = rank.checkpoints.snapshot(rank.session, tmp_path / "b" / "model")
    assert batches == 3
    losses = []
    for start in (0, BATCH, 2 * BATCH):
        batch = dataset().validation_batch(start, BATCH)
        predicted = np.sum(before["table"][batch["ids"]] * before["weights"], axis=1)
        losses.append(np.mean((predicted - batch["y"]) ** 2))
    assert total == pytest.approx(sum(losses))
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value)


def test_a_model_without_validation_loss() -> None:
    import dataclasses

    single = dataclasses.replace(captured(dense_model), validation_loss=None)
    assert Rank(single=single).loop.validate() == (0.0, 0)
