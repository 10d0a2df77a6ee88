"""The training loop of one rank."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tensorflow.compat.v1 as tf

from parallax_runner.data.dataset import validates_at_least
from parallax_runner.launch.control.activity import Activity, Kind
from parallax_runner.train.feed import Feed
from parallax_runner.train.group_rows import RowWriter, folder_of_step
from parallax_runner.train.metric_sums import Last, Sums
from parallax_runner.train.prefetch import Batches, Prefetch
from parallax_runner.train.segment import Segment
from parallax_runner.train.step_runner import LossRule, StepRunner
from parallax_runner.train.validation_rounds import (
    Evaluated,
    Round,
    Total,
    Way,
    refusal,
    rounds_of,
    rows_of_examples,
)

FINITE_LOSSES = LossRule(
    ends_run=lambda loss: not math.isfinite(loss),
    remedy=", so train.on_nan=stop ends the run. Lower optimizer.learning_rate, or skip such steps (train.on_nan=skip)",
)


@dataclass
class Loop:
    """Trains one rank.

    If `validate_steps` is None, validation runs only at the end. If `validates` is false, validation never runs. If
    `counts_all` is true, a validation that cannot count each example raises DataError.
    `next_segment` is set if the plan may change during training. It is called with the session, the step, and the
    durations in seconds of all steps since the last change. It may return a segment with another graph. If
    `saves_segments` is true, each segment ends with a checkpoint. The rows of metrics of groups are written to files in
    `run_dir`.
    """

    runner: StepRunner
    feed: Feed
    validates: bool = True
    counts_all: bool = False
    validate_steps: int | None = None
    next_segment: Callable[[tf.Session, int, list[float]], Segment | None] | None = None
    saves_segments: bool = False
    run_dir: Path = Path()
    _until: int | None = None

    def run(self, *, first_step: int, steps: int, first_example: int) -> dict[str, Any]:
        """Trains until `steps` steps are complete in total, or until a stop is requested. Returns fields for the
        summary.

        Raises TrainingError if a loss is not finite, and CheckpointError if a checkpoint could not be written.
        """
        try:
            return self._run(first_step, steps, first_example)
        except BaseException:
            self.runner.give_up()
            raise

    def _run(self, first_step: int, steps: int, first_example: int) -> dict[str, Any]:
        runner = self.runner
        runner.last_step = steps
        runner.begin(first_step=first_step, first_example=first_example)
        with Prefetch(lambda number: self._batches(first_example, number), steps - first_step) as batches:
            if self.next_segment is not None and first_step > 0:
                self._validate_again()
            goes_on = first_step < steps and self._begin_segment()
            while goes_on and not runner.is_last():
                runner.control.doing = Activity(Kind.STEP, runner.step + 1)
                started_secs = time.perf_counter()
                batch = batches.next(runner.passed - 1)
                runner.peers.wait_to_start(runner.step + 1)
                self._step(batch, batches, started_secs)
                runner.report_if_due(will_save=self._is_save_wanted())
                is_end = runner.is_last()
                if runner.distributed.leave is None or not is_end:  # otherwise, `end` saves after all pushes
                    self._save_and_validate()
                if runner.step == self._until and not is_end:
                    goes_on = self._begin_segment()
        runner.end(self._validate)
        return runner.outcome() | {"skipped_steps": runner.skipped}

    def _step(self, batch: Batches, batches: Prefetch, started_secs: float) -> None:
        """Runs a step. Meanwhile, prepares the next step if the graph supports it."""
        runner, feeds = self.runner, self._fed(batch)
        if runner.ahead is not None:
            following = batches.peek()
            is_traced = runner.is_profiled(runner.step + 1)
            feeds |= runner.ahead.start(batch[0], None if following is None else following[0], is_traced=is_traced)
        runner.throughput.waited(batches.take_waited_secs())
        runner.run(runner.distributed.train_op, feeds, started_secs=started_secs)

    def _begin_segment(self) -> bool:
        """Returns whether training continues. If the training has segments, starts the next segment."""
        runner = self.runner
        if self.next_segment is None:
            return True
        runner.pause()
        segment = self.next_segment(runner.session, runner.step, runner.throughput.step_secs)
        if segment is None:
            return False
        runner.throughput.begin_again()
        self._until = segment.until
        if segment.is_last:
            runner.last_step = segment.until
        if segment.graph is not None:
            runner.go_on_with(segment.graph)
        return True

    def _validate(self) -> None:
        """Runs the validation. Reports the number of this rank's examples, and the sums of the validation loss and
        metrics over these examples, to the driver."""
        step, control, graph = self.runner.step, self.runner.control, self.runner.distributed
        if not self._can_validate():
            return
        control.doing = Activity(Kind.VALIDATION, step)
        in_parts = not graph.validates_any_size
        filler = self.feed.filler(self.feed.batch_size if in_parts else None)
        rounds = rounds_of(self.feed.validation_batches(in_parts=in_parts, step=step), filler)
        with RowWriter(folder_of_step(self.run_dir, step), self.feed.rank, tuple(graph.validation_rows)) as writer:
            total = self._total_of(rounds, writer)
            if control.stop_requested.is_set():
                return
            found, left_out = total.result()
            for rows in found.rows:
                writer.write(rows)
        if left_out and self.counts_all:
            raise refusal(left_out, self.feed.batch_size)
        saver = self.runner.saver
        if saver and saver.last_step == step:
            saver.validated(step)
        fields = found.sums.fields()
        if left_out:
            fields["left_out"] = left_out
        control.report("validation", step=step, loss_sum=found.loss_sum, examples=int(found.examples), **fields)

    def _total_of(self, rounds: Iterator[Round], writer: RowWriter) -> Total:
        """Evaluates rounds until no rank has more, or the user wants to stop and not wait for the remaining ones."""
        total, stop_requested = Total(), self.runner.control.stop_requested
        following = next(rounds, None)
        while self.all_go_on(following is not None and not stop_requested.is_set()):
            if following is None:
                self._evaluate(Round(self.feed.any_batch, 1, 0))
            else:
                total.add(following, self._written(self._evaluate(following), following, writer))
            following = next(rounds, None)
        return total

    @staticmethod
    def _written(found: Evaluated, one: Round, writer: RowWriter) -> Evaluated:
        """Writes the rows of a whole batch. The others wait until it is known whether they count."""
        if one.way is not Way.OWN:
            return found
        for rows in found.rows:
            writer.write(rows)
        return replace(found, rows=())

    def _evaluate(self, one: Round) -> Evaluated:
        """Evaluates a batch of this rank. Returns its loss, metric sums and rows."""
        graph = self.runner.distributed
        of_metrics = graph.validation_metric_sums, graph.validation_metric_last, graph.validation_rows
        feeds = {graph.validation_features[name]: array for name, array in one.batch.items()}
        loss, (metrics, values, rows) = self.runner.session.run((graph.validation_loss, of_metrics), feeds)
        size = self.feed.examples_in(one.batch)
        last = Last.of(self.feed.validation_number(one.number), size, [size * value for value in values])
        kept = rows_of_examples(rows, one.examples, size)
        loss_sum = float(loss) * size
        return Evaluated(loss_sum, size, Sums.of(metrics, last=last), (kept,), abs(loss_sum))

    def _can_validate(self) -> bool:
        if not self.validates or self.runner.distributed.validation_loss is None:
            return False
        return validates_at_least(self.feed.dataset, 1)

    def all_go_on(self, vote: bool) -> bool:
        """Returns whether this rank continues. If validation needs all ranks, all ranks continue if any rank votes to
        continue. Otherwise, the rank's own `vote` counts."""
        graph = self.runner.distributed
        if graph.votes is None:
            return vote
        return bool(self.runner.session.run(graph.votes, {graph.vote: float(vote)}) > 0)

    def _batches(self, first_example: int, number: int) -> Batches:
        return self.feed.train_batches(first_example + number * self.feed.global_batch)

    def _fed(self, batches: Batches) -> dict[tf.Tensor, Any]:
        replicas = zip(self.runner.distributed.features, batches, strict=False)
        return {features[name]: array for features, batch in replicas for name, array in batch.items()}

    def _save_and_validate(self) -> None:
        self.runner.save_if_due(is_wanted=self._is_save_wanted())
        if self._is_validation_due():
            self._validate()

    def _validate_again(self) -> None:
        """Repeats the validation of the step at which training resumes. The driver's decision needs the result of this
        validation, which a failure may have interrupted."""
        if self._is_validation_due():
            self._validate()

    def _is_save_wanted(self) -> bool:
        """Returns whether all ranks know that a checkpoint follows this step."""
        return self._is_validation_due() or (self.saves_segments and self.runner.step == self._until)

    def _is_validation_due(self) -> bool:
        step, last_step = self.runner.step, self.runner.last_step
        assert last_step is not None
        return self.validate_steps is not None and step % self.validate_steps == 0 and step < last_step
