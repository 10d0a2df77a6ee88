"""The loop on a real small graph, in this process alone."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.checkpoint_files import list_checkpoints, read_sidecar
from parallax_runner.checkpoints.saver import CheckpointSaver
from parallax_runner.config.schema import ProfileConfig
from parallax_runner.errors import DataError, TrainingError
from parallax_runner.graph.capture import capture
from parallax_runner.launch.control.activity import Activity, Kind
from parallax_runner.profile.record import StepProfiler
from parallax_runner.profile.run_metadata_files import run_metadata_files
from parallax_runner.train import step_runner
from parallax_runner.train.feed import Feed
from parallax_runner.train.segment import Graph, Segment
from tests.single.small_models import BATCH, FEATURES, WIDTH, Features, captured
from tests.single.train.one_rank import Rank, dataset


def test_reports_come_every_few_steps_and_hold_every_loss() -> None:
    rank = Rank(log_every=4)
    rank.run(10)
    assert [(r["kind"], r["step"], len(r["losses"])) for r in rank.reports] == [
        ("progress", 1, 1),  # At once, so that people see it run.
        ("progress", 4, 3),
        ("progress", 8, 4),
        ("progress", 10, 2),
    ]
    assert all(len(report["step_secs"]) == len(report["losses"]) for report in rank.reports)
    assert all(secs > 0 for report in rank.reports for secs in report["step_secs"])
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
                (batch,) = feed.train_batches(step * BATCH)
                fed = {single.features[name]: values for name, values in batch.items()}
                expected.append(session.run(single.loss, fed))
                session.run(rank.distributed.train_op.name, fed)
    np.testing.assert_allclose(rank.losses, expected, rtol=1e-12)
    assert outcome["steps"] == 6
    assert outcome["ckpt_path"] is None
    assert outcome["sent_bytes_per_step"] == 0
    assert outcome["steps_per_sec"] > 0


class SlowDataset:
    """Makes each batch a moment later than the rank could use it."""

    def __init__(self) -> None:
        self._fast = dataset()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fast, name)

    def train_batch(self, start: int, size: int) -> dict[str, np.ndarray]:
        time.sleep(0.1)
        return self._fast.train_batch(start, size)


def test_the_outcome_says_how_much_of_the_steps_is_waiting_for_data() -> None:
    slow = Rank(feed=Feed(SlowDataset(), BATCH, 0, 1)).run(20)["data_wait_share"]
    fast = Rank().run(20)["data_wait_share"]
    assert 0 <= fast < slow <= 1


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
    rank.runner.distributed = dataclasses.replace(rank.distributed, rank=1)
    rank.control.stop_requested.set()
    rank.control.last_step = 7
    assert rank.run(100)["steps"] == 7
    assert rank.control.announced == []


def test_the_losses_up_to_a_stop_are_reported() -> None:
    """A stop comes at any step, not only at one that is reported."""
    rank = Rank(log_every=100)
    rank.control.stop_at_step = 5
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

    def save(self: CheckpointSaver, session: tf.Session, *, step: int, examples: int) -> None:
        saved.append(step)
        original(self, session, step=step, examples=examples)

    monkeypatch.setattr(CheckpointSaver, "save", save)
    assert rank.run(6)["ckpt_path"] == str(tmp_path / "model.ckpt-6")
    assert saved == [3, 6]


@pytest.mark.parametrize("stop_at", [None, 2])
def test_the_last_checkpoint_waits_until_all_workers_have_left(tmp_path: Path, stop_at: int | None) -> None:
    rank = Rank(tmp_path, save_steps=1)
    # Stands for the others' last pushes: whatever is saved behind it has the initial values.
    rank.runner.distributed = dataclasses.replace(rank.distributed, leave=rank.distributed.initialize)
    rank.control.stop_at_step = stop_at
    assert rank.run(3)["steps"] == 3
    steps = [tf.train.load_checkpoint(str(path)).get_tensor("global_step") for path in list_checkpoints(tmp_path)]
    assert steps == [1, 2, 0]


@pytest.mark.parametrize(("is_bounded", "steps"), [(False, 2), (True, 3)])
def test_a_stop_ends_a_worker_where_it_is_if_others_may_be_far_from_it(is_bounded: bool, steps: int) -> None:
    rank = Rank()
    graph = rank.distributed
    may_start = graph.initialize if is_bounded else None
    rank.runner.distributed = dataclasses.replace(graph, staleness=graph.features[0]["ids"], may_start=may_start)
    rank.control.stop_at_step = 2
    assert rank.run(9)["steps"] == steps
    assert rank.control.announced == [3]


def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    whole = Rank()
    whole.run(9)
    first = Rank(tmp_path)
    first.run(5)
    start = read_sidecar(tmp_path / "model.ckpt-5")
    second = Rank(tmp_path, log_every=4)
    second.checkpoints.restore(second.session, tmp_path / "model.ckpt-5")
    outcome = second.run(9, first_step=start.step, first_example=start.examples)
    assert [report["step"] for report in second.reports] == [6, 8, 9]
    assert first.losses + second.losses == whole.losses
    assert outcome["steps"] == 9
    final = [rank.checkpoints.snapshot(rank.session) for rank in (whole, second)]
    assert {"table", "weights", "global_step"} <= set(final[0])
    for name, value in final[0].items():
        np.testing.assert_array_equal(final[1][name], value, err_msg=name)


def test_the_stop_comes_without_validation() -> None:
    rank = Rank(validate_steps=5)
    rank.control.stop_at_step = 5
    rank.run(50)
    assert rank.said("validation") == []


def test_others_can_be_told_where_a_rank_is(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    rank.run(3)
    assert rank.control.seen_doing == [Activity(Kind.STEP, step) for step in (1, 2, 3)]
    assert rank.control.step == 3


# --- Losses that are not finite -----------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_stops_the_run_before_it_is_saved(tmp_path: Path) -> None:
    rank = Rank(tmp_path, save_steps=1, data=dataset(3 * BATCH + 1))
    with pytest.raises(TrainingError, match=r"loss of step 4 is nan on rank 0.*train\.on_nan=skip"):
        rank.run(8)
    assert list_checkpoints(tmp_path)[-1].name == "model.ckpt-3"


def test_skipped_steps_are_told_and_counted() -> None:
    rank = Rank(data=dataset(3 * BATCH + 1), skip_nonfinite=True)
    outcome = rank.run(6)
    assert outcome["skipped_steps"] == 1
    assert [report["step"] for report in rank.said("skipped")] == [4]
    assert np.isnan(rank.losses[3])
    assert np.isfinite(rank.losses[:3] + rank.losses[4:]).all()


def test_skipping_does_not_go_on_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_runner, "MAX_SKIPPED_IN_A_ROW", 3)
    rank = Rank(data=dataset(*range(BATCH, 50)), skip_nonfinite=True)
    with pytest.raises(TrainingError, match="last 3 steps, up to step 4"):
        rank.run(20)


def test_skipped_steps_with_others_between_them_end_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_runner, "MAX_SKIPPED_IN_A_ROW", 2)
    spoilt = (BATCH, 3 * BATCH, 5 * BATCH)  # one example of each of the steps 2, 4 and 6
    outcome = Rank(data=dataset(*spoilt), skip_nonfinite=True).run(6)
    assert (outcome["steps"], outcome["skipped_steps"]) == (6, 3)


# --- Input --------------------------------------------------------------------------------------------------------


def test_an_error_of_the_data_ends_the_run_with_that_error() -> None:
    rank = Rank()
    original = rank.loop.feed.train_batches

    class Vanishing:
        global_batch = BATCH

        def train_batches(self, position: int) -> list[dict[str, np.ndarray]]:
            if position >= 3 * BATCH:
                raise DataError("the file is gone")
            return original(position)

    rank.loop.feed = Vanishing()  # type: ignore[assignment]
    with pytest.raises(DataError, match="the file is gone"):
        rank.run(9)
    assert rank.control.step == 3


@pytest.mark.parametrize("skip_nonfinite", [False, True])
def test_only_listed_steps_are_run_with_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skip_nonfinite: bool
) -> None:
    rank, plain = (Rank(skip_nonfinite=skip_nonfinite) for _ in range(2))
    rank.runner.profiler = StepProfiler(ProfileConfig(name="steps", dir=str(tmp_path), steps=[3, 5]), 0)
    runs: list[dict[str, Any]] = []
    original = rank.session.run

    def run(fetches: Any, feed_dict: Any = None, **options: Any) -> Any:
        runs.append(options)
        return original(fetches, feed_dict, **options)

    rank.loop.validates = plain.loop.validates = False
    monkeypatch.setattr(rank.session, "run", run)
    rank.run(6)
    plain.run(6)
    assert [number for number, options in enumerate(runs, 1) if options["options"] or options["run_metadata"]] == [3, 5]
    assert runs[2]["options"].trace_level == tf.RunOptions.FULL_TRACE
    assert list(run_metadata_files(tmp_path)) == [3, 5]
    assert rank.losses == plain.losses


def test_segments_count_steps_on_and_losses_are_as_without(tmp_path: Path) -> None:
    """In another session, with the variables of the first, and with checkpoints of both."""
    plain = Rank(tmp_path / "plain", save_steps=3)
    plain.run(9)
    rank = Rank(tmp_path / "cut", save_steps=3)
    asked: list[tuple[int, int]] = []
    fresh: list[Graph] = []

    def next_segment(session: tf.Session, step: int, step_secs: list[float]) -> Segment | None:
        asked.append((step, len(step_secs)))
        if step != 3:
            return Segment(3 if step == 0 else None)
        session.close()
        other = Rank()
        other.checkpoints.restore(other.session, tmp_path / "cut" / "model.ckpt-3")
        fresh.append(Graph(other.session, other.distributed, other.checkpoints))
        return Segment(7, fresh[0])

    rank.loop.next_segment = next_segment
    outcome = rank.run(9)
    assert asked == [(0, 0), (3, 3), (7, 4)]
    assert rank.losses == plain.losses
    assert outcome["steps"] == 9
    assert rank.runner.session is fresh[0].session
    assert [read_sidecar(path).step for path in list_checkpoints(tmp_path / "cut")] == [3, 6, 9]
    for step in (3, 6, 9):
        saved = [tf.train.load_checkpoint(str(tmp_path / name / f"model.ckpt-{step}")) for name in ("plain", "cut")]
        for name in saved[0].get_variable_to_shape_map():
            np.testing.assert_array_equal(saved[0].get_tensor(name), saved[1].get_tensor(name), err_msg=name)


def test_a_segment_may_be_the_last() -> None:
    rank = Rank()
    rank.loop.next_segment = lambda session, step, secs: Segment(4) if step == 0 else None
    assert rank.run(9)["steps"] == 4
    assert len(rank.losses) == 4


def test_the_last_segment_ends_the_run_with_a_checkpoint_and_a_validation(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    rank.loop.validate_steps = 5
    asked: list[int] = []

    def next_segment(session: tf.Session, step: int, step_secs: list[float]) -> Segment:
        asked.append(step)
        return Segment(4 if step == 0 else 5, is_last=step == 4)

    rank.loop.next_segment = next_segment
    assert rank.run(9)["steps"] == 5
    assert asked == [0, 4] and len(rank.losses) == 5
    assert [read_sidecar(path).step for path in list_checkpoints(tmp_path)] == [5]
    assert [one["step"] for one in rank.control.reports if one["kind"] == "validation"] == [5]


def test_a_gradient_that_is_not_finite_ends_the_run_although_the_loss_is() -> None:
    def build(features: Features) -> dict[str, Any]:
        weights = tf.get_variable("weights", [WIDTH], tf.float64)
        loss = tf.reduce_mean(tf.sqrt(0.0 * tf.square(features["x"] * weights)))  # its gradient is 0 times infinity
        return {"loss": loss, "train_op": tf.train.GradientDescentOptimizer(0.1).minimize(loss)}

    rank = Rank(single=capture(build, FEATURES, seed=1), log_every=2)
    with pytest.raises(TrainingError, match=r"gradient of «weights» in step 1 is NaN or infinite .* the loss is 0"):
        rank.run(4)
