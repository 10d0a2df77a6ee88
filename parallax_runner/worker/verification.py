"""`action=verify` in a worker: takes snapshots of all variables while the run trains, and repeats the steps between two
snapshots on one device."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from rich.console import Console

from parallax_runner.launch.control.activity import Activity, Kind
from parallax_runner.train.feed import Feed
from parallax_runner.train.prefetch import Batches
from parallax_runner.train.segment import Segment
from parallax_runner.train.sessions import gpu_limits
from parallax_runner.verify.compare import PART_STEPS, comparison_table
from parallax_runner.verify.prove import Proof
from parallax_runner.worker.rank_run import RankRun


@dataclass
class Verification:
    """Trains `rank` in parts of PART_STEPS steps. After each part, the chief repeats the part on one device and
    compares the variables. Meanwhile, the other ranks wait in their next step."""

    rank: RankRun

    def run(self) -> dict[str, Any]:
        """Returns fields for the summary, including the comparison if all steps were done."""
        loop, total_steps = self.rank.loop, self.rank.config.train.total_steps
        loop.validates = False
        loop.feed = _OneReader(**{entry.name: getattr(loop.feed, entry.name) for entry in dataclasses.fields(Feed)})
        self._feeds = [dataclasses.replace(loop.feed, rank=rank) for rank in range(self.rank.plan.workers)]
        self._order, self._ordered = loop.next_segment, Segment(self.rank.start.step)
        self._compared, self._differs = self.rank.start.step, list[int]()
        self._proof: Proof | None = None
        loop.next_segment = self._next
        with ExitStack() as self._cleanup:
            outcome = loop.run(
                first_step=self.rank.start.step, steps=total_steps, first_example=self.rank.start.examples
            )
            if outcome["steps"] == total_steps:
                self._end_part(total_steps)
        if self._proof is None or outcome["steps"] < total_steps:  # training stopped early, so nothing is proven
            return outcome
        assert self._proof.comparison is not None
        # The table of all variables is printed to this process's log.
        Console(width=140).print(comparison_table(self._proof.comparison))
        return outcome | {"comparison": self._proof.comparison.as_json() | {"differs_in_steps": self._differs}}

    def _next(self, session: tf.Session, step: int, step_secs: list[float]) -> Segment | None:
        """Ends a part and begins the next one. If training has segments, no part crosses a segment boundary."""
        values = self._end_part(step) if step > self.rank.start.step else None
        if self._order is None:
            self._ordered = Segment(None)
        elif step == self._ordered.until:
            ordered = self._order(session, step, step_secs)
            if ordered is None:
                return None
            assert ordered.graph is None, "the plan cannot change during a verification"
            self._ordered, values = ordered, None  # the driver may have changed the learning rate
        self._begin_part(self._snapshot() if values is None else values)
        end = self._ordered.until
        until = step + PART_STEPS if end is None else min(step + PART_STEPS, end)
        return Segment(until, is_last=self._ordered.is_last and until == end)

    def _begin_part(self, values: Mapping[str, np.ndarray]) -> None:
        if self._proof is not None:
            self._proof.begin_part(values)
        elif self.rank.loop.runner.distributed.rank == 0:
            proof = Proof(
                self.rank.single,
                self.rank.plan,
                seed=self.rank.config.train.seed,
                first_step=self.rank.start.step,
                initial=values,
                gpu_options=gpu_limits(self.rank.config, rank=0).options(),
            )
            self._proof = self._cleanup.enter_context(proof)

    def _end_part(self, step: int) -> dict[str, np.ndarray]:
        """Compares the values after `step`, and returns them."""
        values = self._snapshot()
        if self._proof is not None:
            self.rank.loop.runner.control.doing = Activity(Kind.COMPARING)
            size = self.rank.loop.feed.global_batch
            positions = [
                self.rank.start.examples + (number - self.rank.start.step) * size
                for number in range(self._compared, step)
            ]
            batches = ([one for feed in self._feeds for one in feed.train_batches(where)] for where in positions)
            if not self._proof.add(batches, values) and not self._differs:
                self._differs = [self._compared + 1, step]
        self._compared = step
        return values

    def _snapshot(self) -> dict[str, np.ndarray]:
        """Returns all saved variables, or an empty dict on ranks other than the chief. All ranks must call this method
        after the same step."""
        return self.rank.checkpoints.snapshot(self.rank.loop.runner.session)


@dataclass(frozen=True)
class _OneReader(Feed):
    """A feed that shares its dataset with the feeds of other ranks in this process. Only one feed reads at a time."""

    lock: threading.Lock = field(default_factory=threading.Lock)

    def train_batches(self, position: int) -> Batches:
        """Returns a batch for each replica of this worker."""
        with self.lock:
            return super().train_batches(position)
