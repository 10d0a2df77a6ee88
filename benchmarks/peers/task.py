"""Gives peers the configuration, data and progress reports of our runs."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from hydra.utils import instantiate

from benchmarks.compose import compose
from parallax_runner.data.dataset import Dataset

STANDING = "step {step}/{steps}  loss {loss:.4f}  {rate:,.0f} {unit}"


class Task:
    """The training steps of a configuration on one of `size` ranks."""

    def __init__(self, arguments: argparse.Namespace, *, rank: int, size: int) -> None:
        self.config = compose(["tracking=off", "ckpt=off", "data.validation_examples=0", *arguments.overrides])
        self.dataset: Dataset = instantiate(
            {key: self.config.data[key] for key in self.config.data if key != "batch_size"}
        )
        self.rank, self.size = rank, size
        self.steps, self.log_every = arguments.steps, arguments.log_every

    def run(self, step: Callable[[int], Any]) -> None:
        """Calls `step` with each step's number, from 0, and reports progress. `step` returns the loss as a scalar."""
        standings = self.standings()
        for number in range(self.steps):
            standings.tell(number + 1, step(number))

    def standings(self) -> Standings:
        """Returns the reporter of this task's progress."""
        return Standings(self)

    def batch(self, number: int) -> dict[str, np.ndarray]:
        """Returns this rank's examples for step `number`, from 0. They are the same as in our runs."""
        batch_size = self.config.data.batch_size
        return self.dataset.train_batch((number * self.size + self.rank) * batch_size, batch_size)

    @property
    def of_a_step(self) -> int:
        """The number of words, or examples if the data has no words, that all ranks train in a step."""
        return self.config.data.batch_size * self.size * (self.dataset.words_per_example or 1)

    @property
    def unit(self) -> str:
        return "words/s" if self.dataset.words_per_example else "examples/s"


class Standings:
    """Reports steps on rank 0, like the driver of our runs. Speeds are measured since the last report, or since
    construction."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._told_secs, self._told_step = time.perf_counter(), 0

    def tell(self, step: int, loss: Any) -> None:
        """Reports that step `step`, from 1, has ended with the scalar `loss`."""
        task = self._task
        if task.rank != 0 or (step % task.log_every and step != task.steps):
            return
        value, now = float(loss), time.perf_counter()
        rate = (step - self._told_step) * task.of_a_step / (now - self._told_secs)
        self._told_secs, self._told_step = now, step
        print(STANDING.format(step=step, steps=task.steps, loss=value, rate=rate, unit=task.unit), flush=True)
        if step == task.steps:
            facts = {"of_a_step": task.of_a_step, "unit": task.unit, "loss_last": value}
            print(f"finished: {json.dumps(facts)}", flush=True)


def parser(description: str | None) -> argparse.ArgumentParser:
    """Returns a parser of the arguments that every peer accepts."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--steps", type=int, required=True)
    made.add_argument("--log-every", type=int, default=1)
    made.add_argument("overrides", nargs="*", help="Hydra overrides: the model, the data and the optimizer")
    return made


def cluster_parser(description: str | None, *jobs: str) -> argparse.ArgumentParser:
    """Returns a parser for a peer with TensorFlow's own servers."""
    made = parser(description)
    made.add_argument("--job", choices=jobs, required=True)
    made.add_argument("--index", type=int, required=True)
    made.add_argument("--workers", type=lambda text: text.split(","), required=True)
    made.add_argument("--servers", type=lambda text: text.split(","), required=True)
    return made


def leave() -> None:
    """Ends the process immediately. Otherwise, TensorFlow's and Horovod's threads may wait for processes that ended."""
    sys.stdout.flush()
    os._exit(0)
