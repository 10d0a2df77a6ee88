"""The training loop of one rank."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.part import CheckpointPart
from parallax_runner.checkpoints.saver import CheckpointSaver
from parallax_runner.errors import TrainingError
from parallax_runner.profile.record import StepProfiler, run_traced
from parallax_runner.rewrite.distributed_graph import DistributedGraph
from parallax_runner.train import peers
from parallax_runner.train.feed import Feed
from parallax_runner.train.peers import Peers
from parallax_runner.train.prefetch import Batches, Prefetch
from parallax_runner.train.segment import Segment
from parallax_runner.train.throughput import Throughput

# Data of which so many steps in a row are not finite is broken, and skipping would never end.
MAX_SKIPPED_IN_A_ROW = 100


class Control(peers.Control, Protocol):
    """What a rank needs of its connection to the driver (launch/control/client.py)."""

    step: int | None

    def report(self, kind: str, **fields: Any) -> None:
        """Tells the driver something."""


@dataclass
class Loop:
    """What a rank needs to train. `validate_steps` None: only at the end, if at all; `saver` is the chief's, or this
    rank's part where variables are spread over the ranks. `next_segment` is given the session, the step and how long
    the steps since the last change took, where the plan may change on the way; it may bring another graph."""

    session: tf.Session
    distributed: DistributedGraph
    feed: Feed
    control: Control
    log_every: int
    validates: bool = True
    validate_steps: int | None = None
    saver: CheckpointSaver | CheckpointPart | None = None
    profiler: StepProfiler | None = None
    next_segment: Callable[[tf.Session, int, list[float]], Segment | None] | None = None
    _losses: list[float | None] = field(default_factory=list)
    _skipped: int = 0
    _skipped_in_a_row: int = 0
    _save_granted: bool = False
    _until: int | None = None

    @functools.cached_property
    def peers(self) -> Peers:
        """The other workers."""
        return Peers(self.session, self.distributed, self.control)

    def run(self, *, first_step: int, steps: int, first_example: int) -> dict[str, Any]:
        """Trains until `steps` steps are done in all, or a stop is asked for; returns what the summary says of it.

        Raises TrainingError where a loss is not finite, and CheckpointError where one could not be written.
        """
        try:
            return self._run(first_step, steps, first_example)
        except BaseException:
            if self.saver:
                self.saver.close()
            raise

    def _run(self, first_step: int, steps: int, first_example: int) -> dict[str, Any]:
        throughput = Throughput()
        step, missed, position = first_step, 0, first_example
        if self.saver:
            self.saver.start(step)
            self.saver.warm_up(self.session)
        with Prefetch(lambda number: self._batches(first_example, number), steps - first_step) as batches:
            goes_on = self._begin_segment(step, throughput)
            while goes_on and step < steps and not self.peers.is_last(step):
                self.control.doing = f"step {step + 1}"
                started = time.perf_counter()
                loss, sent_bytes = self._step(batches.next(missed), step + 1)
                before, step = step, self.peers.next_step(step)
                throughput.add(time.perf_counter() - started, sent_bytes, steps=step - before)
                missed, position = step - before - 1, position + (step - before) * self.feed.global_batch
                self.control.step = step
                self._losses += [loss, *[None] * missed][: step - before]
                is_end = step >= steps or self.peers.is_last(step)
                if step // self.log_every > before // self.log_every or before == first_step or is_end:
                    self._report(step, throughput)
                if self.distributed.leave is None or not is_end:  # else `_end` saves it, when all have pushed
                    self._save_and_validate(step, steps, position, passed=step - before)
                if step == self._until and not is_end:
                    goes_on = self._begin_segment(step, throughput)
        step = self.peers.leave(step)
        self._end(step, first_example + (step - first_step) * self.feed.global_batch)
        ckpt_path = None if self.saver is None else str(self.saver.last_prefix)
        return throughput.figures() | {"steps": step, "skipped_steps": self._skipped, "ckpt_path": ckpt_path}

    def _begin_segment(self, step: int, throughput: Throughput) -> bool:
        """Whether the training goes on after `step`; then by the plan of the next segment, where there are any."""
        if self.next_segment is None:
            return True
        if self._losses:
            self._report(step, throughput)
        if isinstance(self.saver, CheckpointSaver):
            self.saver.rest()
        segment = self.next_segment(self.session, step, throughput.step_secs)
        if segment is None:
            return False
        throughput.begin_again()
        self._until = segment.until
        if segment.graph is not None:
            self.session, self.distributed = segment.graph.session, segment.graph.distributed
            del self.peers
            if isinstance(self.saver, CheckpointSaver):
                self.saver.go_on_with(segment.graph.checkpoints, self.session)
        return True

    def _validate(self, step: int) -> None:
        """Tells the driver the sum of the validation loss over this rank's batches, and their number."""
        if not self.validates or self.distributed.validation_loss is None or not self.feed.validates:
            return
        self.control.doing = f"validation after step {step}"
        total, batches = 0.0, 0
        waiting = self.feed.validation_batches()
        batch = next(waiting, None)
        # Who asked for a stop does not want to wait for more.
        while self._all_go_on(batch is not None and not self.control.stop_requested.is_set()):
            fed = self.feed.train_batches(0)[0] if batch is None else batch
            loss = float(self.session.run(self.distributed.validation_loss, self._fed([fed])))
            if batch is not None:
                total, batches = total + loss, batches + 1
            batch = next(waiting, None)
        if self.control.stop_requested.is_set():
            return
        if self.saver and self.saver.last_step == step:
            self.saver.validated(step)
        self.control.report("validation", step=step, loss_sum=total, batches=batches)

    def _all_go_on(self, vote: bool) -> bool:
        """Whether this rank goes on: as it votes, or, where all ranks are needed, as long as one votes for it."""
        graph = self.distributed
        if graph.votes is None:
            return vote
        return bool(self.session.run(graph.votes, {graph.vote: float(vote)}) > 0)

    def _batches(self, first_example: int, number: int) -> Batches:
        return self.feed.train_batches(first_example + number * self.feed.global_batch)

    def _fed(self, batches: Batches) -> dict[tf.Tensor, Any]:
        replicas = zip(self.distributed.features, batches, strict=False)
        return {features[name]: array for features, batch in replicas for name, array in batch.items()}

    def _step(self, batches: Batches, step: int) -> tuple[float | None, np.ndarray]:
        """The loss, None where the step does not contain this rank's gradients, and the bytes sent, by variable."""
        graph = self.distributed
        votes = [] if graph.votes is None else [graph.votes]
        fetches = [self.peers.watched, graph.loss, graph.sent_bytes, graph.train_op, votes]
        self.peers.wait_to_start(step)
        if graph.applied is None:
            seen, loss, sent_bytes, _, granted = self._run_once(fetches, batches, step)
            self._save_granted = sum(granted) > 0
            if not self.peers.watch(seen):
                return None, sent_bytes
            if not math.isfinite(loss):
                raise TrainingError(
                    f"the loss of step {step} is {loss} on rank {graph.rank}, and train.on_nan=stop; a lower "
                    "optimizer.learning_rate may help, or train.on_nan=skip, which leaves such steps out"
                )
        else:
            _, loss, sent_bytes, _, granted, applied = self._run_once([*fetches, graph.applied], batches, step)
            self._save_granted = sum(granted) > 0
            self._count_skipped(step, bool(applied))
        return float(loss), sent_bytes

    def _run_once(self, fetches: list[Any], batches: Batches, step: int) -> list[Any]:
        fed = self._fed(batches)
        if self.distributed.vote is not None and self.saver and self.saver.is_due(step):
            fed[self.distributed.vote] = 1.0
        if self.profiler is None or not self.profiler.wants(step):
            return self.session.run(fetches, fed)
        values, run_metadata = run_traced(self.session, fetches, fed)
        self.profiler.write(step, run_metadata)
        return values

    def _count_skipped(self, step: int, applied: bool) -> None:
        if applied:
            self._skipped_in_a_row = 0
            return
        self._skipped += 1
        self._skipped_in_a_row += 1
        if self.distributed.rank == 0:
            self.control.report("skipped", step=step)
        if self._skipped_in_a_row == MAX_SKIPPED_IN_A_ROW:
            raise TrainingError(
                f"the last {MAX_SKIPPED_IN_A_ROW} steps, up to step {step}, had losses or gradients that are NaN or "
                "infinite, and train.on_nan=skip has skipped them all: look at the data, or lower the learning rate"
            )

    def _report(self, step: int, throughput: Throughput) -> None:
        step_secs = throughput.step_secs[len(throughput.step_secs) - len(self._losses) :]
        observed = self.peers.take_observed()
        self.control.report("progress", step=step, losses=self._losses, step_secs=step_secs, **observed)
        self._losses = []

    def _save_and_validate(self, step: int, steps: int, position: int, *, passed: int) -> None:
        due = self.validate_steps is not None and step % self.validate_steps == 0 and step < steps
        if self.saver:
            self.saver.raise_if_failed()
            voted = self._save_granted if self.distributed.votes is not None else self.saver.is_due(step, passed)
            if due or voted:
                self.control.doing = f"saving step {step}"
                self.saver.save(self.session, step=step, examples=position)
        if due:
            self._validate(step)

    def _end(self, step: int, position: int) -> None:
        if self.saver:
            self.control.doing = f"saving step {step}"
            self.saver.save_last(self.session, step=step, examples=position)
        self._validate(step)
        if self.saver:
            self.control.doing = f"saving step {step}"
            self.saver.finish(self.session, step=step, examples=position)
