"""Runs the steps of one rank, for the training loop and for a script's session."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.delta_saver import DeltaSaver
from parallax_runner.checkpoints.row_writer import RowWriter
from parallax_runner.checkpoints.saver import CheckpointSaver
from parallax_runner.errors import Setting, TrainingError
from parallax_runner.launch.control.activity import Activity, Kind
from parallax_runner.profile.record import StepProfiler
from parallax_runner.rewrite.distributed_graph import DistributedGraph
from parallax_runner.train import peers
from parallax_runner.train.growth_since_report import GrowthSinceReport
from parallax_runner.train.lookahead_steps import StepsAhead
from parallax_runner.train.metric_sums import NOTHING, Last, Sums
from parallax_runner.train.peers import Peers
from parallax_runner.train.segment import Graph
from parallax_runner.train.throughput import Throughput

# A run fails after this many non-finite steps in a row. The data is then probably broken, and skipping would never end.
MAX_SKIPPED_IN_A_ROW = 100


class Control(peers.Control, Protocol):
    """The part of the connection to the driver (launch/control/client.py) that a rank uses."""

    step: int | None

    def report(self, kind: str, **fields: Any) -> None:
        """Sends a report to the driver."""


class LossRule(NamedTuple):
    """Decides which losses end a run. `remedy` is the end of the error message and tells the user what to do."""

    ends_run: Callable[[float], bool]
    remedy: str


class _Told(NamedTuple):
    """The tensors that the runner fetches in a step, and then their values.

    Each part is a list. A part is empty if the graph does not compute it, or if the step does not ask for it.
    """

    watched: Any
    losses: Any
    sent_bytes: Any
    granted: Any
    applied: Any
    metric_sums: Any
    metric_last: Any
    finite: Any


@dataclass
class StepRunner:
    """Runs steps: waits for other workers as the plan requires, traces steps, votes, checks losses, counts steps,
    reports progress and saves checkpoints.

    `saver` is set on the chief, and on every rank if variables are sharded across the ranks. `deltas` is set on the
    same ranks if the run saves deltas. If `loss_rule` is None, no loss ends the run. If `reports_saves` is true, each
    rank reports all steps up to a checkpoint before it is written, so the driver has the metric sums of these steps if
    the run restarts from the checkpoint. `save_steps` is then the saver's number of steps between checkpoints.
    `knows_loss` is false for a graph without a loss. `examples_per_step` is the number of examples on all ranks
    together, or 0 if only the script can determine that number. Training ends after `last_step`. If `last_step` is
    None, training ends only when a stop is requested.
    """

    session: tf.Session
    distributed: DistributedGraph
    control: Control
    log_every: int
    loss_rule: LossRule | None = None
    knows_loss: bool = True
    saver: CheckpointSaver | RowWriter | None = None
    deltas: DeltaSaver | None = None
    reports_saves: bool = False
    save_steps: int | None = None
    profiler: StepProfiler | None = None
    examples_per_step: int = 0
    last_step: int | None = None
    first_step: int = 0
    first_example: int = 0
    step: int = 0
    passed: int = 1  # steps completed during this rank's last step; more than 1 if other ranks did not wait
    skipped: int = 0
    throughput: Throughput = field(default_factory=Throughput)
    losses: list[float | None] = field(default_factory=list)  # not reported yet
    metric_sums: Sums = NOTHING  # not reported yet
    _growth: GrowthSinceReport = field(default_factory=GrowthSinceReport)
    _skipped_in_a_row: int = 0
    _save_granted: bool = False

    @functools.cached_property
    def peers(self) -> Peers:
        """Coordinates this worker with the other workers."""
        return Peers(self.session, self.distributed, self.control)

    @functools.cached_property
    def ahead(self) -> StepsAhead | None:
        """The object that prepares the next step while a step runs. None if the graph does not prepare steps."""
        return None if self.distributed.ahead is None else StepsAhead(self.distributed.ahead, self.session)

    @property
    def examples(self) -> int:
        """The number of examples that all ranks together have consumed."""
        return self.first_example + (self.step - self.first_step) * self.examples_per_step

    def begin(self, *, first_step: int, first_example: int = 0) -> None:
        """Starts counting steps at `first_step`. Raises CheckpointError if checkpoints cannot be saved."""
        self.first_step = self.step = first_step
        self.first_example = first_example
        self.passed, self.throughput = 1, Throughput()
        self._growth.begin(self.session, self.distributed.vocabularies, first_step)
        if self.saver:
            self.saver.start(first_step)
            self.saver.warm_up(self.session)
        if self.deltas:
            self.deltas.begin(self.session)

    def run(
        self,
        fetches: Any,
        feeds: dict[tf.Tensor, Any],
        *,
        started_secs: float,
        is_whole: bool = True,
        options: Any = None,
        run_metadata: Any = None,
    ) -> Any:
        """Runs the next step and returns the values of `fetches`.

        `started_secs` is the time when the step began. Sent bytes are counted only if `is_whole` is true, which means
        that the fetches run all updates. Before this call, the caller must wait until `peers` allows the step. Raises
        TrainingError if a loss ends the run.
        """
        step = self.step + 1
        self._vote(step, feeds)
        told = self._told(step, is_whole=is_whole)
        values, seen = self._run_once([fetches, list(told)], feeds, step, options, run_metadata)
        seen = _Told(*seen)
        self._save_granted = sum(seen.granted) > 0
        loss = float(seen.losses[0]) if seen.losses else math.nan
        is_in_step = self.peers.watch(seen.watched)
        self._judge(step, loss, seen, is_in_step=is_in_step)
        if is_in_step and all(seen.applied):
            last = Last.of(step, len(self.distributed.prefixes), seen.metric_last)
            self.metric_sums = self.metric_sums.plus(Sums.of(seen.metric_sums, last=last))
        before, self.step = self.step, self.peers.next_step(self.step)
        self.passed = passed = self.step - before
        bytes_of_step = seen.sent_bytes[0] if seen.sent_bytes else np.zeros(self.distributed.sent_bytes.shape)
        self.throughput.add(time.perf_counter() - started_secs, bytes_of_step, steps=passed)
        self.control.step = self.step
        self.losses += [loss if is_in_step else None, *[None] * (passed - 1)][:passed]
        return values

    def _vote(self, step: int, feeds: dict[tf.Tensor, Any]) -> None:
        """Adds this rank's vote for a checkpoint to `feeds` if a checkpoint is due."""
        vote = self.distributed.vote
        if vote is not None and self.saver and self.saver.is_due(step):
            feeds[vote] = 1.0

    def _told(self, step: int, *, is_whole: bool) -> _Told:
        """Returns the tensors that the runner fetches in the step."""
        graph = self.distributed
        return _Told(
            watched=self.peers.watched,
            losses=[graph.loss] if self.knows_loss else [],
            sent_bytes=[graph.sent_bytes] if is_whole else [],
            granted=[] if graph.votes is None else [graph.votes],
            applied=[] if graph.applied is None else [graph.applied],
            metric_sums=graph.metric_sums,
            metric_last=graph.metric_last,
            finite=[graph.finite_gradients] if is_whole and self._checks_gradients(step) else [],
        )

    def _judge(self, step: int, loss: float, seen: _Told, *, is_in_step: bool) -> None:
        """Counts a skipped step. Raises TrainingError if the loss, the gradients or too many skipped steps end the
        run."""
        if seen.applied:
            self._count_skipped(step, bool(seen.applied[0]))
            return
        if not is_in_step:
            return
        if seen.losses:
            self._check_loss(step, loss)
        if seen.finite:
            self._check_gradients(step, loss, seen.finite[0])

    def is_profiled(self, step: int) -> bool:
        """Returns whether the step is traced."""
        return self.profiler is not None and self.profiler.wants(step)

    def is_last(self) -> bool:
        """Returns whether training is done: `last_step` is reached, or this rank stops after this step."""
        return (self.last_step is not None and self.step >= self.last_step) or self.peers.is_last(self.step)

    def report_if_due(self, *, will_save: bool = False) -> None:
        """Reports after every `log_every` steps, after the first step and after the last step. If `reports_saves` is
        true, also reports before a checkpoint. `will_save` is true if all ranks know that a checkpoint follows."""
        is_due = self._has_passed(self.log_every) or self.step - self.passed == self.first_step or self.is_last()
        if is_due or (self.reports_saves and (will_save or self._save_granted or self._has_passed(self.save_steps))):
            self.report()

    def _has_passed(self, every_steps: int | None) -> bool:
        """Returns whether the last step reached or passed a multiple of `every_steps`."""
        return every_steps is not None and self.step // every_steps > (self.step - self.passed) // every_steps

    def report(self) -> None:
        """Reports the steps since the last report to the driver."""
        step_secs = self.throughput.step_secs[len(self.throughput.step_secs) - len(self.losses) :]
        observed = self.peers.take_observed()
        self.control.report(
            "progress",
            step=self.step,
            losses=self.losses,
            step_secs=step_secs,
            **observed,
            **self.metric_sums.fields(),
            **self._growth.fields(self.session, self.distributed.vocabularies, self.step),
        )
        self.losses, self.metric_sums = [], NOTHING

    def save_if_due(self, *, is_wanted: bool = False) -> None:
        """Saves a checkpoint if `is_wanted`, or if a checkpoint is due. If saving needs all ranks, a vote by any rank
        makes a checkpoint due. Otherwise, only the chief knows when a checkpoint is due by time. If `reports_saves` is
        true, the chief then waits for the next step that all ranks report. If no checkpoint is due, saves a delta if
        one is due."""
        if not self.saver:
            return
        self.saver.raise_if_failed()
        if self.deltas:
            self.deltas.raise_if_failed()
        if self.distributed.votes is None:
            is_due = self.saver.is_due(self.step, self.passed) and not (self.reports_saves and self.losses)
        else:
            is_due = self._save_granted
        if is_due or is_wanted:
            self._save(self.saver)
        elif self.deltas and self.deltas.is_due(self.step) and self.step != self.last_step:
            self.control.doing = Activity(Kind.SAVING, self.step)
            self.saver.rest()
            self.deltas.save(self.session, step=self.step, examples=self.examples)

    def _save(self, saver: CheckpointSaver | RowWriter) -> None:
        """Saves a checkpoint, to which later deltas belong."""
        self.control.doing = Activity(Kind.SAVING, self.step)
        if self.deltas:
            self.deltas.rest()
        saver.save(self.session, step=self.step, examples=self.examples)
        if self.deltas:
            self.deltas.begin_again(self.session, self.step)

    def pause(self) -> None:
        """Reports all steps so far and waits until no thread is reading the variables, because the plan is about to
        change."""
        if self.losses:
            self.report()
        if self.saver:
            self.saver.rest()

    def go_on_with(self, graph: Graph) -> None:
        """Switches to another graph."""
        self.session, self.distributed = graph.session, graph.distributed
        for of_graph in ("peers", "ahead"):
            self.__dict__.pop(of_graph, None)
        if self.saver:
            self.saver.go_on_with(graph.checkpoints, self.session)

    def end(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Waits until all workers have completed their last step, saves that step, calls `meanwhile`, and waits until
        the checkpoint is written."""
        self.step = self.peers.leave(self.step)
        if self.deltas:
            self.deltas.rest()
        if self.saver:
            self.control.doing = Activity(Kind.SAVING, self.step)
            self.saver.save_last(self.session, step=self.step, examples=self.examples)
        meanwhile()
        if self.saver:
            self.control.doing = Activity(Kind.SAVING, self.step)
            self.saver.finish(self.session, step=self.step, examples=self.examples)

    def give_up(self) -> None:
        """When a run fails, waits for the checkpoint and the delta that are being written."""
        if self.saver:
            self.saver.close()
        if self.deltas:
            self.deltas.close()

    def outcome(self) -> dict[str, Any]:
        """Returns fields for the summary that describe the steps."""
        ckpt_path = None if self.saver is None else str(self.saver.last_prefix)
        return self.throughput.figures() | {"steps": self.step, "ckpt_path": ckpt_path}

    def _run_once(self, fetches: Any, feeds: dict[tf.Tensor, Any], step: int, options: Any, run_metadata: Any) -> Any:
        is_profiled = run_metadata is None and self.is_profiled(step)
        if is_profiled:
            options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
            run_metadata = tf.RunMetadata()
        values = self.session.run(fetches, feeds, options=options, run_metadata=run_metadata)
        if self.ahead is not None:
            self.ahead.finish(run_metadata)
        if is_profiled and self.profiler is not None:
            self.profiler.write(step, run_metadata)
        return values

    def _checks_gradients(self, step: int) -> bool:
        """Returns whether the step also checks its gradients, because a loss can be finite although they are not. Each
        step that is reported does, unless non-finite steps are skipped or allowed."""
        if self.loss_rule is None or self.distributed.applied is not None:
            return False
        return step % self.log_every == 0 or step == self.first_step + 1 or step == self.last_step

    def _check_loss(self, step: int, loss: float) -> None:
        rule = self.loss_rule
        if rule is not None and rule.ends_run(loss):
            raise TrainingError(f"the loss of step {step} is {loss} on rank {self.distributed.rank}{rule.remedy}")

    def _check_gradients(self, step: int, loss: float, finite: np.ndarray) -> None:
        assert self.loss_rule is not None
        wrong = [name for name, is_finite in zip(self.distributed.with_gradients, finite, strict=True) if not is_finite]
        if wrong:
            raise TrainingError(
                f"the gradient of «{wrong[0]}» in step {step} is NaN or infinite on rank {self.distributed.rank}, "
                f"although the loss is {loss:g}{self.loss_rule.remedy}"
            )

    def _count_skipped(self, step: int, applied: bool) -> None:
        if applied:
            self._skipped_in_a_row = 0
            return
        self.skipped += 1
        self._skipped_in_a_row += 1
        if self.distributed.rank == 0:
            self.control.report("skipped", step=step)
        if self._skipped_in_a_row == MAX_SKIPPED_IN_A_ROW:
            raise TrainingError(
                f"the last {MAX_SKIPPED_IN_A_ROW} steps, up to step {step}, were skipped, because their losses or "
                "gradients were NaN or infinite."
            ).about(Setting("train.on_nan", "skip"), remedy="Check the data, or lower the learning rate")
