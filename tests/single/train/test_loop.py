"""The loop on a real small graph, in this process alone."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.best import best_checkpoint, note_validated
from parallax_runner.checkpoints.files import list_checkpoints, read_sidecar
from parallax_runner.checkpoints.ops import CheckpointOps
from parallax_runner.checkpoints.saver import CheckpointSaver
from parallax_runner.config.schema import ProfileConfig
from parallax_runner.data.arrays import ArrayDataset
from parallax_runner.data.stream import ShuffledStream
from parallax_runner.errors import DataError, TrainingError
from parallax_runner.graph.single_device_graph import MetricSums, SingleDeviceGraph
from parallax_runner.profile.files import run_metadata_files
from parallax_runner.profile.record import StepProfiler
from parallax_runner.rewrite.passes import rewrite_for_rank
from parallax_runner.train import step_runner
from parallax_runner.train.feed import Feed
from parallax_runner.train.loop import FINITE_LOSSES, Loop
from parallax_runner.train.segment import Graph, Segment
from parallax_runner.train.step_runner import StepRunner
from tests.single.small_models import BATCH, ROWS, WIDTH, captured, dense_model, planned

Reports = list[dict[str, Any]]


def dataset(*spoilt: int, validation: int = 3 * BATCH + 1) -> ArrayDataset:
    """50 examples, and some to validate on; those at positions `spoilt` of the stream have a NaN."""
    draw = np.random.default_rng(0)

    def part(size: int) -> dict[str, np.ndarray]:
        return {
            "ids": draw.integers(0, ROWS, size).astype(np.int32),
            "x": draw.normal(size=(size, WIDTH)),
            "y": draw.normal(size=size),
        }

    train = part(50)
    train["y"][ShuffledStream(size=50, seed=1).elements(0, 50)[list(spoilt)]] = np.nan
    return ArrayDataset(train=train, validation=part(validation), words_per_example=None, seed=1)


class FakeControl:
    """The connection to the driver, without one."""

    def __init__(self) -> None:
        self.stop_requested = threading.Event()
        self.last_step: int | None = None
        self.reports: Reports = []
        self.announced: list[int] = []
        self.stop_at_step: int | None = None
        self.doing = "starting"
        self.seen_doing: list[str] = []
        self._step: int | None = None

    @property
    def step(self) -> int | None:
        return self._step

    @step.setter
    def step(self, step: int) -> None:
        self._step = step
        self.seen_doing.append(self.doing)
        if step == self.stop_at_step:
            self.stop_requested.set()

    def report(self, kind: str, **fields: Any) -> None:
        self.reports.append({"kind": kind} | fields)

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
        validate_steps: int | None = None,
        skip_nonfinite: bool = False,
        data: ArrayDataset | None = None,
    ) -> None:
        single = single or captured(optimizer="adam")
        self.distributed = rewrite_for_rank(
            single, planned(single, "local"), rank=0, seed=1, skip_nonfinite=skip_nonfinite
        )
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
            run_id=lambda: None,
        )
        feed = Feed(data or dataset(), BATCH, 0, 1)
        self.runner = StepRunner(
            self.session,
            self.distributed,
            self.control,
            log_every,
            FINITE_LOSSES,
            saver=self.saver or None,
            examples_per_step=feed.global_batch,
        )
        self.loop = Loop(self.runner, feed, validate_steps=validate_steps)

    def run(self, steps: int, *, first_step: int = 0, first_example: int = 0) -> dict[str, Any]:
        return self.loop.run(first_step=first_step, steps=steps, first_example=first_example)

    @property
    def reports(self) -> Reports:
        return self.said("progress")

    def said(self, kind: str) -> Reports:
        return [report for report in self.control.reports if report["kind"] == kind]

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
    second.session.run(second.checkpoints.restore, {second.checkpoints.prefix: str(tmp_path / "model.ckpt-5")})
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
    assert rank.control.seen_doing == ["step 1", "step 2", "step 3"]
    assert rank.control.step == 3


# --- Validation ---------------------------------------------------------------------------------------------------


def test_validation_sums_whole_batches_and_trains_nothing() -> None:
    rank = Rank()
    before = rank.checkpoints.snapshot(rank.session)
    rank.run(0)
    after = rank.checkpoints.snapshot(rank.session)
    (said,) = rank.said("validation")
    assert (said["step"], said["examples"]) == (0, 3 * BATCH)
    losses = []
    for start in (0, BATCH, 2 * BATCH):
        batch = dataset().validation_batch(start, BATCH)
        predicted = np.sum(before["table"][batch["ids"]] * before["weights"], axis=1)
        losses.append(np.mean((predicted - batch["y"]) ** 2))
    assert said["loss_sum"] == pytest.approx(BATCH * sum(losses))
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value)


def test_validation_every_few_steps_and_at_the_end() -> None:
    rank, plain = Rank(validate_steps=2), Rank()
    rank.run(6)
    plain.run(6)
    assert [report["step"] for report in rank.said("validation")] == [2, 4, 6]
    assert [report["step"] for report in plain.said("validation")] == [6]
    assert rank.losses == plain.losses


def _with_metrics() -> SingleDeviceGraph:
    """Its loss as a metric, too."""
    single = captured(optimizer="adam")
    assert single.validation_loss is not None
    sums = [MetricSums((name,), results=lambda _: {}) for name in (single.loss, single.validation_loss)]
    return dataclasses.replace(single, metrics=sums[0], validation_metrics=sums[1])


def test_sums_for_metrics_are_of_all_steps_since_the_last_report() -> None:
    rank = Rank(single=_with_metrics(), log_every=4)
    rank.run(6)
    assert [report["step"] for report in rank.reports] == [1, 4, 6]
    assert [report["metrics"] for report in rank.reports] == [
        [pytest.approx(sum(report["losses"]))] for report in rank.reports
    ]
    (said,) = rank.said("validation")
    assert said["metrics"] == [pytest.approx(said["loss_sum"] / BATCH)], "a sum over batches"


def test_without_metrics_reports_have_none() -> None:
    rank = Rank()
    rank.run(2)
    assert not any("metrics" in report for report in rank.control.reports)


def test_skipped_steps_add_nothing_to_metrics() -> None:
    rank = Rank(single=_with_metrics(), data=dataset(BATCH + 1, 3 * BATCH + 1), skip_nonfinite=True, log_every=2)
    rank.run(6)
    first, only_skipped, half_skipped, last = rank.reports
    assert first["metrics"] == [pytest.approx(first["losses"][0])]
    assert "metrics" not in only_skipped
    assert half_skipped["metrics"] == [pytest.approx(half_skipped["losses"][0])]
    assert last["metrics"] == [pytest.approx(sum(last["losses"]))]


def test_the_best_of_what_was_validated_is_kept(tmp_path: Path) -> None:
    rank = Rank(tmp_path, save_steps=1, validate_steps=2)
    assert rank.saver is not None
    rank.saver.keep = 1
    original = rank.control.report

    def report(kind: str, **fields: Any) -> None:  # As the driver does, when it has heard all ranks.
        original(kind, **fields)
        if kind == "validation":
            note_validated(tmp_path, fields["step"], {2: 0.5, 4: 0.2, 6: 0.7, 8: 0.9}[fields["step"]])

    rank.control.report = report  # type: ignore[method-assign]
    rank.run(8)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["model.ckpt-4", "model.ckpt-8"]
    best = best_checkpoint(tmp_path)
    assert best is not None
    assert best.name == "model.ckpt-4"


def test_less_than_a_batch_is_not_validated_and_old_checkpoints_go(tmp_path: Path) -> None:
    rank = Rank(tmp_path, save_steps=1, validate_steps=2, data=dataset(validation=BATCH - 1))
    assert rank.saver is not None
    rank.saver.keep = 1
    rank.run(8)
    assert rank.said("validation") == []
    assert [prefix.name for prefix in list_checkpoints(tmp_path)] == ["model.ckpt-8"]


def test_what_is_validated_is_saved(tmp_path: Path) -> None:
    rank = Rank(tmp_path, validate_steps=3)
    rank.run(7)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["model.ckpt-3", "model.ckpt-6", "model.ckpt-7"]


def test_a_model_without_validation_loss() -> None:
    rank = Rank(single=dataclasses.replace(captured(dense_model), validation_loss=None))
    rank.run(1)
    assert rank.said("validation") == []


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
        other.session.run(other.checkpoints.restore, {other.checkpoints.prefix: str(tmp_path / "cut" / "model.ckpt-3")})
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
