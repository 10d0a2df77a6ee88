"""A rank of comm=local with a real small graph, in this process alone."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.checkpoint_ops import CheckpointOps
from parallax_runner.checkpoints.saver import CheckpointSaver
from parallax_runner.data.arrays import ArrayDataset
from parallax_runner.data.stream import ShuffledStream
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.launch.control.activity import STARTING, Activity
from parallax_runner.rewrite.passes import rewrite_for_rank
from parallax_runner.train.feed import Feed
from parallax_runner.train.loop import FINITE_LOSSES, Loop
from parallax_runner.train.step_runner import StepRunner
from tests.single.small_models import BATCH, ROWS, WIDTH, captured, planned

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
        self.doing = STARTING
        self.seen_doing: list[Activity] = []
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
        feed: Feed | None = None,
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
        feed = feed or Feed(data or dataset(), BATCH, 0, 1)
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
