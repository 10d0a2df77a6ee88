"""A peer with a Keras model and its optimizer under `MultiWorkerMirroredStrategy`, in one process per worker.

`python -m benchmarks.peers.keras_multi_worker --job worker --index 0 --workers HOST:PORT,… --servers … --steps 100`

The loop follows TensorFlow's tutorial "Custom training loop with Keras and MultiWorkerMirroredStrategy". This strategy
has no servers.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

from benchmarks.peers.keras_model import examples, make_model, one_thread
from benchmarks.peers.task import Task, cluster_parser, leave

BARRIER_MILLISECS = 60_000


def main() -> None:
    """Trains one worker."""
    arguments = cluster_parser(__doc__, "worker").parse_args()
    one_thread()
    place = {"cluster": {"worker": arguments.workers}, "task": {"type": "worker", "index": arguments.index}}
    os.environ["TF_CONFIG"] = json.dumps(place)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    task = Task(arguments, rank=arguments.index, size=len(arguments.workers))
    with strategy.scope():
        model = make_model(task)
        optimizer, metric = model.optimizer, tf.keras.metrics.AUC(from_logits=True)
        optimizer.build(model.trainable_variables)
    batches = iter(strategy.distribute_datasets_from_function(lambda _: examples(task)))

    def replica_step(inputs: dict[str, tf.Tensor], labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = model(inputs, training=True)
            loss = model.loss(labels, logits)  # Keras divides the loss by the number of replicas
        gradients = tape.gradient(loss, model.trainable_variables)
        # Sums the gradients over the workers.
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        metric.update_state(labels, logits)
        return loss

    @tf.function
    def training_step(iterator: Any) -> tf.Tensor:
        losses = strategy.run(replica_step, args=next(iterator))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    task.run(lambda _: training_step(batches))
    wait_for_all()
    leave()


def wait_for_all() -> None:
    """Returns when all workers have done their steps. A worker that ends before takes with it what others have yet to
    fetch of its last gradients."""
    # The first worker leads the barrier, and leaves when all have come, perhaps before the others know.
    with contextlib.suppress(tf.errors.OpError):
        context.context().wait_at_barrier("trained", BARRIER_MILLISECS)


if __name__ == "__main__":
    main()
