"""Code shared by the TensorFlow 1 peers. It builds the model's graph with an optimizer that the peer wraps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf
from hydra.utils import instantiate
from tensorflow.python.ops import gradients_util

from benchmarks.peers.task import Task


class Training(Task):
    """A configuration's data and model for one of `size` ranks."""

    def build(self, wrap: Callable[[Any], Any]) -> dict[str, Any]:
        """Builds the model in the default graph, with `wrap` applied to the optimizer."""
        # Loading our data installs our hook around TensorFlow's gradients. A peer's graph must not use the hook.
        hooked = gradients_util._GradientsHelper
        gradients_util._GradientsHelper = getattr(hooked, "__wrapped__", hooked)
        tf.set_random_seed(self.config.train.seed)
        shape = [self.config.data.batch_size]
        self._features = {
            name: tf.placeholder(feature.dtype, [*shape, *feature.shape], name)
            for name, feature in self.dataset.features.items()
        }
        return instantiate(self.config.model, self._features, wrap(instantiate(self.config.optimizer)))

    def train(self, session: tf.Session, loss: tf.Tensor, train_op: tf.Operation) -> None:
        """Runs all steps on the same examples as our runs."""

        def step(number: int) -> Any:
            feed = {self._features[name]: array for name, array in self.batch(number).items()}
            return session.run([loss, train_op], feed)[0]

        self.run(step)


def session_config() -> tf.ConfigProto:
    """Returns a session configuration with one compute thread, as in our workers."""
    return tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
