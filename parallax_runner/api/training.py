"""What a session does around each step: it counts, reports, profiles and saves, and ends with the other workers."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.saver import CheckpointSaver
from parallax_runner.errors import TrainingError
from parallax_runner.profile.record import StepProfiler
from parallax_runner.rewrite.distributed_graph import DistributedGraph
from parallax_runner.train.loop import Control
from parallax_runner.train.peers import Peers
from parallax_runner.train.throughput import Throughput


@dataclass
class Training:
    """The steps of one worker: `step` of them are done, `first_step` by an earlier run.

    `last_step` ends the process after as many steps, None never; `saver` is the chief's; `knows_loss` says whether
    `distributed.loss` is one, and `stops_on_nan` whether it must be a number. `coordinator` stops threads that feed
    queues.
    """

    distributed: DistributedGraph
    tf_session: tf.Session
    control: Control
    profiler: StepProfiler
    first_step: int
    last_step: int | None
    log_every: int
    knows_loss: bool
    stops_on_nan: bool
    saver: CheckpointSaver | None
    coordinator: tf.train.Coordinator = field(default_factory=tf.train.Coordinator)
    step: int = -1
    _losses: list[float | None] = field(default_factory=list)
    _passed: int = 1
    _throughput: Throughput = field(default_factory=Throughput)
    _ckpt_path: str | None = None

    def __post_init__(self) -> None:
        self.step = self.first_step
        self._peers = Peers(self.tf_session, self.distributed, self.control)
        if self.saver:
            self.saver.start(self.step)
            self.saver.warm_up(self.tf_session)

    def run_step(
        self,
        tensors: list[tf.Tensor],
        ops: list[tf.Operation],
        feeds: dict[tf.Tensor, Any],
        options: Any,
        run_metadata: Any,
        *,
        is_whole: bool,
    ) -> list[Any]:
        """The values of `tensors` in one step, which also runs `ops`; `is_whole` where these are all updates.

        Raises SystemExit(0) where no step is left.
        """
        if self.is_last():
            raise SystemExit(0)  # the script goes on, and its run has done what it should
        graph, step = self.distributed, self.step + 1
        if graph.leave is not None:
            # Who does not wait for others cannot know which step is the last; the last one is saved when all have left.
            self._save_if_due(passed=self._passed)
        self._peers.wait_to_start(step)
        told: dict[str, Any] = {"peers": self._peers.watched}
        if self.knows_loss:
            told["loss"] = graph.loss
        if is_whole:
            told["sent_bytes"] = graph.sent_bytes
        is_profiled = self.profiler.wants(step) and run_metadata is None
        if is_profiled:
            run_metadata = tf.RunMetadata()
            options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
        started = time.perf_counter()
        fetches = [tensors, told, ops]
        values, seen, _ = self.tf_session.run(fetches, feeds, options=options, run_metadata=run_metadata)
        is_in_it = self._peers.watch(seen["peers"])
        before, self.step = self.step, self._peers.next_step(self.step)
        self._passed = passed = self.step - before
        sent_bytes = seen.get("sent_bytes", np.zeros(graph.sent_bytes.shape))
        self._throughput.add(time.perf_counter() - started, sent_bytes, steps=passed)
        if is_profiled:
            self.profiler.write(step, run_metadata)
        self.control.step = self.step
        loss = float(seen.get("loss", math.nan)) if is_in_it else None
        # An infinite one may be a script's own way to scale it, with steps that overflow left out.
        if self.knows_loss and self.stops_on_nan and loss is not None and math.isnan(loss):
            raise TrainingError(
                f"the loss of step {self.step} is {loss} on rank {graph.rank}: look at the data, or lower the learning "
                "rate"
            )
        self._losses += [loss, *[None] * (passed - 1)][:passed]
        if self.step // self.log_every > before // self.log_every or before == self.first_step or self.is_last():
            self._report()
        if graph.leave is None:
            self._save_if_due()
        self.control.doing = f"the script, after step {self.step}"
        return list(values)

    def is_last(self) -> bool:
        """Whether no step is left: the other workers end after this one, or `last_step` are done."""
        return self._peers.is_last(self.step) or (self.last_step is not None and self.step >= self.last_step)

    def close(self) -> None:
        """Reports what is not reported yet; the chief saves the last step."""
        if self._losses:
            self._report()
        self._peers.close()
        self.step = self._peers.leave(self.step)
        if self.saver:
            self.control.doing = f"saving step {self.step}"
            self.saver.finish(self.tf_session, step=self.step, examples=0)
            self._ckpt_path = str(self.saver.last_prefix)
        self.coordinator.request_stop()
        self.tf_session.close()

    def give_up(self) -> None:
        """Waits for the checkpoint that is being written, where a run fails."""
        if self.saver:
            self.saver.close()

    def outcome(self) -> dict[str, Any]:
        """What the summary needs to know when all is closed."""
        figures = self._throughput.figures() if self._throughput.step_secs else {}
        return figures | {"steps": self.step, "first_step": self.first_step, "ckpt_path": self._ckpt_path}

    def _save_if_due(self, *, passed: int = 1) -> None:
        if self.saver is None:
            return
        self.saver.raise_if_failed()
        if self.saver.is_due(self.step, passed):
            self.control.doing = f"saving step {self.step}"
            self.saver.save(self.tf_session, step=self.step, examples=0)

    def _report(self) -> None:
        step_secs = self._throughput.step_secs[len(self._throughput.step_secs) - len(self._losses) :]
        observed = self._peers.take_observed()
        self.control.report("progress", step=self.step, losses=self._losses, step_secs=step_secs, **observed)
        self._losses = []
