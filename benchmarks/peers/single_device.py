"""What the peers share with our runs: the model's function, its data and optimizer, and what a run tells of itself."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf
from hydra.utils import instantiate
from tensorflow.python.ops import gradients_util

from benchmarks.compose import compose
from parallax_runner.data.dataset import Dataset

STANDING = "step {step}/{steps}  loss {loss:.4f}  {rate:,.0f} {unit}"


class Training:
    """A configuration's data and model, as one rank of `size` sees them."""

    def __init__(self, arguments: argparse.Namespace, *, rank: int, size: int) -> None:
        self.config = compose(["tracking=off", "ckpt=off", "data.validation_examples=0", *arguments.overrides])
        self.dataset: Dataset = instantiate(
            {key: self.config.data[key] for key in self.config.data if key != "batch_size"}
        )
        self.rank, self.size = rank, size
        self._steps, self._log_every = arguments.steps, arguments.log_every

    def build(self, wrap: Callable[[Any], Any]) -> dict[str, Any]:
        """The model in the default graph, with `wrap` of the optimizer."""
        # To load our data has put our own hook around TensorFlow's gradients; a peer's graph is to be without it.
        hooked = gradients_util._GradientsHelper
        gradients_util._GradientsHelper = getattr(hooked, "__wrapped__", hooked)
        tf.set_random_seed(self.config.train.seed)
        shape = [self.config.data.batch_size]
        self._features = {
            name: tf.placeholder(feature.dtype, [*shape, *feature.shape], name)
            for name, feature in self.dataset.features.items()
        }
        return instantiate(self.config.model, self._features, wrap(instantiate(self.config.optimizer)))

    def run(self, session: tf.Session, loss: tf.Tensor, train_op: tf.Operation) -> None:
        """All steps, on the same examples as our runs; rank 0 tells of them as the driver of ours does."""
        told_secs, told_step = time.perf_counter(), 0
        for step in range(1, self._steps + 1):
            value, _ = session.run([loss, train_op], self._feed(step - 1))
            if self.rank == 0 and (step % self._log_every == 0 or step == self._steps):
                now = time.perf_counter()
                rate = (step - told_step) * self.of_a_step / (now - told_secs)
                told_secs, told_step = now, step
                print(STANDING.format(step=step, steps=self._steps, loss=value, rate=rate, unit=self.unit), flush=True)
        if self.rank == 0:
            facts = {"of_a_step": self.of_a_step, "unit": self.unit, "loss_last": float(value)}
            print(f"finished: {json.dumps(facts)}", flush=True)

    @property
    def of_a_step(self) -> int:
        """Words, or examples where data has none, that all ranks train in a step."""
        return self.config.data.batch_size * self.size * (self.dataset.words_per_example or 1)

    @property
    def unit(self) -> str:
        return "words/s" if self.dataset.words_per_example else "examples/s"

    def _feed(self, number: int) -> dict[tf.Tensor, Any]:
        batch_size = self.config.data.batch_size
        batch = self.dataset.train_batch((number * self.size + self.rank) * batch_size, batch_size)
        return {self._features[name]: array for name, array in batch.items()}


def parser(description: str | None) -> argparse.ArgumentParser:
    """What every peer is told."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--steps", type=int, required=True)
    made.add_argument("--log-every", type=int, default=1)
    made.add_argument("overrides", nargs="*", help="Hydra overrides: the model, the data and the optimizer")
    return made


def session_config() -> tf.ConfigProto:
    """One compute thread, as our workers have."""
    return tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)


def leave() -> None:
    """Ends the process at once: threads of TensorFlow and Horovod may wait for peers that are gone."""
    sys.stdout.flush()
    os._exit(0)
