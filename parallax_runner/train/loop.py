"""The training loop of one rank."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow.compat.v1 as tf

from parallax_runner.rewrite.distributed_graph import DistributedGraph
from parallax_runner.train.checkpoint import CheckpointSaver
from parallax_runner.train.feed import Feed
from parallax_runner.train.throughput import Throughput


class Control(Protocol):
    """What a rank needs of its connection to the driver (launch/client.py)."""

    stop_requested: threading.Event
    last_step: int | None

    def report(self, kind: str, **fields: Any) -> None:
        """Tells the driver something."""

    def announce_last_step(self, step: int) -> None:
        """Lets all ranks end after `step`."""


@dataclass
class Loop:
    """What a rank needs to train. `saver` is the chief's."""

    session: tf.Session
    distributed: DistributedGraph
    feed: Feed
    control: Control
    log_every: int
    saver: CheckpointSaver | None = None

    def run(self, *, first_step: int, steps: int, first_example: int) -> dict[str, Any]:
        """Trains until `steps` steps are done in all, or a stop is asked for; returns what the summary says of it."""
        throughput = Throughput()
        step, position = first_step, first_example
        losses: list[float] = []
        if self.saver:
            self.saver.start(step)
        while step < steps and not self._is_last(step):
            started = time.perf_counter()
            loss, sent_bytes = self._step(position)
            throughput.add(time.perf_counter() - started, sent_bytes)
            step, position = step + 1, position + self.feed.global_batch
            losses.append(loss)
            if step % self.log_every == 0 or step in (first_step + 1, steps) or self._is_last(step):
                recent_secs = sum(throughput.step_secs[-len(losses) :])
                self.control.report("progress", step=step, losses=losses, secs=recent_secs)
                losses = []
            if self.saver and self.saver.is_due(step):
                self.saver.save(self.session, step=step, examples=position)
        ckpt_path = self._last_checkpoint(step, position)
        return throughput.figures() | {"steps": step, "ckpt_path": ckpt_path}

    def _is_last(self, step: int) -> bool:
        """Whether a stop was asked for and `step` is the one after which all ranks agreed to end.

        The chief chooses the step that it begins next: no rank can be beyond it, since every step needs the chief.
        """
        control = self.control
        if self.distributed.rank == 0 and control.stop_requested.is_set() and control.last_step is None:
            control.announce_last_step(step + 1)
        return control.last_step is not None and step >= control.last_step

    def _step(self, position: int) -> tuple[float, float]:
        batch = self.feed.train_batch(position)
        graph = self.distributed
        loss, sent_bytes, _ = self.session.run(
            [graph.loss, graph.sent_bytes, graph.train_op],
            {graph.features[name]: array for name, array in batch.items()},
        )
        return float(loss), float(sent_bytes)

    def _last_checkpoint(self, step: int, position: int) -> str | None:
        if self.saver is None:
            return None
        if step != self.saver.last_step or self.saver.last_prefix is None:
            return str(self.saver.save(self.session, step=step, examples=position))
        return str(self.saver.last_prefix)

    def validate(self) -> tuple[float, int]:
        """Sum of the validation loss over this rank's batches, and their number."""
        total, batches = 0.0, 0
        if self.distributed.validation_loss is None:
            return total, batches
        for batch in self.feed.validation_batches():
            fed = {self.distributed.features[name]: array for name, array in batch.items()}
            total += float(self.session.run(self.distributed.validation_loss, fed))
            batches += 1
        return total, batches
